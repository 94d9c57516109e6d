"""How the main process sums up the counters of its workers."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from proxy.config import load
from proxy.net import worker_pool
from proxy.net.ticker import Ticker
from proxy.net.worker_pool import WorkerPool
from proxy.telemetry.snapshot import Snapshot, sum_snapshots

CONFIG = """
broker.id: 1
workers: 2
listeners:
  - name: CLIENT
    bind: 127.0.0.1:9092
    upstream: 127.0.0.1:19092
"""


async def test_another_thread_sums_up_copies_of_the_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text(CONFIG)
    pool = WorkerPool(load(path, {}), Ticker())
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
