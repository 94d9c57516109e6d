import pytest

from observers.event import EVENTS_PER_RECORD, SCHEMA_LEVEL, RequestEvent, decoder, encoder
from observers.event_blocks import BLOCK_LINGER, MAX_BLOCK_BYTES, Block, BlockBuilder, Chunk, RecordWriter

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


def test_a_block_ends_with_a_loss_its_time_or_its_size() -> None:
    builder = BlockBuilder()
    assert add_counters(builder, chunk(1, 2)) == []
    assert numbers(builder.add_chunks([], 12, 0.0)) == [(1, 2)], "ten were lost after it"
    assert numbers(add_counters(builder, chunk(13), chunk(15))) == [(13, 13)], "one was lost between"
    assert numbers(builder.add_chunks([chunk(16)], 17, 0.0)) == [(15, 16)]
    assert (builder.seq, builder.open_events) == (17, 0)
    # An event waits no longer than the flush time from the first of its block.
    builder = BlockBuilder()
    add_counters(builder, chunk(1), now=10.0)
    assert builder.add_chunks([], 1, 10.0) == [], "nothing changes nothing"
    add_counters(builder, chunk(2), now=10.0 + BLOCK_LINGER / 2)
    assert builder.complete_expired(10.0 + BLOCK_LINGER - 0.001) == []
    assert numbers(builder.complete_expired(10.0 + BLOCK_LINGER)) == [(1, 2)]
    assert builder.complete_expired(100.0) == []
    # Events too large for one record are spread and one too large stays whole.
    half = MAX_BLOCK_BYTES // 2
    for sizes, expected in (
        ((half, half, half), [(1, 2), (3, 3)]),
        ((None, MAX_BLOCK_BYTES + 1, None), [(1, 1), (2, 2), (3, 3)]),
    ):
        builder = BlockBuilder()
        blocks = add_counters(builder, *(chunk(n, size=size) for n, size in enumerate(sizes, 1))) + builder.complete()
        assert numbers(blocks) == expected
        assert all(block.size <= MAX_BLOCK_BYTES or len(block) == 1 for block in blocks)


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
