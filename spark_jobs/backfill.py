"""Some days of the tables computed again from the topic, in place of what is there: the same functions, one batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs import checkpoint as points
from spark_jobs import io, kafka, schemas
from spark_jobs.definitions import Definitions
from spark_jobs.derived_tables import compute_derived_tables
from spark_jobs.errors import JobError
from spark_jobs.kafka import AuditTopicSource, OffsetRange
from spark_jobs.parse import deduplicate, parse_records
from spark_jobs.progress import Notice, RunSummary
from spark_jobs.schemas import Table
from spark_jobs.session import spark_conf, spark_session
from spark_jobs.sink import count_columns
from spark_jobs.table_root import (
    TableRoot,
    create_or_upgrade_table,
    open_tables,
    read_table_state,
    streamed_table_names,
)
from spark_jobs.tables.registry import STREAMED, Batch, chosen, undeclared

FIRST_RECORD_SEARCH_OFFSETS = 1_000
"""Offsets of a partition in which its first record is looked for."""

Notify = Callable[[Notice], None]


def run_backfill(
    source: AuditTopicSource,
    target: TableRoot,
    definitions: Definitions,
    *,
    first: date | None,
    last: date | None,
    jars: Sequence[Path],
    master: str,
    conf: Mapping[str, str],
    progress: Notify,
) -> RunSummary:
    """Replace the days from ``first`` to ``last``. See ``spark_jobs.run.backfill``."""
    started = time.monotonic()
    days = [f"day >= '{first}'"] if first else []
    days += [f"day <= '{last}'"] if last else []
    with spark_session(f"brokerside backfill {source.topic}", spark_conf(master, jars, conf, short=True)) as spark:
        cluster = kafka.fetch_cluster_id(spark, source)
        target = target.of(cluster, source.topic)
        identity = _open_tables(spark, source, target, cluster, progress)
        only = identity.only if identity else None
        nothing = undeclared(streamed_table_names(only), definitions)
        names = [name for name in streamed_table_names(only) if name not in nothing]
        own = identity.writer if identity else _backfill_writer(cluster, source.topic)
        others = {writer for name in names for writer in read_table_state(spark, target, name).writers} - {own}
        _check_topics_separable(others, cluster)
        with _stream_stopped(spark, target, identity) as position:
            what = kafka.fetch_offset_range(spark, source)
            if position is not None:
                what = OffsetRange({each: what.first[each] for each in position.offsets}, position.offsets)
            _check_records_available(spark, source, what, first)
            parsed = parse_records(kafka.read_range(spark, source, what)).persist(StorageLevel.DISK_ONLY)
            batch = Batch(deduplicate(parsed), definitions)
            try:
                (row,) = batch.parsed.agg(
                    F.count_distinct("partition", "offset").alias("records"), *count_columns()
                ).collect()
                for name in names:
                    of_topic = _topic_conditions(batch, schemas.TABLES[name], source, others)
                    if of_topic is None:
                        said = "stays as it is: a topic of the same name of another cluster fills it, too"
                        progress(Notice(f"table {name} {said}"))
                        continue
                    rows = STREAMED[name](batch).where(" AND ".join(["true", *days]))
                    options: dict[str, str | int] = {}
                    if identity is None:
                        options = {
                            "txnAppId": own,
                            "txnVersion": read_table_state(spark, target, name).last_batch(own) + 1,
                        }
                    io.replace_rows(rows, target.path(name), " AND ".join([*days, *of_topic]), options)
                    progress(Notice(f"table {name}: computed again"))
            finally:
                batch.release()
                parsed.unpersist()
        failed = compute_derived_tables(spark, target, chosen(only), definitions, progress, since=first or date.min)
    return RunSummary(
        records=what.records,
        events=row["events"],
        dead_letters=row["dead_letters"],
        duplicates=what.records - row["records"],
        unknown=row["unknown"],
        batches=1,
        seconds=time.monotonic() - started,
        failed=failed,
    )


def _open_tables(
    spark: SparkSession, source: AuditTopicSource, target: TableRoot, cluster: str, say: Notify
) -> points.CheckpointIdentity | None:
    """Return the identity of the checkpoint; None where there is none, and no other job filled tables of the topic."""
    if points.read_identity(io.Folder(spark, target.checkpoint), target.checkpoint) is not None:
        return open_tables(spark, target, cluster, source.topic, None, say)
    own = _backfill_writer(cluster, source.topic)
    for name in streamed_table_names(None):
        writers = {
            writer: last for writer, last in read_table_state(spark, target, name).writers.items() if writer != own
        }
        points.check_new_checkpoint(
            {name: points.TableState(writers=writers)}, cluster, source.topic, target.checkpoint
        )
    for name in streamed_table_names(None):
        create_or_upgrade_table(spark, target, name, say)
    say(Notice("there is no checkpoint: what the topic has now is computed, and no job can go on from it"))
    return None


def _backfill_writer(cluster: str, topic: str) -> str:
    """Return the name of the writer of rows that no checkpoint continues."""
    return f"{points.writer_prefix(cluster, topic)}backfill"


@contextmanager
def _stream_stopped(
    spark: SparkSession, target: TableRoot, identity: points.CheckpointIdentity | None
) -> Iterator[points.CheckpointPosition | None]:
    """Give how far the checkpoint is, and keep every run of its job from going on for as long as the block lasts.

    A run writes down each batch that it begins before it looks for this mark, and the mark is there before it is looked
    for such a batch: one of the two sees the other.
    """
    if identity is None:
        yield None
        return
    folder = io.Folder(spark, target.checkpoint)
    folder.write(points.BACKFILL_MARKER_FILE, "")
    try:
        position = points.read_position(folder)
        if position.committed < 0:
            raise JobError(
                f"the job of the checkpoint {target.checkpoint} has read nothing yet: there is nothing to do"
            )
        if position.planned != position.committed:
            raise JobError(
                f"batch {position.planned} of the checkpoint {target.checkpoint} is at work, or was broken off: end the"
                " job, or let it run to its end once more, and then run the backfill"
            )
        yield position
    finally:
        folder.remove(points.BACKFILL_MARKER_FILE)


def _check_records_available(
    spark: SparkSession, source: AuditTopicSource, what: OffsetRange, first: date | None
) -> None:
    """Raise JobError if records that tell of ``first`` or later may have been deleted from the topic."""
    gone = {partition: what.first[partition] for partition in what.end if what.first[partition] > 0}
    if not gone:
        return
    for partition, offset in gone.items():
        if offset >= what.end[partition]:
            raise JobError(
                f"Kafka has deleted everything of {source.topic}, partition {partition}, that the job has read: nothing"
                " can be computed again"
            )
    ends = {
        partition: min(offset + FIRST_RECORD_SEARCH_OFFSETS, what.end[partition]) for partition, offset in gone.items()
    }
    beginning = kafka.read_range(spark, source, OffsetRange(gone, ends))
    oldest = beginning.groupBy("partition").agg(F.min_by("timestamp", "offset").alias("at"))
    (row,) = oldest.agg(F.to_date(F.max("at"))).collect()
    # An event is never told before it happens: what was deleted is of the day of the first record left, or earlier.
    possible = row[0] + timedelta(days=1)
    if first is None or first < possible:
        raise JobError(
            f"Kafka has deleted records of {source.topic} that may tell of {first or 'the first days'}; what can be"
            f" computed again are the days from {possible} on"
        )


def _check_topics_separable(others: Collection[str], cluster: str) -> None:
    """Raise JobError if rows of the topic cannot be told from those that ``others`` wrote."""
    same = [writer for writer in others if writer.startswith(points.writer_prefix(cluster, ""))]
    if same:
        raise JobError(
            f"another audit topic of the same Kafka cluster fills these tables, too ({same[0]}): rows of one topic"
            " cannot be told from those of the other, so nothing can be replaced"
        )


def _topic_conditions(
    batch: Batch, table: Table, source: AuditTopicSource, others: Collection[str]
) -> list[str] | None:
    """Return conditions (SQL) that the rows of ``table`` meet that are of this topic, None if there are none such."""
    if not others:
        return []
    if "cluster_id" in {column.name for column in table.columns}:
        told = batch.parsed.where("reason IS NULL").select("cluster_id").distinct().collect()
        return [f"cluster_id IN ({', '.join(sorted(_sql_string(row[0]) for row in told)) or 'NULL'})"]
    if any(writer.split("/")[2] == source.topic for writer in others):
        return None
    return [f"topic = {_sql_string(source.topic)}"]


def _sql_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
