"""The table ``traffic``: who did how much, by minute. Requests told one by one and rolled up give the same rows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.merge import merged
from spark_jobs.schemas import TRAFFIC


def traffic(requests: DataFrame) -> DataFrame:
    """Return the rows of ``traffic``, one for each key, of ``requests`` (as ``requests.summed`` gives it)."""
    rows = merged(requests, TRAFFIC)
    return rows.select(*[F.col(column.name).cast(column.type) for column in TRAFFIC.columns])
