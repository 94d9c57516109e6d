"""One streaming query: from the audit topic into the tables, with its checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs import checkpoint as points
from spark_jobs import error_messages, io, kafka
from spark_jobs.definitions import Definitions
from spark_jobs.derived_tables import check_definitions_given
from spark_jobs.kafka import AuditTopicSource
from spark_jobs.maintenance import MaintenanceScheduler
from spark_jobs.parse import parse_records
from spark_jobs.progress import BatchProgress, Notice, RunSummary
from spark_jobs.session import spark_conf, spark_session
from spark_jobs.sink import BatchCounts, TableSink
from spark_jobs.table_root import TableRoot, open_tables, read_table_state, streamed_table_names
from spark_jobs.tables.registry import chosen, undeclared

TRIGGER_INTERVAL = "1 second"
"""How often a continuous job asks Kafka whether there is enough for a batch: full ones follow each other at once."""

QUERY_POLL_SECONDS = 1
"""Seconds between looks at the query."""


def run_streaming_job(
    source: AuditTopicSource,
    target: TableRoot,
    definitions: Definitions,
    *,
    only: Sequence[str] | None,
    jars: Sequence[Path],
    master: str,
    conf: Mapping[str, str],
    available_now: bool,
    progress: Callable[[BatchProgress | Notice], None],
) -> RunSummary:
    """Run the query to its end. See ``spark_jobs.run.run``."""
    started = time.monotonic()
    conf = spark_conf(master, jars, conf, short=available_now)
    with spark_session(f"brokerside {source.topic}", conf) as spark, _stop_on_signal() as stop:
        cluster = kafka.fetch_cluster_id(spark, source)
        target = target.of(cluster, source.topic)
        points.check_no_backfill(io.Folder(spark, target.checkpoint), target.checkpoint)
        identity = open_tables(spark, target, cluster, source.topic, only, progress)
        names = chosen(identity.only)
        filled = [
            name for name in identity.tables if read_table_state(spark, target, name).last_batch(identity.writer) >= 0
        ]
        check_definitions_given(definitions, filled)
        nothing = undeclared(names, definitions)
        if nothing:
            progress(Notice(f"nothing is written to {', '.join(nothing)}: the definitions have nothing for them"))

        chores = MaintenanceScheduler(spark, target, names, definitions, progress, continuous=not available_now)
        with closing(
            TableSink(target, identity, streamed_table_names(identity.only), definitions, chores.after_batch)
        ) as sink:
            query = _start_query(spark, source, target.checkpoint, sink, available_now=available_now)
            try:
                done = list(_follow_query(query, sink, stop, progress, chores))
            except StreamingQueryException as error:
                raise (
                    error_messages.explain_spark_error(str(error), source.topic, target.checkpoint) or error
                ) from error
            finally:
                query.stop()
        failed = chores.at_end()
    return RunSummary(
        records=sum(batch.records for batch in done),
        events=sum(batch.events for batch in done),
        dead_letters=sum(batch.dead_letters for batch in done),
        duplicates=sum(batch.duplicates for batch in done),
        unknown=sum(batch.unknown for batch in done),
        batches=len(done),
        seconds=time.monotonic() - started,
        failed=failed,
    )


def _start_query(
    spark: SparkSession, source: AuditTopicSource, where: str, sink: TableSink, *, available_now: bool
) -> StreamingQuery:
    records = kafka.read_stream(spark, source, wait=not available_now)
    writer = parse_records(records).writeStream.foreachBatch(sink).option("checkpointLocation", where)
    return (
        writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=TRIGGER_INTERVAL)
    ).start()


def _follow_query(
    query: StreamingQuery,
    sink: TableSink,
    stop: threading.Event,
    progress: Callable[[BatchProgress | Notice], None],
    chores: MaintenanceScheduler,
) -> Iterator[BatchProgress]:
    """Give the progress of each batch until the query ends. Raises StreamingQueryException if it fails."""
    last = -1
    stopping = False
    while True:
        # Asked before the reports are read: what ends in between is reported, too.
        stopping = stopping or stop.is_set()
        at_rest = not query.status["isTriggerActive"]
        ended = query.awaitTermination(QUERY_POLL_SECONDS)
        finished = False
        for report in query.recentProgress:
            if report.batchId > last and report.numInputRows:
                last = report.batchId
                finished = True
                batch = _batch_progress(report, sink.counts(report.batchId))
                progress(batch)
                yield batch
        if ended or (stopping and (finished or at_rest)):
            return
        if at_rest:
            chores.at_rest()


def _batch_progress(report: StreamingQueryProgress, counts: BatchCounts) -> BatchProgress:
    return BatchProgress(
        batch=report.batchId,
        records=report.numInputRows,
        events=counts.events,
        dead_letters=counts.dead_letters,
        duplicates=counts.duplicates,
        unknown=counts.unknown,
        seconds=report.durationMs["triggerExecution"] / 1000,
    )


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Give an event that SIGTERM and SIGINT set for as long as the block lasts."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in signals}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
