"""Days computed again: the same rows as the stream's, only where the records are there, and never beside a job."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs import backfill as module
from spark_jobs import checkpoint, kafka, stored_table
from spark_jobs.errors import JobError
from spark_jobs.progress import RunSummary
from spark_jobs.run import backfill, run
from spark_jobs.schemas import TRAFFIC
from tests.spark import stored
from tests.spark.conftest import AuditTopic
from tests.spark.envelopes import FETCH, NOON, PRODUCE, connection, encoded, event, partition, status
from tests.spark.stored import read

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ONLY = ("traffic", "connections", "dead_letters")
DAY_US = 86_400_000_000
FIRST = date(2026, 9, 22)

Run = Callable[..., RunSummary]


def envelopes(days: Sequence[int], *, boot: str = "boot") -> list[bytes]:
    """An envelope for each of ``days`` after FIRST, all of one connection that logs in anew each day."""
    return [
        encoded(
            event(PRODUCE, partition(), ts_request=NOON + day * DAY_US),
            event(FETCH, partition(), ts_request=NOON + day * DAY_US),
            connection(change="authenticated", ts=NOON + day * DAY_US), status(ts=NOON + day * DAY_US),
            first_seq=1 + 4 * number, boot_id=boot, schema_level=2,
        )
        for number, day in enumerate(days)
    ]  # fmt: skip


class Job:
    """The job and its backfill over one topic, into three tables."""

    def __init__(self, spark: SparkSession, audit: AuditTopic, root: Path) -> None:
        self._spark, self._audit, self.root = spark, audit, root
        self.said: list[str] = []

    def __call__(self, what: Callable[..., RunSummary], **changes: Any) -> RunSummary:
        arguments: dict[str, Any] = {
            "bootstrap_servers": self._audit.bootstrap, "topic": self._audit.name, "tables": str(self.root), "jars": [],
            "progress": lambda said: self.said.append(str(said)),
        }  # fmt: skip
        arguments |= {"available_now": True, "only": ONLY} if what is run else {"first": None, "last": None}
        return what(**{**arguments, **changes})

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(self.root / name)

    def rows(self) -> dict[str, list[str]]:
        return {name: sorted(map(str, read(self.root, name))) for name in ONLY}


@pytest.fixture
def job(spark: SparkSession, audit: AuditTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(kafka, "MAX_RECORDS_PER_BATCH", 4)
    return Job(spark, audit, tmp_path / "tables")


@pytest.mark.promise(
    "jobs.md", "A backfill replaces the rows of its days by those that the stream wrote, and touches no other cluster."
)
def test_days_are_computed_again_as_far_as_the_job_has_read(job: Job, audit: AuditTopic) -> None:
    sent = envelopes([0, 1, 1, 2, 0])
    audit.send(*sent, sent[1], b"poison")
    job(run)
    before = job.rows()
    audit.send(*envelopes([1], boot="later"))
    for name in ("traffic", "connections"):
        job.table(name).delete("day = DATE '2026-09-23'")
    assert job.rows() != before

    summary = job(backfill, first=FIRST + timedelta(days=1), last=FIRST + timedelta(days=1))
    assert (summary.records, summary.events, summary.dead_letters, summary.duplicates) == (7, 20, 1, 1)
    assert job.rows() == before

    others = stored.rows(
        TRAFFIC, *({"day": FIRST + timedelta(days=day), "cluster_id": "other", "requests": day} for day in (0, 0, 5))
    )
    writer = f"{checkpoint.writer_prefix('other', 'audit')}job"
    stored_table.append_once(others, str(job.root / "traffic"), {}, writer, 0)
    before = job.rows()
    job.table("traffic").delete("cluster_id <> 'other'")
    job.table("connections").delete("true")
    job.table("dead_letters").delete("true")
    job(backfill)
    assert job.rows() == before, "rows of another cluster stay, also of days that the topic has none of"

    assert job(run).records == 1
    assert sum(row["requests"] for row in read(job.root, "traffic")) == 2 * 6 + 5


@pytest.mark.promise("jobs.md", "A backfill fills tables without a checkpoint, and no job continues them.")
def test_a_root_without_a_checkpoint_stays_without(
    job: Job, audit: AuditTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("streamed_table_names", "selected_tables"):
        monkeypatch.setattr(module, name, lambda only: ONLY)
    audit.send(*envelopes([0, 1]))
    job(backfill)
    assert any(line.startswith("there is no checkpoint") for line in job.said)
    audit.send(*envelopes([2], boot="later"))
    job(backfill, first=FIRST + timedelta(days=1))
    assert sum(row["requests"] for row in read(job.root, "traffic")) == 2 * 3
    with pytest.raises(JobError, match="would count everything twice"):
        job(run)


@pytest.mark.promise("jobs.md", "A backfill whose records are gone reports the first day that it can compute.")
@pytest.mark.slow
def test_what_cannot_be_computed_again_is_refused(job: Job, audit: AuditTopic, bootstrap: str) -> None:
    with pytest.raises(JobError, match="the first day, 2026-09-23, is after the last, 2026-09-22"):
        job(backfill, first=FIRST + timedelta(days=1), last=FIRST)
    days = [datetime.now(UTC).date() + timedelta(days=1)]
    audit.send(*envelopes([0, 1, 2]))
    days.append(datetime.now(UTC).date() + timedelta(days=1))  # midnight may be between the two
    job(run)
    before = job.rows()
    (checkpoint,) = (job.root / "_checkpoints").glob(f"*/{audit.name}")

    (checkpoint / "backfill").touch()
    with pytest.raises(JobError, match="a backfill replaces rows of these tables; if it was interrupted, run it again"):
        job(run)
    (checkpoint / "offsets" / "1").write_bytes((checkpoint / "offsets" / "0").read_bytes())
    with pytest.raises(JobError, match=r"batch 1 of the checkpoint .* is running, or was interrupted"):
        job(backfill)
    (checkpoint / "offsets" / "1").unlink()
    assert not (checkpoint / "backfill").exists()

    end = TopicPartition(audit.name, 0, 2)
    assert audit.admin.delete_records([end])[end].result(180).low_watermark == 2
    with pytest.raises(JobError, match=f"Kafka has deleted records .* the days from ({days[0]}|{days[1]}) on"):
        job(backfill, first=FIRST)
    assert job.rows() == before

    other = Job(job._spark, AuditTopic(bootstrap), job.root)
    other._audit.send(*envelopes([0], boot="other"))
    other(run)
    with pytest.raises(JobError, match="another audit topic of the same Kafka cluster fills these tables"):
        other(backfill)
