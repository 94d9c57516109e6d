"""What a job makes of Spark's settings and of its errors, and what a checkpoint may continue with."""

import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.checkpoint import (
    CheckpointIdentity,
    CheckpointPosition,
    TableState,
    check_identity,
    check_new_checkpoint,
    check_position,
    writer_prefix,
)
from spark_jobs.error_messages import explain_spark_error
from spark_jobs.errors import JobError
from spark_jobs.session import _package_as_zip, summarize_error
from spark_jobs.storage_options import storage_options

CREATED = """An error occurred while calling o112.execute.
: org.apache.spark.sql.delta.DeltaIOException: [DELTA_CANNOT_CREATE_LOG_PATH] Cannot create /x/_delta_log
\tat org.apache.spark.sql.delta.DeltaLog.create(DeltaLog.scala:1)
\tSuppressed: java.io.IOException: closing failed
\tCaused by: java.lang.IllegalStateException: closed
Caused by: java.io.UncheckedIOException: java.nio.file.AccessDeniedException: /x
\tat java.base/java.io.File.create(File.java:1)
Caused by: java.nio.file.AccessDeniedException: /x/_delta_log
\t... 50 more
"""

IN_A_BATCH = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised by the Python Proxy.
py4j.protocol.Py4JJavaError: An error occurred while calling o9.save.
: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.write(FileOutputStream.java:1)
"""


LOST = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Some data may have been lost because they are"
    " not available in Kafka any more;\neither the data was aged out by Kafka or the topic may have been deleted before"
    " all the data in the\ntopic was processed.\nIf you don't want your streaming query to fail on such cases, set the"
    " source option failOnDataLoss to false.\nReason: {reason}\n=== Streaming Query ===\n"
)


@pytest.mark.promise("jobs.md", "What ends a job is said in one sentence, with its first cause.")
def test_the_first_cause_of_a_failure_is_reported() -> None:
    for said, line in (
        (CREATED, "AccessDeniedException: /x/_delta_log"),
        (IN_A_BATCH, "IOException: No space left on device"),
        ("x\n: java.lang.NullPointerException\n\tat y", "NullPointerException"),
        ("one\ntwo", "RuntimeError: one"),
        ("", "RuntimeError"),
    ):
        assert summarize_error(RuntimeError(said)) == line
    for reason in (
        "Could not read records in offset [10, 20) for topic partition audit-1",
        "Partition audit-0 offset was changed from 10 to 2",
        "Partitions Set(audit-2) have been deleted",
    ):
        said = str(explain_spark_error(LOST.format(reason=f"{reason}. SQLSTATE: XXKST"), "audit", "/cp"))
        assert said.startswith(f"records of audit were deleted before this job read them: {reason};")
        assert "\n" not in said
    gone = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this topic"
    assert str(explain_spark_error(gone, "audit", "/cp")).startswith("the topic audit was deleted")
    own = 'Traceback:\n  File "sink.py", line 40\nspark_jobs.errors.JobError: a backfill is at work\n\n\tat'
    assert str(explain_spark_error(own, "audit", "/cp")) == "a backfill is at work"
    assert explain_spark_error("java.lang.OutOfMemoryError: Java heap space", "audit", "/cp") is None


@pytest.mark.promise("jobs.md", "Executors are sent the code of the job, and need msgspec and PyArrow besides.")
def test_what_executors_are_sent_is_all_that_they_need() -> None:
    """Of the packages that a driver has they need no others than msgspec, PyArrow, PySpark."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import spark_jobs.decode as one;"
        "print(one.__file__, *[name for name in ('pydantic', 'deltalake', 'duckdb') if name in sys.modules])"
    )
    with _package_as_zip() as path:
        package = Path(path)
        done = subprocess.run(
            [sys.executable, "-c", code, path], cwd=package.parent, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [f"{package}/spark_jobs/decode.py"]
    assert not package.exists()


ACCOUNT = "lake.dfs.core.windows.net"

S3 = {"aws_conditional_put": "etag"}
OAUTH = "fs.azure.account.oauth2.client"
NAMENODES = {
    "dfs.ha.namenodes.nameservice": "a,b", "dfs.namenode.rpc-address.nameservice.a": "one:8020",
    "dfs.namenode.rpc-address.nameservice.b": "two:8020",
}  # fmt: skip
STORAGES: list[tuple[str, dict[str, str], dict[str, str]]] = [
    ("/data/tables", {}, {}), ("file:///data/tables", {}, {}), ("s3a://bucket/tables", {}, S3),
    (
        "s3a://bucket/tables",
        {"fs.s3a.endpoint": "http://store:9000", "fs.s3a.endpoint.region": "eu-1", "fs.s3a.path.style.access": "true",
         "fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": "arn:aws:kms:key"},
        {**S3, "aws_endpoint_url": "http://store:9000", "aws_region": "eu-1", "aws_allow_http": "true",
         "aws_virtual_hosted_style_request": "false", "aws_server_side_encryption": "aws:kms",
         "aws_sse_kms_key_id": "arn:aws:kms:key"},
    ),
    ("s3a://bucket/tables", {"fs.s3a.endpoint": "store:9000", "fs.s3a.connection.ssl.enabled": "false"},
     {**S3, "aws_endpoint_url": "http://store:9000", "aws_allow_http": "true"}),
    ("s3a://bucket/tables", {"fs.s3a.endpoint": "s3.eu-central-1.amazonaws.com"},
     {**S3, "aws_endpoint_url": "https://s3.eu-central-1.amazonaws.com"}),
    (f"abfss://tables@{ACCOUNT}/brokerside",
     {f"fs.azure.account.key.{ACCOUNT}": "key", "fs.azure.account.key": "of all"},
     {"azure_storage_account_name": "lake", "azure_storage_account_key": "key"}),
    (
        f"abfss://tables@{ACCOUNT}/brokerside",
        {f"{OAUTH}.id": "id", f"{OAUTH}.secret": "secret",
         f"{OAUTH}.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token"},
        {"azure_storage_account_name": "lake", "azure_storage_client_id": "id",
         "azure_storage_client_secret": "secret", "azure_storage_tenant_id": "tenant",
         "azure_storage_authority_host": "https://login.microsoftonline.com"},
    ),
    ("gs://bucket/tables", {"fs.gs.auth.service.account.json.keyfile": "/key.json"},
     {"google_service_account": "/key.json"}),
    ("hdfs://namenode:8020/tables", {}, {}), ("hdfs://nameservice/tables", NAMENODES, NAMENODES),
]  # fmt: skip
"""Addresses of tables, Spark's settings, and what commits are given."""


@pytest.mark.promise("jobs.md", "Commits use the address and the keys of a storage that Spark has.")
def test_spark_s_settings_are_those_of_commits() -> None:
    for url, settings, expected in STORAGES:
        assert storage_options(url, settings.get) == expected, url


@pytest.mark.promise("jobs.md", "A storage without atomic commits is refused.")
def test_a_storage_without_atomic_commits_is_refused() -> None:
    with pytest.raises(
        JobError, match=r"tables cannot be stored at ftp://: there are a path, s3, abfss, abfs, gs, hdfs"
    ):
        storage_options("ftp://host/tables", {}.get)
    with pytest.raises(JobError, match=r"fs.s3a.encryption.algorithm=CSE-KMS; there are SSE-S3, SSE-KMS, DSSE-KMS"):
        storage_options("s3a://bucket/tables", {"fs.s3a.encryption.algorithm": "CSE-KMS"}.get)


WHERE = "/data/checkpoint"
WRITER = writer_prefix("kafka", "audit") + "1"
IDENTITY = CheckpointIdentity(WRITER, "kafka", "audit", {"traffic": "t-1", "dead_letters": "d-1"})


def table(id: str, last_batch: int, writer: str = WRITER) -> TableState:
    return TableState(id, 9, {writer: last_batch} if last_batch >= 0 else {})


def tables(traffic: int = 7, dead: int = 3, *, traffic_id: str = "t-1") -> dict[str, TableState]:
    return {"traffic": table(traffic_id, traffic), "dead_letters": table("d-1", dead)}


def position(planned: int = 7, committed: int = 7) -> CheckpointPosition:
    return CheckpointPosition(planned, committed)


def check(where: CheckpointPosition, stored: dict[str, TableState]) -> None:
    check_position(where, IDENTITY, stored, "traffic", WHERE)


@pytest.mark.promise("jobs.md", "A new checkpoint over tables that the same topic already filled is refused.")
def test_tables_may_have_one_new_checkpoint_for_each_topic_of_each_cluster() -> None:
    for writer in (writer_prefix("kafka", "other") + "1", writer_prefix("elsewhere", "audit") + "1"):
        check_new_checkpoint(
            {"traffic": table("t-1", 5, writer), "dead_letters": TableState()}, "kafka", "audit", WHERE
        )
    there = {"traffic": table("t-1", 1), "dead_letters": TableState("d-1", 0)}
    with pytest.raises(
        JobError, match="no checkpoint at /data/checkpoint, but table traffic is already filled from au"
    ):
        check_new_checkpoint(there, "kafka", "audit", WHERE)


@pytest.mark.promise("jobs.md", "A checkpoint of another topic, of another cluster or of other tables is refused.")
def test_a_checkpoint_of_something_else_is_refused() -> None:
    for cluster, topic, stored, only, message in (
        ("kafka", "other", tables(), None, "belongs to the topic audit, not to other"),
        ("elsewhere", "audit", tables(), None, "belongs to the Kafka cluster kafka, not to elsewhere"),
        ("kafka", "audit", tables(), ["traffic"], "fills all tables, not only traffic"),
        ("kafka", "audit", tables(traffic_id="t-2"), None, "table traffic that is another table"),
        ("kafka", "audit", {**tables(), "traffic": TableState()}, None, "table traffic that is missing"),
    ):
        with pytest.raises(JobError, match=message):
            check_identity(IDENTITY, cluster, topic, stored, only, WHERE)


@pytest.mark.promise("jobs.md", "A job goes on from every state that a crash can leave of checkpoint and tables.")
def test_every_state_that_a_crash_can_leave_may_go_on() -> None:
    check(position(-1, -1), tables(-1, -1))  # new
    check(position(0, -1), tables(-1, -1))  # killed before the first write
    check(position(0, -1), tables(0, -1))  # after it
    check(position(7, 7), tables(7, 3))  # at rest
    check(position(8, 7), tables(7, 3))  # killed before a write
    check(position(8, 7), tables(8, 8))  # after both writes
    # A table that gets every batch may be newer than the checkpoint.
    check(position(7, 7), {"traffic": table("t-1", -1), "dead_letters": table("d-1", 7)})


@pytest.mark.promise("jobs.md", "Tables and checkpoint of different moments are refused.")
def test_checkpoint_and_tables_of_different_moments_are_refused() -> None:
    for where, stored, message in (
        (position(-1, -1), tables(7), r"older than the table traffic \(batch -1 against 7\)"),
        (position(6, 6), tables(7), r"older than the table traffic \(batch 6 against 7\)"),
        (position(2, 2), tables(2, 3), r"older than the table dead_letters \(batch 2 against 3\)"),
        (position(7, 7), tables(-1, 6), r"table dead_letters is older than the checkpoint .* \(batch 6 against 7\)"),
        (position(7, 7), tables(6), r"table traffic is older than the checkpoint .* \(batch 6 against 7\)"),
    ):
        with pytest.raises(JobError, match=message):
            check(where, stored)
