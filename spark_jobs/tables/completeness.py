"""The table ``completeness``: which events arrived or were lost, and when the sidecars were alive, by minute. Pure."""

from __future__ import annotations

from itertools import islice
from typing import Any

from spark_jobs.events import DAY_US, MAX_SUM, MINUTE_US
from spark_jobs.partial_rows import Key, PartialRows

MAX_HIDDEN_NAMES = 101
"""Entries of ``hidden_by`` and of ``partly_hidden_by`` that are read of one status; a sidecar sends at most 101."""

MAX_HIDDEN_BY = 300
"""Characters of ``hidden_by``."""

_OF_STATUS = ("started_at", "seen", "emitted", "delivered", "hidden", "partly_hidden")
"""Columns with the value that the status has of this name."""


def add_arrived(rows: PartialRows, envelope: Any, first: int, last: int) -> None:
    """Add the row of a record, or of the part of it with the events from ``first`` to ``last``."""
    rows.add_given(
        "completeness", _key(envelope, envelope.sent_at), envelopes=1, events=last - first + 1, first_seq=first,
        last_seq=last, sidecar_version=envelope.sidecar_version,
    )  # fmt: skip


def add_conflict(rows: PartialRows, envelope: Any) -> None:
    """Add the row of a record with numbers for which another record has other events."""
    rows.add_given("completeness", _key(envelope, envelope.sent_at), conflicts=1)


def add_gap(rows: PartialRows, envelope: Any, event: Any) -> None:
    """Add the row of a gap. It belongs to the boot that lost the events, and has the time of its envelope."""
    first, last = event.lost_first_seq, event.lost_last_seq
    key = _key(envelope, envelope.sent_at, boot_id=event.lost_boot_id, reason=event.reason)
    rows.add_given("completeness", key, lost=_bounded(last - first + 1), lost_first_seq=first, lost_last_seq=last)


def add_status(rows: PartialRows, envelope: Any, event: Any) -> None:
    """Add the row of a status, and one for each principal and topic of which it reports hidden events."""
    at = event.ts
    rows.add_given(
        "completeness",
        _key(envelope, at),
        **{name: getattr(event, name) for name in _OF_STATUS},
        statuses=1,
        last_status=at,
        dropped=sum(map(_bounded, event.dropped.values())),
        waiting=(at, event.waiting + event.queued + event.spooled),
        clock_step_ms=_bounded(abs(event.clock_step_ms)),
        ended=event.last,
        sidecar_version=envelope.sidecar_version,
    )
    for column, counts in (("hidden", event.hidden_by), ("partly_hidden", event.partly_hidden_by)):
        for name, count in islice(counts.items(), MAX_HIDDEN_NAMES):
            key = _key(envelope, at, hidden_by=name[:MAX_HIDDEN_BY])
            rows.add_given("completeness", key, **{column: _bounded(count)})


def _key(
    envelope: Any, at: int, *, boot_id: str | None = None, reason: str | None = None, hidden_by: str | None = None
) -> Key:
    sidecar = (envelope.cluster_id, envelope.broker_id, envelope.boot_id if boot_id is None else boot_id)
    return (at // DAY_US, at - at % MINUTE_US, *sidecar, reason, hidden_by)


def _bounded(count: int) -> int:
    return min(max(count, 0), MAX_SUM)
