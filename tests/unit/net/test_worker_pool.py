"""How the main process sums up the counters of its workers, and prepares a reload in them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from proxy.config import Config, load
from proxy.errors import LocalError
from proxy.net import worker_pool
from proxy.net.ticker import Ticker
from proxy.net.worker_ipc import (
    ConfigPrepared,
    DiscardConfig,
    IpcChannel,
    PrepareConfig,
    StartWorker,
    ToWorker,
    UpdateConfig,
    WorkerReady,
)
from proxy.net.worker_pool import WorkerPool
from proxy.net.worker_process import SpawnedWorker
from proxy.telemetry.snapshot import Snapshot, sum_snapshots

CONFIG = """
broker.id: 1
workers: 2
listeners:
  - name: CLIENT
    bind: 127.0.0.1:9092
    upstream: 127.0.0.1:19092
"""


def written(folder: Path) -> Config:
    path = folder / "sidecar.yaml"
    path.write_text(CONFIG)
    return load(path, {})


async def test_another_thread_sums_up_copies_of_the_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool(written(tmp_path), Ticker())
    live = pool.listener_counters["CLIENT"]
    live.accepted = 3
    threads: list[threading.Thread] = []

    def sum_elsewhere(snapshots: Iterable[Snapshot]) -> Snapshot:
        threads.append(threading.current_thread())
        live.closed["evicted"] += 1  # as the event loop might meanwhile
        return sum_snapshots(snapshots)

    monkeypatch.setattr(worker_pool, "sum_snapshots", sum_elsewhere)
    summed = await pool.snapshot()
    assert threads != [threading.main_thread()]
    assert (summed.listener_counters["CLIENT"].accepted, summed.workers) == (3, {1: 0, 2: 0})
    assert not summed.listener_counters["CLIENT"].closed


class ScriptedWorkers:
    """Workers whose part of the messages is in this process. ``hold_ready``: the numbers of those that are not ready
    until ``get_ready``. ``errors``: of their preparation, by number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hold_ready: set[int] = set()
        self.errors: dict[int, str] = {}
        self.seen: dict[int, list[type]] = {}
        self._channels: dict[int, IpcChannel[ToWorker]] = {}
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(worker_pool, "spawn_worker", self._spawn)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def get_ready(self, number: int) -> None:
        self._channels[number].send(WorkerReady(Snapshot({})))

    def _spawn(self) -> SpawnedWorker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = subprocess.Popen(["sleep", "60"])
        self._loop.call_soon_threadsafe(self._open, theirs)
        return SpawnedWorker(process, os.pidfd_open(process.pid), ours)

    def _open(self, sock: socket.socket) -> None:
        def on_message(message: ToWorker, _: int | None) -> None:
            nonlocal number
            match message:
                case StartWorker():
                    number = message.number
                    self._channels[number], self.seen[number] = channel, []
                    if number not in self.hold_ready:
                        self.get_ready(number)
                case PrepareConfig():
                    channel.send(ConfigPrepared(message.request_id, self.errors.get(number, "")))
            self.seen[number].append(type(message))

        number = 0
        channel: IpcChannel[ToWorker] = IpcChannel(sock, ToWorker, on_message, on_peer_gone=lambda: None)


def with_other_observers(config: Config) -> Config:
    return config.model_copy(update={"observers": {"observers.audit:AuditObserver": {"key": "value"}}})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # messages of another task
            await asyncio.sleep(0.01)


async def test_a_worker_that_becomes_ready_during_a_reload_prepares_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written(tmp_path)
    workers = ScriptedWorkers(monkeypatch)
    workers.hold_ready = {2}
    pool = WorkerPool(config, Ticker())
    starting = asyncio.create_task(pool.start())
    await until(lambda: workers.seen.keys() == {1, 2})
    preparing = asyncio.create_task(pool.prepare_config(with_other_observers(config)))
    await until(lambda: PrepareConfig in workers.seen[1])
    assert PrepareConfig not in workers.seen[2]
    assert not preparing.done()
    workers.get_ready(2)
    await preparing
    await starting
    assert PrepareConfig in workers.seen[2]
    pool.update_config(with_other_observers(config))
    await until(lambda: all(UpdateConfig in seen for seen in workers.seen.values()))
    await stop(pool, workers)


@pytest.mark.promise("restart.md", "A reload that one worker cannot prepare is refused by all of them.")
async def test_one_worker_that_cannot_prepare_a_reload_refuses_it_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written(tmp_path)
    workers = ScriptedWorkers(monkeypatch)
    workers.errors = {2: "TLS: Too many open files"}
    pool = WorkerPool(config, Ticker())
    await pool.start()
    with pytest.raises(LocalError, match="TLS: Too many open files"):
        await pool.prepare_config(with_other_observers(config))
    await until(lambda: all(DiscardConfig in seen for seen in workers.seen.values()))
    await stop(pool, workers)


async def stop(pool: WorkerPool, workers: ScriptedWorkers) -> None:
    abort = asyncio.Event()
    abort.set()
    await pool.stop(abort)
    workers.close()
