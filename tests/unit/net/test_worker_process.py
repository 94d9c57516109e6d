"""What becomes of the counts of a worker that has ended."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from typing import Any

import pytest

from proxy.config import Config
from proxy.net.consumer_handover import refuse_consumer
from proxy.net.feature_update_calls import fail_update
from proxy.net.worker_ipc import TakeConnection
from proxy.net.worker_process import SpawnedWorker, WorkerProcess, _without_spool
from proxy.telemetry.snapshot import add_counters


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
        emitted=100,
        delivered=50,
        dropped={"too_large": 10},
        spooled=33,
        queued=7,
        queued_bytes=700,
        spool_bytes=3300,
        spool_problem="full",
        problems={"compacted": "it is"},
        undelivered={1: 30, 2: 10},
        levels={2: 1},
        searched={7.0: 1},
    )
    living = audit(emitted=5, delivered=3, spooled=2, spool_bytes=3500, undelivered={1: 2}, levels={1: 1})
    living["searched"] = {9.0: 1}
    assert add_counters(_without_spool(killed), living) == audit(
        emitted=105,
        delivered=53,
        dropped={"too_large": 10, "worker_lost": 7},
        spooled=2,
        spool_bytes=3500,
        undelivered={1: 2},
        levels={1: 1},
        searched={9.0: 1},
        left=33,
    )


async def test_a_connection_of_a_listener_that_it_never_knew_is_lost_with_it() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220  # it starts at once
    listener = {"name": "CLIENT", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2"}
    closed: list[int] = []
    worker = WorkerProcess(
        1,
        Config.model_validate({"broker.id": 1, "listeners": [listener]}),
        SpawnedWorker(process, os.pidfd_open(process.pid), ours),
        on_capacity=lambda: None,
        on_connection_closed=closed.append,
        on_logins=lambda logins, earlier: None,
        on_feature_update=fail_update,
        on_consumer=refuse_consumer,
        on_exit=lambda worker, unsent: None,
    )
    client, accepted = socket.socketpair()
    worker.send_connection(TakeConnection("NEW", "127.0.0.1", 1, 7), accepted)
    assert worker.last_snapshot().listener_counters["NEW"].active == 1
    worker.kill()
    async with asyncio.timeout(60):
        await worker.exited.wait()
    assert closed == [7]
    lost = worker.last_snapshot().listener_counters["NEW"]
    assert (lost.active, lost.closed) == (0, {"worker_lost": 1})
    client.close()
    theirs.close()
