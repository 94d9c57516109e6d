"""Rows of all streamed tables of some Kafka records, computed by Spark: one stage that decodes, one that adds up.

A record with events that were written before is found when all records are decoded. Then they are read and decoded once
more, without these events. This is rare, so nothing is kept for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.decode import DecodeOptions, RecordSummary, decode_records
from spark_jobs.dedup_ranges import DedupRanges
from spark_jobs.io import map_in_arrow
from spark_jobs.partial_rows import PARTIAL_SCHEMA, RECORDS, decode, merge_sorted, table_batches, table_rows
from spark_jobs.progress import BatchCounts
from spark_jobs.schemas import STREAMED
from spark_jobs.spark_types import table_schema

_SCHEMA = from_arrow_schema(PARTIAL_SCHEMA)


def read_batch(
    records: DataFrame, ranges: DedupRanges, options: DecodeOptions
) -> tuple[dict[str, pa.Table], BatchCounts]:
    """Return what is new in ``records`` (rows of Spark's Kafka source), and add it to ``ranges``.

    Of the first result each table that has rows, by name.
    """
    by_table = _collect(records, options)
    summaries = _summaries(by_table)
    decision = ranges.add_records(summary.audit_record() for summary in sorted(summaries) if not summary.dead)
    read = len(summaries)
    if decision.new_ranges:
        by_table = _collect(records, replace(options, decision=decision))
        summaries = _summaries(by_table)
    tables = {name: table_rows(name, by_table[name].to_batches()) for name in STREAMED if name in by_table}
    return tables, replace(_count(summaries), records=read, duplicates=decision.duplicates)


def partial_rows(records: DataFrame, options: DecodeOptions) -> DataFrame:
    """Return the partial rows of ``records``, one for each key, sorted by table in each partition."""
    spark = records.sparkSession
    # Sums are few: half of the cores are enough for them.
    most = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    tasks = max(min(spark.sparkContext.defaultParallelism // 2, most), 1)
    # A task has a row of each key of its records: the fewer tasks there are, the fewer rows.
    read = records.select(*options.columns).coalesce(spark.sparkContext.defaultParallelism)
    decoded = map_in_arrow(read, partial(decode_records, options=options), _SCHEMA)
    shuffled = decoded.repartition(tasks, "key").sortWithinPartitions("table", "key")
    return map_in_arrow(shuffled, merge_sorted, _SCHEMA)


def _collect(records: DataFrame, options: DecodeOptions) -> dict[str, pa.Table]:
    rows = partial_rows(records, options).toArrow()
    names = rows["table"].unique().to_pylist()
    return {name: rows.filter(pc.equal(rows["table"], name)) for name in names}


def _summaries(by_table: Mapping[str, pa.Table]) -> list[RecordSummary]:
    found = by_table[RECORDS]["values"].to_pylist() if RECORDS in by_table else []
    return [RecordSummary(*decode(values)) for values in found]


def _count(summaries: Iterable[RecordSummary]) -> BatchCounts:
    records, known, unknown, dead = set(), 0, 0, 0
    for summary in summaries:
        records.add(summary[1:3])
        known, unknown, dead = known + summary.known, unknown + summary.unknown, dead + summary.dead
    return BatchCounts(len(records), known, dead, 0, unknown)


class WholeTopic:
    """The rows of a whole topic, or of a part of it, in which each event counts once.

    They may be many, so they stay in Spark. Of records that share event numbers the one with the earliest timestamp is
    kept.
    """

    def __init__(self, records: DataFrame, options: DecodeOptions) -> None:
        """``records``: rows of Spark's Kafka source, which can be read several times."""
        self._rows = partial_rows(records, options).persist(StorageLevel.DISK_ONLY)
        self.clusters: set[str] = set()
        """Ids of the clusters that the valid records are about."""
        valid = (summary.audit_record() for summary in self._summaries() if not summary.dead)
        decision = DedupRanges().add_records(valid)
        if decision.new_ranges:
            self.release()
            self._rows = partial_rows(records, replace(options, decision=decision)).persist(StorageLevel.DISK_ONLY)
        self.counts = _count(self._summaries())
        """Without ``duplicates``; ``records``: those that have anything new, and dead letters."""

    def release(self) -> None:
        """Release what is kept on disk."""
        self._rows.unpersist()

    def table(self, name: str) -> DataFrame:
        """Return the rows of the streamed table ``name``."""
        rows = self._rows.where(F.col("table") == name)
        return map_in_arrow(rows, partial(table_batches, name=name), table_schema(STREAMED[name]))

    def _summaries(self) -> Iterator[RecordSummary]:
        """Yield the summaries of the records in the order of their timestamps, without collecting them at once."""
        for (values,) in self._rows.where(F.col("table") == RECORDS).orderBy("key").select("values").toLocalIterator():
            summary = RecordSummary(*decode(bytes(values)))
            self.clusters.update(summary.boot[:1] if summary.boot else ())
            yield summary
