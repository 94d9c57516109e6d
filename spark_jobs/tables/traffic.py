"""The table ``traffic``: who did how much, by minute. Requests told one by one and rolled up give the same rows."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark_jobs.merge import merge_rows
from spark_jobs.schemas import TRAFFIC
from spark_jobs.tables.columns import columns_of


def traffic(requests: DataFrame) -> DataFrame:
    """Return the rows of ``traffic``, one for each key, of ``requests`` (as ``request_measures.summed`` gives it)."""
    return merge_rows(requests, TRAFFIC).select(*columns_of(TRAFFIC))
