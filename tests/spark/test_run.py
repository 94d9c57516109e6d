"""Whole jobs: a real topic, real tables, and what happens when something is not as it should be."""

import json
import os
import shutil
import signal
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import SparkSession

from proxy.config.hmac_keys import AUDIT
from proxy.core.authentication import Authenticator
from proxy.local.ports import free_ports
from spark_jobs import batch as batch_module
from spark_jobs import checkpoint, compaction, io, kafka, maintenance
from spark_jobs.batch import WholeTopic
from spark_jobs.decode import DecodeOptions
from spark_jobs.definitions import Definitions
from spark_jobs.definitions.mirror import Mirror
from spark_jobs.errors import JobError
from spark_jobs.maintenance import MaintenanceScheduler
from spark_jobs.progress import BatchProgress, Notice, RunSummary
from spark_jobs.query import describe_tables, query
from spark_jobs.run import backfill, run
from spark_jobs.schemas import TRAFFIC
from tests.spark.conftest import AuditTopic
from tests.spark.decoded import READ_AT, kafka_records, partial_rows, summaries
from tests.spark.envelopes import (
    FETCH,
    METADATA,
    MINUTE,
    NOON,
    POISON,
    PRODUCE,
    encoded,
    event,
    partition,
    throttle,
    with_unknown,
)

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

Run = Callable[..., RunSummary]


def envelopes(count: int, *, boot: str = "boot") -> list[bytes]:
    """Envelopes of three events each; the one of number n brings 10 + n records and 100 + n bytes to a topic."""
    return [
        encoded(
            event(PRODUCE, partition(bytes=100 + n, records=10 + n)), event(FETCH, partition(bytes=1, records=1)),
            event(METADATA), first_seq=1 + 3 * n, boot_id=boot,
        )
        for n in range(count)
    ]  # fmt: skip


def totals(root: Path) -> tuple[int, ...]:
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


def checkpoint_of(root: Path, audit: AuditTopic) -> Path:
    """Where it is by default: each topic of each cluster has its own."""
    cluster = audit.admin.describe_cluster().result(180).cluster_id
    return root / "_checkpoints" / cluster / audit.name


@pytest.fixture
def run_job(spark: SparkSession, audit: AuditTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the job over the audit topic into two tables, in batches of ten records, in the session of the tests."""
    monkeypatch.setattr(kafka, "MAX_RECORDS_PER_BATCH", 10)

    def make(**changes: Any) -> RunSummary:
        arguments: dict[str, Any] = {"bootstrap_servers": audit.bootstrap, "topic": audit.name, "jars": []}
        arguments["only"] = ["traffic", "dead_letters"]
        return run(**{**arguments, "tables": str(tmp_path / "tables"), "available_now": True, **changes})

    return make


@pytest.mark.promise(
    "jobs.md", "An audit record counts once in every table, also if it comes again in another batch or run."
)
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
    said: list[BatchProgress | Notice] = []
    summary = run_job(progress=said.append)
    seen = [batch for batch in said if isinstance(batch, BatchProgress)]
    assert (summary.records, summary.events, summary.dead_letters, summary.duplicates) == (
        15 + len(poison), 36, len(poison), 3,
    )  # fmt: skip
    assert summary.batches == len(seen) > 1
    assert summary.events == sum(batch.events for batch in seen)
    assert totals(root) == expected(12)

    idle = run_job()
    assert (idle.records, idle.batches) == (0, 0)
    audit.send(first[3], _half(first[4]), *later, encoded(throttle(), throttle(), boot_id="throttled"))
    again = run_job()
    assert (again.records, again.events, again.dead_letters, again.duplicates) == (8, 17, 0, 2)
    assert totals(root) == tuple(map(sum, zip(expected(12), expected(5), strict=True)))

    letters = query(root, 'SELECT topic, partition, "offset", reason, detail FROM dead_letters')[1]
    assert {row[2:] for row in letters} == poison
    assert {row[:2] for row in letters} == {(audit.name, 1)}


@pytest.mark.promise(
    "jobs.md", "Of two records with the same events the one with the earliest timestamp is kept by a backfill."
)
def test_of_two_equal_records_the_one_stays_that_kafka_took_first(spark: SparkSession) -> None:
    """They were sent at different times, which a table says."""
    values = [encoded(event(), event(), sent_at=NOON + n * MINUTE) for n in (5, 3, 4)]
    records = kafka_records(values, [READ_AT - timedelta(seconds=offset % 2) for offset in range(3)])
    assert summaries(partial_rows(records))[0].offset == 1
    batch = WholeTopic(
        spark.createDataFrame(pyarrow.Table.from_batches([records])), DecodeOptions(("completeness", "traffic"))
    )
    (row,) = batch.table("completeness").collect()
    assert (row.envelopes, row.events, batch.counts.records) == (1, 2, 1)
    assert batch.table("traffic").first().requests == 2
    batch.release()


def _half(envelope: bytes) -> bytes:
    """The first event of it alone, as a sidecar sends it when the whole is too large."""
    one = json.loads(envelope)
    return json.dumps(one | {"last_seq": one["first_seq"], "events": one["events"][:1]}).encode()


@pytest.mark.promise("jobs.md", "A batch that fails, before, between or after its tables, is repeated without trace.")
def test_a_failed_batch_is_repeated(
    audit: AuditTopic, run_job: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of unknown kinds are passed over in it, and counted."""
    audit.send(*envelopes(12), b"poison", with_unknown(boot_id="newer"))
    append = io.append_once
    monkeypatch.setattr(kafka, "MAX_RECORDS_PER_BATCH", 100)
    for at in ("before traffic", "before dead_letters", "after dead_letters"):

        def failing(
            spark: SparkSession, rows: pyarrow.Table, path: str, writer: str, number: int, at: str = at
        ) -> None:
            table = path.rsplit("/", 1)[1]
            if at == f"before {table}":
                raise OSError("the disk is away")
            append(spark, rows, path, writer, number)
            if at == f"after {table}":
                raise OSError("the disk is away")

        with monkeypatch.context() as patch:
            patch.setattr(io, "append_once", failing)
            with pytest.raises(Exception, match="the disk is away"):
                run_job()
    summary = run_job()
    assert (summary.records, summary.events, summary.unknown, summary.dead_letters) == (14, 39, 2, 1)
    assert "2 events of unknown kinds" in str(summary)
    assert query(tmp_path / "tables", "SELECT sum(requests)::BIGINT FROM traffic")[1] == [(3 * 12 + 2,)]
    assert query(tmp_path / "tables", "SELECT reason FROM dead_letters")[1] == [("not_json",)]


@pytest.mark.promise("jobs.md", "On SIGTERM a job finishes the running batch, and ends.")
def test_sigterm_ends_it_with_its_batch(
    audit: AuditTopic, run_job: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches end during the maintenance, and it is stopped then, while the third one is being written."""
    audit.send(*envelopes(30))
    before = signal.getsignal(signal.SIGTERM)
    third_begun, stopped, seen = threading.Event(), threading.Event(), threading.Event()
    append, read_position = io.append_once, checkpoint.read_position

    def append_once(session: SparkSession, rows: pyarrow.Table, path: str, writer: str, number: int) -> None:
        if number == 2:
            third_begun.set()
            assert seen.wait(120)
        append(session, rows, path, writer, number)

    def run_due_tasks(self: MaintenanceScheduler) -> None:
        assert not stopped.is_set(), "no maintenance is begun once the job is to end"
        assert third_begun.wait(120)
        stopped.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def read(folder: io.Folder) -> checkpoint.CheckpointPosition:
        position = read_position(folder)
        if stopped.is_set():
            seen.set()
        return position

    monkeypatch.setattr(io, "append_once", append_once)
    monkeypatch.setattr(MaintenanceScheduler, "run_due_tasks", run_due_tasks)
    monkeypatch.setattr(checkpoint, "read_position", read)
    summary = run_job(available_now=False)
    assert (summary.batches, summary.records, summary.events) == (3, 30, 90)
    assert totals(tmp_path / "tables") == expected(30)
    assert signal.getsignal(signal.SIGTERM) is before
    assert run_job().records == 0


@pytest.mark.promise("jobs.md", "A job refuses tables without their checkpoint, and a checkpoint without its tables.")
def test_tables_and_checkpoint_stay_together(audit: AuditTopic, run_job: Run, tmp_path: Path) -> None:
    filled = tmp_path / "tables"
    audit.send(*envelopes(1))
    run_job()
    checkpoint = checkpoint_of(filled, audit)
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
    shutil.move(filled, tmp_path / "moved")
    assert run_job(tables=str(tmp_path / "moved")).records == 0
    shutil.rmtree(checkpoint_of(tmp_path / "moved", audit) / "taken")
    audit.send(*envelopes(1, boot="a third"))
    with pytest.raises(JobError, match="taken/1 is missing; restore it, or start over"):
        run_job(tables=str(tmp_path / "moved"))


@pytest.mark.promise(
    "jobs.md", "Records that Kafka deleted before they were read end the job, with partition and offsets."
)
def test_records_that_were_deleted_unread_end_the_job(audit: AuditTopic, run_job: Run, tmp_path: Path) -> None:
    audit.send(*envelopes(2))
    run_job()
    audit.send(*envelopes(5, boot="another"))
    end = TopicPartition(audit.name, 0, 4)
    assert audit.admin.delete_records([end])[end].result(180).low_watermark == 4
    with pytest.raises(JobError, match=rf"deleted before this job read them: .*\[2, 7\).*{audit.name}-0") as raised:
        run_job()
    assert "\n" not in str(raised.value)


@pytest.mark.promise("jobs.md", "A job maintains its tables while it runs.")
def test_running_jobs_maintain_tables(
    audit: AuditTopic, run_job: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MAINTENANCE_INTERVAL_S", 0.0)
    monkeypatch.setattr(compaction, "MIN_FILES_TO_COMPACT", 2)
    audit.send(*envelopes(20))
    assert run_job().batches == 2
    assert query(tmp_path / "tables", "SELECT sum(requests)::BIGINT FROM traffic")[1] == [(60,)]
    (info,) = [table for table in describe_tables(tmp_path / "tables") if table.name == "traffic"]
    assert (info.files, info.rows) == (1, 5)


@pytest.mark.promise("jobs.md", "A run without definitions is refused once `produced` has rows.")
def test_a_table_made_by_definitions_gets_no_hole_by_a_run_without_them(audit: AuditTopic, run_job: Run) -> None:
    mirror = Mirror(name="m", source_cluster_id="cluster", target_cluster_id="other")
    audit.send(*envelopes(1))
    only = ["traffic", "produced"]
    run_job(only=only)
    run_job(only=only, definitions=Definitions(mirrors=(mirror,)))
    audit.send(*envelopes(1, boot="another"))
    assert run_job(only=only, definitions=Definitions(mirrors=(mirror,))).records == 1
    with pytest.raises(JobError, match="the table produced was written with definitions, and this run has none"):
        run_job(only=only)
    assert run_job(only=only, definitions=Definitions(retention={"traffic": timedelta(days=9)})).records == 0


@pytest.mark.promise("jobs.md", "Jobs of several topics may share tables.")
def test_topics_fill_the_same_tables(bootstrap: str, audit: AuditTopic, run_job: Run, tmp_path: Path) -> None:
    other = AuditTopic(bootstrap)
    audit.send(*envelopes(2))
    other.send(*envelopes(3, boot="another"))
    run_job()
    run_job(topic=other.name)
    audit.send(*envelopes(1, boot="later"))
    run_job()
    assert totals(tmp_path / "tables") == tuple(map(sum, zip(expected(2), expected(3), expected(1), strict=True)))
    with pytest.raises(JobError, match=f"belongs to the topic {other.name}, not to {audit.name}"):
        run_job(checkpoint=str(checkpoint_of(tmp_path / "tables", other)))


NEW_COLUMNS = {"traffic": ("topic_errors", "polled"), "dead_letters": ("value_bytes",)}
"""Columns that the tables do not have yet."""


@pytest.mark.promise(
    "jobs.md",
    "A release with new columns and tables adds them; they are NULL in old rows, and begin with the next batch.",
)
@pytest.mark.slow
def test_new_tables_and_columns_are_added(spark: SparkSession, audit: AuditTopic, run_job: Run, tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "tables", tmp_path / "tables" / "_checkpoints" / "traffic"
    audit.send(*envelopes(2), b"poison")
    run_job(checkpoint=str(checkpoint))
    _take_away(spark, root, checkpoint)
    audit.send(*envelopes(1, boot="later"), b"more poison", envelopes(2)[1])
    said: list[str] = []
    summary = run_job(checkpoint=str(checkpoint), only=None, progress=lambda note: said.append(str(note)))
    assert (summary.records, summary.dead_letters, summary.duplicates, summary.failed) == (3, 1, 1, ())
    assert totals(root) == tuple(map(sum, zip(expected(2), expected(1), strict=True)))
    assert "table traffic: new columns topic_errors, polled; they are NULL in older rows" in said
    assert any(line.startswith("new tables: completeness, latency, clients, connections") for line in said)
    found = query(root, "SELECT count(*), count(topic_errors) FROM traffic")[1]
    assert found == [(5, 5)], "keys of old and new rows are the same here"
    assert query(root, "SELECT sum(requests)::BIGINT FROM clients")[1] == [(3,)]
    assert query(root, "SELECT sum(requests)::BIGINT FROM latency WHERE topic IS NULL")[1] == [(3,)]
    assert query(root, "SELECT reason, value_bytes IS NULL AS old FROM dead_letters ORDER BY old")[1] == [
        ("not_json", False), ("not_json", True)]  # fmt: skip
    with pytest.raises(JobError, match="give the checkpoint that filled them"):
        run_job(checkpoint=str(tmp_path / "new"))
    path = str(tmp_path / "other" / "traffic")
    spark.sql(f"CREATE TABLE delta.`{path}` (day date, requests string) USING delta PARTITIONED BY (day)")
    with pytest.raises(JobError, match=r"column requests of table traffic is stored as string, and .* writes bigint"):
        io.add_new_columns(io.open_table(spark, path), TRAFFIC)


def _take_away(spark: SparkSession, root: Path, checkpoint: Path) -> None:
    """Make the tables again without ``NEW_COLUMNS``, and the checkpoint one that knows these tables only."""
    identity = json.loads((checkpoint / "brokerside.json").read_text())
    for name, columns in NEW_COLUMNS.items():
        path = str(root / name)
        there = spark.read.format("delta").load(path).drop(*columns)
        rows, schema = there.collect(), there.schema
        shutil.rmtree(path)
        spark.createDataFrame([], schema).write.format("delta").partitionBy("day").save(path)
        io.append_once(spark, spark.createDataFrame(rows, schema).toArrow(), path, identity["writer"], 0)
        identity["tables"][name] = io.open_table(spark, path).id
    (checkpoint / ".brokerside.json.crc").unlink(missing_ok=True)
    (checkpoint / "brokerside.json").write_text(json.dumps(identity | {"only": None}))


@pytest.mark.promise("jobs.md", "A job that cannot reach its topic says so in one sentence.")
def test_what_is_missing_is_said_in_one_sentence(run_job: Run, audit: AuditTopic) -> None:
    with pytest.raises(JobError, match="there is no topic nothing at 127"):
        run_job(topic="nothing")
    (port,) = free_ports(1)
    with pytest.raises(JobError, match=f"no Kafka broker answers at 127.0.0.1:{port}"):
        run_job(
            bootstrap_servers=f"127.0.0.1:{port}",
            kafka_options={"default.api.timeout.ms": "2000", "request.timeout.ms": "1000"},
        )
    with pytest.raises(JobError, match=r"the Kafka client rejects its settings: .*security.protocol"):
        run_job(kafka_options={"security.protocol": "CARRIER_PIGEON"})
    with pytest.raises(JobError, match="there is no table costs; there are: completeness, traffic"):
        run_job(only=["costs"])


OLD, NEW = {"old": b"o" * 32}, {"new": b"n" * 100}


@pytest.mark.promise("security.md", "Plans and event logs of Spark hold no key of `--hmac-keys`.")
@pytest.mark.slow
def test_no_plan_holds_a_key(spark: SparkSession) -> None:
    """Plans are in the event log and the UI."""
    columns = "key binary, value binary, headers array<struct<key string, value binary>>, topic string, partition int"
    records = spark.createDataFrame([], f"{columns}, offset bigint, timestamp timestamp")
    found = batch_module.partial_rows(records, DecodeOptions(("traffic",), hmac_keys={"k1": b"secret-" * 5}))
    found.collect()
    plan = found._jdf.queryExecution().toString() + found._jdf.queryExecution().explainString(
        spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("cost")
    )
    secret = b"secret-secret"
    assert "MapInArrow" in plan
    assert secret.decode() not in plan
    assert secret.hex() not in plan.lower()
    assert b64encode(secret[:12]).decode() not in plan
    assert ", ".join(str(byte) for byte in secret) not in plan


@pytest.mark.promise("jobs.md", "Records without a valid signature become dead letters, and take no event number.")
def test_forged_envelopes_take_no_number(audit: AuditTopic, jars: list[Path], tmp_path: Path) -> None:
    """Of 1,000 requests somebody would hide most by records that come first, with the boot id and coming numbers."""
    real = [encoded(*[event(METADATA) for _ in range(50)], first_seq=1 + 50 * n) for n in range(20)]
    forged = [encoded(event(METADATA), first_seq=1 + 50 * n) for n in range(20)]
    stolen = Authenticator(AUDIT, {"old": b"x" * 32}).header(None, forged[0])
    strange = Authenticator(AUDIT, {"strange": b"x" * 32}).header(None, forged[1])
    send(audit, [(forged[0], [stolen]), (forged[1], [strange]), *((each, []) for each in forged[2:])])
    # Half of the sidecars have the new key already.
    send(audit, [(each, [Authenticator(AUDIT, (OLD, NEW)[n % 2]).header(None, each)]) for n, each in enumerate(real)])

    root = tmp_path / "tables"
    jobs: dict[str, Any] = {
        "bootstrap_servers": audit.bootstrap, "topic": audit.name, "tables": str(root), "jars": jars,
    }  # fmt: skip
    only = ["traffic", "dead_letters", "completeness"]
    done = run(**jobs, only=only, available_now=True, hmac_keys=OLD | NEW)
    assert (done.records, done.events, done.dead_letters, done.duplicates) == (40, 1000, 20, 0)
    again = backfill(**jobs, first=None, last=None, hmac_keys=OLD | NEW)
    assert (again.events, again.dead_letters) == (1000, 20)
    assert query(root, "SELECT sum(requests)::BIGINT FROM traffic")[1] == [(1_000,)]
    lost = query(root, "SELECT sum(events)::BIGINT, sum(conflicts)::BIGINT FROM completeness")[1]
    assert lost == [(1_000, 0)]
    letters = query(root, "SELECT reason, count(*), min(value_bytes) > 100 FROM dead_letters GROUP BY ALL ORDER BY ALL")
    assert letters[1] == [("bad_signature", 1, True), ("unknown_key", 1, True), ("unsigned", 18, True)]


def send(audit: AuditTopic, records: Sequence[tuple[bytes, Sequence[tuple[str, bytes | None]]]]) -> None:
    producer = Producer({"bootstrap.servers": audit.bootstrap})
    for value, headers in records:
        producer.produce(audit.name, value, partition=0, headers=list(headers))
    assert not producer.flush(30)
