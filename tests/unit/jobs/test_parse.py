"""Records of the audit topic become events, or dead letters with a reason. Written events are known by number: whenever
they come again, in whatever parts."""

import base64
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs import dedup_ranges as module
from spark_jobs.decode import CONFLICT_REASON
from spark_jobs.dedup_ranges import AuditRecord, DedupDecision, DedupRanges, SidecarBoot
from spark_jobs.event_structs import EVENT_STRUCTS
from spark_jobs.events import MAX_INSTANT, MAX_SUM
from spark_jobs.parse import Fault, parse_record
from spark_jobs.schemas import DEAD_LETTER_REASONS, DEAD_LETTERS
from tests.spark.decoded import READ_AT, Value, kafka_records, partial_rows, rows_of, summaries
from tests.spark.envelopes import (
    MINUTE,
    NOON,
    POISON,
    PRODUCE,
    Event,
    edited,
    encoded,
    event,
    gap,
    partition,
    rollup,
    status,
    throttle,
    with_unknown,
)


def events_of(values: Sequence[Value], kind: str) -> list[Any]:
    return [one for value in values for one in parse_record(value).events if isinstance(one, EVENT_STRUCTS[kind])]


def letters(values: Sequence[Value], **options: Any) -> list[dict[str, Any]]:
    found = rows_of("dead_letters", partial_rows(kafka_records(values), **options)).to_pylist()
    return sorted(found, key=lambda row: row["offset"])


def decide(values: Sequence[Value], ranges: DedupRanges | None = None) -> DedupDecision:
    records = [one.audit_record() for one in summaries(partial_rows(kafka_records(values))) if not one.dead]
    return (ranges or DedupRanges()).add_records(records)


@pytest.mark.promise("jobs.md", "Events of unknown kinds are passed over, and the others of their record count.")
def test_requests_are_found_among_throttles_and_kinds_that_are_not_known() -> None:
    values = [with_unknown(), encoded(throttle(), first_seq=6)]
    assert not letters(values)
    assert [(row.seq, row.api) for row in events_of(values, "request")] == [(1, "Produce"), (5, "Metadata")]
    (one,) = parse_record(values[1]).events
    assert (type(one), one.client_ip, one.count, one.limit, one.observed) == (
        EVENT_STRUCTS["throttle"], "10.0.0.7", 3, 20, 21.5
    )  # fmt: skip
    assert (one.ts_first, one.ts_last, one.delay_ms) == (NOON, NOON + 250_000, 750)


def test_what_a_strange_client_or_a_newer_sidecar_writes_is_no_dead_letter() -> None:
    edits = {
        "events.0.throttle_ms": -5, "events.0.error_code": 999, "events.0.correlation_id": -(2**31),
        "events.0.topics.0.partition": -1, "events.0.topics.0.base_offset": -7, "events.0.api": "ApiKey(1234)",
        "events.0.client_id": "\u0000\u001b[31m",
        "events.0.polled": ["", "\u0000"], "events.0.new_field": {"a": [1]}, "sidecar_version": "",
        "new_field": {"schema_level": 9},
    }  # fmt: skip
    values = [edited(path, value) for path, value in edits.items()]
    faults = {path: parse_record(value) for path, value in zip(edits, values, strict=True)}
    assert {path: fault for path, fault in faults.items() if isinstance(fault, Fault)} == {}


@pytest.mark.promise(
    "jobs.md", "A record that cannot be read is a dead letter with place and reason, and counts in no other table."
)
def test_poison_becomes_dead_letters_and_nothing_else_changes() -> None:
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
    partial = partial_rows(kafka_records(values))
    found = {row["offset"]: (row["reason"], row["detail"]) for row in rows_of("dead_letters", partial).to_pylist()}
    assert found == expected
    assert sum(row["requests"] for row in rows_of("traffic", partial).to_pylist()) == 2 * good
    kept = [record for record in summaries(partial) if not record.dead]
    assert [record.last for record in kept] == [2 + 2 * number for number in range(good)]


def test_a_throttle_cannot_say_more_than_a_table_can_add_up() -> None:
    """Rows of several batches are added up in 64 bits, by readers and by maintenance."""
    for name in ("count", "delay_ms"):
        most, more = (encoded(throttle(**{name: MAX_SUM + n})) for n in (0, 1))
        assert not isinstance(parse_record(most), Fault), name
        assert parse_record(more) == Fault("bad_value", f"events[].{name}")


def test_every_reason_is_documented() -> None:
    signatures = {"unsigned", "unknown_key", "bad_signature"}
    assert {CONFLICT_REASON, *signatures, *(reason for _, reason, _ in POISON.values())} == set(DEAD_LETTER_REASONS)


@pytest.mark.promise(
    "tables/dead_letters.md", "A dead letter has the topic, partition and offset of its record, and its first bytes."
)
def test_a_dead_letter_keeps_where_it_was_and_the_start_of_it() -> None:
    value = bytes(range(256)) * 40
    nothing, long = letters([None, value])
    assert list(nothing) == [column.name for column in DEAD_LETTERS.columns]
    assert (nothing["value_bytes"], nothing["value_sample"]) == (0, None)
    assert (long["topic"], long["partition"], long["offset"], long["value_bytes"]) == ("audit", 0, 1, 10_240)
    assert (long["day"], long["timestamp"]) == (READ_AT.date(), READ_AT)
    assert base64.b64decode(long["value_sample"], validate=True) == value[:1024]
    huge = b'{"schema_level":1,"cluster_id":"' + b"x" * 10_000_000
    (row,) = letters([huge])
    assert (row["reason"], row["value_bytes"]) == ("not_json", len(huge))


def test_a_dead_letter_has_a_time_that_every_program_can_read() -> None:
    """Its producer sets the time, if the topic has no LogAppendTime."""
    cases = {-1_000: 0, -(2**63): 0, MAX_INSTANT: MAX_INSTANT, MAX_INSTANT + 1: MAX_INSTANT, 2**63 - 1: MAX_INSTANT}
    for timestamp, stored in cases.items():
        records = kafka_records([b"x"]).set_column(4, "timestamp", pa.array([timestamp], pa.timestamp("us", "UTC")))
        (row,) = rows_of("dead_letters", partial_rows(records)).to_pylist()
        assert row["timestamp"] == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=stored), timestamp
        assert row["day"] == row["timestamp"].date(), timestamp


@pytest.mark.promise("jobs.md", "A record that a sidecar sent twice counts once.")
def test_an_envelope_sent_twice_counts_once_and_dead_letters_stay() -> None:
    one, other = encoded(event()), encoded(event(), boot_id="another")
    values = [one, other, one, b"x", b"x", encoded(event(), first_seq=2), one, encoded(event(), broker_id=2)]
    once = partial_rows(kafka_records(values), decision=decide(values))
    assert sum(not record.dead for record in summaries(once)) == 4
    assert sorted(row["offset"] for row in rows_of("dead_letters", once).to_pylist()) == [3, 4]


def block(first: int, last: int, **changes: Any) -> bytes:
    """An envelope of Produces with these numbers, which say their number as the bytes of their request."""
    return encoded(*[event(request_bytes=number) for number in range(first, last + 1)], first_seq=first, **changes)


def numbers(values: Sequence[Value], decision: DedupDecision) -> list[tuple[str, int]]:
    """The numbers of the events that count, and that they are no others."""
    partial = partial_rows(kafka_records(values), decision=decision)
    found = [record for record in summaries(partial) if not record.dead]
    numbers = [((record.boot or ("", 0, ""))[2], n) for record in found for n in range(record.first, record.last + 1)]
    assert all(record.known == record.last - record.first + 1 for record in found)
    assert sum(n for _, n in numbers) == sum(row["request_bytes"] for row in rows_of("traffic", partial).to_pylist())
    assert len(numbers) == sum(row["events"] for row in rows_of("completeness", partial).to_pylist())
    return sorted(numbers)


BLOCKS: list[list[bytes | None]] = [
    [block(1, 4), block(5, 8), block(5, 8), b"x", block(1, 4, boot_id="dead")],
    [block(9, 10), block(1, 2), block(3, 4), b"x", block(11, 12)],
    [block(9, 12), block(1, 4, boot_id="dead"), block(18, 20), block(18, 23), None],
]
"""Batches: blocks that come again at once, in halves, as wholes after halves, and in the run after the next."""

EACH_ONCE = sorted([("boot", n) for n in (*range(1, 13), *range(18, 24))] + [("dead", n) for n in range(1, 5)])


@pytest.mark.promise(
    "jobs.md", "Events that come again, in whatever parts of records, count once over all batches and runs."
)
def test_each_event_counts_once_in_a_whole_topic_and_in_its_batches() -> None:
    """Each batch begins with what the one before noted, and may be repeated."""
    values = [value for batch in BLOCKS for value in batch]
    whole = decide(values)
    assert numbers(values, whole) == EACH_ONCE
    assert len(letters(values, decision=whole)) == 3
    noted, found, dead = "[]", [], 0
    for batch in BLOCKS:
        ranges = DedupRanges.from_json(noted)
        decision = decide(batch, ranges)
        assert decision == decide(batch, DedupRanges.from_json(noted))
        found += numbers(batch, decision)
        dead += len(letters(batch, decision=decision))
        noted = ranges.to_json()
    assert sorted(found) == EACH_ONCE
    assert dead == 3
    reported = sorted(each[:4] for each in json.loads(noted))
    assert reported == [["cluster", 1, "boot", [[1, 12], [18, 23]]], ["cluster", 1, "dead", [[1, 4]]]]


@pytest.mark.promise("jobs.md", "A record that repeats written numbers with other events is a conflict.")
def test_other_events_of_the_same_numbers_are_a_conflict() -> None:
    """Sent again they have another time, and more was lost before them; also a map has to be the same."""
    reported: list[Event] = [event(), event(PRODUCE, partition()), rollup(), status(), gap(3, 5), throttle()]
    again = encoded(*reported, schema_level=2, sent_at=NOON + 9 * MINUTE, dropped=4)
    assert _conflicts(encoded(*reported, schema_level=2), again) == []
    for changed in (
        encoded(*reported[:1], event(PRODUCE, partition(records=11)), *reported[2:], schema_level=2),
        encoded(*reported[:3], status(dropped={"closed": 1}), *reported[4:], schema_level=2),
        encoded(*reported[:2], rollup(requests=4), *reported[3:], schema_level=2),
        encoded(*reported[1:], reported[0], schema_level=2),
    ):
        assert _conflicts(again, changed) == [(1, "1 to 6 differ from partition 0, offset 0")]


def _conflicts(*values: bytes) -> list[tuple[int, str]]:
    partial = partial_rows(kafka_records(values), decision=decide(values))
    found = [row for row in rows_of("dead_letters", partial).to_pylist() if row["reason"] == CONFLICT_REASON]
    assert sum(row["conflicts"] for row in rows_of("completeness", partial).to_pylist()) == len(found)
    return [(row["offset"], row["detail"]) for row in found]


BOOT, OTHER = SidecarBoot("kafka", 1, "boot"), SidecarBoot("kafka", 1, "other")


def record(
    first: int, last: int, *, boot: SidecarBoot = BOOT, partition: int = 0, offset: int = 7, other: int = 0
) -> AuditRecord:
    """A record whose event of each number is always the same, but for that of the number ``other``."""
    events = [(number, number == other) for number in range(first, last + 1)]
    middle = len(events) // 2
    whole, front, back = (hash(tuple(part)) for part in (events, events[:middle], events[middle:]))
    return AuditRecord(partition, offset, boot, first, last, (whole, front, back))


def add(taken: DedupRanges, first: int, last: int, boot: SidecarBoot = BOOT) -> list[tuple[int, int]] | None:
    """Intervals of the one record that are new; None: all of it."""
    ranges = taken.add_records([record(first, last, boot=boot)]).new_ranges
    return [*ranges[0, 7]] if ranges else None


def test_any_order_of_any_intervals_is_what_a_set_says() -> None:
    chance, taken, known = random.Random(20260922), DedupRanges(), set[int]()
    for _ in range(200):
        first = chance.randrange(1, 2_000)
        asked = range(first, first + chance.randrange(1, 30))
        found = add(taken, asked[0], asked[-1])
        new = set(asked) - known
        assert (set(asked) if found is None else {n for a, b in found for n in range(a, b + 1)}) == new
        known |= new
        taken = DedupRanges.from_json(taken.to_json())
    ((*_, found_ranges, _, _),) = json.loads(taken.to_json())
    assert found_ranges == ranges(known)


def ranges(numbers: set[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


@pytest.mark.promise(
    "jobs.md", "Ranges of written numbers are kept for the last boots of sidecars, whatever their age."
)
def test_those_heard_of_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BOOTS", 2)
    monkeypatch.setattr(module, "MAX_RANGES_PER_BOOT", 2)
    taken = DedupRanges()
    for name in ("a", "b", "a", "c"):
        add(taken, 1, 1, SidecarBoot("kafka", 1, name))
    for number in (3, 5):
        add(taken, number, number, SidecarBoot("kafka", 1, "c"))
    reported = [each[:4] for each in json.loads(taken.to_json())]
    assert reported == [["kafka", 1, "a", [[1, 1]]], ["kafka", 1, "c", [[3, 3], [5, 5]]]]
    assert add(taken, 1, 1, SidecarBoot("kafka", 1, "b")) is None


def conflicts(taken: DedupRanges, *records: AuditRecord) -> list[str]:
    return [*taken.add_records(records).conflicts.values()]


def noted(*records: AuditRecord) -> DedupRanges:
    """What was taken of ``records``, as the next batch of another run reads it."""
    taken = DedupRanges()
    assert not conflicts(taken, *records)
    return DedupRanges.from_json(taken.to_json())


@pytest.mark.promise(
    "audit-delivery.md",
    "A forged record with numbers of a sidecar is found as a conflict, before or after the true one.",
)
def test_a_forged_record_is_a_conflict_wherever_it_begins_and_ends() -> None:
    for forged in ((1, 200), (1, 1), (200, 200), (150, 350), (50, 60), (1, 1_000)):
        order = [record(*forged, other=forged[0]), record(1, 200)]
        for first, second in (order, order[::-1]):
            assert len(conflicts(noted(first), second)) == 1, forged
            assert len(conflicts(DedupRanges(), first, second)) == 1, forged
            assert not conflicts(noted(first), second._replace(boot=OTHER)), forged


@pytest.mark.promise(
    "jobs.md", "A repetition of a record whose digest is no longer kept is a conflict while its boot has digests."
)
def test_what_is_no_longer_known_may_be_a_conflict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_DIGESTS_PER_BOOT", 2)
    monkeypatch.setattr(module, "MAX_DIGESTS", 2)
    taken = noted(*[record(number, number) for number in (1, 2, 3)])
    assert conflicts(taken, record(3, 3), record(2, 2)) == []
    assert conflicts(taken, record(1, 1)) == ["1 to 1 repeat numbers too old to be compared"]
    taken = DedupRanges.from_json(
        DedupRanges.from_json(
            noted(record(1, 1), record(1, 1, boot=OTHER), record(2, 2, boot=OTHER)).to_json()
        ).to_json()
    )
    assert conflicts(taken, record(1, 1, other=1), record(1, 1, boot=OTHER)) == []
    assert len(conflicts(taken, record(1, 1, boot=OTHER, other=1))) == 1
