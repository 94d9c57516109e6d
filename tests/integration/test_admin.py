"""The admin endpoint: its HTTP and what bounds a peer, what it returns, and how it reloads."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.config import Config, Endpoint, load
from proxy.core.counters import ListenerCounters
from proxy.fleet.quota_poller import QuotaPollerState
from proxy.limits.model import QuotasState
from proxy.net import http
from proxy.net.admin import AdminEndpoint
from proxy.net.http import AdminRequest, Handler, HttpServer, Response
from proxy.net.listener_manager import ListenerManager
from proxy.net.listening_sockets import bind_listening_socket
from proxy.reload import ConfigFileMonitor, Reloader
from proxy.telemetry.snapshot import Snapshot
from tests.integration.conftest import free_port
from tests.unit.quotas_states import busy


def answers(*of: Any) -> Handler:
    async def answer(request: AdminRequest) -> Response:
        return Response(*of)

    return answer


async def broken(request: AdminRequest) -> Response:
    raise ValueError("what nobody outside needs to know")


GETS = {"/hello": answers(b"hello\n"), "/busy": answers(b"later\n", 503, "text/strange"), "/broken": broken}


@pytest.fixture(autouse=True)
def late_responses(monkeypatch, late_requests):
    monkeypatch.setattr(http, "RESPONSE_TIMEOUT", 60.0)


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    server, port = HttpServer(GETS, {"/change": answers(b"changed\n")}, {"kafka-1.example"}), free_port()
    server.start(bind_listening_socket(Endpoint("127.0.0.1", port), 128))
    try:
        yield port
    finally:
        await server.close()


async def ask(port: int, request: bytes) -> tuple[str, list[str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *headers = head.decode().split("\r\n")
    return status, headers, body


async def to_the_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
    return b""


@pytest.mark.promise("operations.md", "The admin endpoint answers HTTP, and ends each connection with it.")
async def test_a_path_is_answered_and_the_connection_ends():
    host = b" HTTP/1.1\r\nHost: localhost\r\n"
    post = b"POST /change" + host
    large = f"413 {HTTPStatus.REQUEST_ENTITY_TOO_LARGE.phrase}"  # a later Python has another name for it
    text = ["Content-Type: text/plain; charset=utf-8", "Content-Length: 6", "Connection: close"]
    changed = [text[0], "Content-Length: 8", text[2]]
    async with serving() as port:
        for request, expected, headers, body in (
            (b"GET /hello?name=x" + host + b"\r\n", "200 OK", text, b"hello\n"),
            (b"GET /busy HTTP/1.0\r\n\r\n", "503 Service Unavailable", ["Content-Type: text/strange"], b"later\n"),
            (b"HEAD /hello" + host + b"\r\n", "200 OK", text, b""),
            (post + b"\r\n", "200 OK", changed, b"changed\n"),
            (post + b"Content-Length: 0\r\n\r\n", "200 OK", changed, b"changed\n"),
            (post + b"Content-Length: 16384\r\n\r\n" + b"x" * 16_384, "200 OK", changed, b"changed\n"),
            (post + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{ }\r\n0\r\n\r\n", "200 OK", changed, b"changed\n"),
            (b"GET /nothing" + host + b"\r\n", "404 Not Found", [], None),
            (post + b"Content-Length: 16385\r\n\r\n" + b"x" * 16_385, large, [], None),
            (b"GET /broken" + host + b"\r\n", "500 Internal Server Error", [], None),
            (b"hello\r\n\r\n", "400 Bad Request", [], None),
            (b"\x16\x03\x01 \xff\r\n\r\n", "400 Bad Request", [], None),
            (b"GET /hello HTTP/1.1\r\n\r\n", "400 Bad Request", [], None),  # without a host
            (b"GET /" + b"a" * http.MAX_HEADER_SIZE, "431 Request Header Fields Too Large", [], None),
            (b"POST /hello" + host + b"\r\n", "405 Method Not Allowed", ["Allow: GET, HEAD"], None),
            (b"PUT /hello" + host + b"\r\n", "405 Method Not Allowed", ["Allow: GET, HEAD"], None),
            (b"GET /change" + host + b"\r\n", "405 Method Not Allowed", ["Allow: POST"], None),
            (b"HEAD /change" + host + b"\r\n", "405 Method Not Allowed", ["Allow: POST"], b""),
            (b"DELETE /change" + host + b"\r\n", "405 Method Not Allowed", ["Allow: POST"], None),
        ):
            status, found, answer = await ask(port, request)
            assert status == f"HTTP/1.1 {expected}", request[:60]
            assert set(headers) <= set(found), request[:60]
            assert answer == (f"{expected[4:]}\n".encode() if body is None else body), request[:60]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post + b"Content-Length: 2\r\n\r\n{")  # the rest is waited for
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        writer.close()
        chunk = b"1;" + b"x" * 12_000 + b"\r\ny\r\n"  # has one byte, which counts, and an extension, which does not
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post + b"Transfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                while not reader.at_eof():
                    writer.write(chunk)
                    await writer.drain()
        writer.close()


@pytest.mark.promise("security.md", "A web page changes nothing at the admin endpoint, nor reads it.")
async def test_a_web_page_changes_nothing_and_another_name_is_refused():
    """DNS rebinding: a page's own name comes to mean this endpoint's address, so the browser lets the page read it."""
    async with serving() as port:
        for origin in (b"null", b"http://127.0.0.1:9644", b"https://elsewhere.example"):
            request = b"POST /change HTTP/1.1\r\nHost: 127.0.0.1\r\norigin: " + origin + b"\r\n\r\n"
            status, _, body = await ask(port, request)
            assert (status, body) == ("HTTP/1.1 403 Forbidden", b"Forbidden\n"), origin
        for host in (
            *(b"attacker.example", b"attacker.example:9644", b"127.0.0.1.attacker.example", b"localhost.x", b""),
            *(b"[x]:1", b"[::1].attacker.example", b"[::1]attacker.example:9644"),
        ):
            for line in (b"GET /hello", b"POST /change"):
                status, _, body = await ask(port, line + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
                assert (status, body) == ("HTTP/1.1 421 Misdirected Request", b"Misdirected Request\n"), host
        for host in (
            *(b"localhost", b"LocalHost:9644", b"localhost.", b"127.0.0.1", b"127.0.0.1:9644", b"[::1]:9644"),
            *(b"10.1.2.3", b"kafka-1.example", b"Kafka-1.Example.:9644"),
        ):
            status, _, _ = await ask(port, b"GET /hello HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            assert status == "HTTP/1.1 200 OK", host


@pytest.mark.promise("security.md", "Silent peers of the admin endpoint keep no request from its answer.")
async def test_one_connection_too_many_takes_the_place_of_the_oldest_silent_one(
    monkeypatch,
):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    async with serving() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        silent[1][1].write(b"GET /hello ")
        status, _, _ = await ask(port, b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        assert await to_the_end(silent[0][0]) == b""
        silent[1][1].write(b"HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await silent[1][0].read()).endswith(b"hello\n")
        monkeypatch.setattr(http, "HTTP_REQUEST_TIMEOUT", 0.05)  # also without another request, it ends in time
        silent.append(await asyncio.open_connection("127.0.0.1", port))
        silent[-1][1].write(b"GET /hel")
        assert await to_the_end(silent[-1][0]) == b""
        for _, writer in silent:
            writer.close()


@pytest.mark.promise("architecture.md", "A request that is being answered keeps its place at the admin endpoint.")
async def test_what_is_being_answered_keeps_its_place(monkeypatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request):
        asked.set()
        await go_on.wait()
        return Response(b"slow\n")

    monkeypatch.setitem(GETS, "/slow", slow)
    async with serving() as port:
        answer = asyncio.create_task(ask(port, b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        await asked.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await to_the_end(reader) == b""
        writer.close()
        go_on.set()
        assert (await answer)[2] == b"slow\n"


class Gated:
    readiness_problem = None
    degradation = ""

    def quotas_state(self) -> QuotasState:
        return busy()

    async def snapshot(self) -> Snapshot:
        return Snapshot({"CLIENT": ListenerCounters()}, quotas=busy())


class Fleet:
    """Nothing is dropped; ``broker_id_taken``: as a test sets it."""

    registry_dropped = MappingProxyType[str, int]({})
    broker_id_taken = ""


class Served:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()
        self.applied: list[Config] = []
        self.write(max_connections=100)
        self.reloader = Reloader(ConfigFileMonitor(path), load(path), self._apply)
        self.watched = QuotaPollerState()
        self.admin = AdminEndpoint(cast(ListenerManager, Gated()), self.reloader, self.watched, Fleet())

    async def _apply(self, config: Config) -> bool:
        self.applied.append(config)
        return True

    def write(self, max_connections: object, broker_id: int = 1) -> None:
        self.path.write_text(
            f"broker.id: {broker_id}\nadmin: {{bind: '127.0.0.1:{self.port}'}}\n"
            "internal.bootstrap.servers: 127.0.0.1:3\ninternal: {sasl.password: {file: secret}}\n"
            "listeners: [{name: CLIENT, bind: '127.0.0.1:1', upstream: '127.0.0.1:2'}]\n"
            f"quotas: {{max.connections: {max_connections}}}\n"
        )

    async def ask(self, method: str, path: str) -> tuple[int, str]:
        status, _, body = await ask(self.port, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return int(status.split()[1]), body.decode()

    async def json(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        status, body = await self.ask(method, path)
        return status, json.loads(body)

    async def metrics(self) -> dict[str, float]:
        """Samples without labels, or with one, by name and label."""
        _, text = await self.ask("GET", "/metrics")
        return {
            " ".join([sample.name.removeprefix("brokerside_"), *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
async def served(tmp_path, late_requests):
    (tmp_path / "secret").write_text("c4n4ry-hunter2")
    served = Served(tmp_path / "brokerside.yaml")
    served.admin.start(bind_listening_socket(Endpoint("127.0.0.1", served.port), 16))
    yield served
    await served.admin.close()


@pytest.mark.promise("rollout.md", "A sidecar whose audit works in part only is ready, and says what is degraded.")
async def test_readiness_has_a_sentence_for_each_reason(served, monkeypatch):
    found: list[str] = []

    async def find_problems():
        return found

    monkeypatch.setattr(served.admin, "find_problems", find_problems)
    assert await served.ask("GET", "/readyz") == (200, "ok\n")
    monkeypatch.setattr(Gated, "degradation", "the spool cannot be used")
    assert await served.ask("GET", "/readyz") == (200, "degraded: the spool cannot be used\n")
    monkeypatch.setattr(Fleet, "broker_id_taken", "another sidecar at b:9")
    assert await served.ask("GET", "/readyz") == (200, "degraded: the spool cannot be used; another sidecar at b:9\n")
    assert (await served.metrics())["broker_id_taken"] == 1
    monkeypatch.setattr(Fleet, "broker_id_taken", "")
    assert (await served.metrics())["broker_id_taken"] == 0
    found += ["the broker does not answer", "broker.id is 9"]
    said = "the broker does not answer\nbroker.id is 9\ndegraded: the spool cannot be used\n"
    assert await served.ask("GET", "/readyz") == (503, said)
    monkeypatch.setattr(Gated, "readiness_problem", "draining")
    assert await served.ask("GET", "/readyz") == (503, "draining\ndegraded: the spool cannot be used\n")
    assert await served.ask("GET", "/livez") == (200, "ok\n")


@pytest.mark.promise("security.md", "GET /config shows the running configuration, its secrets as ***.")
async def test_the_running_configuration_is_reported_without_secrets(served):
    status, reported = await served.json("GET", "/config")
    assert (status, reported["hash"]) == (200, served.reloader.state.hash)
    assert reported["loaded_at"] == pytest.approx(time.time(), abs=60)
    assert reported["config"]["quotas"]["max.connections"] == 100
    assert reported["config"]["internal"] == {"sasl.password": "***"}
    assert "c4n4ry" not in json.dumps(reported)


@pytest.mark.promise("config.md", "POST /reload reloads the file, and reports what changed or why nothing did.")
async def test_a_reload_reports_what_changed_and_the_new_configuration_runs(served):
    nothing = {"result": "unchanged", "changed": [], "changes": []}
    assert await served.json("POST", "/reload") == (200, nothing)
    _, before = await served.json("GET", "/config")
    served.write(max_connections=200)
    assert (await served.ask("GET", "/reload"))[0] == 405
    assert served.applied == []
    key = "quotas.max.connections"
    applied = {"result": "applied", "changed": [key], "changes": [[key, "100", "200"]]}
    assert await served.json("POST", "/reload") == (200, applied)
    _, after = await served.json("GET", "/config")
    assert [config.quotas.max_connections for config in served.applied] == [200]
    assert (after["config"]["quotas"]["max.connections"], after["hash"] == before["hash"]) == (200, False)

    for max_connections, broker_id, wrong in ((0, 1, key), (200, 2, "broker.id")):
        served.write(max_connections, broker_id)
        status, done = await served.json("POST", "/reload")
        assert (status, done["result"], len(done["errors"])) == (422, "rejected", 1)
        assert wrong in done["errors"][0]
    assert (await served.json("GET", "/config"))[1] == after
    assert len(served.applied) == 1

    served.write(max_connections=300)
    await served.reloader.reload("file")  # as the watch of the file does
    status, done = await served.json("POST", "/reload")
    last = done.pop("last_applied")
    assert (status, done) == (200, nothing)
    assert (last["changed"], last["reason"]) == ([key], "file")
    assert last["at"] == pytest.approx(time.time(), abs=60)

    served.reloader.stop()
    served.write(max_connections=400)
    assert await served.json("POST", "/reload") == (503, {"result": "draining", "changed": [], "changes": []})
    assert len(served.applied) == 2


@pytest.mark.promise("restart.md", "Metrics say how the last reload went, when, and how many had which result.")
async def test_reloads_are_metrics(served):
    found = await served.metrics()
    assert found[f"config_info {served.reloader.state.hash}"] == 1
    assert found["config_last_reload_successful"] == 1
    assert {key: value for key, value in found.items() if key.startswith("config_reloads_total")} == {
        f"config_reloads_total {result}": 0 for result in ("applied", "unchanged", "rejected")
    }
    served.write(max_connections=0)
    await served.ask("POST", "/reload")
    found = await served.metrics()
    assert (found["config_reloads_total rejected"], found["config_last_reload_successful"]) == (1, 0)
    assert found["config_last_reload_success_timestamp_seconds"] == served.reloader.state.loaded_at

    assert found["quota_source_up"] == 0
    assert math.isnan(found["quota_source_last_success_timestamp_seconds"])
    assert found["quota_source_problem"] == 0
    served.watched.ok, served.watched.problem = True, "something is wrong"
    served.watched.last_ok_at = asyncio.get_running_loop().time() - 500
    found = await served.metrics()
    assert (found["quota_source_up"], found["quota_source_problem"]) == (1, 1)
    assert found["quota_source_last_success_timestamp_seconds"] == pytest.approx(time.time() - 500, abs=60)
