"""From Kafka records to partial rows of all streamed tables, where Spark reads them. Pure functions over iterators."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from spark_jobs.authentication import refusal
from spark_jobs.dedup_ranges import ALL_NEW, AuditRecord, DedupDecision, SidecarBoot
from spark_jobs.event_structs import EVENT_STRUCTS, UnknownEvent
from spark_jobs.events import DAY_US, MAX_INSTANT
from spark_jobs.parse import Fault, digests_of, parse_record
from spark_jobs.partial_rows import RECORDS, PartialRows, collector_paused, encode
from spark_jobs.tables import completeness
from spark_jobs.tables.changes import CHANGE_OPERATIONS, add_changes, is_denied
from spark_jobs.tables.connections import add_connection
from spark_jobs.tables.group_events import add_end_offsets, add_group
from spark_jobs.tables.inventory import add_inventory
from spark_jobs.tables.produced import MirrorSide, ProducedBatches
from spark_jobs.tables.requests import RequestMeasures
from spark_jobs.tables.throttles import add_throttle

CONFLICT_REASON = "conflict"
"""Reason of a dead letter with event numbers for which another record has other events."""

DEAD_LETTER_SAMPLE_BYTES = 1024
"""Bytes of the value of a dead letter that are stored."""

MAX_ROWS = 50_000
"""Rows that are collected before they are passed on, about 100 MB."""

_Request, _Rollup = EVENT_STRUCTS["request"], EVENT_STRUCTS["rollup"]

_ADD: Mapping[type, Callable[[PartialRows, Any, Any], None]] = {
    EVENT_STRUCTS["connection"]: add_connection,
    EVENT_STRUCTS["throttle"]: add_throttle,
    EVENT_STRUCTS["topic_inventory"]: add_inventory,
    EVENT_STRUCTS["group"]: add_group,
    EVENT_STRUCTS["end_offsets"]: add_end_offsets,
    EVENT_STRUCTS["gap"]: completeness.add_gap,
    EVENT_STRUCTS["sidecar_status"]: completeness.add_status,
}
"""By type of any other event, what adds its rows; it is given the envelope, too."""


@dataclass(frozen=True)
class DecodeOptions:
    """What is made of the records."""

    names: Collection[str]
    """The streamed tables that are wanted."""
    mirrors: Sequence[MirrorSide] = ()
    hmac_keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Signing keys by id; without any, signatures are not checked."""
    decision: DedupDecision = ALL_NEW

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of Spark's Kafka source that are needed."""
        signed = ("key", "headers") if self.hmac_keys else ()
        return ("value", "topic", "partition", "offset", "timestamp", *signed)


class RecordSummary(NamedTuple):
    """One row of the partial table ``RECORDS``: a Kafka record, or a part of it that is new. It sorts by time."""

    timestamp: int
    """In µs since 1970."""
    partition: int
    offset: int
    dead: bool
    boot: tuple[str, int, str] | None = None
    first: int = 0
    last: int = 0
    digests: tuple[int, int, int] = (0, 0, 0)
    known: int = 0
    """Events of known kinds."""
    unknown: int = 0

    @property
    def key(self) -> bytes:
        """The key of its partial row. Keys sort as summaries do."""
        return b"".join(number.to_bytes(8, signed=False) for number in (self.timestamp + 2**63, *self[1:3], self.first))

    def audit_record(self) -> AuditRecord:
        """Return what deduplication needs of a valid record."""
        boot = SidecarBoot(*self.boot or ("", 0, ""))
        return AuditRecord(self.partition, self.offset, boot, self.first, self.last, self.digests)


def decode_records(batches: Iterable[pa.RecordBatch], options: DecodeOptions) -> Iterator[pa.RecordBatch]:
    """Yield partial rows of all tables. ``batches``: records with ``options.columns``."""
    decoder = RecordDecoder(options)
    with collector_paused():
        for batch in batches:
            columns = {name: batch.column(name) for name in options.columns}
            columns["timestamp"] = columns["timestamp"].cast(pa.int64())
            for record in zip(*(column.to_pylist() for column in columns.values()), strict=True):
                decoder.add_record(*record)
            if len(decoder) > MAX_ROWS:
                yield from decoder.take()
        yield from decoder.take()


class RecordDecoder:
    """Collects the partial rows of Kafka records."""

    def __init__(self, options: DecodeOptions) -> None:
        self._options = options
        self._rows = PartialRows(options.names)
        self._measures = RequestMeasures()
        self._produced = ProducedBatches(options.mirrors)

    def __len__(self) -> int:
        return len(self._measures) + len(self._rows)

    def add_record(
        self,
        value: bytes | None,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: bytes | None = None,
        headers: Iterable[Mapping[str, object]] | None = None,
    ) -> None:
        """Add one record. ``timestamp``: µs since 1970."""
        keys = self._options.hmac_keys
        refused = refusal(keys, key, value, headers) if keys else None
        parsed = Fault(refused) if refused else parse_record(value)
        position = (partition, offset)
        conflict = self._options.decision.conflicts.get(position)
        if not isinstance(parsed, Fault):
            whole = (parsed.first_seq, parsed.last_seq)
            for first, last in self._options.decision.new_ranges.get(position, (whole,)):
                self._add_events(parsed, first, last, (timestamp, *position))
            if conflict is None:
                return
            completeness.add_conflict(self._rows, parsed)
            parsed = Fault(CONFLICT_REASON, conflict)
        # Without LogAppendTime a producer sets the timestamp. No row may have one that Delta or Python cannot read.
        at = min(max(timestamp, 0), MAX_INSTANT)
        sample = None if value is None else base64.b64encode(value[:DEAD_LETTER_SAMPLE_BYTES]).decode()
        letter = [at // DAY_US, at, topic, *position, *parsed, len(value or b""), sample]
        self._rows.add_encoded("dead_letters", encode(position), letter)
        self._add_summary(RecordSummary(timestamp, *position, dead=True))

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, and forget them."""
        self._measures.take(self._rows)
        yield from self._rows.take()

    def _add_events(self, envelope: Any, first: int, last: int, position: tuple[int, int, int]) -> None:
        cluster_id, broker_id = envelope.cluster_id, envelope.broker_id
        measures = self._measures
        measures.select_sidecar(cluster_id, broker_id)
        completeness.add_arrived(self._rows, envelope, first, last)
        events = envelope.events
        if last - first + 1 < len(events):
            events = events[first - envelope.first_seq : last - envelope.first_seq + 1]
        unknown = 0
        for event in events:
            if type(event) is _Request:
                may_be_denied = measures.add_request(event) or event.resources or event.item_errors
                if event.operation in CHANGE_OPERATIONS or (may_be_denied and is_denied(event)):
                    add_changes(self._rows, cluster_id, broker_id, event)
                if self._options.mirrors:
                    for row in self._produced.rows_of_request(cluster_id, broker_id, event):
                        self._rows.add_encoded("produced", encode(position[1:]), row)
            elif type(event) is UnknownEvent:
                unknown += 1
            elif type(event) is _Rollup:
                measures.add_rollup(event)
                for row in self._produced.rows_of_rollup(cluster_id, broker_id, event):
                    self._rows.add_encoded("produced", encode(position[1:]), row)
            else:
                _ADD[type(event)](self._rows, envelope, event)
        boot = (cluster_id, broker_id, envelope.boot_id)
        counts = (len(events) - unknown, unknown)
        self._add_summary(RecordSummary(*position, False, boot, first, last, digests_of(envelope.events), *counts))

    def _add_summary(self, summary: RecordSummary) -> None:
        self._rows.add_encoded(RECORDS, summary.key, summary)
