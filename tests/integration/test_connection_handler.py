"""Who handles connections, in one process and with workers: what it promises to who accepts them, what its listeners
answer themselves, and workers that say nothing or are out of descriptors."""

import asyncio
import math
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.config import load
from proxy.core.exchange import ConnectionTransition
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED, LevelRange
from proxy.features.records import FeatureUpdate
from proxy.features.updates import FEATURE_UPDATE_FAILED, UpdateRequest, UpdateResult
from proxy.features.view import FeaturesView
from proxy.interceptors import update_features
from proxy.interceptors.broker_metadata import BrokerView, FleetView, decode_response, encode_request
from proxy.interceptors.update_features import UPDATE_FEATURES
from proxy.limits.throttle_reports import AggregatedThrottle
from proxy.net import api_versions_probe, worker_connections, worker_evictions, worker_pool, worker_process
from proxy.net.data_plane import AUDIT_OBSERVER, DataPlane
from proxy.net.feature_update_calls import NO_CONTROLLER
from proxy.net.listener_manager import ListenerManager
from proxy.net.open_connections import PAGE, number_of
from proxy.net.ticker import Ticker
from proxy.net.worker_pool import WorkerPool
from proxy.net.worker_process import SILENT_AFTER, WorkerProcess
from proxy.telemetry.snapshot import Snapshot
from tests.frames import API_VERSIONS, METADATA, request, response
from tests.integration.conftest import free_port
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame, upstream
from tests.integration.sidecars import until_async


class Bench:
    def __init__(self, path: Path) -> None:
        self.config = load(path)
        self.ticker = Ticker()
        self.handler = (
            DataPlane(self.config, self.ticker) if self.config.workers == 1 else WorkerPool(self.config, self.ticker)
        )
        self.ended: list[int] = []
        self.handler.on_connection_closed(self.ended.append)
        self.clients: dict[int, tuple[Reader, Writer]] = {}
        self._server = socket.create_server(("127.0.0.1", 0), backlog=100)

    async def dial(self, listener: str = "CLIENT") -> int:
        """Connect a client and have it carried; returns its number."""
        number = len(self.clients) + 1
        self.clients[number] = await asyncio.open_connection(*self._server.getsockname())
        sock, address = self._server.accept()
        sock.setblocking(False)
        (wanted,) = [each for each in self.config.listeners if each.name == listener]
        self.handler.handle_connection(wanted, sock, address, number)
        return number

    async def works(self, number: int) -> bool:
        reader, writer = self.clients[number]
        writer.write(request(METADATA, 1, number))
        async with asyncio.timeout(60):
            return await read_frame(reader) == response(number)

    async def has_ended(self, number: int) -> bool:
        async with asyncio.timeout(60):
            return await self.clients[number][0].read() == b""

    until = staticmethod(until_async)

    async def seen(self, condition: Callable[[Snapshot], object]) -> Snapshot:
        async with asyncio.timeout(60):
            while not condition(snapshot := await self.handler.snapshot()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return snapshot

    async def stop(self) -> None:
        now = asyncio.Event()
        now.set()
        await self.handler.stop(now)

    async def close(self) -> None:
        await self.stop()
        await asyncio.sleep(0)
        for _, writer in self.clients.values():
            writer.close()
        self._server.close()


def written(folder: Path, workers: int, listeners: Mapping[str, int], more: str = "") -> Path:
    """A configuration. ``listeners``: the port of each one's upstream."""
    path = folder / "sidecar.yaml"
    path.write_text(
        f"broker.id: 1\nworkers: {workers}\nadmin: {{bind: '127.0.0.1:{free_port()}'}}\n{more}listeners:\n"
        + "".join(
            f"- {{name: {name}, bind: '127.0.0.1:{free_port()}', upstream: '127.0.0.1:{to}'}}\n"
            for name, to in listeners.items()
        )
    )
    return path


@asynccontextmanager
async def started(made):
    if isinstance(made.handler, WorkerPool):
        await made.handler.start()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture(params=[1, 2], ids=["data_plane", "workers"])
def workers(request):
    return int(request.param)


@pytest.fixture
def run(tmp_path, workers):
    """Carry to a peer that behaves as the test says; ``GONE`` is a listener whose upstream nobody listens on."""

    @asynccontextmanager
    async def run(behaviour=answer_in_order, observers=""):
        async with upstream(behaviour) as port:
            listeners = {"CLIENT": port, "INTERNAL": port, "GONE": free_port()}
            more = (
                f"drain.timeout.ms: 200\ninternal.bootstrap.servers: 127.0.0.1:1\nobserver.class.names: '{observers}'\n"
            )
            async with started(Bench(written(tmp_path, workers, listeners, more))) as bench:
                yield bench

    return run


REPORT = AggregatedThrottle(
    listener="CLIENT", address="10.0.0.7", scope="ip", quota="connection_creation_rate", action="hold", count=3,
    limit=20, observed=21.5, delay_ms=750, first_at=1.0, last_at=2.0,
)  # fmt: skip


class PrintingObserver:
    def _ignore(self, *given: object) -> None:
        pass

    configure = record_exchanges = close = _ignore

    def record_changes(self, changes: Sequence[ConnectionTransition], dropped: int) -> None:
        for each in changes:
            counts = (each.requests, each.received_bytes, each.sent_bytes)
            os.write(2, f"{each.change} {each.connection.listener} {each.cause} {counts} {each.client_id}\n".encode())

    def record_throttles(self, reports: Sequence[AggregatedThrottle], dropped: int) -> None:
        for each in reports:
            os.write(2, f"throttled {each.listener} {each.address} {each.count}\n".encode())  # a whole line at once


@pytest.mark.promise(
    "architecture.md",
    "Each connection's end is reported once to the limits, whichever side ended it, with one worker or several.",
)
async def test_each_connection_is_reported_once_when_it_opens_and_ends(run, capfd):
    """To the limits and to observers, also where a drain ends it right after it came; and so are throttled ones."""
    asked, answered = len(request(METADATA, 1, 1)), len(response(1))

    async def end_on_7(reader, writer):
        while (frame := await read_frame(reader))[11] != 7:
            writer.write(response(frame[11]))

    async with run(end_on_7, observers=f"{__name__}:PrintingObserver") as bench:
        by_client, by_broker, unreachable, stays = [
            await bench.dial(name) for name in ("CLIENT", "CLIENT", "GONE", "CLIENT")
        ]
        await bench.until(lambda: bench.ended == [unreachable])
        assert await bench.has_ended(unreachable)
        assert await bench.works(by_client)
        bench.clients[by_client][1].write_eof()
        await bench.until(lambda: bench.ended == [unreachable, by_client])
        bench.clients[by_broker][1].write(request(METADATA, 1, 7))
        assert await bench.has_ended(by_broker)
        bench.clients[by_broker][1].close()
        await bench.until(lambda: bench.ended == [unreachable, by_client, by_broker])
        snapshot = await bench.seen(
            lambda seen: sum(counters.active for counters in seen.listener_counters.values()) == 1
        )
        assert snapshot.listener_counters["CLIENT"].closed == {"client_closed": 1, "broker_closed": 1}
        assert snapshot.listener_counters["GONE"].closed == {"upstream_unreachable": 1}
        bench.handler.report_throttles([REPORT, REPORT])
        late = [await bench.dial() for _ in range(3)]
        await bench.handler.stop(asyncio.Event())
        assert bench.ended[:3] == [unreachable, by_client, by_broker]
        assert sorted(bench.ended[3:]) == [stays, *late]
        assert all([await bench.has_ended(number) for number in late])
    reported = capfd.readouterr().err
    expected = {
        "opened CLIENT  (0, 0, 0) None": 6,
        "opened GONE  (0, 0, 0) None": 1,
        f"closed CLIENT client_closed (1, {asked}, {answered}) c": 1,
        f"closed CLIENT broker_closed (1, {asked}, 0) c": 1,
        "closed GONE upstream_unreachable (0, 0, 0) None": 1,
        "throttled CLIENT 10.0.0.7 3": 2,
    }
    assert {line: reported.count(f"{line}\n") for line in expected} == expected
    assert reported.count("closed CLIENT drain_completed (0, 0, 0) None\n") == 4


@pytest.mark.parametrize("workers", [2], indirect=True)
@pytest.mark.promise(
    "architecture.md",
    "What is lost with a worker has ended for the limits, and each end is reported, however many come at once.",
)
async def test_what_workers_lose_or_cannot_take_is_known(run):
    async with run(observers=f"{__name__}:PrintingObserver") as bench:
        numbers = [await bench.dial() for _ in range(6)]
        assert all([await bench.works(number) for number in numbers])
        os.kill(bench.handler._workers[1].pid, signal.SIGKILL)
        await bench.until(lambda: len(bench.ended) == 3)
        assert [await bench.works(number) for number in numbers if number not in bench.ended] == [True] * 3
        assert all([await bench.has_ended(number) for number in bench.ended])

        await bench.until(lambda: [worker.is_available for worker in bench.handler._workers.values()] == [True, True])
        more = [await bench.dial() for _ in range(200)]
        assert all([await bench.works(number) for number in more])
        for _, writer in bench.clients.values():
            writer.transport.abort()
        await bench.until(lambda: len(bench.ended) == 206)
        assert sorted(bench.ended) == [*numbers, *more]
        assert [worker.load[0] for worker in bench.handler._workers.values()] == [0, 0]

        for worker in bench.handler._workers.values():
            os.kill(worker.pid, signal.SIGSTOP)
        await bench.until(lambda: bench.handler.is_full)  # what they said before is read by then
        bench.handler.report_throttles([REPORT, REPORT])
        assert bench.handler.lost_throttle_reports == 2
        number = await bench.dial()
        await bench.stop()
        assert bench.ended[206:] == [number]
        assert await bench.has_ended(number)


@pytest.mark.promise(
    "architecture.md",
    "A protected listener may have the connection of another one closed that was idle longest, of all workers.",
)
async def test_the_connection_that_was_longest_idle_is_closed(run, workers, monkeypatch):
    monkeypatch.setattr(worker_evictions, "REPLY_TIMEOUT", 60.0)  # who answers later closes none
    async with run() as bench:
        other, *numbers = [await bench.dial(name) for name in ("INTERNAL", "CLIENT", "CLIENT", "CLIENT")]
        for number in (other, numbers[2], numbers[0], numbers[1]):
            assert await bench.works(number)
        bench.handler.close_idlest(["CLIENT", "GONE"])
        assert await bench.has_ended(numbers[2])
        await bench.until(lambda: bench.ended == [numbers[2]])
        bench.handler.close_idlest(["CLIENT", "GONE"])  # both at once close two
        bench.handler.close_idlest(["CLIENT", "GONE"])
        bench.handler.close_idlest(["CLIENT", "GONE"])  # nothing is left
        await bench.until(lambda: len(bench.ended) == 3)  # two workers report their ends in any order
        snapshot = await bench.seen(lambda seen: seen.listener_counters["CLIENT"].active == 0)
        assert snapshot.listener_counters["CLIENT"].closed == {"evicted": 3}
        assert await bench.works(other)
        assert sorted(bench.ended) == sorted(numbers)
        if workers == 1:
            return
        monkeypatch.undo()  # a worker that says nothing keeps no other from closing its idlest
        again = {number: await bench.dial() for number in range(4)}
        for number in again.values():
            assert await bench.works(number)
        stopped = bench.handler._workers[1]
        os.kill(stopped.pid, signal.SIGSTOP)
        bench.handler.close_idlest(["CLIENT"])
        await bench.until(lambda: len(bench.ended) == 4)
        os.kill(stopped.pid, signal.SIGCONT)
        assert bench.ended[3] in list(again.values())[:2], "the idlest of the other worker"
        assert all([await bench.works(number) for number in again.values() if number not in bench.ended])


@pytest.mark.promise(
    "audit-delivery.md",
    "The audit of every process follows the finalized levels, also of a worker that replaces another.",
)
async def test_levels_are_those_of_every_process_and_of_those_to_come(run, workers):
    async with run(observers=AUDIT_OBSERVER) as bench:
        await bench.seen(lambda snapshot: snapshot.audit.get("levels") == {1: workers})
        for level in (2, 1, 0):
            bench.handler.update_features_view(FeaturesView(levels={AUDIT_EVENT_SCHEMA: level}))
            seen = await bench.seen(lambda seen, level=level: seen.audit.get("levels") == {level: workers})
        assert seen.audit["searched"] == {math.inf: workers}, "there is no spool"
        assert bench.handler.process_ended_at == 0
        if workers > 1:
            before = time.monotonic()
            os.kill(bench.handler._workers[1].pid, signal.SIGKILL)
            await bench.seen(lambda seen: seen.worker_restarts and seen.audit.get("levels") == {0: workers})
            assert bench.handler.process_ended_at >= before
        await bench.handler.stop(asyncio.Event())  # at once, as in ``close``, would leave threads


@pytest.mark.promise(
    "config/process.md",
    "A reload of `connections.max.idle.ms` and `connections.max.age.ms` closes connections that are open, in "
    "all workers.",
)
@pytest.mark.promise(
    "config/process.md",
    "A client whose first request is not there after `connection.setup.timeout.ms` is closed; one whose "
    "request was may be silent.",
)
async def test_open_connections_are_listed_and_closed(run, monkeypatch):
    monkeypatch.setattr(worker_connections, "REPLY_TIMEOUT", 60.0)
    async with run() as bench:
        if isinstance(bench.handler, DataPlane):  # workers have their own
            bench.ticker.start()
        numbers = [await bench.dial() for _ in range(PAGE + 3)]
        for number in numbers[:3]:
            assert await bench.works(number)
        listed = await bench.handler.list_connections()
        assert (listed.unanswered, sorted(number_of(one.id) for one in listed.connections)) == ([], numbers)
        assert {one.worker for one in listed.connections} == set(range(1, bench.config.workers + 1))

        first, other = numbers[:2]
        assert bench.handler.close_connection(first, "closed_by_operator")
        assert await bench.has_ended(first)
        await bench.until(lambda: bench.ended == [first])
        assert not bench.handler.close_connection(first, "closed_by_operator")
        assert not bench.handler.close_connection(99, "closed_by_operator")
        bench.handler.update_config(bench.config.model_copy(update={"connection_setup_timeout_ms": 100}))
        await bench.until(lambda: len(bench.ended) == PAGE + 1)
        assert await bench.works(other)

        bench.handler.update_config(bench.config.model_copy(update={"connections_max_idle_ms": 1000}))
        assert await bench.has_ended(other)
        await bench.until(lambda: len(bench.ended) == len(numbers))
        bench.handler.update_config(bench.config.model_copy(update={"connections_max_age_ms": 1000}))
        old = await bench.dial()
        assert await bench.has_ended(old)
        seen = await bench.seen(lambda it: it.listener_counters["CLIENT"].active == 0)
        closed = seen.listener_counters["CLIENT"].closed
        assert closed == {
            "closed_by_operator": 1,
            "connection_setup_timeout": PAGE,
            "connection_max_idle": 2,
            "connection_max_age": 1,
        }


BROKER_METADATA = 30000
UPDATE = UpdateRequest(2, 1000, (FeatureUpdate(AUDIT_EVENT_SCHEMA, 2),))


class Broker:
    """Answers ApiVersions with ``apis``, everything that is among them with ``answers`` or nothing, and closes for
    anything else."""

    def __init__(self) -> None:
        self.apis = {METADATA: (0, 12), API_VERSIONS: (0, 4)}
        self.answers: dict[int, bytes] = {}
        self.deaf = False
        self.asked = 0

    async def behave(self, reader: Reader, writer: Writer) -> None:
        while not self.deaf:
            frame = await read_frame(reader)
            key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
            first, last = self.apis.get(key, (0, -1))
            if not first <= version <= last:
                return
            body = self.answers.get(key, b"")
            if key == API_VERSIONS:
                self.asked += 1
                flexible = version >= 3
                entries = (struct.pack(">hhh", key, *found) + b"\0" * flexible for key, found in self.apis.items())
                count = bytes([len(self.apis) + 1]) if flexible else struct.pack(">i", len(self.apis))
                body = b"\0\0" + count + b"".join(entries) + bytes(5) * flexible
            writer.write(response(correlation_id, body))


class Site(Bench):
    broker: Broker

    async def answer(self, frame: bytes) -> bytes:
        """What comes back, or nothing where it is the end, be it a reset: the broker may not have read everything."""
        reader, writer = self.clients[await self.dial()]
        writer.write(frame)
        async with asyncio.timeout(60):
            try:
                return await read_frame(reader)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                return b""
            finally:
                writer.close()

    async def every(self, frame: bytes, answer: Callable[[bytes], bool]) -> None:
        async with asyncio.timeout(60):
            while not all([answer(await self.answer(frame)) for _ in range(4)]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.fixture
def run_site(tmp_path, workers):
    @asynccontextmanager
    async def run_site(*, known=True, features=False):
        broker = Broker()
        if features:
            broker.apis[UPDATE_FEATURES] = (0, 2)
            broker.answers[UPDATE_FEATURES] = b"\0" + update_features.encode_response(UPDATE, UpdateResult(0))
        broker.deaf = not known
        async with (
            upstream(broker.behave) as port,
            started(Site(written(tmp_path, workers, {"CLIENT": port}))) as site,
        ):
            site.broker = broker
            if known:
                await site.every(request(9999, 0, 1), lambda answer: answer == response(1))
            yield site

    return run_site


@pytest.mark.promise(
    "unsupported-requests.md",
    "Each process asks the broker what it supports when it starts, and forwards everything until it knows.",
)
async def test_it_is_asked_at_the_start_and_no_client_is_needed(run_site, workers):
    async with run_site(known=False) as site:
        assert await site.answer(request(9999, 0, 1)) == b"", "the broker itself closes"
        site.broker.deaf = False
        await site.every(request(9999, 0, 1), lambda answer: answer == response(1))
        await site.until(lambda: site.broker.asked >= workers)
        assert site.broker.asked == workers


@pytest.mark.promise(
    "unsupported-requests.md", "Versions that a client has just received in ApiVersions are supported at once."
)
@pytest.mark.promise("unsupported-requests.md", "A broker that has ended a connection is asked again what it supports.")
@pytest.mark.promise(
    "unsupported-requests.md", "An old answer of what the broker supports is asked for again when a client connects."
)
@pytest.mark.parametrize("workers", [1], indirect=True)
async def test_what_the_broker_supports_is_learned_again(run_site, monkeypatch):
    monkeypatch.setattr(api_versions_probe, "MIN_PROBE_INTERVAL", 0.0)

    async def forwarded():
        (counters,) = site.handler.listener_counters.values()
        count = counters.intercepted[METADATA, "replied"]
        await site.answer(request(METADATA, 13, 1))
        return bool(counters.intercepted[METADATA, "replied"] == count)

    async def becomes(expected):
        async with asyncio.timeout(60):
            while await forwarded() != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    with capture_logs() as lines:
        async with run_site() as site:
            assert not await forwarded()
            site.broker.apis[METADATA] = (0, 13)
            assert len(await site.answer(request(API_VERSIONS, 0, 1))) == 14 + 3 * 6
            assert await forwarded()
            site.broker.apis[METADATA] = (0, 12)
            await becomes(False)  # it closes the connection of who asks it
            site.broker.apis[METADATA] = (0, 13)
            monkeypatch.setattr(api_versions_probe, "MAX_ANSWER_AGE", 0.0)
            await becomes(True)
    changes = [line["changed"] for line in lines if line["event"] == "upstream_versions_changed"]
    assert changes == [["Metadata"]] * 3
    assert "upstream_versions_known" in {line["event"] for line in lines}


def update_request(correlation_id: int) -> bytes:
    return request(UPDATE_FEATURES, 2, correlation_id, b"\0" + update_features.encode_request(UPDATE))


def update_response(correlation_id: int, result: UpdateResult) -> bytes:
    return response(correlation_id, b"\0" + update_features.encode_response(UPDATE, result))


@pytest.mark.promise(
    "unsupported-requests.md",
    "`unsupported.request.response` may change while the sidecar runs, for all of its processes.",
)
@pytest.mark.promise(
    "architecture.md",
    "Every worker process, and each that replaces a dead one, knows the brokers and sidecars of the fleet.",
)
@pytest.mark.promise(
    "features.md", "Every worker process shows the fleet's features, and updates of its clients reach the controller."
)
async def test_what_changes_is_passed_to_all_processes_and_to_those_to_come(run_site):
    asked: list[UpdateRequest] = []
    of_brokers = request(BROKER_METADATA, 0, 5, encode_request([-1]))
    of_features = request(API_VERSIONS, 3, 1, b"\0\2a\2b\0")

    async def update(request):
        asked.append(request)
        return UpdateResult(FEATURE_UPDATE_FAILED, "not now")

    def has_brokers(answer):
        if not (found := decode_response(answer[8:])):
            return False
        assert (found[0].host, found[0].port, found[0].protocol_max, found[0].tags) == ("h", 9092, 4, {"a": "b"})
        return True

    async def all_know():
        await site.every(of_brokers, has_brokers)
        await site.every(of_features, lambda answer: answer.count(AUDIT_EVENT_SCHEMA.encode()) == 2)
        await site.every(request(9999, 0, 1), lambda answer: answer == b"")

    async with run_site(features=True) as site:
        assert decode_response((await site.answer(of_brokers))[8:]) == []
        assert AUDIT_EVENT_SCHEMA.encode() not in await site.answer(of_features)
        broker_s = b"\0" + update_features.encode_response(UPDATE, UpdateResult(0))
        assert await site.answer(update_request(1)) == response(1, broker_s), "without features it is forwarded"
        site.handler.update_fleet_view(FleetView(1, (BrokerView(1, {"client": ("h", 9092)}, 3, 4, {"a": "b"}),)))
        site.handler.update_features_view(FeaturesView(SUPPORTED, {AUDIT_EVENT_SCHEMA: LevelRange(1, 1)}, 4))
        listeners = tuple(
            one.model_copy(update={"unsupported_request_response": "close"}) for one in site.config.listeners
        )
        site.handler.update_config(site.config.model_copy(update={"listeners": listeners}))
        await all_know()
        assert (await site.handler.snapshot()).listener_counters["CLIENT"].closed["unsupported_request"] >= 4
        answer = await site.answer(update_request(2))
        assert answer == update_response(2, NO_CONTROLLER), "there is nobody to ask yet"
        site.handler.on_feature_update(update)
        for number in range(3, 7):
            expected = update_response(number, UpdateResult(FEATURE_UPDATE_FAILED, "not now"))
            assert await site.answer(update_request(number)) == expected
        assert [one.updates for one in asked] == [UPDATE.updates] * 4
        assert {(one.principal, one.client_ip, one.listener) for one in asked} == {
            ("User:ANONYMOUS", "127.0.0.1", "CLIENT")
        }
        if isinstance(site.handler, WorkerPool):
            os.kill(site.handler._workers[1].pid, signal.SIGKILL)
            await site.seen(
                lambda seen: seen.worker_restarts == 1 and all(w.is_available for w in site.handler._workers.values())
            )
            await all_know()
            assert await site.answer(update_request(7)) == update_response(7, UpdateResult(96, "not now"))


REFRESH = 2.0
"""Seconds; a worker that is only late has three of them."""


class PoolBench(Bench):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        assert isinstance(self.handler, WorkerPool)
        self.workers = self.handler
        self.sidecar = ListenerManager(self.config, self.workers, Ticker())
        self.logs: list[MutableMapping[str, Any]] = []
        self.writers: list[Writer] = []

    def worker(self, number: int) -> WorkerProcess:
        return self.workers._workers[number]

    async def silent(self, number: int) -> None:
        os.kill(self.worker(number).pid, signal.SIGSTOP)
        await self.until(lambda: not self.worker(number).is_available)

    async def serves(self, count: int) -> None:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.config.listeners[0].bind.port)
            self.writers.append(writer)
            writer.write(request(METADATA, 1, 1))
            async with asyncio.timeout(60):
                assert await read_frame(reader) == response(1)

    def said(self, event: str) -> list[MutableMapping[str, Any]]:
        return [line for line in self.logs if line["event"] == event]

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.sidecar.close()
        await super().close()


@pytest.fixture
async def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "SNAPSHOT_INTERVAL", REFRESH)
    monkeypatch.setattr(worker_pool, "SNAPSHOT_INTERVAL", REFRESH)
    monkeypatch.setattr(worker_process, "KILL_AFTER", 10_000)
    async with (
        upstream(answer_in_order) as port,
        started(PoolBench(written(tmp_path, 2, {"CLIENT": port}))) as running,
    ):
        running.sidecar.start()
        with capture_logs() as running.logs:
            yield running


@pytest.mark.promise(
    "operations.md",
    "A silent worker gets no connection; one that stays silent is killed, its connections end "
    "(`worker_lost`), and another takes its place.",
)
@pytest.mark.promise("restart.md", "A worker that ends is replaced, and new connections wait while there is none.")
async def test_a_worker_that_says_nothing_is_given_nothing_until_it_does_or_is_replaced(bench, monkeypatch):
    await bench.silent(1)
    await bench.serves(6)

    seen = await bench.workers.snapshot()
    assert seen.workers == {1: 0, 2: 6}
    assert seen.loop_lag >= SILENT_AFTER * REFRESH
    assert [(line["worker"], line["pid"], line["connections"]) for line in bench.said("worker_silent")] == [
        (1, bench.worker(1).pid, 0)
    ]

    os.kill(bench.worker(1).pid, signal.SIGCONT)
    await bench.until(lambda: bench.worker(1).is_available)
    await bench.serves(6)
    assert (await bench.workers.snapshot()).workers == {1: 6, 2: 6}
    assert len(bench.said("worker_silent")) == 1

    os.kill(bench.worker(2).pid, signal.SIGSTOP)
    await bench.silent(1)
    await bench.silent(2)
    assert bench.sidecar.readiness_problem == "no worker runs"
    working = asyncio.create_task(bench.serves(2))
    await asyncio.sleep(0.8)
    assert not working.done()

    os.kill(bench.worker(1).pid, signal.SIGCONT)
    await working
    assert bench.sidecar.readiness_problem is None
    assert (await bench.workers.snapshot()).workers == {1: 8, 2: 6}

    pid = bench.worker(2).pid
    monkeypatch.setattr(worker_process, "KILL_AFTER", bench.worker(2).silent_intervals + 2)
    await bench.until(lambda: bench.said("worker_ended"))
    monkeypatch.setattr(worker_process, "KILL_AFTER", 10_000)
    await bench.seen(lambda seen: seen.worker_restarts == 1 and all(bench.worker(n).is_available for n in (1, 2)))
    assert bench.worker(2).pid != pid
    (ended,) = bench.said("worker_ended")
    assert ended["connections"] == 6
    assert "has sent nothing for" in str(ended["reason"])
    await bench.serves(1)
    seen = await bench.workers.snapshot()
    assert seen.workers == {1: 8, 2: 1}
    assert seen.listener_counters["CLIENT"].closed == {"worker_lost": 6}

    for number in (1, 2):
        os.kill(bench.worker(number).pid, signal.SIGKILL)
    await bench.until(lambda: len(bench.said("worker_ended")) == 3)
    await bench.serves(2)
    seen = await bench.seen(lambda seen: seen.worker_restarts == 3)
    assert sum(seen.workers.values()) == 2
    assert seen.listener_counters["CLIENT"].closed == {"worker_lost": 15}


@pytest.mark.promise(
    "security.md", "As many connections as have two descriptors each are accepted; the others wait in the kernel."
)
async def test_a_worker_is_given_no_more_than_it_has_descriptors_for(bench):
    for worker in bench.workers._workers.values():
        worker._capacity = 3
    await bench.serves(6)
    working = asyncio.create_task(bench.serves(2))
    await asyncio.sleep(0.8)
    seen = await bench.workers.snapshot()
    assert not working.done()
    assert seen.workers == {1: 3, 2: 3}
    assert seen.listener_counters["CLIENT"].accepted == 6  # the next one is in the backlog
    assert len(bench.said("workers_out_of_capacity")) == 1

    bench.writers[0].close()
    bench.writers[1].close()
    await working
    seen = await bench.workers.snapshot()
    assert seen.workers == {1: 3, 2: 3}
    assert seen.listener_counters["CLIENT"].closed == {"client_closed": 2}
