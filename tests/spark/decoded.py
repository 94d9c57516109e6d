"""Rows of the streamed tables, made of values of Kafka records by the jobs' own functions, without Spark."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from spark_jobs.decode import DecodeOptions, RecordSummary, decode_records
from spark_jobs.partial_rows import PARTIAL_SCHEMA, RECORDS, decode, merge_sorted, table_rows
from spark_jobs.schemas import STREAMED
from tests.spark import stored

READ_AT = datetime(2026, 9, 22, 12, 5, tzinfo=UTC)

Value = bytes | None


def kafka_records(values: Sequence[Value], read_at: Sequence[datetime] = ()) -> pa.RecordBatch:
    """Return rows as Kafka's source gives them of values: topic "audit", partition 0, offsets from 0."""
    count = len(values)
    columns = {
        "value": pa.array(values, pa.binary()), "topic": pa.array(["audit"] * count, pa.string()),
        "partition": pa.array([0] * count, pa.int32()), "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array(read_at or [READ_AT] * count, pa.timestamp("us", "UTC")),
    }  # fmt: skip
    return pa.record_batch(columns)


def partial_rows(records: pa.RecordBatch, **options: Any) -> pa.Table:
    """Return the partial rows that two tasks make of ``records``, added up by a third one."""
    half = len(records) // 2
    given = DecodeOptions(**{"names": tuple(STREAMED), **options})
    made = [batch for task in (records[:half], records[half:]) for batch in decode_records([task], given)]
    rows = pa.Table.from_batches(made, PARTIAL_SCHEMA).sort_by([("table", "ascending"), ("key", "ascending")])
    return pa.Table.from_batches(merge_sorted(rows.to_batches(max_chunksize=3)), PARTIAL_SCHEMA)


def rows_of(name: str, partial: pa.Table) -> pa.Table:
    return table_rows(name, partial.filter(pa.compute.field("table") == name).to_batches())


def summaries(partial: pa.Table) -> list[RecordSummary]:
    """Return what ``partial`` says of the records, in their order."""
    of_records = partial.filter(pa.compute.field("table") == RECORDS)
    found = [RecordSummary(*decode(values)) for values in of_records["values"].to_pylist()]
    assert found == sorted(found, key=lambda one: one[:3]), "keys sort as summaries do"
    return found


def decoded(name: str, values: Sequence[Value], **options: Any) -> list[stored.Row]:
    return stored.plain(rows_of(name, partial_rows(kafka_records(values), **options)))
