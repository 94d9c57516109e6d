"""What becomes of the counts of a worker that has ended."""

from __future__ import annotations

from typing import Any

from proxy.net.worker_process import _without_spool
from proxy.telemetry.snapshot import add_counters


def audit(**counts: Any) -> dict[str, Any]:
    nothing = {
        "emitted": 0, "delivered": 0, "dropped": {}, "spooled": 0, "queued": 0, "queued_bytes": 0, "spool_bytes": 0,
        "spool_problem": "", "problems": {}, "undelivered": {}, "levels": {}, "searched": {},
    }  # fmt: skip
    return {**nothing, **counts}


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
