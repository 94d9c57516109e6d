"""The entry points of the jobs: ``run`` turns the audit topic into tables, ``backfill`` computes days again.

Spark is imported only when a job is run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.util import find_spec
from pathlib import Path

from spark_jobs.definitions import Definitions
from spark_jobs.errors import JobError
from spark_jobs.progress import BatchProgress, Notice, RunSummary
from spark_jobs.reader_records import AuditReader, default_name
from spark_jobs.schemas import TABLES

NO_DEFINITIONS = Definitions()


def _ignore(_: BatchProgress | Notice) -> None:
    pass


def run(
    *,
    bootstrap_servers: str,
    topic: str,
    tables: str,
    jars: Sequence[Path],
    checkpoint: str | None = None,
    definitions: Definitions = NO_DEFINITIONS,
    only: Sequence[str] | None = None,
    available_now: bool = False,
    kafka_options: Mapping[str, str] | None = None,
    hmac_keys: Mapping[str, bytes] | None = None,
    reader: str | None = None,
    registry_hmac_keys: Mapping[str, bytes] | None = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    progress: Callable[[BatchProgress | Notice], None] = _ignore,
) -> RunSummary:
    """Turn the audit ``topic`` into the tables below ``tables``, and return a summary.

    ``checkpoint``: default ``<tables>/_checkpoints/<id of the Kafka cluster>/<topic>``. ``only``: the tables wanted,
    with all tables they are computed from; None: all tables, or those of the existing checkpoint. ``available_now``:
    stop when all records that the topic has now are read; otherwise run until SIGTERM or SIGINT, and finish the
    running batch. ``jars``: the Kafka connector, and what S3 needs; none if the Spark cluster has them.
    ``kafka_options``: settings of Kafka's Java client by their own names. ``hmac_keys``: signing keys by id; records
    that none of them has signed become dead letters. ``reader``: the job's name in the sidecars' registry; default:
    ``tables-<hash of tables>``. ``registry_hmac_keys``: signing keys of the registry. ``conf``: settings of Spark,
    which override the defaults for ``master``.

    Raises JobError with one sentence on the cause.
    """
    unknown = [name for name in only or () if name not in TABLES]
    if unknown:
        raise JobError(f"there is no table {unknown[0]}; there are: {', '.join(TABLES)}")
    root = _absolute(tables)
    name = default_name("tables", root) if reader is None else reader
    registered = AuditReader(name, "run", registry_hmac_keys or {})
    _check_installed()
    progress(Notice(f"{topic} of {bootstrap_servers} becomes tables in {root}; Spark starts"))
    from spark_jobs import kafka, session, streaming_job, table_root

    return streaming_job.run_streaming_job(
        session.spark_session(f"brokerside {topic}", session.spark_conf(master, jars, conf or {}, short=available_now)),
        kafka.AuditTopicSource(bootstrap_servers, topic, dict(kafka_options or {}), hmac_keys or {}),
        table_root.TableRoot(root, _absolute(checkpoint) if checkpoint else ""),
        definitions,
        reader=registered,
        only=only or None,
        available_now=available_now,
        progress=progress,
    )


def backfill(
    *,
    bootstrap_servers: str,
    topic: str,
    tables: str,
    jars: Sequence[Path],
    first: date | None,
    last: date | None,
    definitions: Definitions = NO_DEFINITIONS,
    checkpoint: str | None = None,
    kafka_options: Mapping[str, str] | None = None,
    hmac_keys: Mapping[str, bytes] | None = None,
    registry_hmac_keys: Mapping[str, bytes] | None = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    progress: Callable[[BatchProgress | Notice], None] = _ignore,
) -> RunSummary:
    """Compute the days from ``first`` to ``last`` (None: unlimited) again from ``topic``, and replace their rows.

    It reads the records that the job of the checkpoint has read, so that the job can continue afterwards. Without a
    checkpoint, and without rows of the topic in the tables, it reads all records that the topic has now. The other
    arguments are those of ``run``.

    Raises JobError with one sentence on the cause.
    """
    if first and last and first > last:
        raise JobError(f"the first day, {first}, is after the last, {last}")
    root = _absolute(tables)
    _check_installed()
    from spark_jobs import backfill, kafka, session, table_root

    settings = session.spark_conf(master, jars, conf or {}, short=True)
    return backfill.run_backfill(
        session.spark_session(f"brokerside backfill {topic}", settings),
        kafka.AuditTopicSource(bootstrap_servers, topic, dict(kafka_options or {}), hmac_keys or {}),
        table_root.TableRoot(root, _absolute(checkpoint) if checkpoint else ""),
        definitions,
        reader=AuditReader(default_name("backfill", root), "backfill", registry_hmac_keys or {}),
        first=first,
        last=last,
        progress=progress,
    )


def _check_installed() -> None:
    for module in ("pyspark", "deltalake"):
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def _absolute(path: str) -> str:
    if "://" not in path:
        return os.path.abspath(path)
    path = path.rstrip("/")
    return "s3a" + path.removeprefix("s3") if path.startswith("s3://") else path  # the scheme of Hadoop's connector
