"""One streaming query from the audit topic into the tables, with its checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs import checkpoint, error_messages, io, kafka, readers
from spark_jobs.batch import BatchCounts
from spark_jobs.definitions import Definitions
from spark_jobs.derived_tables import check_definitions_given
from spark_jobs.kafka import AuditTopicSource
from spark_jobs.maintenance import MaintainedTables, MaintenanceScheduler
from spark_jobs.progress import BatchProgress, Notice, RunSummary
from spark_jobs.reader_records import AuditReader
from spark_jobs.session import spark_conf, spark_session
from spark_jobs.sink import TableSink
from spark_jobs.table_root import TableRoot, open_tables, read_table_state, streamed_table_names
from spark_jobs.tables.registry import selected_tables, tables_without_definitions

TRIGGER_INTERVAL = "1 second"
"""How often a continuous job asks Kafka whether there are records for a batch. Full batches follow without a pause."""

QUERY_POLL_SECONDS = 1
"""Seconds between two checks of the query's state."""


def run_streaming_job(
    source: AuditTopicSource,
    root: TableRoot,
    definitions: Definitions,
    *,
    reader: AuditReader,
    only: Sequence[str] | None,
    jars: Sequence[Path],
    master: str,
    conf: Mapping[str, str],
    available_now: bool,
    progress: Callable[[BatchProgress | Notice], None],
) -> RunSummary:
    """Run the query until it ends. For the arguments see ``spark_jobs.run.run``."""
    started = time.monotonic()
    conf = spark_conf(master, jars, conf, short=available_now)
    session = spark_session(f"brokerside {source.topic}", conf)
    with session as spark, _stop_on_signal() as stop, ExitStack() as registration:
        cluster = kafka.fetch_cluster_id(spark, source)
        registration.enter_context(readers.registered(spark, source, reader, progress))
        root = root.with_checkpoint(cluster, source.topic)
        checkpoint.check_no_backfill(io.Folder(spark, root.checkpoint), root.checkpoint)
        identity = open_tables(spark, root, cluster, source.topic, only, progress)
        names = selected_tables(identity.only)
        filled = [
            name for name in identity.tables if read_table_state(spark, root, name).last_batch(identity.writer) >= 0
        ]
        check_definitions_given(definitions, filled)
        skipped = tables_without_definitions(names, definitions)
        if skipped:
            progress(Notice(f"no rows are written to {', '.join(skipped)}: there are no definitions for them"))

        tables = MaintainedTables(spark, root, names, definitions, progress)
        maintenance = MaintenanceScheduler(tables, continuous=not available_now)
        streamed = streamed_table_names(identity.only)
        sink = TableSink(root, identity, streamed, definitions, source.hmac_keys, maintenance.run_after_batch)
        with closing(sink):
            query = _start_query(spark, source, root.checkpoint, sink, available_now=available_now)
            try:
                batches = list(_follow_query(query, sink, stop, progress, maintenance))
            except StreamingQueryException as error:
                explained = error_messages.explain_spark_error(str(error), source.topic, root.checkpoint)
                raise explained or error from error
            finally:
                query.stop()
        failed = maintenance.run_at_end()
    return RunSummary(
        records=sum(batch.records for batch in batches),
        events=sum(batch.events for batch in batches),
        dead_letters=sum(batch.dead_letters for batch in batches),
        duplicates=sum(batch.duplicates for batch in batches),
        unknown=sum(batch.unknown for batch in batches),
        batches=len(batches),
        seconds=time.monotonic() - started,
        failed=failed,
    )


def _start_query(
    spark: SparkSession, source: AuditTopicSource, checkpoint_path: str, sink: TableSink, *, available_now: bool
) -> StreamingQuery:
    records = kafka.read_stream(spark, source, wait=not available_now)
    writer = records.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint_path)
    return (
        writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=TRIGGER_INTERVAL)
    ).start()


def _follow_query(
    query: StreamingQuery,
    sink: TableSink,
    stop: threading.Event,
    progress: Callable[[BatchProgress | Notice], None],
    maintenance: MaintenanceScheduler,
) -> Iterator[BatchProgress]:
    """Yield the progress of each batch until the query ends or ``stop`` is set, and run maintenance while it is idle.

    Raises StreamingQueryException if the query fails.
    """
    last = -1
    stopping = False
    while True:
        # The state is read before the progress, so that a batch that ends in between is reported, too.
        stopping = stopping or stop.is_set()
        idle = not query.status["isTriggerActive"]
        ended = query.awaitTermination(QUERY_POLL_SECONDS)
        finished = False
        for report in query.recentProgress:
            if report.batchId > last and report.numInputRows:
                last = report.batchId
                finished = True
                batch = _batch_progress(report, sink.counts_of_batch(report.batchId))
                progress(batch)
                yield batch
        if ended or (stopping and (finished or idle)):
            return
        if idle:
            maintenance.run_when_idle()


def _batch_progress(report: StreamingQueryProgress, counts: BatchCounts) -> BatchProgress:
    return BatchProgress(
        batch=report.batchId,
        records=counts.records,  # a batch with duplicates is read twice
        events=counts.events,
        dead_letters=counts.dead_letters,
        duplicates=counts.duplicates,
        unknown=counts.unknown,
        seconds=report.durationMs["triggerExecution"] / 1000,
    )


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set while the block runs. Outside of the main thread nothing sets it."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
