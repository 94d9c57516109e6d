"""Generates docs/metrics.md from the definitions."""

from __future__ import annotations

from proxy.telemetry.definitions import METRICS
from proxy.telemetry.metric_definition import MetricDefinition

_INTRODUCTION = """\
# Metrics

Generated from `proxy/telemetry/definitions.py` by `make docs`.

`GET /metrics` on `admin.bind`, in the format that the scraper asks for: Prometheus' text, OpenMetrics or protobuf.
Counters begin at 0 with each start of the sidecar. Series by `api`, `error`, `reason` or `method` appear with their
first count, all others exist from the start, where what they describe is configured. Every set of labels is bounded.
No label value is chosen by clients, except `ip`, `principal`, `topic` and `group`, which have only the busiest ones; a
value that was idle may make room for a busier one, whose series then begin at 0. A summary is two series, `…_sum` and
`…_count`; a histogram has `…_bucket`, too. With several workers every number is the sum over them, those that have
ended included. Beside these there are the usual `process_…` metrics, also of all processes together. What the limits'
metrics are called in Kafka: [limits-operation.md](limits-operation.md).

The metrics of requests, from `request_errors_total` to `group_sent_bytes_total`, need one more observer:

```yaml
observer.class.names:
  - observers.audit:AuditObserver
  - observers.request_metrics:RequestMetricsObserver
```

Their histograms come in two kinds. **Classic** ones, with 40 buckets, are in every format; `brokerside export
prometheus` writes rules on them. **Native** ones (schema 3: each bucket ends 9 % above the one before) are in protobuf,
which Prometheus asks for if it stores them (`--enable-feature=native-histograms`, or `scrape_native_histograms: true`
from 3.8 on). Such a Prometheus leaves classic ones out unless its scrape configuration says
`always_scrape_classic_histograms: true` (`scrape_classic_histograms` before 3.0): set it where the exported rules are
in use. **Exemplars**, in OpenMetrics and protobuf, are the newest request of each bucket of
`brokerside_request_duration_seconds`. Their label `connection_id` is that of events, of `brokerside connections` and of
the log. Prometheus stores them with `--enable-feature=exemplar-storage`.

| metric | type | labels | unit | meaning |
|---|---|---|---|---|
"""


def reference_markdown() -> str:
    """Return the page."""
    return _INTRODUCTION + "".join(_row(definition) for definition in METRICS)


def _row(metric: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `brokerside_{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {metric.meaning} |\n"
