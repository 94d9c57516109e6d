"""The table ``traffic``: who transferred how much, by minute. Single requests and rollups give the same rows."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_jobs.merge import merge_rows
from spark_jobs.schemas import TRAFFIC
from spark_jobs.tables.columns import table_columns


def traffic(requests: DataFrame) -> DataFrame:
    """Return the rows of ``traffic``, one for each key. ``requests``: result of ``measure_requests``."""
    return merge_rows(requests, TRAFFIC).select(*table_columns(TRAFFIC))
