"""The table ``traffic``: who did how much, by minute. Requests told one by one and rolled up give the same rows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import MAX_SUM, ROLLUP_TOPIC, TOPIC_PARTITION
from spark_jobs.parse import events, with_defaults
from spark_jobs.schemas import TRAFFIC

PRODUCE = 0
MINUTE_US, DAY_US = 60_000_000, 86_400_000_000

OF_CLIENT = ["cluster_id", "broker_id", "listener", "api", "principal", "client_id", "client_ip"]
SUMS_OF_TOPIC = [name for name in TRAFFIC.sums if name in {field.name for field in ROLLUP_TOPIC}]
OF_PARTITION = [field for field in TOPIC_PARTITION if field.name in ("topic", "records", "bytes", "error_code")]

THROTTLE_MS = f"least(greatest(throttle_ms, 0), {MAX_SUM}) AS throttle_ms"
"""As far as it can be: it is what the broker says."""

SUMMANDS = {
    "requests": "if(whole, 1, 0)",
    "request_bytes": "if(whole, request_bytes, 0)",
    "response_bytes": "if(whole, response_bytes, 0)",
    "errors": "if(whole AND failed, 1, 0)",
    "connection_lost": "if(whole AND outcome = 'connection_lost', 1, 0)",
    "throttle_ms": "if(whole, throttle_ms, 0)",
    "topic_requests": "if(first_of_topic, 1, 0)",
    "records": "if(confirmed, records, 0)",
    "bytes": "if(confirmed, bytes, 0)",
    "unconfirmed_records": "if(unconfirmed, records, 0)",
    "unconfirmed_bytes": "if(unconfirmed, bytes, 0)",
    "rejected_records": "if(rejected, records, 0)",
    "rejected_bytes": "if(rejected, bytes, 0)",
}
"""What each share of a request adds to each sum column."""


def traffic(parsed: DataFrame) -> DataFrame:
    """Return the rows of ``traffic``, one for each key, of ``parsed`` (as ``parse.parse`` gives it)."""
    shares = _of_requests(events(parsed, "request")).unionByName(_of_rollups(events(parsed, "rollup")))
    sums = shares.groupBy(*TRAFFIC.keys).agg(*[F.sum(name).alias(name) for name in TRAFFIC.sums])
    return sums.select(*[F.col(column.name).cast(column.type) for column in TRAFFIC.columns])


def _of_requests(requests: DataFrame) -> DataFrame:
    """Return the shares of each request: one of the whole request (``topic`` NULL), and one of each partition."""
    prepared = requests.selectExpr(
        *_times("ts_request"),
        *OF_CLIENT,
        *["api_key", "request_bytes", "response_bytes", "outcome", THROTTLE_MS, "topics"],
        "error_code != 0 OR exists(topics, each -> each.error_code != 0) AS failed",
    )
    shares = prepared.selectExpr("*", "posexplode(concat(array(NULL), topics)) AS (place, share)").selectExpr(
        *[name for name in prepared.columns if name != "topics"],
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
    ).selectExpr(
        "*",
        "accepted AND answered AS confirmed",
        "accepted AND produced AND NOT answered AS unconfirmed",
        "refused AND produced AS rejected",
    )
    return answered.selectExpr(*TRAFFIC.keys, *[f"{value} AS {name}" for name, value in SUMMANDS.items()])


def _of_rollups(rollups: DataFrame) -> DataFrame:
    """Return the shares of each rollup: one of all its requests (``topic`` NULL), and one of each topic."""
    of_all = [name for name in TRAFFIC.sums if name not in SUMS_OF_TOPIC]
    shares = rollups.selectExpr(
        *_times("minute"),
        *OF_CLIENT,
        *[THROTTLE_MS if name == "throttle_ms" else name for name in of_all],
        "explode(concat(array(NULL), per_topic)) AS share",
    )
    return shares.selectExpr(
        *["share.topic" if name == "topic" else name for name in TRAFFIC.keys],
        *[f"if(share IS NULL, {name}, 0) AS {name}" for name in of_all],
        *[f"coalesce(share.{name}, 0) AS {name}" for name in SUMS_OF_TOPIC],
    )


def _times(instant: str) -> list[str]:
    """Return SQL of the day and the minute of ``instant``, µs since 1970."""
    return [
        f"date_from_unix_date(CAST(({instant} - pmod({instant}, {DAY_US})) / {DAY_US} AS INT)) AS day",
        f"timestamp_micros({instant} - pmod({instant}, {MINUTE_US})) AS minute",
    ]
