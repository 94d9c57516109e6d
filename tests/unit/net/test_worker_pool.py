"""How the main process sums up the counters of its workers, and prepares a reload in them; what a worker asks it."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from proxy.config import Config
from proxy.errors import LocalError
from proxy.features.records import FeatureUpdate
from proxy.features.updates import ENDED, ENDING, UpdateRequest, UpdateResult
from proxy.net import worker_pool
from proxy.net.feature_update_calls import FeatureUpdateCalls
from proxy.net.ticker import Ticker
from proxy.net.worker_ipc import (
    ConfigPrepared,
    DiscardConfig,
    FeatureUpdateAnswered,
    FeatureUpdateAsked,
    IpcChannel,
    PrepareConfig,
    StartWorker,
    ToWorker,
    UpdateConfig,
    WorkerReady,
)
from proxy.net.worker_pool import WorkerPool
from proxy.net.worker_process import SpawnedWorker, _without_spool
from proxy.telemetry.snapshot import Snapshot, add_counters

LISTENER = {"name": "CLIENT", "bind": "127.0.0.1:9092", "upstream": "127.0.0.1:19092"}
CONFIG = Config.model_validate({"broker.id": 1, "workers": 2, "listeners": [LISTENER]})
OTHER_OBSERVERS = CONFIG.model_copy(update={"observers": {"observers.audit:AuditObserver": {"key": "value"}}})


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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # messages of another task
            await asyncio.sleep(0.01)


async def test_a_worker_that_becomes_ready_during_a_reload_prepares_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = ScriptedWorkers(monkeypatch)
    workers.hold_ready = {2}
    pool = WorkerPool(CONFIG, Ticker())
    starting = asyncio.create_task(pool.start())
    await until(lambda: workers.seen.keys() == {1, 2})
    preparing = asyncio.create_task(pool.prepare_config(OTHER_OBSERVERS))
    await until(lambda: PrepareConfig in workers.seen[1])
    assert PrepareConfig not in workers.seen[2]
    assert not preparing.done()
    workers.get_ready(2)
    await preparing
    await starting
    assert PrepareConfig in workers.seen[2]
    pool.update_config(OTHER_OBSERVERS)
    await until(lambda: all(UpdateConfig in seen for seen in workers.seen.values()))
    await stop(pool, workers)


@pytest.mark.promise("restart.md", "A reload that one worker cannot prepare is refused by all of them.")
async def test_a_worker_that_cannot_prepare_a_reload_refuses_it_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = ScriptedWorkers(monkeypatch)
    workers.errors = {2: "TLS: Too many open files"}
    pool = WorkerPool(CONFIG, Ticker())
    await pool.start()
    with pytest.raises(LocalError, match="TLS: Too many open files"):
        await pool.prepare_config(OTHER_OBSERVERS)
    await until(lambda: all(DiscardConfig in seen for seen in workers.seen.values()))
    await stop(pool, workers)


async def stop(pool: WorkerPool, workers: ScriptedWorkers) -> None:
    abort = asyncio.Event()
    abort.set()
    await pool.stop(abort)
    workers.close()


# ---- what becomes of the counts of a worker that has ended -----------------------------------------------------------


def audit(**counts: Any) -> dict[str, Any]:
    nothing = {
        "emitted": 0, "delivered": 0, "dropped": {}, "spooled": 0, "queued": 0, "queued_bytes": 0, "spool_bytes": 0,
        "spool_problem": "", "problems": {}, "undelivered": {}, "levels": {}, "searched": {},
    }  # fmt: skip
    return {**nothing, **counts}


@pytest.mark.promise(
    "audit-delivery.md",
    "Events that a killed worker had in memory are counted as dropped with the reason `worker_lost`.",
)
def test_what_it_had_in_memory_is_lost_and_what_it_had_on_disk_is_left() -> None:
    killed = audit(
        emitted=100, delivered=50, dropped={"too_large": 10}, spooled=33, queued=7, queued_bytes=700, spool_bytes=3300,
        spool_problem="full", problems={"compacted": "it is"}, undelivered={1: 30, 2: 10}, levels={2: 1},
        searched={7.0: 1},
    )  # fmt: skip
    living = audit(emitted=5, delivered=3, spooled=2, spool_bytes=3500, undelivered={1: 2}, levels={1: 1})
    living["searched"] = {9.0: 1}
    assert add_counters(_without_spool(killed), living) == audit(
        emitted=105, delivered=53, dropped={"too_large": 10, "worker_lost": 7}, spooled=2, spool_bytes=3500,
        undelivered={1: 2}, levels={1: 1}, searched={9.0: 1}, left=33,
    )  # fmt: skip


# ---- updates of features that clients of a worker ask for ------------------------------------------------------------


@pytest.mark.promise("features.md", "Updates of features that wait at a worker fail once its main process is gone.")
async def test_results_in_any_order_reach_those_who_asked_and_all_fail_once_the_main_process_is_gone() -> None:
    sent: list[FeatureUpdateAsked] = []
    calls = FeatureUpdateCalls(sent.append)
    request = UpdateRequest(2, 1000, (FeatureUpdate("brokerside.quota.ip", 1),))
    tasks = [asyncio.create_task(calls.call(request)) for _ in range(5)]
    await asyncio.sleep(0)
    assert (len({one.request_id for one in sent}), {one.request for one in sent}) == (5, {request})
    calls.on_answered(FeatureUpdateAnswered(77, UpdateResult(0)))  # for which nobody waits
    for one in reversed(sent[:3]):
        calls.on_answered(FeatureUpdateAnswered(one.request_id, UpdateResult(0, str(one.request_id))))
    assert [(await task).message for task in tasks[:3]] == [str(one.request_id) for one in sent[:3]]
    calls.on_main_gone()
    assert [await task for task in tasks[3:]] == [ENDED] * 2
    assert await calls.call(request) == ENDING
    assert len(sent) == 5
