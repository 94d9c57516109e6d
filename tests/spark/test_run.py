"""Whole jobs: a real topic, real tables, and what happens when something is not as it should be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import io, kafka, stream
from spark_jobs.errors import JobError
from spark_jobs.merge import merged
from spark_jobs.parse import dead_letters, deduplicate, parse
from spark_jobs.query import query
from spark_jobs.requests import summed
from spark_jobs.run import Progress, Summary, run
from spark_jobs.schemas import TRAFFIC
from spark_jobs.tables.traffic import traffic
from tests.integration.conftest import free_port
from tests.spark.conftest import AuditTopic
from tests.spark.envelopes import FETCH, METADATA, POISON, PRODUCE, encoded, event, partition, throttle, with_unknown

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

Run = Callable[..., Summary]


def envelopes(count: int, *, boot: str = "boot") -> list[bytes]:
    """Envelopes of three events each; the one of number n brings 10 + n records and 100 + n bytes to a topic."""
    return [
        encoded(
            event(PRODUCE, partition(bytes=100 + n, records=10 + n)),
            event(FETCH, partition(bytes=1, records=1)),
            event(METADATA),
            first_seq=1 + 3 * n,
            boot_id=boot,
        )
        for n in range(count)
    ]


def totals(root: Path) -> tuple[int, ...]:
    """requests, topic_requests, records and bytes produced, in the table."""
    (row,) = query(
        root,
        "SELECT sum(requests)::BIGINT, sum(topic_requests)::BIGINT, sum(records) FILTER (api = 'Produce')::BIGINT,"
        " sum(bytes) FILTER (api = 'Produce')::BIGINT FROM traffic",
    )[1]
    return tuple(row)


def expected(count: int, boots: int = 1) -> tuple[int, ...]:
    return tuple(
        boots * each for each in (3 * count, 2 * count, sum(range(10, 10 + count)), sum(range(100, 100 + count)))
    )


@pytest.fixture
def run_job(spark: SparkSession, audit: AuditTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the job over the audit topic, in batches of ten records, in the session of the tests."""
    monkeypatch.setattr(kafka, "RECORDS_PER_BATCH", 10)

    def make(**changes: Any) -> Summary:
        arguments: dict[str, Any] = {"bootstrap_servers": audit.bootstrap, "topic": audit.name, "jars": []}
        return run(**{**arguments, "tables": str(tmp_path / "tables"), "available_now": True, **changes})

    return make


def test_a_topic_becomes_tables_exactly(spark: SparkSession, audit: AuditTopic, run_job: Run, tmp_path: Path) -> None:
    """Good records, every kind of poison, records sent twice within and across batches and runs."""
    root = tmp_path / "tables"
    poison = {
        (offset, reason, detail)
        for (value, reason, detail) in POISON.values()
        for offset in audit.send(value, partition=1)
    }
    first, later = envelopes(12), envelopes(5, boot="another")
    audit.send(*first, *first[:3])
    seen: list[Progress] = []
    summary = run_job(progress=seen.append)
    assert (summary.records, summary.events, summary.dead_letters, summary.duplicates) == (
        15 + len(poison),
        36,
        len(poison),
        3,
    )
    assert summary.batches == len(seen) > 1
    assert summary.events == sum(batch.events for batch in seen)
    assert totals(root) == expected(12)

    idle = run_job()
    assert (idle.records, idle.batches) == (0, 0)
    audit.send(*first[3:5], *later, encoded(throttle(), throttle(), boot_id="throttled"))
    again = run_job()
    assert (again.records, again.events, again.dead_letters, again.duplicates) == (8, 17, 0, 2)
    assert totals(root) == tuple(map(sum, zip(expected(12), expected(5), strict=True)))

    letters = query(root, 'SELECT topic, partition, "offset", reason, detail FROM dead_letters')[1]
    assert {row[2:] for row in letters} == poison
    assert {row[:2] for row in letters} == {(audit.name, 1)}

    _assert_same_as_a_batch(spark, audit, root)


def _assert_same_as_a_batch(spark: SparkSession, audit: AuditTopic, root: Path) -> None:
    """What the stream wrote is what the same functions make of the whole topic at once."""
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", audit.bootstrap)
        .option("subscribe", audit.name)
        .load()
    )
    once = deduplicate(parse(records), "2 hours").persist()
    stored = spark.read.format("delta").load(str(root / "traffic"))
    whole = traffic(summed(once))
    assert sorted(map(str, merged(stored, TRAFFIC).collect())) == sorted(map(str, whole.collect()))
    letters = spark.read.format("delta").load(str(root / "dead_letters"))
    assert sorted(map(str, letters.collect())) == sorted(map(str, dead_letters(once).collect()))
    once.unpersist()


def test_events_of_unknown_kinds_are_passed_over_and_counted(audit: AuditTopic, run_job: Run, tmp_path: Path) -> None:
    audit.send(with_unknown(), with_unknown(first_seq=6), b"x")
    summary = run_job()
    assert (summary.records, summary.events, summary.unknown, summary.dead_letters) == (3, 6, 4, 1)
    assert "4 events of unknown kinds" in str(summary)
    assert query(tmp_path / "tables", "SELECT sum(requests)::BIGINT FROM traffic")[1] == [(4,)]


@pytest.mark.parametrize("at", ["before traffic", "before dead_letters", "after dead_letters"])
def test_a_batch_that_fails_is_repeated_without_trace(
    audit: AuditTopic, run_job: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    audit.send(*envelopes(12), b"poison")
    append = io.append_once

    def failing(rows: DataFrame, path: str, writer: str, number: int) -> None:
        table = path.rsplit("/", 1)[1]
        if at == f"before {table}":
            raise OSError("the disk is away")
        append(rows, path, writer, number)
        if at == f"after {table}":
            raise OSError("the disk is away")

    with monkeypatch.context() as patch:
        patch.setattr(kafka, "RECORDS_PER_BATCH", 100)
        patch.setattr(io, "append_once", failing)
        with pytest.raises(Exception, match="the disk is away"):
            run_job()
    summary = run_job()
    assert summary.records == 13
    assert totals(tmp_path / "tables") == expected(12)
    assert query(tmp_path / "tables", "SELECT reason FROM dead_letters")[1] == [("not_json",)]


def test_a_killed_driver_leaves_nothing_out_and_nothing_twice(
    audit: AuditTopic, run_job: Run, tmp_path: Path, jars: Sequence[Path]
) -> None:
    """SIGKILL to Python and JVM after the second batch was written and before Spark knew that it was."""
    audit.send(*envelopes(25), b"poison")
    arguments = {
        "bootstrap_servers": audit.bootstrap,
        "topic": audit.name,
        "tables": str(tmp_path / "tables"),
        "jars": [str(jar) for jar in jars],
        "available_now": True,
        "master": "local[2]",
        "conf": {"spark.sql.shuffle.partitions": "1"},
        "records_per_batch": 10,
    }
    command = [sys.executable, "-m", "tests.spark.killed_driver", "after", "1", json.dumps(arguments)]
    done = subprocess.run(command, timeout=200, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    checkpoint = tmp_path / "tables" / "_checkpoints" / audit.name
    assert {file.name for file in (checkpoint / "commits").glob("[0-9]*")} == {"0"}
    summary = run_job()
    assert (summary.records, summary.dead_letters) == (16, 1)
    assert totals(tmp_path / "tables") == expected(25)
    assert query(tmp_path / "tables", "SELECT count(*) FROM dead_letters")[1] == [(1,)]


def test_a_continuous_job_ends_on_sigterm_with_its_batch_done(
    audit: AuditTopic, run_job: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "TRIGGER", "1 second")
    audit.send(*envelopes(2))
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Progress] = []

    def progress(batch: Progress) -> None:
        seen.append(batch)
        if len(seen) == 1:
            audit.send(*envelopes(3, boot="later"))
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    patience = threading.Timer(120, os.kill, (os.getpid(), signal.SIGINT))
    patience.start()
    summary = run_job(available_now=False, progress=progress)
    patience.cancel()
    assert (summary.batches, summary.records) == (2, 5)
    assert totals(tmp_path / "tables") == tuple(map(sum, zip(expected(2), expected(3), strict=True)))
    assert signal.getsignal(signal.SIGTERM) is before
    assert run_job().records == 0


def test_tables_and_checkpoint_stay_together(audit: AuditTopic, run_job: Run, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    checkpoint = tables / "_checkpoints" / audit.name
    audit.send(*envelopes(1))
    run_job()
    early = tmp_path / "early"
    shutil.copytree(checkpoint, early)
    audit.send(*envelopes(1, boot="another"))
    run_job()
    with pytest.raises(JobError, match=rf"there is no checkpoint at .*/new, but .*traffic.* filled from {audit.name}"):
        run_job(checkpoint=str(tmp_path / "new"))
    with pytest.raises(JobError, match=r"older than the table \w+ \(batch 0 against 1\)"):
        run_job(checkpoint=str(early))
    with pytest.raises(JobError, match=r"continues a table \w+ that is missing"):
        run_job(tables=str(tmp_path / "elsewhere"), checkpoint=str(checkpoint))
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "file").touch()
    with pytest.raises(JobError, match="strange is not a checkpoint of this job, and not empty"):
        run_job(checkpoint=str(tmp_path / "strange"))
    shutil.move(tables, tmp_path / "moved")
    assert run_job(tables=str(tmp_path / "moved")).records == 0


def test_records_that_were_deleted_unread_end_the_job(audit: AuditTopic, run_job: Run, tmp_path: Path) -> None:
    audit.send(*envelopes(2))
    run_job()
    audit.send(*envelopes(5, boot="another"))
    end = TopicPartition(audit.name, 0, 4)
    assert audit.admin.delete_records([end])[end].result(30).low_watermark == 4
    with pytest.raises(JobError, match=rf"deleted before this job read them: .*\[2, 7\).*{audit.name}-0") as raised:
        run_job()
    assert "\n" not in str(raised.value)


def test_many_small_files_are_joined(
    audit: AuditTopic, run_job: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "COMPACT_EVERY", 2)
    audit.send(*envelopes(20))
    assert run_job().batches == 2
    log = tmp_path / "tables" / "traffic" / "_delta_log"
    assert any('"operation":"OPTIMIZE"' in file.read_text() for file in log.glob("*.json"))
    assert totals(tmp_path / "tables") == expected(20)


def test_what_is_missing_is_said_in_one_sentence(run_job: Run, audit: AuditTopic) -> None:
    with pytest.raises(JobError, match="there is no topic nothing at 127"):
        run_job(topic="nothing")
    port = free_port()
    with pytest.raises(JobError, match=f"no Kafka broker answers at 127.0.0.1:{port}"):
        run_job(
            bootstrap_servers=f"127.0.0.1:{port}",
            kafka_options={"default.api.timeout.ms": "2000", "request.timeout.ms": "1000"},
        )
    with pytest.raises(JobError, match=r"the Kafka client refuses its settings: .*security.protocol"):
        run_job(kafka_options={"security.protocol": "CARRIER_PIGEON"})
    with pytest.raises(JobError, match="there is no table costs; there are: completeness, traffic"):
        run_job(only=["costs"])
