"""What a job makes of Spark's settings and of its errors."""

import subprocess
import sys
from pathlib import Path

import pytest

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
