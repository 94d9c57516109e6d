"""All metrics: name, labels, meaning, and how each is read from a ``Snapshot``.

Nothing here runs while traffic flows. Every set of labels is bounded: listeners, observers and workers are configured,
api names are those of Kafka and the sidecar with one ``unknown``, causes and reasons are closed lists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from observers.observer_thread import ObserverStats
from proxy import __version__
from proxy.core.causes import Cause
from proxy.core.counters import ListenerCounters
from proxy.telemetry.audit_metrics import AUDIT_METRICS
from proxy.telemetry.coordinator_metrics import COORDINATOR_METRICS
from proxy.telemetry.feature_metrics import FEATURE_METRICS
from proxy.telemetry.limit_metrics import LIMIT_METRICS
from proxy.telemetry.metric_definition import UNKNOWN_API, MetricDefinition, Samples, api_label
from proxy.telemetry.request_metrics import REQUEST_METRICS
from proxy.telemetry.snapshot import Snapshot

DECODE_OUTCOMES = ("full", "malformed", "unsupported", "not_kept")
"""Values of the label ``outcome``."""


def _by_listener(read: Callable[[ListenerCounters], float]) -> Callable[[Snapshot], Samples]:
    """Return a reader of one counter of each listener."""
    return lambda s: [((name,), read(counters)) for name, counters in s.listener_counters.items()]


def _by_listener_and_label(read: Callable[[ListenerCounters], Mapping[str, float]]) -> Callable[[Snapshot], Samples]:
    """Return a reader of counters that each listener keeps by one more label."""

    def samples(s: Snapshot) -> Iterator[tuple[tuple[str, ...], float]]:
        for name, counters in s.listener_counters.items():
            for label, value in read(counters).items():
                yield (name, label), value

    return samples


def _by_listener_and_api(read: Callable[[ListenerCounters], Mapping[int, int]]) -> Callable[[Snapshot], Samples]:
    """Return a reader of counters that each listener keeps by api key."""

    def samples(s: Snapshot) -> Iterator[tuple[tuple[str, ...], float]]:
        for name, counters in s.listener_counters.items():
            named: dict[str, float] = defaultdict(float)
            for key, count in read(counters).items():
                named[api_label(s, key)] += count
            for api, value in named.items():
                yield (name, api), value

    return samples


def _intercepted(s: Snapshot) -> Samples:
    named: dict[tuple[str, ...], float] = defaultdict(float)
    for name, counters in s.listener_counters.items():
        for (key, verdict), count in counters.intercepted.items():
            named[name, api_label(s, key), verdict] += count
    return named.items()


def _decoded(s: Snapshot) -> Samples:
    listener_counters = s.listener_counters.values()
    return [
        ((outcome,), sum(counters.decoded.get(outcome, 0) for counters in listener_counters))
        for outcome in DECODE_OUTCOMES
    ]


def _tls_handshakes(s: Snapshot) -> Samples:
    for name, counters in s.listener_counters.items():
        for (version, kind), count in counters.tls_handshakes.items():
            yield (name, version, kind), count


def _invalid_frames(s: Snapshot) -> Samples:
    counts: dict[tuple[str, ...], float] = defaultdict(float)
    for counters in s.listener_counters.values():
        for labels, count in counters.invalid_frames.items():
            counts[labels] += count
    return counts.items()


def _observer(read: Callable[[ObserverStats], float]) -> Callable[[Snapshot], Samples]:
    return lambda s: [((name,), read(stats)) for name, stats in s.observers.items()]


CLOSE_CAUSES: dict[str, float] = dict.fromkeys(get_args(Cause), 0)
"""Every cause with 0 connections, so that each series exists from the start."""

REGISTRY_DROP_REASONS: dict[str, float] = dict.fromkeys(
    (
        "unknown_broker", "too_much", "malformed", "key", "unsigned", "unknown_key", "bad_signature", "repeated",
    ),
    0,
)  # fmt: skip

LOG_LEVELS: dict[str, float] = dict.fromkeys(("debug", "info", "warning", "error", "critical"), 0)

METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition(
        "build_info",
        "gauge",
        ("version",),
        "",
        "Always 1; its label is the running version.",
        lambda s: [((__version__,), 1)],
    ),
    MetricDefinition(
        "state",
        "gauge",
        ("state",),
        "",
        "1 for the present state: `ready` accepts connections, `draining` lets them end.",
        lambda s: [(("ready",), not s.draining), (("draining",), s.draining)],
    ),
    MetricDefinition(
        "predecessor_connections",
        "gauge",
        (),
        "connections",
        "Open connections that the sidecar before this one still serves after a takeover. They count in the limits.",
        lambda s: [((), s.predecessor_connections)],
    ),
    MetricDefinition(
        "loop_lag_seconds",
        "gauge",
        (),
        "seconds",
        "By how much the event loop's last tick was late; of several workers the maximum, or how long one is silent.",
        lambda s: [((), s.loop_lag)],
    ),
    MetricDefinition(
        "registry_records_dropped_total",
        "counter",
        ("reason",),
        "records",
        "Records of the fleet's registry that were not taken: `unknown_broker` (the cluster has no such broker), "
        "`too_much` (4 MiB, or 1,000 sidecars), `malformed`, `key`; and with `registry.hmac.keys.file` `unsigned`, "
        "`unknown_key`, `bad_signature`, `repeated` (of an earlier run).",
        lambda s: [((reason,), count) for reason, count in {**REGISTRY_DROP_REASONS, **s.registry_dropped}.items()],
    ),
    MetricDefinition(
        "broker_id_taken",
        "gauge",
        (),
        "",
        "1 while another sidecar with this `broker.id`, started later, writes to the registry: this one does not "
        "register, and coordinates nothing. Else 0.",
        lambda s: [((), int(s.broker_id_taken))],
    ),
    MetricDefinition(
        "log_lines_dropped_total",
        "counter",
        ("level",),
        "lines",
        "Log lines that were not written, because stderr took no more and 1 MiB of lines waited for it. "
        "Printed lines count as `info` (stdout) or `error` (stderr).",
        lambda s: [((level,), count) for level, count in {**LOG_LEVELS, **s.log_lines_dropped}.items()],
    ),
    MetricDefinition(
        "worker_connections",
        "gauge",
        ("worker",),
        "connections",
        "Connections that each worker has been given and that are open.",
        lambda s: [((str(number),), count) for number, count in s.workers.items()],
    ),
    MetricDefinition(
        "worker_restarts_total",
        "counter",
        (),
        "workers",
        "Workers that were started in the place of one that ended.",
        lambda s: [((), s.worker_restarts)],
    ),
    MetricDefinition(
        "throttle_reports_lost_total",
        "counter",
        (),
        "reports",
        "Reports of throttled connections that no worker could receive, so that no observer got them.",
        lambda s: [((), s.throttle_reports_lost)],
    ),
    MetricDefinition(
        "connections_accepted_total",
        "counter",
        ("listener",),
        "connections",
        "Connections accepted from clients.",
        _by_listener(lambda t: t.accepted),
    ),
    MetricDefinition(
        "connections_active",
        "gauge",
        ("listener",),
        "connections",
        "Connections of clients that are open, those included whose PROXY header is awaited. "
        "On each page accepted = active + waiting + held + closed. With several workers active ones are those that a "
        "worker was given and has not reported as closed, up to a second ago.",
        _by_listener(lambda t: t.active),
    ),
    MetricDefinition(
        "connections_closed_total",
        "counter",
        ("listener", "cause"),
        "connections",
        f"Connections that ended, by cause: {', '.join(f'`{cause}`' for cause in CLOSE_CAUSES)}.",
        _by_listener_and_label(lambda t: {**CLOSE_CAUSES, **t.closed}),
    ),
    MetricDefinition(
        "tls_handshakes_total",
        "counter",
        ("listener", "version", "kind"),
        "handshakes",
        "Completed TLS handshakes with clients, by version of TLS and kind: `full`, or `resumed` from an earlier "
        "session. Those that failed are in `connections_closed_total` as `client_tls_failed`.",
        _tls_handshakes,
    ),
    MetricDefinition(
        "tls_certificate_expiry_timestamp_seconds",
        "gauge",
        ("listener", "shown_to"),
        "seconds",
        "When a listener's certificate expires, since 1970: that which is shown to the `client`s, or to the `broker`.",
        lambda s: s.certificate_expiry.items(),
    ),
    MetricDefinition(
        "accept_errors_total",
        "counter",
        ("listener", "error"),
        "errors",
        "Failures to accept, by name of the errno. `EMFILE`: out of descriptors.",
        _by_listener_and_label(lambda t: t.accept_errors),
    ),
    MetricDefinition(
        "upstream_connect_failures_total",
        "counter",
        ("listener",),
        "connections",
        "Connections of clients closed because the broker did not accept.",
        _by_listener(lambda t: t.upstream_failures),
    ),
    *FEATURE_METRICS,
    *COORDINATOR_METRICS,
    *LIMIT_METRICS,
    MetricDefinition(
        "bytes_total",
        "counter",
        ("listener", "direction"),
        "bytes",
        "Bytes received, `client_to_broker` or `broker_to_client`.",
        _by_listener_and_label(
            lambda t: {"client_to_broker": t.received["client"], "broker_to_client": t.received["broker"]}
        ),
    ),
    MetricDefinition(
        "read_pauses_total",
        "counter",
        ("listener", "side"),
        "pauses",
        "Times that reading from `client` or `broker` stopped, because the other side was slow, too much was open, or "
        "more was sent than one turn takes.",
        _by_listener_and_label(lambda t: t.pauses),
    ),
    MetricDefinition(
        "requests_total",
        "counter",
        ("listener", "api"),
        "requests",
        f"Requests, by the name of the api, Kafka's or the sidecar's; `{UNKNOWN_API}` for keys of neither.",
        _by_listener_and_api(lambda t: t.requests),
    ),
    MetricDefinition(
        "responses_total",
        "counter",
        ("listener", "api"),
        "responses",
        "Responses, by the api of their request.",
        _by_listener_and_api(lambda t: t.responses),
    ),
    MetricDefinition(
        "intercepted_requests_total",
        "counter",
        ("listener", "api", "verdict"),
        "requests",
        "Requests that were not forwarded, by what became of them: `replied` by the sidecar, `closed` with their "
        "connection, `denied` (either way), for they would have changed a topic of the sidecars, or `given_up` with "
        "their connection to the coordinator of consumer groups.",
        _intercepted,
    ),
    MetricDefinition(
        "edited_responses_total",
        "counter",
        ("listener", "api"),
        "responses",
        "Responses of the broker that were changed on their way.",
        _by_listener_and_api(lambda t: t.edited),
    ),
    MetricDefinition(
        "intercept_errors_total",
        "counter",
        ("listener",),
        "frames",
        "Requests and responses that this process failed to answer or to change. They went on as they came, or their "
        "connection was closed.",
        _by_listener(lambda t: t.intercept_errors),
    ),
    MetricDefinition(
        "decode_total",
        "counter",
        ("outcome",),
        "bodies",
        "Bodies that were read, by outcome: `full`, `malformed`, or `unsupported` (a version too new); and `not_kept`: "
        "wanted as bytes, but too long, or without memory (see `memory_limit_bytes`). Without an observer all stay 0.",
        _decoded,
    ),
    MetricDefinition(
        "memory_charged_bytes",
        "gauge",
        (),
        "bytes",
        "Memory that clients make the sidecar hold, as it is charged to them: open requests, facts and bodies until "
        "observers have them, frames that are held back, answers that wait. From above; the sum of all workers.",
        lambda s: [((), s.memory_charged)],
    ),
    MetricDefinition(
        "memory_limit_bytes",
        "gauge",
        (),
        "bytes",
        "The limit of that: 64 MiB for each worker. At three quarters of it bodies are not kept; above it connections "
        "that hold more than 64 KiB wait.",
        lambda s: [((), s.memory_limit)],
    ),
    MetricDefinition(
        "memory_waits_total",
        "counter",
        (),
        "waits",
        "Times a connection was not read any more because clients made the sidecar hold more than the limit.",
        lambda s: [((), s.memory_waits)],
    ),
    MetricDefinition(
        "frames_invalid_total",
        "counter",
        ("side", "reason"),
        "frames",
        "Frames that Kafka's protocol does not allow, by who sent them; each ended its connection.",
        _invalid_frames,
    ),
    MetricDefinition(
        "sessions_abandoned_total",
        "counter",
        ("listener",),
        "connections",
        "Connections that are forwarded unread, because an error in this process ended their session. Always a bug.",
        _by_listener(lambda t: t.abandoned),
    ),
    MetricDefinition(
        "observer_delivered_total",
        "counter",
        ("observer",),
        "exchanges",
        "Exchanges, changes of connections and throttle reports delivered to the observer.",
        _observer(lambda o: o.delivered),
    ),
    MetricDefinition(
        "observer_dropped_total",
        "counter",
        ("observer", "reason"),
        "exchanges",
        "Exchanges, changes of connections and throttle reports lost without a call, by reason: `queue_full`, "
        "`breaker_open`, `closing` (its time was over), or `worker_lost` (they waited in a worker that ended).",
        lambda s: [((name, reason), count) for name, o in s.observers.items() for reason, count in o.dropped.items()],
    ),
    MetricDefinition(
        "observer_failed_total",
        "counter",
        ("observer",),
        "exchanges",
        "Exchanges, changes of connections and throttle reports for which a call raised.",
        _observer(lambda o: o.failed),
    ),
    MetricDefinition(
        "observer_queued",
        "gauge",
        ("observer",),
        "exchanges",
        "Exchanges, changes of connections and throttle reports that wait for the observer.",
        _observer(lambda o: o.queued),
    ),
    MetricDefinition(
        "observer_slow_calls_total",
        "counter",
        ("observer",),
        "calls",
        "Calls of the observer that took longer than 5 ms, or 0.1 ms for each exchange of the call.",
        _observer(lambda o: o.slow),
    ),
    MetricDefinition(
        "observer_breaker_open",
        "gauge",
        ("observer",),
        "",
        "1 while the observer is left alone after 100 failures in a row.",
        _observer(lambda o: o.breaker_open),
    ),
    MetricDefinition(
        "observer_errors_total",
        "counter",
        ("observer", "method"),
        "calls",
        "Calls of the observer that raised, by method.",
        lambda s: [((name, method), count) for name, o in s.observers.items() for method, count in o.errors.items()],
    ),
    *REQUEST_METRICS,
    *AUDIT_METRICS,
)
