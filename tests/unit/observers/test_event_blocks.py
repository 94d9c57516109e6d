import pytest

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
