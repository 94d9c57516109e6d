"""Commands that ask a running sidecar: what they print, where, and how they exit."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import yaml

from proxy.config import Endpoint
from proxy.net.http import AdminRequest, HttpServer, Response
from proxy.net.listening_sockets import bind_listening_socket
from proxy.quotas_view import QuotasView, build_view, format_text
from tests.integration.conftest import free_port
from tests.unit.quotas_states import busy, unlimited

pytestmark = pytest.mark.usefixtures("late_requests")


@asynccontextmanager
async def answering(method: str, path: str, answer: Response, port: int | None = None) -> AsyncIterator[str]:
    """An endpoint that gives one answer; its address, with a free port unless given."""

    async def handler(request: AdminRequest) -> Response:
        return answer

    routes, port = {path: handler}, port or free_port()
    server = HttpServer(routes if method == "GET" else {}, routes if method == "POST" else {})
    server.start(bind_listening_socket(Endpoint("127.0.0.1", port), 128))
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.close()


async def brokerside(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=240, check=False, env={"http_proxy": "nowhere"}
    )


def encoded(**answer: object) -> bytes:
    return msgspec.json.encode(answer)


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
async def test_quotas_are_shown_for_a_person_or_a_program(output: str) -> None:
    async with answering("GET", "/quotas", Response(msgspec.json.encode(build_view(busy())))) as admin:
        done = await brokerside("quotas", "--admin", admin, "-o", output)
    assert (done.returncode, done.stderr) == (0, "")
    if output == "table":
        assert done.stdout == format_text(build_view(busy())) + "\n"
    else:
        read = json.loads if output == "json" else yaml.safe_load
        assert read(done.stdout) == json.loads(msgspec.json.encode(build_view(busy())))


def watch_twice(admin: str) -> tuple[list[bytes], int, bytes]:
    """Watch until two answers are printed, then press Ctrl-C; these lines, the exit code, and the errors."""
    command = [sys.executable, "-m", "proxy", "quotas", "--admin", admin, "--watch", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        try:
            lines = [watching.stdout.readline() for _ in range(2)]
        finally:
            watching.send_signal(signal.SIGINT)
        _, stderr = watching.communicate(timeout=240)
    return lines, watching.returncode, stderr


async def test_watching_goes_on_until_ctrl_c() -> None:
    async with answering("GET", "/quotas", Response(msgspec.json.encode(build_view(busy())))) as admin:
        lines, code, stderr = await asyncio.to_thread(watch_twice, admin)
    assert [msgspec.json.decode(line, type=QuotasView) for line in lines] == [build_view(busy())] * 2
    assert (code, stderr) == (130, b"")


async def test_watching_survives_a_sidecar_that_restarts() -> None:
    before, after = (msgspec.json.encode(build_view(state)) for state in (busy(), unlimited("CLIENT")))
    port = free_port()
    command = [sys.executable, "-m", "proxy", "quotas", "--admin", f"127.0.0.1:{port}", "--watch", "-o", "json"]
    async with answering("GET", "/quotas", Response(before), port):
        pipe = asyncio.subprocess.PIPE
        watching = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert await watching.stdout.readline()
    try:
        async with asyncio.timeout(60):
            assert b"no sidecar answers at" in await watching.stderr.readline()
            async with answering("GET", "/quotas", Response(after), port):
                while line := await watching.stdout.readline():
                    if msgspec.json.decode(line) == msgspec.json.decode(after):
                        break
                assert line
    finally:
        watching.send_signal(signal.SIGINT)
        await watching.communicate()
    assert watching.returncode == 130


async def test_watching_what_never_answered_fails() -> None:
    done = await brokerside("quotas", "--watch", "--admin", f"127.0.0.1:{free_port()}")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


async def test_a_reload_says_what_changed() -> None:
    changes = [("quotas.max.connections", "5", "6"), ("log.level", "info", "debug")]
    changed = encoded(result="applied", changed=[key for key, _, _ in changes], changes=changes)
    async with answering("POST", "/reload", Response(changed)) as admin:
        done = await brokerside("reload", "--admin", admin)
    assert (done.returncode, done.stdout) == (
        0,
        "applied:\n  quotas.max.connections: 5 -> 6\n  log.level: info -> debug\n",
    )
    async with answering("POST", "/reload", Response(encoded(result="unchanged", changed=[]))) as admin:
        done = await brokerside("reload", "--admin", admin)
    assert (done.returncode, done.stdout) == (
        0,
        "unchanged: what runs is what the file says; nothing was applied since the sidecar started\n",
    )


async def test_a_reload_after_the_file_watch_says_what_was_applied_and_when() -> None:
    applied = {"changed": ["log.level", "tags.rack"], "at": 1_790_000_000.0, "reason": "file"}
    answer = encoded(result="unchanged", changed=[], last_applied=applied)
    async with answering("POST", "/reload", Response(answer)) as admin:
        done = await brokerside("reload", "--admin", admin)
    said = "last applied, when the file changed (2026-09-21 14:13:20 UTC): log.level, tags.rack"
    assert (done.returncode, done.stdout) == (0, f"unchanged: what runs is what the file says; {said}\n")


async def test_a_rejected_reload_says_every_reason_and_fails() -> None:
    errors = ["quotas.max.connections: 0 is out of range", "broker.id: a change needs a restart"]
    async with answering("POST", "/reload", Response(encoded(result="rejected", errors=errors), 422)) as admin:
        done = await brokerside("reload", "--admin", admin)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "brokerside: rejected, the running configuration stays",
        "  quotas.max.connections: 0 is out of range",
        "  broker.id: a change needs a restart",
    ]


async def test_a_sidecar_that_shuts_down_reloads_nothing() -> None:
    async with answering("POST", "/reload", Response(encoded(result="draining"), 503)) as admin:
        done = await brokerside("reload", "--admin", admin)
    assert (done.returncode, done.stderr) == (1, f"brokerside: the sidecar at {admin} is shutting down\n")


@pytest.mark.parametrize("command", ["quotas", "reload"])
async def test_who_is_no_sidecar_is_reported_in_one_sentence(command: str) -> None:
    nobody = await brokerside(command, "--admin", f"127.0.0.1:{free_port()}")
    async with answering("GET", "/else", Response(b"")) as admin:
        other = await brokerside(command, "--admin", admin)
    method, path = ("GET", "/quotas") if command == "quotas" else ("POST", "/reload")
    async with answering(method, path, Response(b"<html>")) as admin:
        page = await brokerside(command, "--admin", admin)
    for done, part in ((nobody, "no sidecar answers at"), (other, "404"), (page, "not as a sidecar")):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert part in done.stderr


async def test_an_address_that_is_none_is_wrong_usage() -> None:
    assert (await brokerside("quotas", "--admin", "here")).returncode == 2
