"""What whoever is_ready connections promises to the one who accepts them: in one process, and with workers."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proxy.compiled.exchange import Exchange
from proxy.config import load
from proxy.core.exchange import ConnectionTransition
from proxy.features.catalog import AUDIT_EVENT_SCHEMA
from proxy.features.view import FeaturesView
from proxy.limits.throttle_reports import AggregatedThrottle
from proxy.net import worker_connections, worker_evictions
from proxy.net.data_plane import AUDIT_OBSERVER, DataPlane
from proxy.net.open_connections import PAGE, number_of
from proxy.net.ticker import Ticker
from proxy.net.worker_pool import WorkerPool
from proxy.telemetry.snapshot import Snapshot
from tests.frames import METADATA, request, response
from tests.integration.conftest import free_port
from tests.integration.peer import Behaviour, Reader, Writer, answer_in_order, read_frame, upstream


class Bench:
    """Who is_ready, and clients given to it by hand."""

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

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110  # a counter has no event to wait for
                await asyncio.sleep(0.005)

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


Run = Callable[..., "asynccontextmanager[AsyncIterator[Bench]]"]


@pytest.fixture(params=[1, 2], ids=["data_plane", "workers"])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def run(tmp_path: Path, workers: int) -> Run:
    """Carry to a peer that behaves as the test says; ``GONE`` is a listener whose upstream nobody can_receive on."""

    @asynccontextmanager
    async def run(behaviour: Behaviour = answer_in_order, observers: str = "") -> AsyncIterator[Bench]:
        async with upstream(behaviour) as port:
            listeners = [("CLIENT", port), ("INTERNAL", port), ("GONE", free_port())]
            path = tmp_path / "sidecar.yaml"
            path.write_text(
                f"broker.id: 1\nworkers: {workers}\ndrain.timeout.ms: 200\n"
                f"internal.bootstrap.servers: 127.0.0.1:1\nobserver.class.names: '{observers}'\n"
                f"admin: {{bind: '127.0.0.1:{free_port()}'}}\nlisteners:\n"
                + "".join(
                    f"- {{name: {name}, bind: '127.0.0.1:{free_port()}', upstream: '127.0.0.1:{to}'}}\n"
                    for name, to in listeners
                )
            )
            bench = Bench(path)
            if isinstance(bench.handler, WorkerPool):
                await bench.handler.start()
            try:
                yield bench
            finally:
                await bench.close()

    return run


REPORT = AggregatedThrottle(
    listener="CLIENT", address="10.0.0.7", scope="ip", quota="connection_creation_rate", action="hold", count=3,
    limit=20, observed=21.5, delay_ms=750, first_at=1.0, last_at=2.0,
)  # fmt: skip


class PrintingObserver:
    def configure(self, configs: object) -> None:
        pass

    def record_exchanges(self, exchanges: Sequence[Exchange], dropped: int) -> None:
        pass

    def record_changes(self, changes: Sequence[ConnectionTransition], dropped: int) -> None:
        for each in changes:
            counts = (each.requests, each.received_bytes, each.sent_bytes)
            os.write(2, f"{each.change} {each.connection.listener} {each.cause} {counts} {each.client_id}\n".encode())

    def record_throttles(self, reports: Sequence[AggregatedThrottle], dropped: int) -> None:
        for each in reports:
            os.write(2, f"throttled {each.listener} {each.address} {each.count}\n".encode())  # a whole line at once

    def close(self, timeout: float) -> None:
        pass


@pytest.mark.promise(
    "architecture.md",
    "Each connection's end is reported once to the limits, whichever side ended it, with one worker or several.",
)
async def test_each_connection_is_reported_once_when_it_opens_and_ends(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """To the limits and to observers, also where a drain ends it right after it came; and so are throttled ones."""
    asked, answered = len(request(METADATA, 1, 1)), len(response(1))

    async def end_on_7(reader: Reader, writer: Writer) -> None:
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
async def test_what_workers_lose_or_cannot_take_is_known(run: Run) -> None:
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
async def test_the_connection_that_was_longest_idle_is_closed(
    run: Run, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
async def test_levels_and_the_log_level_are_those_of_every_process_and_of_those_to_come(
    run: Run, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    async with run(observers=AUDIT_OBSERVER) as bench:
        await bench.seen(lambda snapshot: snapshot.audit.get("levels") == {1: workers})
        for level in (2, 1, 0):
            bench.handler.update_features_view(FeaturesView(levels={AUDIT_EVENT_SCHEMA: level}))
            seen = await bench.seen(lambda seen, level=level: seen.audit.get("levels") == {level: workers})
        assert seen.audit["searched"] == {math.inf: workers}, "there is no spool"
        assert bench.handler.process_ended_at == 0
        if workers == 1:
            await bench.handler.stop(asyncio.Event())  # at once, as in ``close``, would leave its threads
            return
        started = ""
        async with asyncio.timeout(60):
            while started.count('"data_plane_started"') < 2:  # a thread of each process writes its log
                started += capfd.readouterr().err
                await asyncio.sleep(0.02)
        bench.handler.update_config(bench.config.model_copy(update={"log_level": "error"}))
        before = time.monotonic()
        os.kill(bench.handler._workers[1].pid, signal.SIGKILL)
        await bench.seen(lambda seen: seen.worker_restarts and seen.audit.get("levels") == {0: workers})
        assert bench.handler.process_ended_at >= before
        await bench.handler.stop(asyncio.Event())
        said = capfd.readouterr().err
        assert '"level": "info"' not in said, "they say nothing of their start, and of their drain"


@pytest.mark.promise(
    "config/process.md",
    "A reload of `connections.max.idle.ms` and `connections.max.age.ms` closes connections that are open, in "
    "all workers.",
)
async def test_open_connections_are_described_and_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an operator, and by limits that a reload brought."""
    monkeypatch.setattr(worker_connections, "REPLY_TIMEOUT", 60.0)
    async with run() as bench:
        if isinstance(bench.handler, DataPlane):  # workers have their own
            bench.ticker.start()
        numbers = [await bench.dial() for _ in range(PAGE + 3)]
        for number in numbers[:3]:
            assert await bench.works(number)
        assert (await bench.handler.list_connections()).unanswered == []
        found = {number_of(one.id): one for one in (await bench.handler.list_connections()).connections}
        assert sorted(filter(None, found)) == numbers
        one = found[1]
        assert (one.listener, one.client_ip, one.principal, one.state) == (
            "CLIENT", "127.0.0.1", "User:ANONYMOUS", "open",
        )  # fmt: skip
        assert (one.request_count, one.received_bytes) == (1, len(request(METADATA, 1, 1)))
        assert one.sent_bytes == len(response(1))
        assert {connection.worker for connection in found.values()} == set(range(1, bench.config.workers + 1))
        assert found[PAGE].request_count == 0
        assert 0 <= one.idle_duration_ms < 20_000

        first, other = numbers[:2]
        assert bench.handler.close_connection(first, "closed_by_operator")
        assert await bench.has_ended(first)
        await bench.until(lambda: bench.ended == [first])
        assert not bench.handler.close_connection(first, "closed_by_operator")
        assert not bench.handler.close_connection(99, "closed_by_operator")
        assert await bench.works(other)

        bench.handler.update_config(bench.config.model_copy(update={"connections_max_idle_ms": 1000}))
        assert await bench.has_ended(other)
        await bench.until(lambda: len(bench.ended) == len(numbers))
        bench.handler.update_config(bench.config.model_copy(update={"connections_max_age_ms": 1000}))
        old = await bench.dial()
        assert await bench.has_ended(old)
        seen = await bench.seen(lambda it: it.listener_counters["CLIENT"].active == 0)
        closed = seen.listener_counters["CLIENT"].closed
        assert closed == {"closed_by_operator": 1, "connection_max_idle": PAGE + 2, "connection_max_age": 1}
