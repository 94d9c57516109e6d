"""One streaming query from the audit topic into the tables, with its checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict
from queue import SimpleQueue

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs import checkpoint, error_messages, io, kafka, readers
from spark_jobs.definitions import Definitions
from spark_jobs.derived_tables import check_definitions_given
from spark_jobs.kafka import AuditTopicSource
from spark_jobs.maintenance import MaintainedTables, MaintenanceScheduler
from spark_jobs.progress import BatchCounts, BatchProgress, Notice, RunSummary
from spark_jobs.reader_records import AuditReader
from spark_jobs.sink import TableSink
from spark_jobs.table_root import TableRoot, open_tables, streamed_table_names
from spark_jobs.tables.registry import selected_tables, tables_without_definitions

TRIGGER_INTERVAL = "1 second"
"""How often a continuous job asks Kafka whether there are records for a batch. Full batches follow without a pause."""

QUERY_POLL_SECONDS = 1
"""Seconds between two checks of the query's state."""


def run_streaming_job(
    session: AbstractContextManager[SparkSession],
    source: AuditTopicSource,
    root: TableRoot,
    definitions: Definitions,
    *,
    reader: AuditReader,
    only: Sequence[str] | None,
    available_now: bool,
    progress: Callable[[BatchProgress | Notice], None],
) -> RunSummary:
    """Run the query until it ends. For the arguments see ``spark_jobs.run.run``."""
    started = time.monotonic()
    with session as spark, _stop_on_signal() as stop, ExitStack() as registration:
        progress(Notice("Spark runs; the cluster is asked for the topic"))
        cluster = kafka.fetch_cluster_id(spark, source)
        registration.enter_context(readers.registered(spark, source, reader, progress))
        root = root.with_checkpoint(cluster, source.topic)
        folder = io.Folder(spark, root.checkpoint)
        checkpoint.check_no_backfill(folder, root.checkpoint)
        identity = open_tables(spark, root, cluster, source.topic, only, progress)
        names = selected_tables(identity.only)
        stored = {name: io.open_table(spark, root.table_path(name)) for name in identity.tables}
        filled = [name for name, table in stored.items() if table.last_batch(identity.writer) >= 0]
        check_definitions_given(definitions, filled)
        if skipped := tables_without_definitions(names, definitions):
            progress(Notice(f"no rows are written to {', '.join(skipped)}: there are no definitions for them"))

        tables = MaintainedTables(spark, root, names, definitions, progress)
        maintenance = MaintenanceScheduler(tables, continuous=not available_now)
        streamed = streamed_table_names(identity.only)
        sink = TableSink(root, identity, streamed, definitions, source.hmac_keys)
        totals = Counter(batches=0, **asdict(BatchCounts(0, 0, 0, 0, 0)))
        progress(Notice(f"cluster {cluster} has the topic; its records are read"))
        with closing(sink):
            query = _start_query(spark, source, root.checkpoint, sink, available_now=available_now)
            try:
                for counts in _follow_query(query, sink.written, folder, stop, progress, maintenance):
                    totals.update(asdict(counts), batches=1)
            except StreamingQueryException as error:
                explained = error_messages.explain_spark_error(str(error), source.topic, root.checkpoint)
                raise explained or error from error
            finally:
                query.stop()
        failed = maintenance.run_at_end()
    return RunSummary(**totals, seconds=time.monotonic() - started, failed=failed)


def _start_query(
    spark: SparkSession, source: AuditTopicSource, checkpoint_path: str, sink: TableSink, *, available_now: bool
) -> StreamingQuery:
    records = kafka.read_stream(spark, source, wait=not available_now)
    writer = records.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint_path)
    trigger = {"availableNow": True} if available_now else {"processingTime": TRIGGER_INTERVAL}
    return writer.trigger(**trigger).start()


def _follow_query(
    query: StreamingQuery,
    written: SimpleQueue[tuple[int, BatchCounts, float]],
    checkpoint_folder: io.Folder,
    stop: threading.Event,
    progress: Callable[[BatchProgress | Notice], None],
    maintenance: MaintenanceScheduler,
) -> Iterator[BatchCounts]:
    """Yield the counts of each batch until the query ends, or the batch that runs when ``stop`` is set.

    Meanwhile run maintenance. ``written``: see ``TableSink``. Raises StreamingQueryException if the query fails.
    """
    last: int | None = None
    while True:
        ended = query.awaitTermination(QUERY_POLL_SECONDS)
        if stop.is_set():
            position = checkpoint.read_position(checkpoint_folder)
            last = position.planned if last is None else last
            ended = ended or position.committed >= last
        while not written.empty():
            number, counts, seconds = written.get()
            maintenance.batch_written()
            progress(BatchProgress(**asdict(counts), batch=number, seconds=seconds))
            yield counts
        if ended:
            return
        if not stop.is_set():
            maintenance.run_due_tasks()


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
