"""One streaming query: from the audit topic into the tables, with its checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs import checkpoint as points
from spark_jobs import failures, io
from spark_jobs.errors import JobError
from spark_jobs.events import KINDS
from spark_jobs.parse import dead_letters, deduplicate, parse
from spark_jobs.run import Progress, Summary
from spark_jobs.schemas import DEAD_LETTERS, TRAFFIC
from spark_jobs.session import session, settings
from spark_jobs.tables.traffic import traffic

DEDUP_HOURS = 2
"""How long an envelope is known after it was read: a second one within this time is a duplicate."""

TRIGGER = "15 seconds"
"""How often a continuous job looks for new records."""

COMPACT_EVERY = 200
"""Batches after which the small files that each of them writes are joined: every 50 minutes of a continuous job."""

POLL = 1
"""Seconds between looks at the query."""

TABLES = (TRAFFIC, DEAD_LETTERS)


@dataclass(frozen=True)
class Source:
    """Where the records are."""

    bootstrap_servers: str
    topic: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Target:
    """Where the tables and the checkpoint are: folders, or URLs of a storage that Spark knows."""

    tables: str
    checkpoint: str


class Sink:
    """Writes each batch to the tables, exactly once however often it is repeated."""

    def __init__(self, paths: Mapping[str, str], writer: str) -> None:
        self._paths = paths
        self._writer = writer

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write one batch. Spark calls this again with the same rows and number if it did not come to the end."""
        batch.persist()
        try:
            io.append_once(traffic(batch), self._paths[TRAFFIC.name], self._writer, number)
            dead = dead_letters(batch)
            if not dead.isEmpty():
                io.append_once(dead, self._paths[DEAD_LETTERS.name], self._writer, number)
        finally:
            batch.unpersist()
        if (number + 1) % COMPACT_EVERY == 0:
            for path in self._paths.values():
                io.compact(batch.sparkSession, path)


def run(
    job: str,
    source: Source,
    target: Target,
    *,
    jars: Sequence[Path],
    master: str,
    conf: Mapping[str, str],
    available_now: bool,
    progress: Callable[[Progress], None] | None,
) -> Summary:
    """Run the query to its end. See ``spark_jobs.run.run``."""
    started = time.monotonic()
    target = Target(_absolute(target.tables), _absolute(target.checkpoint))
    chosen = settings(master, jars, conf, short=available_now)
    with session(f"brokerside {job}", chosen) as spark, _stop_asked() as stop:
        io.check_topic(spark, source.bootstrap_servers, source.topic, source.options)
        paths = {table.name: f"{target.tables}/{table.name}" for table in TABLES}
        identity = _open(spark, job, source.topic, paths, target.checkpoint)
        query = _start(spark, source, target.checkpoint, Sink(paths, identity.writer), available_now=available_now)
        try:
            done = list(_follow(query, stop, progress))
        except StreamingQueryException as error:
            raise failures.known(str(error), source.topic, target.checkpoint) or error from error
        finally:
            query.stop()
    return Summary(
        records=sum(batch.records for batch in done),
        events=sum(batch.events for batch in done),
        dead_letters=sum(batch.dead_letters for batch in done),
        duplicates=sum(batch.duplicates for batch in done),
        unknown=sum(batch.unknown for batch in done),
        batches=len(done),
        seconds=time.monotonic() - started,
    )


def read(records: DataFrame) -> DataFrame:
    """Return what becomes of Kafka's ``records``: parsed, each envelope once, counted. For stream and backfill."""
    parsed = parse(records)
    once = deduplicate(parsed, f"{DEDUP_HOURS} hours")
    known = f"event.kind IN ({', '.join(map(repr, KINDS))})"
    return once.observe(
        "taken",
        F.count_if(F.col("reason").isNotNull()).alias("dead_letters"),
        _count_events(known).alias("events"),
        _count_events(f"NOT {known}").alias("unknown"),
    )


def _count_events(condition: str) -> Column:
    """Return how many events meet ``condition`` (SQL of ``event``); those of dead letters are NULL and do not count."""
    return F.expr(f"coalesce(sum(array_size(filter(events, event -> {condition}))), 0)")


def _open(spark: SparkSession, job: str, topic: str, paths: Mapping[str, str], where: str) -> points.Identity:
    """Return the identity of the checkpoint at ``where`` if it may go on, a new one if there is nothing yet."""
    folder = io.Folder(spark, where)
    identity = points.read_identity(folder, where)
    if identity is None:
        points.check_new({name: _stored(spark, path, "") for name, path in paths.items()}, where)
        for table in TABLES:
            io.create_table(spark, table, paths[table.name])
        ids = {name: io.StoredTable(spark, path).id for name, path in paths.items()}
        return points.new_identity(folder, job, topic, ids)
    tables = {name: _stored(spark, path, identity.writer) for name, path in paths.items()}
    points.check_belongs(identity, job, topic, tables, where)
    position = points.read_position(folder)
    points.check_position(position, tables, TRAFFIC.name, where, window_seconds=DEDUP_HOURS * 3600)
    return identity


def _stored(spark: SparkSession, path: str, writer: str) -> points.Stored:
    return points.stored(io.StoredTable(spark, path), writer)


def _start(spark: SparkSession, source: Source, where: str, sink: Sink, *, available_now: bool) -> StreamingQuery:
    records = io.records(spark, source.bootstrap_servers, source.topic, source.options)
    writer = read(records).writeStream.foreachBatch(sink).option("checkpointLocation", where)
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=TRIGGER)).start()


def _follow(
    query: StreamingQuery, stop: threading.Event, progress: Callable[[Progress], None] | None
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
                batch = _progress(report)
                if progress is not None:
                    progress(batch)
                yield batch
        if ended or (stopping and (finished or at_rest)):
            return


def _progress(report: StreamingQueryProgress) -> Progress:
    taken = report.observedMetrics["taken"]
    late = sum(state.numRowsDroppedByWatermark for state in report.stateOperators)
    if late:
        raise JobError(
            f"batch {report.batchId} took {late} records for too late: this machine's clock went back by more than"
            f" {DEDUP_HOURS} hours; set the clock and begin anew with tables and checkpoint"
        )
    return Progress(
        batch=report.batchId,
        records=report.numInputRows,
        events=taken["events"],
        dead_letters=taken["dead_letters"],
        duplicates=sum(state.customMetrics.get("numDroppedDuplicateRows", 0) for state in report.stateOperators),
        unknown=taken["unknown"],
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


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)
