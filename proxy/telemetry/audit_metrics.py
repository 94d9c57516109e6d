"""The metrics of the built-in observers of the audit's events. docs/audit-delivery.md explains what to alert on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from proxy.telemetry.metric_definition import MetricDefinition
from proxy.telemetry.snapshot import Snapshot


def _delivery_metrics(
    prefix: str, counts_of: Callable[[Snapshot], Mapping[str, Any]], destination: str, reasons: str
) -> tuple[MetricDefinition, ...]:
    """Return the metrics of one observer. ``counts_of`` reads the fields of ``observers.event_observer.AuditStats``."""

    def define(name: str, kind: Literal["counter", "gauge"], unit: str, field: str, meaning: str) -> MetricDefinition:
        return MetricDefinition(
            f"{prefix}_{name}", kind, (), unit, meaning, lambda s: [((), counts_of(s)[field])] if counts_of(s) else []
        )

    return (
        define(
            "observed_total",
            "counter",
            "exchanges",
            "observed",
            "Requests, changes of connections and throttle reports seen.",
        ),
        define(
            "hidden_total",
            "counter",
            "exchanges",
            "hidden",
            "Those of them that give no event: excluded topics and principals.",
        ),
        define(
            "partly_hidden_total",
            "counter",
            "exchanges",
            "partly_hidden",
            "Requests whose event, or rollup, lacks excluded topics.",
        ),
        define(
            "emitted_total",
            "counter",
            "events",
            "emitted",
            "Sequence numbers given to events: emitted = delivered + dropped + spooled + queued + left.",
        ),
        define("delivered_total", "counter", "events", "delivered", f"Events acknowledged by the {destination}."),
        MetricDefinition(
            f"{prefix}_dropped_total",
            "counter",
            ("reason",),
            "events",
            f"Events lost, by reason; see the list in {reasons}. And `worker_lost`: they waited in the memory of a "
            "worker when it was last asked, and it ended; a `gap` event has the real number.",
            lambda s: [((reason,), count) for reason, count in counts_of(s).get("dropped", {}).items()],
        ),
        define(
            "spooled",
            "gauge",
            "events",
            "spooled",
            f"Events on disk that the {destination} has not acknowledged; those handed to the sender are among them.",
        ),
        define(
            "queued",
            "gauge",
            "events",
            "queued",
            "Events in memory alone: collected, waiting for the destination, or handed to the sender.",
        ),
        define(
            "queued_bytes",
            "gauge",
            "bytes",
            "queued_bytes",
            "Bytes of records that wait in memory, before compression.",
        ),
        MetricDefinition(
            f"{prefix}_left_total",
            "counter",
            (),
            "events",
            "Events that workers which ended left on disk. Another worker sends them, and counts them as replayed.",
            lambda s: [((), counts_of(s).get("left", 0))] if counts_of(s) else [],
        ),
        define(
            "spool_bytes",
            "gauge",
            "bytes",
            "spool_bytes",
            "Bytes of the spool, up to 8 MiB of settled events and what dead runs left included.",
        ),
        MetricDefinition(
            f"{prefix}_spool_failed",
            "gauge",
            (),
            "",
            "1 while the spool's disk fails: events wait in memory alone.",
            lambda s: [((), int(bool(counts_of(s).get("spool_problem"))))] if counts_of(s) else [],
        ),
        define(
            "replayed_total",
            "counter",
            "events",
            "replayed",
            f"Events that earlier runs, or workers that ended, left on disk, acknowledged by the {destination}.",
        ),
        define(
            "replay_lost_total",
            "counter",
            "events",
            "replay_lost",
            f"Events that earlier runs, or workers that ended, left on disk and that the {destination} refused.",
        ),
        define(
            "records_total",
            "counter",
            "records",
            "records_delivered",
            f"Records, of up to 200 events each, acknowledged by the {destination}.",
        ),
        define(
            "bytes_total",
            "counter",
            "bytes",
            "bytes_delivered",
            "Bytes of these records, as events and before compression.",
        ),
    )


AUDIT_METRICS: tuple[MetricDefinition, ...] = (
    *_delivery_metrics("audit", lambda s: s.audit, "audit topic", "audit-event.md"),
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
        "audit_topic_look_ups_total",
        "counter",
        (),
        "calls",
        "Times the cluster was asked for the names of topic ids.",
        lambda s: [((), s.audit["topic_look_ups"])] if s.audit else [],
    ),
    MetricDefinition(
        "audit_undelivered",
        "gauge",
        ("level",),
        "events",
        "Events on disk or in memory that the audit topic has not acknowledged, those of earlier runs included, by the "
        "schema level of their records.",
        lambda s: [((str(level),), events) for level, events in sorted(s.audit.get("undelivered", {}).items())],
    ),
    *_delivery_metrics("opentelemetry", lambda s: s.opentelemetry, "OpenTelemetry collector", "opentelemetry.md"),
)
