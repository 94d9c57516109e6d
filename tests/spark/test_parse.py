from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from observers.event import RollupTopic
from spark_jobs.dedup_ranges import DedupRanges
from spark_jobs.events import KINDS, REQUEST_EVENT, TOPIC_PARTITION, EventField
from spark_jobs.parse import (
    CONFLICT_REASON,
    RECORD_ID,
    apply_decision,
    collect_valid_records,
    dead_letter_rows,
    deduplicate,
    explode_events,
    fields_with_defaults,
    parse_records,
)
from spark_jobs.schemas import DEAD_LETTER_REASONS, DEAD_LETTERS
from tests.spark.envelopes import (
    FETCH,
    METADATA,
    MINUTE,
    NOON,
    POISON,
    PRODUCE,
    Event,
    connection,
    edited,
    encoded,
    event,
    gap,
    inventory,
    partition,
    rollup,
    status,
    throttle,
    with_unknown,
)
from tests.spark.frames import kept

pytestmark = pytest.mark.spark

KafkaRows = Callable[[Sequence[bytes | None]], DataFrame]


def fields_of(parsed: DataFrame, kind: str) -> DataFrame:
    """One row for each event of ``kind``, with every field it can have."""
    return explode_events(parsed, kind).selectExpr(*RECORD_ID[:3], *fields_with_defaults("event", KINDS[kind]))


def test_an_envelope_is_read_whole(kafka_rows: KafkaRows) -> None:
    value = encoded(
        event(FETCH, partition(topic_id="AAECAwQFBgcICQoLDA0ODw", error_code=3)), event(METADATA), first_seq=8
    )
    (row,) = parse_records(kafka_rows([value])).collect()
    assert (row.topic, row.partition, row.offset, row.reason) == ("audit", 0, 0, None)
    assert (row.cluster_id, row.broker_id, row.boot_id, row.first_seq, row.last_seq) == ("cluster", 1, "boot", 8, 9)
    assert [each.seq for each in row.events] == [8, 9]
    assert row.events[0].topics[0].error_code == 3


def test_what_is_left_out_on_the_wire_has_its_default(kafka_rows: KafkaRows) -> None:
    value = encoded(event(METADATA, response_bytes=0, client_id=None))
    (row,) = fields_of(kept(parse_records(kafka_rows([value]))), "request").collect()
    assert (row.outcome, row.decode, row.response_bytes, row.throttle_ms, row.error_code) == (
        "answered",
        "none",
        0,
        0,
        0,
    )
    assert (row.topics, row.client_id, row.acks) == ([], None, None)
    assert (row.cluster_id, row.broker_id, row.boot_id, row.seq) == ("cluster", 1, "boot", 1)


def test_requests_are_found_among_throttles_and_kinds_that_are_not_known(kafka_rows: KafkaRows) -> None:
    values = [with_unknown(), encoded(throttle(), first_seq=6)]
    parsed = kept(parse_records(kafka_rows(values)))
    assert not dead_letter_rows(parsed).collect()
    assert [(row.seq, row.api) for row in fields_of(parsed, "request").orderBy("seq").collect()] == [
        (1, "Produce"),
        (5, "Metadata"),
    ]
    (reported,) = parsed.where("first_seq = 6").select("events").collect()
    (one,) = reported.events
    assert (one.kind, one.client_ip, one["count"], one.limit, one.observed) == ("throttle", "10.0.0.7", 3, 20, 21.5)
    assert (one.ts_first, one.ts_last, one.delay_ms) == (NOON, NOON + 250_000, 750)


def test_every_kind_is_read_field_by_field(kafka_rows: KafkaRows) -> None:
    reported: list[Event] = [
        event(PRODUCE, partition(), upstream_us=900, principal_source="sasl", polled=("quiet",)),
        rollup(FETCH, RollupTopic("orders", records=2**39, latencies=(1, 2))),
        connection(),
        throttle(),
        inventory("orders", "__offsets"),
        gap(3, 5),
        status(last=True),
    ]
    value = encoded(*reported, schema_level=2)
    parsed = kept(parse_records(kafka_rows([value])))
    assert not dead_letter_rows(parsed).collect()
    for written in msgspec.json.decode(value)["events"]:
        kind = written["kind"]
        (row,) = fields_of(parsed, kind).collect()
        read = row.asDict(recursive=True)
        for name, expected in written.items():
            assert _known(read[name]) == expected, (kind, name)
        left_out = {field.name: field.default for field in KINDS[kind] if field.name not in written}
        assert {name: read[name] or None for name in left_out} == {
            name: default or None for name, default in left_out.items()
        }


def _known(value: Any) -> Any:
    """``value`` without what was left out on the wire inside of it."""
    if isinstance(value, list):
        return [_known(each) for each in value]
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if each is not None}
    return value


def test_what_a_strange_client_or_a_newer_sidecar_writes_is_no_dead_letter(kafka_rows: KafkaRows) -> None:
    edits = {
        "events.0.throttle_ms": -5,
        "events.0.error_code": 999,
        "events.0.correlation_id": -(2**31),
        "events.0.topics.0.partition": -1,
        "events.0.topics.0.base_offset": -7,
        "events.0.api": "ApiKey(1234)",
        "events.0.client_id": "\u0000\u001b[31m",
        "events.0.polled": ["", "\u0000"],
        "events.0.new_field": {"a": [1]},
        "sidecar_version": "",
        "new_field": {"schema_level": 9},
    }
    parsed = kept(parse_records(kafka_rows([edited(path, value) for path, value in edits.items()])))
    assert dict(zip(edits, [row.detail for row in parsed.collect()], strict=True)) == dict.fromkeys(edits)
    assert not dead_letter_rows(parsed).collect()


def test_poison_becomes_dead_letters_and_nothing_else_changes(kafka_rows: KafkaRows) -> None:
    """One bad record of each kind among a hundred times as many good ones: each is found where it is."""
    kinds = list(POISON)
    values: list[bytes | None] = []
    expected: dict[int, tuple[str, str | None]] = {}
    good = 0
    for number in range(100 * len(kinds)):
        if number % 100 == 50:
            value, reason, detail = POISON[kinds[number // 100]]
            expected[number] = (reason, detail)
        else:
            value = encoded(event(), event(), first_seq=1 + 2 * good)
            good += 1
        values.append(value)
    parsed = kept(parse_records(kafka_rows(values)))
    found = {row.offset: (row.reason, row.detail) for row in dead_letter_rows(parsed).collect()}
    assert found == expected
    total = (
        explode_events(parsed, "request").agg(F.count(F.lit(1)).alias("n"), F.sum("event.seq").alias("seqs")).first()
    )
    assert total == Row(n=2 * good, seqs=good * (2 * good + 1))


def test_a_fault_in_any_field_of_one_request_among_many_is_found(kafka_rows: KafkaRows) -> None:
    faults = [*_faults("", REQUEST_EVENT), *_faults("topics.1.", TOPIC_PARTITION)]
    values = []
    for name, value, _ in faults:
        asked = [event(PRODUCE, partition(), partition("clicks"), outcome="answered", decode="full") for _ in range(3)]
        root = msgspec.json.decode(encoded(*asked, connection(), status()))
        *way, last = name.split(".")
        at = root["events"][1]
        for step in way:
            at = at[int(step)] if isinstance(at, list) else at[step]
        at[last] = value
        values.append(msgspec.json.encode(root))
    found = [(row.reason, row.detail) for row in parse_records(kafka_rows(values)).orderBy("offset").collect()]
    expected = [(reason, "events[]." + name.replace(".1.", "[].")) for name, _, reason in faults]
    assert dict(zip(faults, found, strict=True)) == dict(zip(faults, expected, strict=True))
    assert len(faults) > 30


def _faults(path: str, fields: Sequence[EventField]) -> Iterator[tuple[str, Any, str]]:
    """Everything that can be wrong with ``fields``: where, what, and the reason it is."""
    for field in fields:
        if field.required:
            yield path + field.name, None, "missing_field"
        if field.minimum is not None:
            yield path + field.name, field.minimum - 1, "bad_value"
        if field.maximum is not None:
            yield path + field.name, field.maximum + 1, "bad_value"
        if field.allowed:
            yield path + field.name, "else", "bad_value"


def test_every_reason_is_documented() -> None:
    signatures = {"unsigned", "unknown_key", "bad_signature"}
    assert {CONFLICT_REASON, *signatures, *(reason for _, reason, _ in POISON.values())} == set(DEAD_LETTER_REASONS)


def test_a_dead_letter_keeps_where_it_was_and_the_start_of_it(kafka_rows: KafkaRows) -> None:
    value = bytes(range(256)) * 40
    letters = dead_letter_rows(parse_records(kafka_rows([None, value])))
    assert letters.columns == [column.name for column in DEAD_LETTERS.columns]
    nothing, long = letters.orderBy("offset").collect()
    assert (nothing.value_bytes, nothing.value_sample) == (0, None)
    assert (long.topic, long.partition, long.offset, long.value_bytes) == ("audit", 0, 1, 10_240)
    assert base64.b64decode(long.value_sample, validate=True) == value[:1024]


def test_a_record_of_ten_megabytes_is_a_dead_letter_like_any_other(kafka_rows: KafkaRows) -> None:
    huge = b'{"schema_level":1,"cluster_id":"' + b"x" * 10_000_000
    (row,) = parse_records(kafka_rows([huge])).collect()
    assert (row.reason, row.value_bytes) == ("not_json", len(huge))


def test_an_envelope_sent_twice_counts_once_and_dead_letters_stay(kafka_rows: KafkaRows) -> None:
    one, other = encoded(event()), encoded(event(), boot_id="another")
    values = [one, other, one, b"x", b"x", encoded(event(), first_seq=2), one, encoded(event(), broker_id=2)]
    once = deduplicate(kept(parse_records(kafka_rows(values))))
    assert once.where("reason IS NULL").count() == 4
    assert [row.offset for row in dead_letter_rows(once).orderBy("offset").collect()] == [3, 4]


def block(first: int, last: int, **changes: Any) -> bytes:
    """An envelope of Produces with these numbers, which say their number as the bytes of their request."""
    return encoded(*[event(request_bytes=number) for number in range(first, last + 1)], first_seq=first, **changes)


def numbers(parsed: DataFrame) -> list[tuple[str, int]]:
    found = parsed.selectExpr("boot_id", "first_seq", "last_seq", "explode(events) AS event").collect()
    assert all(row.first_seq <= row.event.seq <= row.last_seq for row in found)
    assert all(row.event.request_bytes == row.event.seq for row in found)
    return sorted((row.boot_id, row.event.seq) for row in found)


BLOCKS: list[list[bytes | None]] = [
    [block(1, 4), block(5, 8), block(5, 8), b"x", block(1, 4, boot_id="dead")],
    [block(9, 10), block(1, 2), block(3, 4), b"x", block(11, 12)],
    [block(9, 12), block(1, 4, boot_id="dead"), block(18, 20), block(18, 23), None],
]
"""Batches: blocks that come again at once, in halves, as wholes after halves, and in the run after the next."""

EACH_ONCE = sorted([("boot", n) for n in (*range(1, 13), *range(18, 24))] + [("dead", n) for n in range(1, 5)])


def test_a_whole_topic_has_each_event_once(kafka_rows: KafkaRows) -> None:
    once = deduplicate(kept(parse_records(kafka_rows([value for batch in BLOCKS for value in batch]))))
    assert numbers(once) == EACH_ONCE
    assert dead_letter_rows(once).count() == 3


def test_so_have_its_batches(kafka_rows: KafkaRows) -> None:
    """Each begins with what the one before noted, and may be repeated."""
    noted, found, letters = "[]", [], 0
    for batch in BLOCKS:
        rows = kept(parse_records(kafka_rows(batch)))
        decision, again = (
            ranges.add_records(collect_valid_records(rows))
            for ranges in (DedupRanges.from_json(noted), DedupRanges.from_json(noted))
        )
        assert decision == again
        new = kept(apply_decision(rows, decision))
        assert new.columns == rows.columns
        found += numbers(new)
        letters += dead_letter_rows(new).count()
        ranges = DedupRanges.from_json(noted)
        ranges.add_records(collect_valid_records(rows))
        noted = ranges.to_json()
    assert sorted(found) == EACH_ONCE
    assert letters == 3
    reported = sorted(each[:4] for each in json.loads(noted))
    assert reported == [["cluster", 1, "boot", [[1, 12], [18, 23]]], ["cluster", 1, "dead", [[1, 4]]]]


def test_of_two_equal_records_the_one_stays_that_kafka_took_first(kafka_rows: KafkaRows) -> None:
    """In a batch of the stream as in a backfill: they were sent at different times, which a table says."""
    rows = kafka_rows([block(1, 2, sent_at=NOON + n) for n in (5, 3, 4)])
    rows = rows.withColumn("timestamp", F.expr("timestamp - make_interval(0, 0, 0, 0, 0, 0, offset % 2)"))
    parsed = kept(parse_records(rows))
    (row,) = deduplicate(parsed).collect()
    assert (row.offset, row.sent_at) == (1, NOON + 3)
    assert collect_valid_records(parsed)[0].offset == 1


def test_the_same_events_sent_again_are_no_conflict_other_ones_are(kafka_rows: KafkaRows) -> None:
    """Sent again they have another time, and more was lost before them; also a map has to be the same."""
    reported: list[Event] = [event(), event(PRODUCE, partition()), rollup(), status(), gap(3, 5), throttle()]
    again = encoded(*reported, schema_level=2, sent_at=NOON + 9 * MINUTE, dropped=4)
    assert _conflicts(kafka_rows, encoded(*reported, schema_level=2), again) == []
    for changed in (
        encoded(*reported[:1], event(PRODUCE, partition(records=11)), *reported[2:], schema_level=2),
        encoded(*reported[:3], status(dropped={"closed": 1}), *reported[4:], schema_level=2),
        encoded(*reported[:2], rollup(requests=4), *reported[3:], schema_level=2),
        encoded(*reported[1:], reported[0], schema_level=2),
    ):
        assert _conflicts(kafka_rows, again, changed) == [(1, "1 to 6 differ from partition 0, offset 0")]


def _conflicts(kafka_rows: KafkaRows, *values: bytes) -> list[tuple[int, str]]:
    letters = (
        dead_letter_rows(deduplicate(kept(parse_records(kafka_rows(values)))))
        .where(F.col("reason") == CONFLICT_REASON)
        .collect()
    )
    return [(row.offset, row.detail) for row in letters]
