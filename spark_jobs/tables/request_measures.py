"""Sums of requests and rollups, computed in one pass for ``traffic``, ``latency`` and ``clients``."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import MAX_SUM, PRODUCE, REQUEST_EVENT, ROLLUP_EVENT
from spark_jobs.kafka_errors import PROTOCOL_ERRORS, RETRIABLE_ERRORS
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import TRAFFIC
from spark_jobs.schemas.traffic import LATENCY_BUCKETS_US
from spark_jobs.tables.columns import MINUTE_US, day_of, start_of_interval

FETCH_API_KEYS = "(1, 78)"
"""Api keys of Fetch and ShareFetch: the broker lets them wait for data for a time that the client chooses."""

NO_FAILURES = (0, *RETRIABLE_ERRORS, *PROTOCOL_ERRORS)
"""Error codes that are no failure of a request."""

AGREED_VERSION = "(api_key = 18 AND error_code = 35)"
"""SQL of an ApiVersions that was too new for the broker: the client asks again with the version in the response
(KIP-511)."""

MEASURE_KEYS = (*TRAFFIC.keys, "api_key", "api_version", "software_name", "software_version")
"""Key columns of the sums."""

HISTOGRAM_TIMES = {
    "latencies": "latency_us",
    "upstream_latencies": "upstream_us",
    # Without the wait that the client asked for and the time of a quota. Both are values of others, so they are
    # bounded.
    "service_latencies": "greatest(latency_us - muted_us - 1000 * greatest(max_wait_ms, 0L), 0L)",
}
"""By histogram, SQL of the time in µs of a single request."""

HISTOGRAM_COLUMNS = {
    "latencies": "if(rolled_up, if(whole, latencies, of_topic.latencies), NULL)",
    "upstream_latencies": "if(rolled_up AND whole, upstream_latencies, NULL)",
    "service_latencies": "if(rolled_up, if(whole, {}, {}), NULL)".format(
        *[f"if(size({of}service_latencies) > 0, {of}service_latencies, {of}latencies)" for of in ("", "of_topic.")]
    ),
}
"""By histogram, SQL of the bucket counts of a rollup; NULL for single requests."""

BUCKET_COLUMNS = {
    "place_in_latencies": "if(whole OR first_of_topic, latencies_place, NULL)",
    "place_in_upstream_latencies": "if(whole, upstream_latencies_place, NULL)",
    "place_in_service_latencies": "if(whole OR first_of_topic, service_latencies_place, NULL)",
}
"""SQL of the bucket index, from 0, that a single request is counted in; NULL for none."""

SHARED_FIELDS = ["listener", "api", "principal", "client_id", "client_ip", "api_key", "request_bytes", "response_bytes",
           "throttle_ms", "polled"]  # fmt: skip
REQUEST_FIELDS = ["outcome", "latency_us", "upstream_us", "max_wait_ms", "muted_us", "error_code", "topics",
                  "item_failures", "item_retriable", "item_protocol"]  # fmt: skip
ROLLUP_FIELDS = [
    "requests",
    "errors",
    "retriable",
    "protocol",
    "connection_lost",
    "idle",
    *HISTOGRAM_COLUMNS,
    "per_topic",
]
USED_FIELDS = [field for field in REQUEST_EVENT if field.name in SHARED_FIELDS + REQUEST_FIELDS]
USED_FIELDS += [field for field in ROLLUP_EVENT if field.name in ROLLUP_FIELDS]

SUMMED_COLUMNS = {
    "requests": "if(whole, if(rolled_up, requests, 1), 0)",
    "request_bytes": "if(whole, request_bytes, 0)",
    "response_bytes": "if(whole, response_bytes, 0)",
    "errors": "if(whole, if(rolled_up, errors, if(failed, 1, 0)), 0)",
    "retriable": "if(whole, if(rolled_up, retriable, if(NOT failed AND retried, 1, 0)), 0)",
    "protocol": "if(whole, if(rolled_up, protocol, if(NOT failed AND NOT retried AND stepped, 1, 0)), 0)",
    "connection_lost": "if(whole, if(rolled_up, connection_lost, if(outcome = 'connection_lost', 1, 0)), 0)",
    # The value comes from a broker, so it is bounded.
    "throttle_ms": f"if(whole, least(greatest(throttle_ms, 0), {MAX_SUM}), 0)",
    "idle": "if(whole, if(rolled_up, idle, if(waited, 1, 0)), 0)",
    "topic_requests": "coalesce(of_topic.topic_requests, if(first_of_topic, 1, 0))",
    "topic_errors": "coalesce(of_topic.errors, if(topic_failed, 1, 0))",
    "records": "coalesce(of_topic.records, if(accepted AND answered, part.records, 0), 0)",
    "bytes": "coalesce(of_topic.bytes, if(accepted AND answered, part.bytes, 0), 0)",
    "unconfirmed_records": "coalesce(of_topic.unconfirmed_records, if(unconfirmed, part.records, 0), 0)",
    "unconfirmed_bytes": "coalesce(of_topic.unconfirmed_bytes, if(unconfirmed, part.bytes, 0), 0)",
    "rejected_records": "coalesce(of_topic.rejected_records, if(rejected, part.records, 0), 0)",
    "rejected_bytes": "coalesce(of_topic.rejected_bytes, if(rejected, part.bytes, 0), 0)",
    "estimated_records": "coalesce(of_topic.estimated_records, if(estimated, part.records, 0), 0)",
}
"""SQL of the value that each share adds to each sum."""


def measure_requests(parsed: DataFrame) -> DataFrame:
    """Return the sums of the requests and rollups in ``parsed``, the result of ``parse.parse_records``.

    A row with a topic is about the topic's part of requests, a row without one about whole requests. There is one row
    for each combination of ``MEASURE_KEYS``, ``BUCKET_COLUMNS`` and ``HISTOGRAM_COLUMNS`` that occurs. Its ``shares``
    is the number of occurrences, which ``histogram_counts`` uses. The other columns are the sums of ``traffic``,
    ``idle``, and ``polled``.
    """
    alike = [*MEASURE_KEYS, *BUCKET_COLUMNS, *HISTOGRAM_COLUMNS]
    adding = _explode_shares(parsed).selectExpr(
        *MEASURE_KEYS,
        *_aliased(BUCKET_COLUMNS | HISTOGRAM_COLUMNS | SUMMED_COLUMNS),
        "1L AS shares",
        "if(polled_topic IS NULL, 0L, 1L) AS polled",
    )
    sums = [F.sum(name).alias(name) for name in ("shares", *SUMMED_COLUMNS)]
    return adding.groupBy(*alike).agg(*sums, F.max("polled").alias("polled"))


def histogram_counts(histogram: str) -> str:
    """Return SQL that aggregates rows of ``measure_requests`` to a histogram: an array of counts by bucket."""
    each = [
        f"sum(shares * if({histogram} IS NULL, if(place_in_{histogram} = {place}, 1, 0),"
        f" least(greatest(get({histogram}, {place}), 0), {MAX_SUM})))"
        for place in range(len(LATENCY_BUCKETS_US) + 1)
    ]
    return f"array({', '.join(each)})"


def bucket_index(time: str) -> str:
    """Return SQL of the index of the bucket that contains ``time`` (SQL; whole µs)."""
    # Buckets end at 64·√2^i, rounded down. Subtracting 0.01 exceeds the rounding error of the logarithm and moves no
    # time to another bucket: no end is closer than that below a whole number, except for those that are whole numbers.
    index = f"ceil(2 * log2(({time} - 0.01D) / {LATENCY_BUCKETS_US[0]}))"
    return f"CAST(least(greatest({index}, 0), {len(LATENCY_BUCKETS_US)}) AS INT)"


def _explode_shares(parsed: DataFrame) -> DataFrame:
    """Return the shares of each request and rollup: one for the whole, and one for each of its parts.

    The parts are the partitions of a request, the topics of a rollup, and the topics that were polled.
    """
    requests = explode_events(parsed, "request", "rollup").selectExpr(
        *["cluster_id", "broker_id", "coalesce(event.ts_request, event.minute) AS at"],
        *fields_with_defaults("event", USED_FIELDS),
        "nullif(event.api_version, -1) AS api_version",
        "event.client_software_name AS software_name",
        "event.client_software_version AS software_version",
        "event.kind = 'rollup' AS rolled_up",
        f"coalesce(filter(event.topics, each -> each.error_code NOT IN {NO_FAILURES}).topic, array()) AS failed_topics",
        "coalesce(transform(event.topics, each -> coalesce(each.error_code, 0)), array()) AS codes",
    )
    requests = requests.selectExpr(
        "*",
        "size(topics) + size(per_topic) AS parts",
        "outcome = 'answered' AS answered",
        f"{AGREED_VERSION} OR error_code IN {PROTOCOL_ERRORS} OR exists(codes, each -> each IN {PROTOCOL_ERRORS})"
        " OR item_protocol > 0 AS stepped",
        f"error_code IN {RETRIABLE_ERRORS} OR exists(codes, each -> each IN {RETRIABLE_ERRORS}) OR item_retriable > 0"
        " AS retried",
        f"error_code NOT IN {NO_FAILURES} AND NOT {AGREED_VERSION} OR size(failed_topics) > 0 OR item_failures > 0"
        " AS failed",
        f"api_key IN {FETCH_API_KEYS} AND outcome = 'answered' AND size(topics) = 0 AND error_code = 0 AS waited",
    )
    places = {
        f"{name}_place": f"if(rolled_up OR waited OR NOT answered, NULL, {bucket_index(time)})"
        for name, time in HISTOGRAM_TIMES.items()
    }
    # Place 0 is the whole. The parts are counted from 1, as array_position does.
    shares = requests.selectExpr(
        "*", *_aliased(places), "explode(sequence(0, parts + size(polled))) AS place"
    ).selectExpr(
        "*",
        "place = 0 AS whole",
        "get(topics, place - 1) AS part",
        "get(per_topic, place - 1) AS of_topic",
        "get(polled, place - 1 - parts) AS polled_topic",
        f"api_key = {PRODUCE} AS produced",
    )
    return shares.selectExpr(
        "*",
        f"{day_of('at')} AS day",
        f"{start_of_interval('at', MINUTE_US)} AS minute",
        "coalesce(part.topic, of_topic.topic, polled_topic) AS topic",
        "array_position(topics.topic, part.topic) = place AS first_of_topic",
        "part IS NOT NULL AND coalesce(part.error_code, 0) = 0 AS accepted",
        "produced AND part.error_code != 0 AS rejected",
    ).selectExpr(
        "*",
        "accepted AND produced AND NOT answered AS unconfirmed",
        "accepted AND answered AND (part.claimed OR part.upper_bound) AS estimated",
        "first_of_topic AND array_contains(failed_topics, part.topic) AS topic_failed",
    )


def _aliased(columns: Mapping[str, str]) -> list[str]:
    return [f"{sql} AS {name}" for name, sql in columns.items()]
