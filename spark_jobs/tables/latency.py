"""The table ``latency``: how long answers took, by minute, as histograms that add up."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.schemas import LATENCY
from spark_jobs.tables.columns import columns_of
from spark_jobs.tables.request_measures import HISTOGRAMS, counts


def latency(requests: DataFrame) -> DataFrame:
    """Return the rows of ``latency``, one for each key, of ``requests`` (as ``request_measures.summed`` gives it).

    There is none where nothing was answered.
    """
    histograms = [F.expr(counts(name)).alias(name) for name in HISTOGRAMS]
    rows = (
        requests.groupBy(*LATENCY.keys)
        .agg(F.sum("idle").alias("idle"), *histograms)
        .withColumn("requests", F.expr("aggregate(latencies, 0L, (sum, count) -> sum + count)"))
        .withColumn("upstream_latencies", F.expr("if(topic IS NULL, upstream_latencies, NULL)"))
        .where("requests > 0 OR idle > 0")
    )
    return rows.select(*columns_of(LATENCY))
