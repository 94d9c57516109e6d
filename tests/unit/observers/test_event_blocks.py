"""Events in blocks and records, and the account of each number."""

from collections.abc import Mapping

import pytest

from observers.delivery_accounting import DeliveryAccounting, DeliveryCounts, Gap
from observers.event import EVENTS_PER_RECORD, SCHEMA_LEVEL, RequestEvent, decoder, encoder
from observers.event_blocks import Block, BlockBuilder, Chunk, RecordWriter

WRITER = RecordWriter("cluster", 1, "boot", "0.1.0")


def chunk(first: int, count: int = 1, size: int | None = None) -> Chunk:
    """Events as a translator encodes them, or ``size`` bytes of something."""
    events = [
        RequestEvent(n, "CLIENT", "c1", 5, 3, "Metadata", 12, "User:a", "10.0.0.7", 1, 2, 50) for n in range(count)
    ]
    for seq, event in enumerate(events, first):
        event.seq = seq
    return Chunk(first, count, b",".join(map(encoder.encode, events)) if size is None else b"x" * size)


def add_counters(builder: BlockBuilder, *chunks: Chunk, now: float = 0.0) -> list[Block]:
    """Add chunks, with no loss after the last."""
    return builder.add_chunks(chunks, chunks[-1].first + chunks[-1].count - 1, now)


def numbers(blocks: list[Block]) -> list[tuple[int, int]]:
    return [(block.first, block.last) for block in blocks]


@pytest.mark.promise("audit-format.md", "A record has at most 200 events.")
def test_blocks_hold_at_most_their_limit_and_are_complete_with_it() -> None:
    builder = BlockBuilder()
    chunks = [chunk(n) for n in range(1, 2 * EVENTS_PER_RECORD + 2)]
    full = [(1, EVENTS_PER_RECORD), (EVENTS_PER_RECORD + 1, 2 * EVENTS_PER_RECORD)]
    assert numbers(add_counters(builder, *chunks)) == full
    assert builder.open_events == 1
    assert numbers(builder.complete()) == [(2 * EVENTS_PER_RECORD + 1,) * 2]
    assert builder.complete() == []


@pytest.mark.promise("audit-event.md", "An envelope names its writer, and holds numbers without gaps.")
def test_an_envelope_says_who_and_which() -> None:
    builder = BlockBuilder()
    add_counters(builder, chunk(1, 2), chunk(3))
    (block,) = builder.complete()
    record = WRITER.encode_record(block.first, block.last, block.json(), level=SCHEMA_LEVEL, dropped=4, sent_at=9)
    envelope = decoder.decode(record)
    assert (envelope.schema_level, envelope.cluster_id, envelope.broker_id) == (SCHEMA_LEVEL, "cluster", 1)
    assert (envelope.boot_id, envelope.sidecar_version) == ("boot", "0.1.0")
    assert (envelope.first_seq, envelope.last_seq, envelope.dropped, envelope.sent_at) == (1, 3, 4, 9)
    assert [event.seq for event in envelope.events] == [1, 2, 3]
    assert len(block) == 3


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
