"""Merged rows of tables, to compute other tables of; each call states only what matters."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

NOON = datetime(2026, 9, 22, 12)


def after(seconds: float) -> datetime:
    """So long after noon."""
    return NOON + timedelta(seconds=seconds)


def alive(first: float, last: float, *, broker: int = 1, boot: str = "boot", **changes: Any) -> list[dict[str, Any]]:
    """Rows of ``completeness``: a run that began ``first`` seconds after noon, with a status each ten seconds.

    The last of them is of ``last`` seconds after noon. Each counts one event, its own.
    """
    statuses = [after(first + 10 * number) for number in range(1, int((last - first) // 10) + 1)]
    reported: dict[datetime, list[int]] = {}
    for number, at in enumerate(statuses, 1):
        reported.setdefault(at.replace(second=0, microsecond=0), []).append(number)
    return [
        {
            "day": minute.date(), "minute": minute, "cluster_id": "cluster", "broker_id": broker, "boot_id": boot,
            "envelopes": len(numbers), "events": len(numbers), "first_seq": numbers[0], "last_seq": numbers[-1],
            "statuses": len(numbers), "last_status": statuses[numbers[-1] - 1], "started_at": after(first),
            "emitted": numbers[-1], "ended": False, **changes,
        }
        for minute, numbers in reported.items()
    ]  # fmt: skip
