"""The metrics of the built-in audit observer. docs/audit-delivery.md explains what to alert on."""

from __future__ import annotations

from collections.abc import Callable

from proxy.telemetry.metric_definition import MetricDefinition, Samples
from proxy.telemetry.snapshot import Snapshot


def _audit_field(field: str) -> Callable[[Snapshot], Samples]:
    """Return a reader of one field of ``observers.audit.AuditStats``."""
    return lambda s: [((), s.audit[field])] if s.audit else []


AUDIT_METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition(
        "audit_observed_total",
        "counter",
        (),
        "exchanges",
        "Requests, changes of connections and throttle reports seen.",
        _audit_field("observed"),
    ),
    MetricDefinition(
        "audit_hidden_total",
        "counter",
        (),
        "exchanges",
        "Those of them that give no event: excluded topics and principals.",
        _audit_field("hidden"),
    ),
    MetricDefinition(
        "audit_emitted_total",
        "counter",
        (),
        "events",
        "Sequence numbers given to events: emitted = delivered + dropped + spooled + queued + left.",
        _audit_field("emitted"),
    ),
    MetricDefinition(
        "audit_delivered_total",
        "counter",
        (),
        "events",
        "Events acknowledged by the audit topic.",
        _audit_field("delivered"),
    ),
    MetricDefinition(
        "audit_dropped_total",
        "counter",
        ("reason",),
        "events",
        "Events lost, by reason; see the list in audit-event.md. And `worker_lost`: they waited in the memory of a "
        "worker when it was last asked, and it ended; a `gap` event has the real number.",
        lambda s: [((reason,), count) for reason, count in s.audit.get("dropped", {}).items()],
    ),
    MetricDefinition(
        "audit_spooled",
        "gauge",
        (),
        "events",
        "Events on disk that the topic has not acknowledged; what the producer has is among them.",
        _audit_field("spooled"),
    ),
    MetricDefinition(
        "audit_queued",
        "gauge",
        (),
        "events",
        "Events in memory alone: collected, waiting for the cluster, or with the producer.",
        _audit_field("queued"),
    ),
    MetricDefinition(
        "audit_queued_bytes",
        "gauge",
        (),
        "bytes",
        "Bytes of records that wait in memory, before compression.",
        _audit_field("queued_bytes"),
    ),
    MetricDefinition(
        "audit_left_total",
        "counter",
        (),
        "events",
        "Events that workers which ended left on disk. Another worker sends them, and counts them as replayed.",
        lambda s: [((), s.audit.get("left", 0))] if s.audit else [],
    ),
    MetricDefinition(
        "audit_spool_bytes",
        "gauge",
        (),
        "bytes",
        "Bytes of the spool, up to 8 MiB of settled events and what dead runs left included.",
        _audit_field("spool_bytes"),
    ),
    MetricDefinition(
        "audit_spool_failed",
        "gauge",
        (),
        "",
        "1 while the spool's disk fails: events wait in memory alone.",
        lambda s: [((), int(bool(s.audit.get("spool_problem"))))] if s.audit else [],
    ),
    MetricDefinition(
        "audit_replayed_total",
        "counter",
        (),
        "events",
        "Events that earlier runs, or workers that ended, left on disk, acknowledged by the audit topic.",
        _audit_field("replayed"),
    ),
    MetricDefinition(
        "audit_replay_lost_total",
        "counter",
        (),
        "events",
        "Events that earlier runs, or workers that ended, left on disk and that the audit topic refused.",
        _audit_field("replay_lost"),
    ),
    MetricDefinition(
        "audit_topic_problem",
        "gauge",
        ("problem",),
        "",
        "1 for each thing that is wrong with the audit topic: `compacted`, `short_retention`, `small_messages`, "
        "`create_time`, `one_replica`.",
        lambda s: [((problem,), 1) for problem in s.audit.get("problems", {})],
    ),
    MetricDefinition(
        "audit_records_total",
        "counter",
        (),
        "records",
        "Kafka records acknowledged by the audit topic.",
        _audit_field("records_delivered"),
    ),
    MetricDefinition(
        "audit_bytes_total",
        "counter",
        (),
        "bytes",
        "Bytes of these records, before compression.",
        _audit_field("bytes_delivered"),
    ),
    MetricDefinition(
        "audit_topic_look_ups_total",
        "counter",
        (),
        "calls",
        "Times the cluster was asked for the names of topic ids.",
        _audit_field("topic_look_ups"),
    ),
)
