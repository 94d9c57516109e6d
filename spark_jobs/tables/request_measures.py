"""What requests and rollups add to ``traffic``, ``latency`` and ``clients``: gone through once for all of them."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import MAX_SUM, PRODUCE, REQUEST_EVENT, ROLLUP_EVENT
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import TRAFFIC
from spark_jobs.schemas.traffic import BUCKETS
from spark_jobs.tables.columns import MINUTE_US, day_of, start_of

FETCHES = "(1, 78)"
"""Fetch and ShareFetch: the broker lets them wait for data as long as the client says."""

KEYS = (*TRAFFIC.keys, "api_key", "api_version", "software_name", "software_version")
"""Whom and what a row is about."""

TIMES = {
    "latencies": "latency_us",
    "upstream_latencies": "upstream_us",
    # Less what the client or a quota asked for. The one says a client and the other a broker, so it may be anything.
    "service_latencies": "greatest(latency_us - muted_us - 1000 * greatest(max_wait_ms, 0L), 0L)",
}
"""Of each histogram the time in µs that a single request has there."""

HISTOGRAMS = {
    "latencies": "if(rolled_up, if(whole, latencies, of_topic.latencies), NULL)",
    "upstream_latencies": "if(rolled_up AND whole, upstream_latencies, NULL)",
    "service_latencies": "if(rolled_up, if(whole, {}, {}), NULL)".format(
        *[f"if(size({of}service_latencies) > 0, {of}service_latencies, {of}latencies)" for of in ("", "of_topic.")]
    ),
}
"""Counts of what was rolled up; NULL of single requests."""

PLACES = {
    "place_in_latencies": "if(whole OR first_of_topic, latencies_place, NULL)",
    "place_in_upstream_latencies": "if(whole, upstream_latencies_place, NULL)",
    "place_in_service_latencies": "if(whole OR first_of_topic, service_latencies_place, NULL)",
}
"""Which of a histogram's counts a single request adds to, from 0; NULL for none."""

OF_BOTH = ["listener", "api", "principal", "client_id", "client_ip", "api_key", "request_bytes", "response_bytes",
           "throttle_ms", "polled"]  # fmt: skip
OF_REQUEST = ["outcome", "latency_us", "upstream_us", "max_wait_ms", "muted_us", "error_code", "topics"]
OF_ROLLUP = ["requests", "errors", "connection_lost", "idle", *HISTOGRAMS, "per_topic"]
FIELDS = [field for field in REQUEST_EVENT if field.name in OF_BOTH + OF_REQUEST]
FIELDS += [field for field in ROLLUP_EVENT if field.name in OF_ROLLUP]

SUMMANDS = {
    "requests": "if(whole, if(rolled_up, requests, 1), 0)",
    "request_bytes": "if(whole, request_bytes, 0)",
    "response_bytes": "if(whole, response_bytes, 0)",
    "errors": "if(whole, if(rolled_up, errors, if(failed, 1, 0)), 0)",
    "connection_lost": "if(whole, if(rolled_up, connection_lost, if(outcome = 'connection_lost', 1, 0)), 0)",
    # A broker says it, so it may be anything.
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
}
"""What each share adds to each sum."""


def summed(parsed: DataFrame) -> DataFrame:
    """Return what the requests and rollups of ``parsed`` (as ``parse.parse_records`` gives it) add up to.

    A row of a topic is about the topic's part in requests, one without about requests as a whole. There is one for each
    of ``KEYS``, ``PLACES`` and ``HISTOGRAMS`` that occurs; its ``shares`` says how often, so that the histograms of any
    rows are their ``counts``. Besides, there are the sums of traffic, ``idle``, and ``polled``.
    """
    alike = [*KEYS, *PLACES, *HISTOGRAMS]
    adding = _shares(parsed).selectExpr(
        *KEYS, *_named(PLACES | HISTOGRAMS | SUMMANDS), "1L AS shares", "if(polled_topic IS NULL, 0L, 1L) AS polled"
    )
    sums = [F.sum(name).alias(name) for name in ("shares", *SUMMANDS)]
    return adding.groupBy(*alike).agg(*sums, F.max("polled").alias("polled"))


def counts(histogram: str) -> str:
    """Return SQL that aggregates rows of ``summed`` to one of ``HISTOGRAMS``, an array with a count for each bucket."""
    each = [
        f"sum(shares * if({histogram} IS NULL, if(place_in_{histogram} = {place}, 1, 0),"
        f" least(greatest(get({histogram}, {place}), 0), {MAX_SUM})))"
        for place in range(len(BUCKETS) + 1)
    ]
    return f"array({', '.join(each)})"


def place(time: str) -> str:
    """Return SQL of the place of the bucket that ``time`` (SQL of whole µs) falls into."""
    # Ends are at 64·√2^i, rounded down. A hundredth is more than a logarithm errs by, and takes no time out of its
    # bucket: no end lies less than that below a whole number, but for those that are whole numbers.
    return f"CAST(least(greatest(ceil(2 * log2(({time} - 0.01D) / {BUCKETS[0]})), 0), {len(BUCKETS)}) AS INT)"


def _shares(parsed: DataFrame) -> DataFrame:
    """Return the shares of each request and rollup: one of the whole, and one of each of its parts.

    Those are the partitions of a request or the topics of a rollup, and the topics that were polled.
    """
    told = explode_events(parsed, "request", "rollup").selectExpr(
        *["cluster_id", "broker_id", "coalesce(event.ts_request, event.minute) AS at"],
        *fields_with_defaults("event", FIELDS),
        "nullif(event.api_version, -1) AS api_version",
        "event.client_software_name AS software_name",
        "event.client_software_version AS software_version",
        "event.kind = 'rollup' AS rolled_up",
        "coalesce(filter(event.topics, each -> each.error_code != 0).topic, array()) AS failed_topics",
    )
    told = told.selectExpr(
        "*",
        "size(topics) + size(per_topic) AS parts",
        "outcome = 'answered' AS answered",
        "error_code != 0 OR size(failed_topics) > 0 AS failed",
        f"api_key IN {FETCHES} AND outcome = 'answered' AND size(topics) = 0 AND error_code = 0 AS waited",
    )
    places = {
        f"{name}_place": f"if(rolled_up OR waited OR NOT answered, NULL, {place(time)})" for name, time in TIMES.items()
    }
    # Place 0 is the whole, so places count the others from 1, as array_position does.
    shares = told.selectExpr("*", *_named(places), "explode(sequence(0, parts + size(polled))) AS place").selectExpr(
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
        f"{start_of('at', MINUTE_US)} AS minute",
        "coalesce(part.topic, of_topic.topic, polled_topic) AS topic",
        "array_position(topics.topic, part.topic) = place AS first_of_topic",
        "part IS NOT NULL AND coalesce(part.error_code, 0) = 0 AS accepted",
        "produced AND part.error_code != 0 AS rejected",
    ).selectExpr(
        "*",
        "accepted AND produced AND NOT answered AS unconfirmed",
        "first_of_topic AND array_contains(failed_topics, part.topic) AS topic_failed",
    )


def _named(columns: Mapping[str, str]) -> list[str]:
    return [f"{sql} AS {name}" for name, sql in columns.items()]
