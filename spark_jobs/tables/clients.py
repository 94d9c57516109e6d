"""The table ``clients``: which clients there are, and which of their requests newer brokers reject."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.kafka_versions import LOWEST_VERSIONS
from spark_jobs.schemas import CLIENTS
from spark_jobs.tables.columns import table_columns


def clients(requests: DataFrame) -> DataFrame:
    """Return the rows of ``clients``, one for each key. ``requests``: result of ``measure_requests``."""
    rows = (
        requests.where("topic IS NULL AND requests > 0")
        .withColumn("refused_since", F.expr(_refused_since()))
        .groupBy(*CLIENTS.keys)
        .agg(
            F.sum("requests").alias("requests"),
            F.min("minute").alias("first_seen"),
            F.max("minute").alias("last_seen"),
            F.max("refused_since").alias("refused_since"),
        )
    )
    return rows.select(*table_columns(CLIENTS))


def _refused_since() -> str:
    """Return SQL of the first release that rejects ``api_version`` of ``api_key``, NULL if the newest accepts it."""
    refused = [
        f"WHEN api_key = {api_key} AND api_version >= 0 AND api_version < {lowest} THEN '{release}'"
        for release, lowest_versions in LOWEST_VERSIONS.items()
        for api_key, lowest in lowest_versions.items()
    ]
    return f"CASE {' '.join(refused)} END"
