"""Traffic by minute: ``traffic`` and ``latency``."""

from __future__ import annotations

from spark_jobs.schemas.model import (
    API,
    BROKER,
    CLIENT_ID,
    CLIENT_IP,
    CLUSTER,
    DAY,
    LISTENER,
    PRINCIPAL,
    Table,
    key_column,
    merged_column,
    sum_column,
)

_EVENT = "audit event"
_REQUEST_ROW = "On the row without a topic; 0 on rows of a topic."
_TOPIC_ROW = "On rows of a topic; 0 on the row without one."

_TOPIC = key_column(
    "topic", "string", "Topic; NULL on the row that counts whole requests.", source="topics[].topic, polled[]"
)
_MINUTE = key_column("minute", "timestamp", "Minute in which the request arrived.", "UTC", "ts_request, minute")

TRAFFIC = Table(
    "traffic",
    "Who transferred how much, by minute. Each request counts once on the row whose `topic` is NULL, and once more on "
    "the row of each topic it touched; so sum request columns `WHERE topic IS NULL`, and data columns over any rows. "
    "Only what the broker acknowledged, or a client was given, is in `records` and `bytes`. "
    "The rows are the same whether a sidecar sends an event for each request or rollups (`audit.mode`).",
    (
        DAY, _MINUTE, CLUSTER, BROKER, LISTENER, API, _TOPIC, PRINCIPAL, CLIENT_ID, CLIENT_IP,
        sum_column("requests", f"Requests. {_REQUEST_ROW}", "requests", _EVENT),
        sum_column("request_bytes", f"Size of the requests on the wire. {_REQUEST_ROW}", "bytes"),
        sum_column("response_bytes", f"Size of the responses on the wire. {_REQUEST_ROW}", "bytes"),
        sum_column("errors", "Requests with a failure, of the whole, of any partition or of any other item."
                   f" {_REQUEST_ROW}", "requests", "error_code, topics[].error_code, item_failures"),
        sum_column("retriable", "Requests without a failure whose broker was not the one to ask: a leader or"
                   f" coordinator moved, and clients ask again. {_REQUEST_ROW}", "requests",
                   "error_code, topics[].error_code, item_retriable"),
        sum_column("protocol", "Requests whose error codes are all steps of a protocol, as a rebalance or the renewal"
                   f" of a session. {_REQUEST_ROW}", "requests", "error_code, topics[].error_code, item_protocol"),
        sum_column("connection_lost", f"Requests whose connection ended before their response did. {_REQUEST_ROW}",
                   "requests", "outcome"),
        sum_column("throttle_ms", f"How long the broker asked clients to wait. {_REQUEST_ROW}", "ms"),
        sum_column("topic_requests", f"Requests that touched the topic. {_TOPIC_ROW}", "requests", "topics[]"),
        sum_column("topic_errors", f"Requests in which a partition of the topic had a failure. {_TOPIC_ROW}",
                   "requests", "topics[].error_code"),
        sum_column("records", "Produce: records acknowledged. Fetch: records that the client takes, from the fetch"
                   " offset on and without those of aborted transactions if it reads committed records only."
                   f" {_TOPIC_ROW}", "records", "topics[].records"),
        sum_column("bytes", f"Their record sets as sent, compressed. {_TOPIC_ROW}", "bytes", "topics[].bytes"),
        sum_column("unconfirmed_records", "Produce without an answer: acks=0, or the connection was lost. The broker"
                   f" may have them. {_TOPIC_ROW}", "records", "topics[].records, outcome"),
        sum_column("unconfirmed_bytes", f"Their record sets. {_TOPIC_ROW}", "bytes", "topics[].bytes, outcome"),
        sum_column("rejected_records", "Produce answered with an error, or with an answer that could not be read."
                   f" {_TOPIC_ROW}", "records", "topics[].records, topics[].error_code"),
        sum_column("rejected_bytes", f"Their record sets. {_TOPIC_ROW}", "bytes",
                   "topics[].bytes, topics[].error_code"),
        merged_column("max", "polled", "bigint", "1 if a consumer asked for the topic in this minute and was given"
                      f" nothing of it. {_TOPIC_ROW}", source="polled[]"),
        sum_column("estimated_records", "The part of `records` whose number is not exact, but a bound: batch headers do"
                   " not say how many records of a compacted batch are before the fetch offset, how many compressed"
                   " message sets of Kafka before 0.11 hold, or which a share consumer acquired. 0: `records` is exact."
                   f" {_TOPIC_ROW}", "records", "topics[].claimed, topics[].upper_bound, topics[].records"),
    ),
    example="SELECT topic, principal, sum(records) FILTER (api = 'Produce') AS produced,"
    " sum(records) FILTER (api = 'Fetch') AS consumed, sum(bytes) AS bytes"
    " FROM traffic WHERE topic IS NOT NULL GROUP BY ALL ORDER BY bytes DESC, topic, principal",
)  # fmt: skip

LATENCY_BUCKETS_US = tuple(int(64 * 2 ** (index / 2)) for index in range(39))
"""Upper ends of the latency buckets in µs, inclusive. The 40th has none. They are those of ``observers.event``."""

_BUCKETS_MEANING = "There are 40 buckets: bucket i ends at 64 µs · √2^i, rounded down, the last has no end."

LATENCY = Table(
    "latency",
    "How long responses took, as histograms that can be added over any rows: so percentiles of any span and grouping "
    "are exact to one bucket (a percentile is the upper end of its bucket: up to 41 % too high, never too low)."
    " Each request counts on the row whose `topic` is NULL, and once more on the row of each topic it touched. "
    "Fetches that were answered with neither records nor an error waited for data: they are only in `idle`.",
    (
        DAY, _MINUTE, CLUSTER, BROKER, LISTENER, API, _TOPIC, PRINCIPAL, CLIENT_ID,
        sum_column("requests", "Requests in `latencies`: answered ones, but for the idle.", "requests", "outcome"),
        sum_column("idle", f"Fetches that waited for data in vain. {_REQUEST_ROW}", "requests", "topics, error_code"),
        merged_column("counts", "latencies", "array<bigint>", "Number of requests by duration, from the last byte of"
                      f" the request to the last byte of the response, at the sidecar. {_BUCKETS_MEANING}", "requests",
                      "latency_us, latencies"),
        merged_column("counts", "upstream_latencies", "array<bigint>", "Histogram of the broker's part alone. On the"
                      " row without a topic; NULL on rows of a topic.", "requests", "upstream_us, upstream_latencies"),
        merged_column("counts", "service_latencies", "array<bigint>", "Histogram without the time that the client or a"
                      " quota asked for: without the `max_wait_ms` of a fetch and without the time that a throttled"
                      " connection was muted. Objectives are judged by it.", "requests", "latency_us, max_wait_ms,"
                      " muted_us, service_latencies"),
    ),
    example="SELECT api, sum(requests) AS requests, quantile_ms(merge_counts(latencies), 0.5) AS p50_ms,"
    " quantile_ms(merge_counts(latencies), 0.99) AS p99_ms FROM latency WHERE topic IS NULL GROUP BY api ORDER BY api",
)  # fmt: skip
