"""The table ``traffic``: who did how much, by minute."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.parse import with_defaults
from spark_jobs.schemas import TOPIC_PARTITION, TRAFFIC

PRODUCE = 0
MINUTE_US, DAY_US = 60_000_000, 86_400_000_000


OF_PARTITION = [field for field in TOPIC_PARTITION if field.name in ("topic", "records", "bytes", "error_code")]

SUMS = {
    "requests": "count_if(whole)",
    "request_bytes": "sum(if(whole, request_bytes, 0))",
    "response_bytes": "sum(if(whole, response_bytes, 0))",
    "errors": "count_if(whole AND failed)",
    "connection_lost": "count_if(whole AND outcome = 'connection_lost')",
    "throttle_ms": "sum(if(whole, greatest(throttle_ms, 0), 0))",
    "topic_requests": "count_if(first_of_topic)",
    "records": "sum(if(confirmed, records, 0))",
    "bytes": "sum(if(confirmed, bytes, 0))",
    "unconfirmed_records": "sum(if(unconfirmed, records, 0))",
    "unconfirmed_bytes": "sum(if(unconfirmed, bytes, 0))",
    "rejected_records": "sum(if(rejected, records, 0))",
    "rejected_bytes": "sum(if(rejected, bytes, 0))",
}
"""How each sum column comes from the shares of requests."""


def traffic(requests: DataFrame) -> DataFrame:
    """Return the rows of ``traffic``, one for each key, of ``requests`` (as ``parse.requests`` gives them)."""
    prepared = requests.selectExpr(
        f"date_from_unix_date(CAST((ts_request - pmod(ts_request, {DAY_US})) / {DAY_US} AS INT)) AS day",
        f"timestamp_micros(ts_request - pmod(ts_request, {MINUTE_US})) AS minute",
        *["cluster_id", "broker_id", "listener", "api", "api_key", "principal", "client_id", "client_ip"],
        *["request_bytes", "response_bytes", "outcome", "throttle_ms", "topics"],
        "error_code != 0 OR exists(topics, each -> each.error_code != 0) AS failed",
    )
    sums = _shares(prepared).groupBy(*TRAFFIC.keys).agg(*[F.expr(sql).alias(name) for name, sql in SUMS.items()])
    return sums.select(*[F.col(column.name).cast(column.type) for column in TRAFFIC.columns])


def _shares(requests: DataFrame) -> DataFrame:
    """Return the shares of each request: one of the whole request (``topic`` NULL), and one of each partition."""
    shares = requests.selectExpr("*", "posexplode(concat(array(NULL), topics)) AS (place, share)").selectExpr(
        *[name for name in requests.columns if name != "topics"],
        "share IS NULL AS whole",
        # Place 0 is the whole request, so places count the partitions from 1, as array_position does.
        "array_position(topics.topic, share.topic) = place AS first_of_topic",
        *with_defaults("share", OF_PARTITION),
    )
    answered = shares.selectExpr(
        "*",
        "NOT whole AND error_code = 0 AS accepted",
        "NOT whole AND error_code != 0 AS refused",
        f"api_key = {PRODUCE} AS produced",
        "outcome = 'answered' AS answered",
    )
    return answered.selectExpr(
        "*",
        "accepted AND answered AS confirmed",
        "accepted AND produced AND NOT answered AS unconfirmed",
        "refused AND produced AS rejected",
    )
