"""The table ``latency``: how long responses took, by minute, as histograms that can be added."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.schemas import LATENCY
from spark_jobs.tables.columns import table_columns
from spark_jobs.tables.request_measures import HISTOGRAM_COLUMNS, histogram_counts


def latency(requests: DataFrame) -> DataFrame:
    """Return the rows of ``latency``, one for each key. ``requests``: result of ``measure_requests``.

    Keys without a response have no row.
    """
    histograms = [F.expr(histogram_counts(name)).alias(name) for name in HISTOGRAM_COLUMNS]
    rows = (
        requests.groupBy(*LATENCY.keys)
        .agg(F.sum("idle").alias("idle"), *histograms)
        .withColumn("requests", F.expr("aggregate(latencies, 0L, (sum, count) -> sum + count)"))
        .withColumn("upstream_latencies", F.expr("if(topic IS NULL, upstream_latencies, NULL)"))
        .where("requests > 0 OR idle > 0")
    )
    return rows.select(*table_columns(LATENCY))
