from __future__ import annotations

from typing import Any

from observers.batch import FLUSH, MAX_RECORD, Batcher, Block, Writer, records
from observers.event import EVENTS_PER_RECORD, SCHEMA_LEVEL, RequestEvent, TopicPartition, decoder

WRITER = Writer("cluster", 1, "boot", "0.1.0")


def event(**changes: Any) -> RequestEvent:
    values: dict[str, Any] = {
        "seq": 0,
        "listener": "CLIENT",
        "connection_id": "c1",
        "correlation_id": 5,
        "api_key": 3,
        "api": "Metadata",
        "api_version": 12,
        "principal": "User:ANONYMOUS",
        "client_ip": "10.0.0.7",
        "ts_request": 1,
        "latency_us": 2,
        "request_bytes": 50,
    }
    return RequestEvent(**{**values, **changes})


def numbers(blocks: list[Block]) -> list[list[int]]:
    return [[e.seq for e in block] for block in blocks]


def numbered(*events: RequestEvent) -> Block:
    batcher = Batcher()
    batcher.add(events, 0.0)
    (block,) = batcher.take()
    return block


class TestBatcher:
    def test_numbers_begin_at_one_and_blocks_hold_at_most_their_limit(self) -> None:
        batcher = Batcher()
        blocks = batcher.add((event() for _ in range(2 * EVENTS_PER_RECORD + 1)), 0.0)
        assert numbers(blocks) == [
            list(range(1, EVENTS_PER_RECORD + 1)),
            list(range(EVENTS_PER_RECORD + 1, 2 * EVENTS_PER_RECORD + 1)),
        ]
        assert batcher.waiting == 1
        assert numbers(batcher.take()) == [[2 * EVENTS_PER_RECORD + 1]]
        assert batcher.take() == []

    def test_a_loss_ends_the_block_and_leaves_a_gap(self) -> None:
        batcher = Batcher()
        assert batcher.add([event(), event()], 0.0) == []
        assert numbers(batcher.lose(10)) == [[1, 2]]
        assert numbers(batcher.add([event(), None, event()], 0.0)) == [[13]]
        assert numbers(batcher.take()) == [[15]]
        assert batcher.seq == 15

    def test_no_loss_changes_nothing(self) -> None:
        batcher = Batcher()
        batcher.add([event()], 0.0)
        assert batcher.lose(0) == []
        assert batcher.waiting == 1

    def test_an_event_waits_no_longer_than_the_flush_time_from_the_first_of_its_block(self) -> None:
        batcher = Batcher()
        batcher.add([event()], 10.0)
        batcher.add([event()], 10.0 + FLUSH / 2)
        assert batcher.take_due(10.0 + FLUSH - 0.001) == []
        assert numbers(batcher.take_due(10.0 + FLUSH)) == [[1, 2]]
        assert batcher.take_due(100.0) == []


class TestRecords:
    def test_an_envelope_says_who_and_which(self) -> None:
        block = numbered(event(), event())
        ((value, count),) = records(block, WRITER, dropped=4, sent_at=9)
        assert value is not None
        envelope = decoder.decode(value)
        assert count == 2
        assert (envelope.schema_level, envelope.cluster_id, envelope.broker_id) == (SCHEMA_LEVEL, "cluster", 1)
        assert (envelope.boot_id, envelope.sidecar_version) == ("boot", "0.1.0")
        assert (envelope.first_seq, envelope.last_seq, envelope.dropped, envelope.sent_at) == (1, 2, 4, 9)
        assert envelope.events == block

    def test_events_too_large_for_one_record_are_spread_without_a_gap(self) -> None:
        topics = tuple(TopicPartition(topic="t" * 200, partition=n) for n in range(1000))
        got = list(records(numbered(*(event(topics=topics) for _ in range(10))), WRITER, dropped=0, sent_at=0))
        values = [value for value, _ in got if value is not None]
        assert len(values) == len(got) > 1
        assert all(len(value) <= MAX_RECORD for value in values)
        envelopes = [decoder.decode(value) for value in values]
        assert [e.seq for envelope in envelopes for e in envelope.events] == list(range(1, 11))
        assert all(e.last_seq - e.first_seq + 1 == len(e.events) for e in envelopes)

    def test_one_event_too_large_for_a_record_stays_whole(self) -> None:
        topics = tuple(TopicPartition(topic="t" * 200, partition=n) for n in range(5000))
        ((value, count),) = records(numbered(event(topics=topics)), WRITER, dropped=0, sent_at=0)
        assert value is not None
        assert len(value) > MAX_RECORD
        assert count == 1

    def test_an_event_that_is_no_text_is_lost_alone(self) -> None:
        got = list(
            records(numbered(event(), event(), event(client_id="\ud800"), event()), WRITER, dropped=0, sent_at=0)
        )
        assert sum(count for value, count in got if value is None) == 1
        kept = [e.seq for value, _ in got if value is not None for e in decoder.decode(value).events]
        assert kept == [1, 2, 4]
