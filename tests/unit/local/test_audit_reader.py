"""What is made of an audit topic's records, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from observers.event import Envelope
from proxy.local import audit_reader
from tests.spark.envelopes import METADATA, NOON, connection, envelope, event, status


def records(last: Any) -> dict[int, Envelope]:
    """Five events, the status ``last``, and one after it; number 3 was lost."""
    read_totals = [
        envelope([event(METADATA), event(METADATA)]),
        envelope([connection(change="opened", requests=0), connection(requests=2)], first_seq=4),
        envelope([last, event(METADATA)], first_seq=6),
    ]
    return {one.first_seq: one for one in read_totals}


@pytest.mark.promise("README.md", "make demo counts only events that came before the status that it compares with.")
def test_only_what_was_before_the_status_is_counted() -> None:
    found = records(status(emitted=5, dropped={"failed": 1}))
    last = found[6].events[0]
    assert audit_reader._count_missing(found, last) == 0
    reported = audit_reader._count(found, last)
    assert (dict(reported.kinds), reported.requests, reported.lost) == ({"request": 2, "connection": 2}, 2, 1)
    del found[4]
    assert audit_reader._count_missing(found, last) == 2


def test_a_status_counts_once_nothing_waits() -> None:
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"ts": NOON}, False),
        *(({name: 1}, False) for name in ("waiting", "queued", "spooled")),
    ]
    for changes, settled in cases:
        last = status(**{"ts": NOON + 1, "queued": 0, **changes})
        assert (audit_reader._settled_status(envelope([last]), NOON) is not None) == settled, changes
