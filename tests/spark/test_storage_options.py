"""Commits go to a storage as Spark does: with its addresses and its keys."""

from __future__ import annotations

import pytest

from spark_jobs.errors import JobError
from spark_jobs.storage_options import storage_options

ACCOUNT = "lake.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("url", "settings", "expected"),
    [
        ("/data/tables", {}, {}),
        ("file:///data/tables", {}, {}),
        ("s3a://bucket/tables", {}, {"aws_conditional_put": "etag"}),
        (
            "s3a://bucket/tables",
            {
                "fs.s3a.endpoint": "http://store:9000",
                "fs.s3a.endpoint.region": "eu-1",
                "fs.s3a.path.style.access": "true",
                "fs.s3a.encryption.algorithm": "SSE-KMS",
                "fs.s3a.encryption.key": "arn:aws:kms:key",
            },
            {
                "aws_conditional_put": "etag",
                "aws_endpoint_url": "http://store:9000",
                "aws_region": "eu-1",
                "aws_allow_http": "true",
                "aws_virtual_hosted_style_request": "false",
                "aws_server_side_encryption": "aws:kms",
                "aws_sse_kms_key_id": "arn:aws:kms:key",
            },
        ),
        (
            "s3a://bucket/tables",
            {"fs.s3a.endpoint": "store:9000", "fs.s3a.connection.ssl.enabled": "false"},
            {"aws_conditional_put": "etag", "aws_endpoint_url": "http://store:9000", "aws_allow_http": "true"},
        ),
        (
            "s3a://bucket/tables",
            {"fs.s3a.endpoint": "s3.eu-central-1.amazonaws.com"},
            {"aws_conditional_put": "etag", "aws_endpoint_url": "https://s3.eu-central-1.amazonaws.com"},
        ),
        (
            f"abfss://tables@{ACCOUNT}/brokerside",
            {f"fs.azure.account.key.{ACCOUNT}": "key", "fs.azure.account.key": "of all"},
            {"azure_storage_account_name": "lake", "azure_storage_account_key": "key"},
        ),
        (
            f"abfss://tables@{ACCOUNT}/brokerside",
            {
                "fs.azure.account.oauth2.client.id": "id",
                "fs.azure.account.oauth2.client.secret": "secret",
                "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
            },
            {
                "azure_storage_account_name": "lake",
                "azure_storage_client_id": "id",
                "azure_storage_client_secret": "secret",
                "azure_storage_tenant_id": "tenant",
                "azure_storage_authority_host": "https://login.microsoftonline.com",
            },
        ),
        (
            "gs://bucket/tables",
            {"fs.gs.auth.service.account.json.keyfile": "/key.json"},
            {"google_service_account": "/key.json"},
        ),
        ("hdfs://namenode:8020/tables", {}, {}),
        (
            "hdfs://nameservice/tables",
            {
                "dfs.ha.namenodes.nameservice": "a,b",
                "dfs.namenode.rpc-address.nameservice.a": "one:8020",
                "dfs.namenode.rpc-address.nameservice.b": "two:8020",
            },
            {
                "dfs.ha.namenodes.nameservice": "a,b",
                "dfs.namenode.rpc-address.nameservice.a": "one:8020",
                "dfs.namenode.rpc-address.nameservice.b": "two:8020",
            },
        ),
    ],
)
def test_spark_s_settings_are_those_of_commits(url: str, settings: dict[str, str], expected: dict[str, str]) -> None:
    assert storage_options(url, settings.get) == expected


def test_a_storage_without_atomic_commits_is_refused() -> None:
    with pytest.raises(
        JobError, match=r"tables cannot be stored at ftp://: there are a path, s3, abfss, abfs, gs, hdfs"
    ):
        storage_options("ftp://host/tables", {}.get)
    with pytest.raises(JobError, match=r"fs.s3a.encryption.algorithm=CSE-KMS; there are SSE-S3, SSE-KMS, DSSE-KMS"):
        storage_options("s3a://bucket/tables", {"fs.s3a.encryption.algorithm": "CSE-KMS"}.get)
