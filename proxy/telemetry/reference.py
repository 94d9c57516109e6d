"""Generates docs/metrics.md from the definitions."""

from __future__ import annotations

from proxy.telemetry.definitions import METRICS
from proxy.telemetry.metric_definition import MetricDefinition

_INTRODUCTION = """\
# Metrics

Generated from `proxy/telemetry/definitions.py` by `make docs`.

`GET /metrics` on `admin.bind`, in the format that the scraper asks for: Prometheus' text, OpenMetrics or protobuf.
Scrapers share a page if they ask at the same time; it is never older than the request, and after each page there is a
pause of four times as long as it took, half a second at most. Counters begin at 0 with each start of the sidecar.
Series by `api`, `error`, `reason` or `method` appear with their first count, all others exist from the start, where
what they describe is configured. Every set of labels is bounded. No label value is chosen by clients, except `ip`,
`principal`, `topic` and `group`, which have only the busiest ones. A summary is two series, `…_sum` and `…_count`; a
histogram has `…_bucket`, too. With several workers every number is the sum over them, those that have ended included.
Beside these there are the usual `process_…` metrics, also of all processes together. What the limits' metrics are
called in Kafka: [limits-operation.md](limits-operation.md).

The metrics of requests, from `request_errors_total` to `group_sent_bytes_total`, need one more observer:

```yaml
observer.class.names:
  - observers.audit:AuditObserver
  - observers.request_metrics:RequestMetricsObserver
```

A `principal`, `topic` or `group` has series of its own if it is one of the 100 busiest of a worker, or of all workers
that have ended, which is decided every 10 s. Once there are 100, a value with more than twice the recent requests of
the least busy one takes its place. The series of that one end, and its counts are added to `other`: a sum over all
values, `other` included, never goes down. Series that begin again begin at 0, as after a restart, so `rate()` of a
named value is right; `rate()` of `other` has a peak where counts were added. With several workers, a value that one of
them gives up keeps the counts of the others: `rate()` takes that for a restart, and has a peak there.

Their histograms exist for each api of which the broker has answered a request that counts there: what the sidecar
answers itself, unsupported versions for example, is in the counters only. They come in two kinds. **Classic** ones are
in every format: `request_duration_seconds` and `request_service_duration_seconds` with the 40 buckets of the table
`latency`, on which `brokerside export prometheus` writes rules; the other two with every fourth of these. **Native**
ones (schema 3: each bucket ends 9 % above the one before) are in protobuf, which Prometheus asks for if it stores them
(`--enable-feature=native-histograms`, or `scrape_native_histograms: true` from 3.8 on). Such a Prometheus leaves
classic ones out unless its scrape configuration says `always_scrape_classic_histograms: true`
(`scrape_classic_histograms` before 3.0): set it where the exported rules are in use. **Exemplars**, in OpenMetrics and
protobuf, are the newest request of each bucket of `brokerside_request_duration_seconds`. Their label `connection_id` is
that of events, of `brokerside connections` and of the log. Prometheus stores them with
`--enable-feature=exemplar-storage`.

| metric | type | labels | unit | meaning |
|---|---|---|---|---|
"""


def reference_markdown() -> str:
    """Return the page."""
    return _INTRODUCTION + "".join(_row(definition) for definition in METRICS)


def _row(metric: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `brokerside_{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {metric.meaning} |\n"
