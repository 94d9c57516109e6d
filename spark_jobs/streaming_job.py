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
from spark_jobs.derived_tables import check_declared
from spark_jobs.kafka import Source
from spark_jobs.maintenance import Chores
from spark_jobs.parse import parse
from spark_jobs.progress import Note, Progress, Summary
from spark_jobs.session import session, settings
from spark_jobs.sink import Counts, Sink
from spark_jobs.table_root import Target, open_tables, state_of, streamed
from spark_jobs.tables.registry import chosen, undeclared

LOOK = "1 second"
"""How often a continuous job asks Kafka whether there is enough for a batch: full ones follow each other at once."""

POLL = 1
"""Seconds between looks at the query."""


def run(
    source: Source,
    target: Target,
    definitions: Definitions,
    *,
    only: Sequence[str] | None,
    jars: Sequence[Path],
    master: str,
    conf: Mapping[str, str],
    available_now: bool,
    progress: Callable[[Progress | Note], None],
) -> Summary:
    """Run the query to its end. See ``spark_jobs.run.run``."""
    started = time.monotonic()
    conf = settings(master, jars, conf, short=available_now)
    with session(f"brokerside {source.topic}", conf) as spark, _stop_asked() as stop:
        cluster = kafka.cluster_id(spark, source)
        target = target.of(cluster, source.topic)
        points.check_no_backfill(io.Folder(spark, target.checkpoint), target.checkpoint)
        identity = open_tables(spark, target, cluster, source.topic, only, progress)
        names = chosen(identity.only)
        filled = [name for name in identity.tables if state_of(spark, target, name).last_batch(identity.writer) >= 0]
        check_declared(definitions, filled)
        nothing = undeclared(names, definitions)
        if nothing:
            progress(Note(f"nothing is written to {', '.join(nothing)}: the definitions have nothing for them"))

        chores = Chores(spark, target, names, definitions, progress, continuous=not available_now)
        with closing(Sink(target, identity, streamed(identity.only), definitions, chores.after_batch)) as sink:
            query = _start(spark, source, target.checkpoint, sink, available_now=available_now)
            try:
                done = list(_follow(query, sink, stop, progress, chores))
            except StreamingQueryException as error:
                raise error_messages.known(str(error), source.topic, target.checkpoint) or error from error
            finally:
                query.stop()
        failed = chores.at_end()
    return Summary(
        records=sum(batch.records for batch in done),
        events=sum(batch.events for batch in done),
        dead_letters=sum(batch.dead_letters for batch in done),
        duplicates=sum(batch.duplicates for batch in done),
        unknown=sum(batch.unknown for batch in done),
        batches=len(done),
        seconds=time.monotonic() - started,
        failed=failed,
    )


def _start(spark: SparkSession, source: Source, where: str, sink: Sink, *, available_now: bool) -> StreamingQuery:
    records = kafka.stream(spark, source, wait=not available_now)
    writer = parse(records).writeStream.foreachBatch(sink).option("checkpointLocation", where)
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=LOOK)).start()


def _follow(
    query: StreamingQuery,
    sink: Sink,
    stop: threading.Event,
    progress: Callable[[Progress | Note], None],
    chores: Chores,
) -> Iterator[Progress]:
    """Give the progress of each batch until the query ends. Raises StreamingQueryException if it fails."""
    last = -1
    stopping = False
    while True:
        # Asked before the reports are read: what ends in between is reported, too.
        stopping = stopping or stop.is_set()
        at_rest = not query.status["isTriggerActive"]
        ended = query.awaitTermination(POLL)
        finished = False
        for report in query.recentProgress:
            if report.batchId > last and report.numInputRows:
                last = report.batchId
                finished = True
                batch = _progress(report, sink.counts(report.batchId))
                progress(batch)
                yield batch
        if ended or (stopping and (finished or at_rest)):
            return
        if at_rest:
            chores.at_rest()


def _progress(report: StreamingQueryProgress, counts: Counts) -> Progress:
    return Progress(
        batch=report.batchId,
        records=report.numInputRows,
        events=counts.events,
        dead_letters=counts.dead_letters,
        duplicates=counts.duplicates,
        unknown=counts.unknown,
        seconds=report.durationMs["triggerExecution"] / 1000,
    )


@contextmanager
def _stop_asked() -> Iterator[threading.Event]:
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
