"""Runs a job: Kafka source, parse, deduplication, tables, sink, progress. Spark is imported only when one is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from spark_jobs.errors import JobError

JOBS = ("traffic",)
"""Names of the jobs there are."""


@dataclass(frozen=True)
class Progress:
    """What one batch did."""

    batch: int
    records: int
    """Kafka records read."""
    events: int
    """Events taken, of all kinds that are known, after deduplication."""
    dead_letters: int
    duplicates: int
    """Kafka records that were there before."""
    unknown: int
    """Events of a kind that this job does not know; they are passed over."""
    seconds: float

    def __str__(self) -> str:
        """Return one line for a person."""
        return f"batch {self.batch}: {_counts(self)} in {self.seconds:.1f} s"


@dataclass(frozen=True)
class Summary:
    """What one run did, all batches together. A batch that was repeated after a crash is in both runs' summaries."""

    records: int
    events: int
    dead_letters: int
    duplicates: int
    unknown: int
    batches: int
    seconds: float
    """From the call to the end, with the start of Spark."""

    def __str__(self) -> str:
        """Return one line for a person."""
        return f"{_counts(self)}, {self.batches} batches, {self.seconds:.1f} s"


def run(
    job: str,
    *,
    bootstrap_servers: str,
    topic: str,
    tables: str,
    jars: Sequence[Path],
    checkpoint: str | None = None,
    available_now: bool = False,
    kafka_options: Mapping[str, str] | None = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Run ``job`` over the audit ``topic`` into the tables below ``tables``; return what it did.

    ``checkpoint``: default ``<tables>/_checkpoints/<job>``. ``available_now``: end when what there is now has been
    read; otherwise run until SIGTERM or SIGINT, which let the batch at work finish. ``jars``: the Kafka connector and
    Delta, none where the cluster has them. ``kafka_options``: settings of Kafka's Java client by their own names.
    ``conf``: Spark's settings, over the defaults for ``master``.

    Raises JobError, with one sentence on what is wrong.
    """
    if job not in JOBS:
        raise JobError(f"there is no job {job}; there is: {', '.join(JOBS)}")
    for module in ("pyspark", "delta"):
        if find_spec(module) is None:
            raise JobError(f"the jobs need {module}, which is not installed: pip install 'brokerside[spark]'")
    from spark_jobs import stream

    source = stream.Source(bootstrap_servers, topic, dict(kafka_options or {}))
    target = stream.Target(tables, checkpoint or f"{tables.rstrip('/')}/_checkpoints/{job}")
    return stream.run(
        job, source, target, jars=jars, master=master, conf=conf or {}, available_now=available_now, progress=progress
    )


def _counts(of: Progress | Summary) -> str:
    parts = [f"{of.records:,} records", f"{of.events:,} events"]
    parts += [f"{of.dead_letters:,} dead letters"] if of.dead_letters else []
    parts += [f"{of.duplicates:,} duplicates"] if of.duplicates else []
    parts += [f"{of.unknown:,} events of unknown kinds"] if of.unknown else []
    return ", ".join(parts)
