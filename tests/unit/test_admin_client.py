"""Commands that ask a running sidecar, and the answer of ``/quotas``: what a person sees, and how they exit."""

import asyncio
import json
import re
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from proxy.config import Endpoint, load
from proxy.limits.model import QuotasState
from proxy.net.http import AdminRequest, HttpServer, Response
from proxy.net.listening_sockets import bind_listening_socket
from proxy.quotas_view import build_view, format_text
from tests.integration.conftest import free_port
from tests.unit.quotas_states import RATE, busy, unlimited
from tests.unit.terminal import Done, Terminal, brokerside

__all__ = ["brokerside"]

pytestmark = pytest.mark.usefixtures("late_requests")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment is not asked for a sidecar."""
    monkeypatch.setenv("http_proxy", "nowhere")


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


async def asked(brokerside: Terminal, command: str, answer: Response, *more: str) -> Done:
    method, path = ("GET", "/quotas") if command == "quotas" else ("POST", "/reload")
    async with answering(method, path, answer) as admin:
        return await asyncio.to_thread(brokerside, command, "--admin", admin, *more)


@pytest.mark.promise("commands.md", "Commands answer with a table for people, or JSON and YAML for programs.")
async def test_quotas_are_shown_for_a_person_or_a_program(brokerside: Terminal) -> None:
    view = msgspec.json.encode(build_view(busy()))
    reads: dict[str, Callable[[str], object]] = {"json": json.loads, "yaml": yaml.safe_load}
    for output, read in reads.items():
        done = await asked(brokerside, "quotas", Response(view), "-o", output)
        assert (done.code, done.err, read(done.out)) == (0, "", json.loads(view)), output
    done = await asked(brokerside, "quotas", Response(view), "-o", "table")
    assert (done.code, done.err, done.out) == (0, "", format_text(build_view(busy())) + "\n")


@pytest.mark.promise("commands.md", "A command that watches goes on while the sidecar restarts, until Ctrl-C.")
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


@pytest.mark.promise("restart.md", "brokerside reload says what was applied, and when, or why the file was rejected.")
async def test_a_reload_says_what_changed_or_why_not(brokerside: Terminal) -> None:
    async def reload(status: int = 200, **answer: object) -> tuple[int, str, str]:
        done = await asked(brokerside, "reload", Response(msgspec.json.encode(answer), status))
        return done.code, done.out, done.err

    changes = [("quotas.max.connections", "5", "6"), ("log.level", "info", "debug")]
    said = "applied:\n  quotas.max.connections: 5 -> 6\n  log.level: info -> debug\n"
    keys = [key for key, _, _ in changes]
    assert await reload(result="applied", changed=keys, changes=changes) == (0, said, "")
    said = "unchanged: what runs is what the file says; nothing was applied since the sidecar started\n"
    assert await reload(result="unchanged", changed=[]) == (0, said, "")
    applied = {"changed": ["log.level", "tags.rack"], "at": 1_790_000_000.0, "reason": "file"}
    said = "last applied, when the file changed (2026-09-21 14:13:20 UTC): log.level, tags.rack"
    assert await reload(result="unchanged", changed=[], last_applied=applied) == (
        0,
        f"unchanged: what runs is what the file says; {said}\n",
        "",
    )
    errors = ["quotas.max.connections: 0 is out of range", "broker.id: a change needs a restart"]
    code, out, err = await reload(422, result="rejected", errors=errors)
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "brokerside: rejected, the running configuration stays",
        *(f"  {error}" for error in errors),
    ]
    code, _, err = await reload(503, result="draining")
    assert (code, err.endswith(" is shutting down\n")) == (1, True)


@pytest.mark.promise("commands.md", "A command says in one sentence that no sidecar answers, or something else.")
async def test_who_is_no_sidecar_is_reported_in_one_sentence(brokerside: Terminal) -> None:
    for command in (["quotas"], ["reload"], ["quotas", "--watch"]):
        nobody = await asyncio.to_thread(brokerside, *command, "--admin", f"127.0.0.1:{free_port()}")
        async with answering("GET", "/else", Response(b"")) as admin:
            other = await asyncio.to_thread(brokerside, *command, "--admin", admin)
        page = await asked(brokerside, command[0], Response(b"<html>"))
        for done, part in ((nobody, "no sidecar answers at"), (other, "404"), (page, "not as a sidecar")):
            assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), command
            assert part in done.err
    assert brokerside("quotas", "--admin", "here").code == 2


def answer(state: QuotasState) -> dict[str, Any]:
    answered: dict[str, Any] = json.loads(msgspec.json.encode(build_view(state)))
    return answered


@pytest.mark.promise(
    "limits-operation.md",
    "`GET /quotas` has the limits, throttled connections, addresses and principals, with `null` for what is "
    "not limited.",
)
def test_what_is_not_limited_or_not_measured_is_null() -> None:
    limits = answer(busy())["limits"]
    assert limits[0] == {
        "scope": "broker",
        "listener": "",
        "quota": RATE,
        "limit": 200,
        "action": "enforce",
        "used": 187.25,
    }
    assert [(one["limit"], one["used"]) for one in limits[3:]] == [
        (None, 1200),
        (None, 1.5),
        (None, 34),
        (20, None),
        (500, None),
        (10, None),
        (100, None),
    ]
    addresses = answer(busy())["addresses"]
    assert [(one["rate"], one["rate_limit"]) for one in addresses] == [(22.9, 20), (None, None)]
    principals = answer(busy())["principals"]
    assert [(one["principal"], one["rate"], one["rate_limit"]) for one in principals] == [
        ("User:alice", 10.4, 10),
        ("User:bob", None, None),
    ]


@pytest.mark.promise(
    "limits-operation.md", "A problem with the cluster's quotas is the last line of `brokerside quotas`."
)
def test_a_problem_with_the_cluster_s_quotas_is_the_last_line() -> None:
    assert build_view(busy()).problem is None
    assert format_text(build_view(busy(), "something is wrong")).splitlines()[-2:] == [
        "",
        "problem: something is wrong",
    ]


ROOT = Path(__file__).parents[2]
LIMITS = "".join(page.read_text() for page in sorted((ROOT / "docs").glob("limits*.md")))
README = (ROOT / "README.md").read_text()

EXAMPLES = [
    textwrap.dedent(example)
    for page in (LIMITS, README)
    for example in re.findall(r"^ *```yaml\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
]

REST = {
    "broker.id": "broker.id: 1\n",
    "internal.bootstrap.servers": "internal.bootstrap.servers: 127.0.0.1:19094\n",
    "listeners": "listeners: [{name: CLIENT, bind: '127.0.0.2:9092', upstream: '127.0.0.1:19092'}]\n",
}


@pytest.mark.promise("limits.md", "The examples of configurations on this page can be copied.")
def test_examples_of_configurations_are_right(tmp_path: Path) -> None:
    for example in EXAMPLES:
        path = tmp_path / "brokerside.yaml"
        path.write_text(
            "".join(line for key, line in REST.items() if not re.search(f"^{key}:", example, re.M)) + example
        )
        load(path, environ={})


@pytest.mark.promise("limits-operation.md", "`brokerside quotas` prints what this page shows.")
def test_what_a_person_sees_is_as_shown() -> None:
    shown = [
        line.split() for line in format_text(build_view(busy())).splitlines() if not line.startswith("REPLICATION")
    ]
    (block,) = re.findall(r"^```\n(LIMIT OF.*?)^```$", LIMITS, re.DOTALL | re.MULTILINE)
    assert [line.split() for line in block.splitlines()] == shown
