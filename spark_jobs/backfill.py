"""Computes days of the tables again from the topic and replaces them: the functions of the stream, in one batch."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import date, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs import checkpoint, io, kafka, readers, schemas
from spark_jobs.batch import WholeTopic
from spark_jobs.checkpoint import CheckpointIdentity, CheckpointPosition, TableState
from spark_jobs.decode import DecodeOptions
from spark_jobs.definitions import Definitions
from spark_jobs.derived_tables import compute_derived_tables
from spark_jobs.errors import JobError
from spark_jobs.kafka import AuditTopicSource, OffsetRange
from spark_jobs.progress import Notice, Notify, RunSummary
from spark_jobs.reader_records import AuditReader
from spark_jobs.schemas import Table
from spark_jobs.table_root import (
    TableRoot,
    create_or_upgrade_table,
    open_tables,
    read_table_state,
    streamed_table_names,
)
from spark_jobs.tables.produced import mirror_sides
from spark_jobs.tables.registry import selected_tables, tables_without_definitions

FIRST_RECORD_SEARCH_OFFSETS = 1_000
"""Offsets from the beginning of a partition that are searched for its first record. Offsets may have gaps."""


def run_backfill(
    session: AbstractContextManager[SparkSession],
    source: AuditTopicSource,
    root: TableRoot,
    definitions: Definitions,
    *,
    reader: AuditReader,
    first: date | None,
    last: date | None,
    progress: Notify,
) -> RunSummary:
    """Replace the days from ``first`` to ``last``. For the arguments see ``spark_jobs.run.backfill``."""
    started = time.monotonic()
    days = " AND ".join(["true", *([f"day >= '{first}'"] if first else []), *([f"day <= '{last}'"] if last else [])])
    with session as spark, ExitStack() as registration:
        cluster = kafka.fetch_cluster_id(spark, source)
        registration.enter_context(readers.registered(spark, source, reader, progress))
        root = root.with_checkpoint(cluster, source.topic)
        identity = _open_tables(spark, source, root, cluster, progress)
        only = identity.only if identity else None
        skipped = tables_without_definitions(streamed_table_names(only), definitions)
        names = [name for name in streamed_table_names(only) if name not in skipped]
        own = identity.writer if identity else _backfill_writer(cluster, source.topic)
        others = {writer for name in names for writer in read_table_state(spark, root, name).writers} - {own}
        _check_topics_separable(others, cluster)
        with _stream_stopped(spark, root, identity) as position:
            offsets = kafka.fetch_offset_range(spark, source)
            if position is not None:
                offsets = OffsetRange({each: offsets.first[each] for each in position.offsets}, position.offsets)
            _check_records_available(spark, source, offsets, first)
            options = DecodeOptions(names, mirror_sides(definitions.mirrors), source.hmac_keys)
            batch = WholeTopic(kafka.read_range(spark, source, offsets), options)
            try:
                for name in names:
                    of_topic = _topic_condition(batch, schemas.TABLES[name], source, others)
                    if of_topic is None:
                        progress(
                            Notice(
                                f"table {name} is not changed: a topic of this name in another cluster fills it, too"
                            )
                        )
                        continue
                    stored = io.open_table(spark, root.table_path(name))
                    replaced = [file for file in stored.files if _is_between(file.day, first, last)]
                    rows = batch.table(name)
                    if of_topic:
                        others_rows = io.read_rows(spark, stored, replaced).where(f"NOT coalesce({of_topic}, false)")
                        rows = rows.unionByName(others_rows.select(*rows.columns))
                    own_batch = None if identity else (own, stored.last_batch(own) + 1)
                    stored.replace_files(replaced, io.write_files(rows.where(days), stored), batch=own_batch)
                    progress(Notice(f"table {name}: computed again"))
            finally:
                batch.release()
        since = first or date.min
        failed = compute_derived_tables(spark, root, selected_tables(only), definitions, progress, since=since)
    return RunSummary(
        records=offsets.record_count,
        events=batch.counts.events,
        dead_letters=batch.counts.dead_letters,
        duplicates=offsets.record_count - batch.counts.records,
        unknown=batch.counts.unknown,
        batches=1,
        seconds=time.monotonic() - started,
        failed=failed,
    )


def _open_tables(
    spark: SparkSession, source: AuditTopicSource, root: TableRoot, cluster: str, notify: Notify
) -> CheckpointIdentity | None:
    """Create or upgrade the tables, and return the identity of the checkpoint, None if there is no checkpoint.

    Raises JobError if there is no checkpoint although a job has filled tables from the topic, and for a table whose
    files cannot be replaced.
    """
    for name in streamed_table_names(None):
        io.open_table(spark, root.table_path(name)).check_features()
    if checkpoint.read_identity(io.Folder(spark, root.checkpoint), root.checkpoint) is not None:
        return open_tables(spark, root, cluster, source.topic, None, notify)
    own = _backfill_writer(cluster, source.topic)
    for name in streamed_table_names(None):
        writers = {
            writer: last for writer, last in read_table_state(spark, root, name).writers.items() if writer != own
        }
        checkpoint.check_new_checkpoint({name: TableState(writers=writers)}, cluster, source.topic, root.checkpoint)
    for name in streamed_table_names(None):
        create_or_upgrade_table(spark, root, name, notify)
    notify(Notice("there is no checkpoint: all records that the topic has now are read, and no job can continue them"))
    return None


def _backfill_writer(cluster: str, topic: str) -> str:
    """Return the name of the writer of rows that belong to no checkpoint."""
    return f"{checkpoint.writer_prefix(cluster, topic)}backfill"


@contextmanager
def _stream_stopped(
    spark: SparkSession, root: TableRoot, identity: CheckpointIdentity | None
) -> Iterator[CheckpointPosition | None]:
    """Yield the position of the checkpoint, and keep every run of its streaming job stopped while the block runs.

    A run stores each batch that it starts before it looks for the marker file. Here the marker file is written before
    the batches are read. So at least one of the two sees the other.
    """
    if identity is None:
        yield None
        return
    folder = io.Folder(spark, root.checkpoint)
    folder.write(checkpoint.BACKFILL_MARKER_FILE, "")
    try:
        position = checkpoint.read_position(folder)
        if position.committed < 0:
            raise JobError(
                f"the job of the checkpoint {root.checkpoint} has not finished a batch: there is nothing to backfill"
            )
        if position.planned != position.committed:
            raise JobError(
                f"batch {position.planned} of the checkpoint {root.checkpoint} is running, or was interrupted: stop the"
                " job, or let it run to its end once more, and then run the backfill"
            )
        yield position
    finally:
        folder.remove(checkpoint.BACKFILL_MARKER_FILE)


def _check_records_available(
    spark: SparkSession, source: AuditTopicSource, offsets: OffsetRange, first: date | None
) -> None:
    """Raise JobError if records with events of the day ``first`` or later may have been deleted from the topic."""
    deleted = {partition: offsets.first[partition] for partition in offsets.end if offsets.first[partition] > 0}
    if not deleted:
        return
    for partition, offset in deleted.items():
        if offset >= offsets.end[partition]:
            raise JobError(
                f"Kafka has deleted all records of {source.topic}, partition {partition}, that the job has read:"
                " nothing can be computed again"
            )
    ends = {part: min(offset + FIRST_RECORD_SEARCH_OFFSETS, offsets.end[part]) for part, offset in deleted.items()}
    beginning = kafka.read_range(spark, source, OffsetRange(deleted, ends))
    oldest = beginning.groupBy("partition").agg(F.min_by("timestamp", "offset").alias("at"))
    (row,) = oldest.agg(F.to_date(F.max("at"))).collect()
    # An event is sent after it happens, so deleted events are of the day of the first remaining record, or earlier.
    possible = row[0] + timedelta(days=1)
    if first is None or first < possible:
        raise JobError(
            f"Kafka has deleted records of {source.topic} that may contain events of {first or 'the first days'}; only"
            f" the days from {possible} on can be computed again"
        )


def _check_topics_separable(others: Collection[str], cluster: str) -> None:
    """Raise JobError if rows of the topic cannot be distinguished from rows of the writers ``others``."""
    same = [writer for writer in others if writer.startswith(checkpoint.writer_prefix(cluster, ""))]
    if same:
        raise JobError(
            f"another audit topic of the same Kafka cluster fills these tables, too ({same[0]}): the rows of the two"
            " topics cannot be distinguished, so none can be replaced"
        )


def _topic_condition(batch: WholeTopic, table: Table, source: AuditTopicSource, others: Collection[str]) -> str | None:
    """Return SQL that selects the rows of ``table`` of this topic, empty if all are, None if that is impossible."""
    if not others:
        return ""
    if "cluster_id" in {column.name for column in table.columns}:
        return f"cluster_id IN ({', '.join(sorted(map(_sql_string, batch.clusters))) or 'NULL'})"
    if any(writer.split("/")[2] == source.topic for writer in others):
        return None
    return f"topic = {_sql_string(source.topic)}"


def _is_between(day: date | None, first: date | None, last: date | None) -> bool:
    if day is None:
        return first is None and last is None
    return (first or day) <= day <= (last or day)


def _sql_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
