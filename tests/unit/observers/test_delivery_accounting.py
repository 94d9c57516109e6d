from collections.abc import Mapping

import pytest

from observers.delivery_accounting import DeliveryAccounting, DeliveryCounts, Gap
from observers.event_blocks import Chunk


def chunk(first: int, count: int) -> Chunk:
    return Chunk(first, count, b"{}")


def given(accounting: DeliveryAccounting, *chunks: Chunk, last: int, lost: Mapping[str, int] | None = None) -> None:
    accounting.record_numbered(chunks, last, lost or {}, last, 0, level=1)


def balanced(counts: DeliveryCounts) -> bool:
    assert sum(counts.undelivered.values()) == counts.spooled + counts.queued
    return counts.emitted == counts.delivered + counts.lost + counts.spooled + counts.queued


def gap(reason: str, first: int, last: int, boot: str = "me") -> Gap:
    return Gap(reason, boot, first, last)


@pytest.mark.promise("audit-delivery.md", "Every number is delivered, on disk, in memory, or lost for a reason.")
def test_numbers_without_an_event_are_lost_for_the_reasons_given_in_their_order() -> None:
    accounting = DeliveryAccounting("me")
    given(accounting, chunk(4, 2), chunk(8, 1), last=10, lost={"observer_queue": 3, "failed": 3, "too_large": 1})
    counts = accounting.counts()
    assert (counts.emitted, counts.queued) == (10, 3)
    assert counts.dropped == {"observer_queue": 3, "failed": 3, "too_large": 1}
    accounting.record_stored(4, 5)
    assert accounting.drain_gaps() == [gap("observer_queue", 1, 3)]
    accounting.record_stored(8, 8)
    assert accounting.drain_gaps() == [gap("failed", 6, 7)]
    given(accounting, chunk(11, 1), last=11)
    accounting.record_stored(11, 11)
    assert accounting.drain_gaps() == [gap("failed", 9, 9), gap("too_large", 10, 10)]
    assert balanced(accounting.counts())


@pytest.mark.promise("audit-delivery.md", "A loss that nothing kept follows is named by a `gap` event at the end.")
def test_at_the_end_gaps_that_might_have_grown_are_reported() -> None:
    accounting = DeliveryAccounting("me")
    given(accounting, chunk(1, 1), last=3, lost={"failed": 2})
    accounting.record_stored(1, 1)
    assert accounting.drain_gaps() == []
    assert accounting.drain_gaps(ending=True) == [gap("failed", 2, 3)]
    assert accounting.drain_gaps(ending=True) == []


def test_a_gap_is_reported_once_its_event_is_kept_and_reported_again_if_that_is_lost() -> None:
    accounting = DeliveryAccounting("me")
    other = gap("killed", 5, 9, "other")
    accounting.add_gap(other)
    assert accounting.drain_gaps() == [other]
    given(accounting, chunk(1, 1), last=1)
    assert accounting.drain_reported_gaps() == []
    accounting.record_lost("spool_full", 1, 1, level=1, spooled=False)
    assert accounting.drain_gaps() == [other]
    given(accounting, chunk(2, 1), last=2)
    accounting.record_stored(2, 2)
    assert accounting.drain_reported_gaps() == [other]
    assert accounting.drain_reported_gaps() == []
    assert accounting.drain_gaps() == [gap("spool_full", 1, 1)]
