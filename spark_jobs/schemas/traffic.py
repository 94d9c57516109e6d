"""What passed, by minute: ``traffic`` and ``latency``."""

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
    key,
    merged,
    total,
)

_EVENT = "audit event"
_REQUEST_ROW = "On the row without a topic; 0 on rows of a topic."
_TOPIC_ROW = "On rows of a topic; 0 on the row without one."

_TOPIC = key("topic", "string", "Topic; NULL on the row that counts whole requests.", source="topics[].topic, polled[]")
_MINUTE = key("minute", "timestamp", "Minute in which the request arrived.", "UTC", "ts_request, minute")

TRAFFIC = Table(
    "traffic",
    "Who did how much, by minute. Each request counts once on the row whose `topic` is NULL, and once more on the row "
    "of each topic it touched; so sum request columns `WHERE topic IS NULL`, and data columns over any rows. "
    "Only what the broker acknowledged, or a client was given, is in `records` and `bytes`. "
    "The rows are the same whether a sidecar tells of each request or rolls them up (`audit.mode`).",
    (
        DAY,
        _MINUTE,
        CLUSTER,
        BROKER,
        LISTENER,
        API,
        _TOPIC,
        PRINCIPAL,
        CLIENT_ID,
        CLIENT_IP,
        total("requests", f"Requests. {_REQUEST_ROW}", "requests", _EVENT),
        total("request_bytes", f"Size of the requests on the wire. {_REQUEST_ROW}", "bytes", "request_bytes"),
        total("response_bytes", f"Size of the responses on the wire. {_REQUEST_ROW}", "bytes", "response_bytes"),
        total(
            "errors",
            f"Requests with an error code, of the whole or of any partition. {_REQUEST_ROW}",
            "requests",
            "error_code, topics[].error_code",
        ),
        total(
            "connection_lost",
            f"Requests whose connection ended before their response did. {_REQUEST_ROW}",
            "requests",
            "outcome",
        ),
        total("throttle_ms", f"How long the broker asked clients to wait. {_REQUEST_ROW}", "ms", "throttle_ms"),
        total("topic_requests", f"Requests that touched the topic. {_TOPIC_ROW}", "requests", "topics[]"),
        total(
            "topic_errors",
            f"Requests in which a partition of the topic had an error code. {_TOPIC_ROW}",
            "requests",
            "topics[].error_code",
        ),
        total(
            "records",
            f"Produce: records acknowledged. Fetch: records handed out. {_TOPIC_ROW}",
            "records",
            "topics[].records",
        ),
        total("bytes", f"Their record sets as sent, compressed. {_TOPIC_ROW}", "bytes", "topics[].bytes"),
        total(
            "unconfirmed_records",
            f"Produce without an answer: acks=0, or the connection was lost. The broker may have them. {_TOPIC_ROW}",
            "records",
            "topics[].records, outcome",
        ),
        total("unconfirmed_bytes", f"Their record sets. {_TOPIC_ROW}", "bytes", "topics[].bytes, outcome"),
        total(
            "rejected_records",
            f"Produce answered with an error, or with an answer that could not be read. {_TOPIC_ROW}",
            "records",
            "topics[].records, topics[].error_code",
        ),
        total("rejected_bytes", f"Their record sets. {_TOPIC_ROW}", "bytes", "topics[].bytes, topics[].error_code"),
        merged(
            "max",
            "polled",
            "bigint",
            f"1 if a consumer asked for the topic in this minute and was given nothing of it. {_TOPIC_ROW}",
            "",
            "polled[]",
        ),
    ),
    example="SELECT topic, principal, sum(records) FILTER (api = 'Produce') AS produced,"
    " sum(records) FILTER (api = 'Fetch') AS consumed, sum(bytes) AS bytes"
    " FROM traffic WHERE topic IS NOT NULL GROUP BY ALL ORDER BY bytes DESC, topic, principal",
)

BUCKETS = tuple(int(64 * 2 ** (index / 2)) for index in range(39))
"""Upper ends of the latency buckets in µs, inclusive; the 40th has none. Those of ``observers.event``."""

_COUNTS = "There are 40 buckets: bucket i ends at 64 µs · √2^i, rounded down, the last has no end."

LATENCY = Table(
    "latency",
    "How long answers took, as histograms that may be added up over any rows: so percentiles of any span and grouping "
    "are right to one bucket (a percentile is told as the upper end of its bucket: up to 41 % too high, never too low)."
    " Each request counts on the row whose `topic` is NULL, and once more on the row of each topic it touched. "
    "Fetches that were answered with neither records nor an error waited for data: they are in `idle` alone.",
    (
        DAY,
        _MINUTE,
        CLUSTER,
        BROKER,
        LISTENER,
        API,
        _TOPIC,
        PRINCIPAL,
        CLIENT_ID,
        total("requests", "Requests in `latencies`: answered ones, but for the idle.", "requests", "outcome"),
        total("idle", f"Fetches that waited for data in vain. {_REQUEST_ROW}", "requests", "topics, error_code"),
        merged(
            "counts",
            "latencies",
            "array<bigint>",
            "How many took how long, from the last byte of the request to the last byte of the response, at the"
            f" sidecar. {_COUNTS}",
            "requests",
            "latency_us, latencies",
        ),
        merged(
            "counts",
            "upstream_latencies",
            "array<bigint>",
            "The same of the broker's part alone. On the row without a topic; NULL on rows of a topic.",
            "requests",
            "upstream_us, upstream_latencies",
        ),
        merged(
            "counts",
            "service_latencies",
            "array<bigint>",
            "The same of what neither the client nor a quota asked for: less a fetch's `max_wait_ms`, less the time a"
            " throttled connection was left unread. Objectives are judged by it.",
            "requests",
            "latency_us, max_wait_ms, muted_us, service_latencies",
        ),
    ),
    example="SELECT api, sum(requests) AS requests, quantile_ms(merge_counts(latencies), 0.5) AS p50_ms,"
    " quantile_ms(merge_counts(latencies), 0.99) AS p99_ms FROM latency WHERE topic IS NULL GROUP BY api ORDER BY api",
)
