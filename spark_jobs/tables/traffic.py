"""The table ``traffic``: who did how much, by minute. Requests told one by one and rolled up give the same rows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import MAX_SUM, REQUEST_EVENT, ROLLUP_EVENT
from spark_jobs.parse import events, with_defaults
from spark_jobs.schemas import TRAFFIC

PRODUCE = 0
MINUTE_US, DAY_US = 60_000_000, 86_400_000_000

OF_CLIENT = ["listener", "api", "principal", "client_id", "client_ip"]
OF_REQUEST = ["api_key", "request_bytes", "response_bytes", "outcome", "throttle_ms", "topics"]
OF_ROLLUP = ["requests", "errors", "connection_lost", "per_topic"]
FIELDS = [field for field in REQUEST_EVENT if field.name in OF_CLIENT + OF_REQUEST]
FIELDS += [field for field in ROLLUP_EVENT if field.name in OF_ROLLUP]

SUMMANDS = {
    "requests": "if(whole, if(rolled_up, requests, 1), 0)",
    "request_bytes": "if(whole, request_bytes, 0)",
    "response_bytes": "if(whole, response_bytes, 0)",
    "errors": "if(whole, if(rolled_up, errors, if(failed, 1, 0)), 0)",
    "connection_lost": "if(whole, if(rolled_up, connection_lost, if(outcome = 'connection_lost', 1, 0)), 0)",
    # A broker says it, so it may be anything.
    "throttle_ms": f"if(whole, least(greatest(throttle_ms, 0), {MAX_SUM}), 0)",
    "topic_requests": "coalesce(of_topic.topic_requests, if(first_of_topic, 1, 0))",
    "topic_errors": "0",
    "records": "coalesce(of_topic.records, if(accepted AND answered, part.records, 0), 0)",
    "bytes": "coalesce(of_topic.bytes, if(accepted AND answered, part.bytes, 0), 0)",
    "unconfirmed_records": "coalesce(of_topic.unconfirmed_records, if(unconfirmed, part.records, 0), 0)",
    "unconfirmed_bytes": "coalesce(of_topic.unconfirmed_bytes, if(unconfirmed, part.bytes, 0), 0)",
    "rejected_records": "coalesce(of_topic.rejected_records, if(rejected, part.records, 0), 0)",
    "rejected_bytes": "coalesce(of_topic.rejected_bytes, if(rejected, part.bytes, 0), 0)",
    "polled": "0",
}
"""What each share adds to each sum column."""


def traffic(parsed: DataFrame) -> DataFrame:
    """Return the rows of ``traffic``, one for each key, of ``parsed`` (as ``parse.parse`` gives it)."""
    sums = [F.expr(f"sum({summand})").alias(name) for name, summand in SUMMANDS.items()]
    rows = _shares(parsed).groupBy(*TRAFFIC.keys).agg(*sums)
    return rows.select(*[F.col(column.name).cast(column.type) for column in TRAFFIC.columns])


def _shares(parsed: DataFrame) -> DataFrame:
    """Return the shares of each request and of each rollup: one of the whole, and one of each partition or topic."""
    told = events(parsed, "request", "rollup").selectExpr(
        *["cluster_id", "broker_id", "coalesce(event.ts_request, event.minute) AS at"],
        *with_defaults("event", FIELDS),
        "event.kind = 'rollup' AS rolled_up",
        "event.error_code != 0 OR exists(event.topics, each -> each.error_code != 0) AS failed",
    )
    # Place 0 is the whole, so places count partitions and topics from 1, as array_position does.
    shares = told.selectExpr("*", "explode(sequence(0, size(topics) + size(per_topic))) AS place").selectExpr(
        "*",
        "place = 0 AS whole",
        "get(topics, place - 1) AS part",
        "get(per_topic, place - 1) AS of_topic",
        f"api_key = {PRODUCE} AS produced",
        "outcome = 'answered' AS answered",
    )
    return shares.selectExpr(
        "*",
        f"date_from_unix_date(CAST((at - pmod(at, {DAY_US})) / {DAY_US} AS INT)) AS day",
        f"timestamp_micros(at - pmod(at, {MINUTE_US})) AS minute",
        "coalesce(part.topic, of_topic.topic) AS topic",
        "array_position(topics.topic, part.topic) = place AS first_of_topic",
        "part IS NOT NULL AND coalesce(part.error_code, 0) = 0 AS accepted",
        "produced AND part.error_code != 0 AS rejected",
    ).selectExpr("*", "accepted AND produced AND NOT answered AS unconfirmed")
