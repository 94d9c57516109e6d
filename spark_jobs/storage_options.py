"""Options of delta-rs for the storage of the tables, from Spark's settings of the same storage (Hadoop's connectors).

What is not set here, delta-rs finds as other programs do: in the environment, or from the machine or pod it runs on.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from spark_jobs.errors import JobError

Setting = Callable[[str], str | None]
"""Returns the value of one of Hadoop's settings, None if it has none."""

S3_ENCRYPTION = {"SSE-S3": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}
"""Name of an encryption in S3's own protocol by its name in ``fs.s3a.encryption.algorithm``."""

SCHEMES = ("s3a", "abfss", "abfs", "gs", "hdfs")


def storage_options(url: str, setting: Setting) -> dict[str, str]:
    """Return the options of delta-rs for the storage of ``url``; none for a path of this machine.

    Keys of S3 are not among them: ``io.delta_options`` asks Hadoop's connector for those that it uses.
    Raises JobError for a storage that has no atomic commit here.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "" | "file":
            return {}
        case "s3a":
            found = _s3(setting)
        case "abfss" | "abfs":
            found = _azure(parts.hostname or "", setting)
        case "gs":
            found = {"google_service_account": setting("fs.gs.auth.service.account.json.keyfile")}
        case "hdfs":
            found = _hdfs(parts.netloc, setting)
        case other:
            raise JobError(f"tables cannot be stored at {other}://: there are a path, s3, {', '.join(SCHEMES[1:])}")
    return {name: value for name, value in found.items() if value}


def _s3(setting: Setting) -> dict[str, str | None]:
    endpoint = setting("fs.s3a.endpoint")
    plain = (endpoint or "").startswith("http://") or setting("fs.s3a.connection.ssl.enabled") == "false"
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if plain else 'https'}://{endpoint}"
    encryption = setting("fs.s3a.encryption.algorithm")
    if encryption and encryption not in S3_ENCRYPTION:
        names = ", ".join(S3_ENCRYPTION)
        raise JobError(f"tables cannot be written with fs.s3a.encryption.algorithm={encryption}; there are {names}")
    return {
        "aws_conditional_put": "etag",
        "aws_endpoint_url": endpoint,
        "aws_region": setting("fs.s3a.endpoint.region"),
        "aws_allow_http": "true" if plain else None,
        "aws_virtual_hosted_style_request": "false" if setting("fs.s3a.path.style.access") == "true" else None,
        "aws_server_side_encryption": S3_ENCRYPTION.get(encryption or ""),
        "aws_sse_kms_key_id": setting("fs.s3a.encryption.key") if encryption and "KMS" in encryption else None,
    }


def _azure(host: str, setting: Setting) -> dict[str, str | None]:
    def of_account(name: str) -> str | None:
        return setting(f"{name}.{host}") or setting(name)

    # https://login.microsoftonline.com/<tenant>/oauth2/token
    authority, _, rest = (
        (of_account("fs.azure.account.oauth2.client.endpoint") or "").removeprefix("https://").partition("/")
    )
    return {
        "azure_storage_account_name": host.partition(".")[0],
        "azure_storage_account_key": of_account("fs.azure.account.key"),
        "azure_storage_sas_token": of_account("fs.azure.sas.fixed.token"),
        "azure_storage_client_id": of_account("fs.azure.account.oauth2.client.id"),
        "azure_storage_client_secret": of_account("fs.azure.account.oauth2.client.secret"),
        "azure_storage_tenant_id": of_account("fs.azure.account.oauth2.msi.tenant") or rest.partition("/")[0],
        "azure_storage_authority_host": f"https://{authority}" if authority else None,
    }


def _hdfs(service: str, setting: Setting) -> dict[str, str | None]:
    nodes = setting(f"dfs.ha.namenodes.{service}")
    addresses = [f"dfs.namenode.rpc-address.{service}.{node}" for node in (nodes or "").split(",") if node]
    return {f"dfs.ha.namenodes.{service}": nodes} | {name: setting(name) for name in addresses}
