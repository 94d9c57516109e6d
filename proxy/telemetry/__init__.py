"""What the sidecar reports about itself: logs and metrics.

logs.py               Log lines on stderr: bounded, escaped, without secrets. JSON, or text_log.py for a terminal.
log_writer.py         The thread that writes them, and what happens to lines that no reader accepts.
snapshot.py           Counters as plain values: read in each process, sent between processes, and summed.
metric_definition.py  The definition of one metric.
definitions.py        All metrics: name, labels, meaning, and how each is read from a snapshot.
feature_metrics.py    The metrics of the feature versions of the fleet.
coordinator_metrics.py  The metrics of the coordinator of groups.
limit_metrics.py      The metrics of the limits on connections.
request_metrics.py    The metrics of requests.
audit_metrics.py      The metrics of the audit.
metrics.py            ``/metrics``, in the format that a scraper prefers.
text_format.py        Its text formats: Prometheus' and OpenMetrics.
protobuf_format.py    Prometheus' protobuf format of it.
reference.py          Generates docs/metrics.md.
"""

from proxy.telemetry.logs import RateLimitedLogger, configure_logging

__all__ = ["RateLimitedLogger", "configure_logging"]
