"""Workers that say nothing or are out of descriptors: what they are given, how that shows, when they are replaced."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.config import load
from proxy.net import worker_pool, worker_process
from proxy.net.listener_manager import ListenerManager
from proxy.net.ticker import Ticker
from proxy.net.worker_pool import WorkerPool
from proxy.net.worker_process import SILENT_AFTER, spawn_worker
from proxy.telemetry.metrics import render
from proxy.telemetry.snapshot import Snapshot, process_counts
from tests.frames import METADATA, request, response
from tests.integration.conftest import free_port
from tests.integration.metrics import sample, unbalanced
from tests.integration.peer import answer_in_order, read_frame, upstream

REFRESH = 2.0
"""Seconds; a worker that is only late has three of them."""

CLIENTS = 30
"""More than are let in at a time from one address, at one connection a second."""


@pytest.fixture(autouse=True)
def _faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "SNAPSHOT_INTERVAL", REFRESH)
    monkeypatch.setattr(worker_pool, "SNAPSHOT_INTERVAL", REFRESH)
    monkeypatch.setattr(worker_process, "KILL_AFTER", 10_000)


class Bench:
    """The main process's half of a sidecar with two workers, inside the test's own loop."""

    def __init__(self, config: Path) -> None:
        self.config = load(config)
        self.workers = WorkerPool(self.config, Ticker())
        self.sidecar = ListenerManager(self.config, self.workers, Ticker())
        self.logs: list[MutableMapping[str, Any]] = []
        self.clients: list[asyncio.StreamWriter] = []

    def pid(self, number: int) -> int:
        return self.workers._workers[number].pid

    def problem(self) -> str | None:
        return self.sidecar.readiness_problem

    async def snapshot(self) -> Snapshot:
        return await self.workers.snapshot()

    async def until(self, condition: Callable[[Snapshot], object]) -> None:
        async with asyncio.timeout(60):
            while not condition(await self.snapshot()):  # noqa: ASYNC110  # a counter has no event to wait for
                await asyncio.sleep(0.01)

    async def silent(self, number: int) -> None:
        """Stop a worker, and wait until it is taken for silent."""
        os.kill(self.pid(number), signal.SIGSTOP)
        await self.until(lambda _: not self.workers._workers[number].is_available)

    async def works(self, count: int) -> None:
        """Connect so many clients, which stay; each has to get an answer."""
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.config.listeners[0].bind.port)
            self.clients.append(writer)
            writer.write(request(METADATA, 1, 1))
            async with asyncio.timeout(60):
                assert await read_frame(reader) == response(1)

    def said(self, event: str) -> list[MutableMapping[str, Any]]:
        return [line for line in self.logs if line["event"] == event]

    async def close(self) -> None:
        for writer in self.clients:
            writer.close()
        self.sidecar.close()
        now = asyncio.Event()
        now.set()
        await self.workers.stop(now)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with upstream(answer_in_order) as peer_port:
        path = tmp_path / "sidecar.yaml"
        path.write_text(
            f"broker.id: 1\nworkers: 2\nadmin: {{bind: '127.0.0.1:{free_port()}'}}\n"
            f"listeners: [{{name: CLIENT, bind: '127.0.0.1:{free_port()}', upstream: '127.0.0.1:{peer_port}'}}]\n"
        )
        running = Bench(path)
        await running.workers.start()
        running.sidecar.start()
        with capture_logs() as running.logs:
            yield running
            await running.close()


@pytest.mark.promise(
    "operations.md",
    "A silent worker gets no connection; one that stays silent is killed, its connections end "
    "(`worker_lost`), and another takes its place.",
)
async def test_a_worker_that_says_nothing_is_given_nothing_until_it_does_or_is_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.silent(1)
    await bench.works(6)

    seen = await bench.snapshot()
    assert seen.workers == {1: 0, 2: 6}
    assert seen.loop_lag >= SILENT_AFTER * REFRESH
    assert [(line["worker"], line["pid"], line["connections"]) for line in bench.said("worker_silent")] == [
        (1, bench.pid(1), 0)
    ]

    os.kill(bench.pid(1), signal.SIGCONT)
    await bench.until(lambda _: bench.workers._workers[1].is_available)
    await bench.works(6)
    assert (await bench.snapshot()).workers == {1: 6, 2: 6}
    assert len(bench.said("worker_silent")) == 1

    os.kill(bench.pid(2), signal.SIGSTOP)
    await bench.silent(1)
    await bench.silent(2)
    assert bench.problem() == "no worker runs"
    working = asyncio.create_task(bench.works(2))
    await asyncio.sleep(0.8)
    assert not working.done()

    os.kill(bench.pid(1), signal.SIGCONT)
    await working
    assert bench.problem() is None
    assert (await bench.snapshot()).workers == {1: 8, 2: 6}

    pid = bench.pid(2)
    monkeypatch.setattr(worker_process, "KILL_AFTER", bench.workers._workers[2].silent_intervals + 2)
    await bench.until(lambda _: bench.said("worker_ended"))
    monkeypatch.setattr(worker_process, "KILL_AFTER", 10_000)
    await bench.until(
        lambda seen: seen.worker_restarts == 1 and all(bench.workers._workers[n].is_available for n in (1, 2))
    )
    assert bench.pid(2) != pid
    (ended,) = bench.said("worker_ended")
    assert ended["connections"] == 6
    assert "has sent nothing for" in str(ended["reason"])
    await bench.works(1)
    seen = await bench.snapshot()
    assert seen.workers == {1: 8, 2: 1}
    assert seen.listener_counters["CLIENT"].closed == {"worker_lost": 6}


@pytest.mark.promise(
    "security.md", "As many connections as have two descriptors each are accepted; the others wait in the kernel."
)
async def test_a_worker_is_given_no_more_than_it_has_descriptors_for_and_a_scrape_has_all_of_a_connection_or_nothing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker in bench.workers._workers.values():
        worker._capacity = 3
    await bench.works(6)
    working = asyncio.create_task(bench.works(2))
    await asyncio.sleep(0.8)
    seen = await bench.snapshot()
    assert not working.done()
    assert seen.workers == {1: 3, 2: 3}
    assert seen.listener_counters["CLIENT"].accepted == 6  # the next one is in the backlog
    assert len(bench.said("workers_out_of_capacity")) == 1

    bench.clients[0].close()
    bench.clients[1].close()
    await working
    seen = await bench.snapshot()
    assert seen.workers == {1: 3, 2: 3}
    assert seen.listener_counters["CLIENT"].closed == {"client_closed": 2}
    for worker in bench.workers._workers.values():
        worker._capacity = 1000

    path = tmp_path / "sidecar.yaml"
    path.write_text(f"{path.read_text()}quotas: {{ips: {{127.0.0.9: {{connection_creation_rate: 1}}}}}}\n")
    bench.sidecar.update_config(load(path), {})

    async def dial() -> None:
        port = bench.config.listeners[0].bind.port
        counters = bench.workers.listener_counters["CLIENT"]
        async with asyncio.timeout(60):
            while not bench.sidecar.admission.waiting_connections:  # a hold may be over before somebody looks
                for _ in range(CLIENTS):
                    _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.9", 0))
                    bench.clients.append(writer)
                while counters.accepted < len(bench.clients):  # noqa: ASYNC110  # a counter has no event
                    await asyncio.sleep(0.001)

    bench.workers._timers[0].cancel()  # it asks them every now and then
    monkeypatch.setattr(bench.workers, "_request_snapshots", lambda: [asyncio.ensure_future(dial())])
    text = render(await bench.sidecar.snapshot()).decode()
    assert sample(text, "brokerside_connections_accepted_total") == len(bench.clients)
    assert sample(text, "brokerside_connections_held") > 0
    assert unbalanced(text) == []


async def test_out_of_descriptors_a_process_still_reports_what_it_counts() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        counts = process_counts()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert counts.max_fds == 3
    assert counts.open_fds >= 3
    assert counts.resident_bytes > 0


def test_a_worker_that_starts_ignores_signals_to_all_processes_of_the_service() -> None:
    worker = spawn_worker()
    try:
        worker.process.send_signal(signal.SIGHUP)
        worker.process.send_signal(signal.SIGUSR2)
        worker.sock.close()  # its end
        assert worker.process.wait(60) >= 0, "not ended by a signal"
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), "the caller's thread gets its signals again"
    finally:
        worker.process.kill()
        worker.process.wait()
        os.close(worker.pidfd)
