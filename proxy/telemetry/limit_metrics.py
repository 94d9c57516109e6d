"""The metrics of the limits on connections and their sources. docs/limits-operation.md maps them to Kafka's MBeans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from proxy.limits.model import UNLIMITED, QuotaKind, QuotaScope, QuotasState, ThrottleAction, ThrottleKind
from proxy.reload import ReloadState
from proxy.telemetry.metric_definition import MetricDefinition, Samples
from proxy.telemetry.snapshot import QuotaSource, Snapshot

RATE, CONNECTIONS = get_args(QuotaKind)

THROTTLE_KINDS: tuple[tuple[QuotaScope, QuotaKind, ThrottleAction], ...] = (
    ("broker", "connection_creation_rate", "delay"),
    ("broker", "connection_creation_rate", "observe"),
    ("broker", "connections", "delay"),
    ("broker", "connections", "observe"),
    ("listener", "connection_creation_rate", "delay"),
    ("listener", "connection_creation_rate", "observe"),
    ("listener", "connections", "delay"),
    ("listener", "connections", "observe"),
    ("ip", "connection_creation_rate", "hold"),
    ("ip", "connection_creation_rate", "drop"),
    ("ip", "connection_creation_rate", "observe"),
    ("ip", "connections", "drop"),
    ("ip", "connections", "observe"),
    ("principal", "connection_creation_rate", "hold"),
    ("principal", "connection_creation_rate", "drop"),
    ("principal", "connection_creation_rate", "observe"),
    ("principal", "connections", "drop"),
    ("principal", "connections", "observe"),
)
"""Every kind of throttle, so that each series exists from the start."""


def _quotas(read: Callable[[QuotasState], Samples]) -> Callable[[Snapshot], Samples]:
    """Return a reader of the state of the quotas. A process without quotas has no samples."""
    return lambda s: read(s.quotas) if s.quotas is not None else ()


def _by_listener(read: Callable[[QuotasState], Mapping[str, float]]) -> Callable[[Snapshot], Samples]:
    return _quotas(lambda quotas: [((listener,), value) for listener, value in read(quotas).items()])


def _summary(
    counts: Callable[[QuotasState], Mapping[str, float]], sums: Callable[[QuotasState], Mapping[str, float]]
) -> Callable[[Snapshot], Samples]:
    return _quotas(
        lambda quotas: [((listener,), count, sums(quotas)[listener]) for listener, count in counts(quotas).items()]
    )


def _config(read: Callable[[ReloadState], Samples]) -> Callable[[Snapshot], Samples]:
    return lambda s: read(s.reload) if s.reload is not None else ()


def _source(read: Callable[[QuotaSource], float]) -> Callable[[Snapshot], Samples]:
    return lambda s: [((), read(s.source))] if s.source is not None else ()


def _limits(quotas: QuotasState) -> Samples:
    return [
        ((state.scope, state.listener, state.quota, state.action), state.limit)
        for state in quotas.limits
        if state.limit < UNLIMITED
    ]


def _rates(scope: str) -> Callable[[QuotasState], Iterator[tuple[str, float]]]:
    """Return a reader of the rates, with the listener of each."""

    def rates(quotas: QuotasState) -> Iterator[tuple[str, float]]:
        for state in quotas.limits:
            if state.scope == scope and state.quota == RATE:
                yield state.listener, state.used

    return rates


def _throttled(quotas: QuotasState) -> Iterator[tuple[tuple[str, ...], float]]:
    for listener in quotas.admitted:
        for kind in THROTTLE_KINDS:
            yield (listener, *kind), quotas.throttled.get(ThrottleKind(listener, *kind), 0)


LIMIT_METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition(
        "quota_limit",
        "gauge",
        ("scope", "listener", "quota", "action"),
        "connections, or connections per second",
        "Each limit there is on the whole sidecar (`broker`, `listener` empty), on a listener, or on each address or "
        "principal that has none of its own (`ip`, `principal`, `listener` empty); without a limit no series. "
        "`action`: `enforce`, or `observe` for a dry run.",
        _quotas(_limits),
    ),
    MetricDefinition(
        "connection_accept_rate",
        "gauge",
        ("listener",),
        "connections per second",
        "Connections accepted on the listener, over the quota's window, with or without a limit.",
        _quotas(lambda quotas: [((listener,), rate) for listener, rate in _rates("listener")(quotas)]),
    ),
    MetricDefinition(
        "broker_connection_accept_rate",
        "gauge",
        (),
        "connections per second",
        "Connections accepted on all listeners together, without a protected one, over the quota's window.",
        _quotas(lambda quotas: [((), rate) for _, rate in _rates("broker")(quotas)]),
    ),
    MetricDefinition(
        "ip_connection_accept_rate",
        "gauge",
        ("ip",),
        "connections per second",
        "Connections accepted from a client address, of the busiest ones that have a limit. The only label here "
        "whose values are not known before; their number at a time is bounded.",
        _quotas(lambda quotas: [((top.address,), top.rate) for top in quotas.addresses if not math.isnan(top.rate)]),
    ),
    MetricDefinition(
        "connections_admitted_total",
        "counter",
        ("listener",),
        "connections",
        "Accepted connections that the limits let through.",
        _by_listener(lambda quotas: quotas.admitted),
    ),
    MetricDefinition(
        "connections_throttled_total",
        "counter",
        ("listener", "scope", "quota", "action"),
        "connections",
        "Accepted connections that met a limit, by what they met: `delay` (nothing was accepted on the listener until "
        "there was room), `hold` (set aside to be looked at again), `drop` (closed), `observe` (nothing: a dry run). "
        "One that was held and then closed counts in both. Those of `principal` were let in before, and are `hold` "
        "(not read for a moment) or `drop` once their client has authenticated.",
        _quotas(_throttled),
    ),
    MetricDefinition(
        "connections_waiting",
        "gauge",
        ("listener",),
        "connections",
        "Accepted connections that wait for the limit of the listener or the broker. Mostly one: while it does, the "
        "others stay in the kernel's queue.",
        _by_listener(lambda quotas: quotas.waiting),
    ),
    MetricDefinition(
        "connections_queued",
        "gauge",
        ("listener",),
        "connections",
        "Connections in the kernel's queue, not accepted yet and in no other number.",
        _by_listener(lambda quotas: quotas.queued),
    ),
    MetricDefinition(
        "connections_held",
        "gauge",
        ("listener",),
        "connections",
        "Accepted connections that are held because of the rate of their address.",
        _by_listener(lambda quotas: quotas.held),
    ),
    MetricDefinition(
        "connection_accept_throttle_time_seconds",
        "summary",
        ("listener",),
        "seconds",
        "Delays of connections because of the rate of the listener or the broker; those without a delay do not count.",
        _summary(lambda quotas: quotas.delayed, lambda quotas: quotas.delayed_seconds),
    ),
    MetricDefinition(
        "ip_connection_accept_throttle_time_seconds",
        "summary",
        ("listener",),
        "seconds",
        "Holds of connections because of the rate of their address; those that were not held do not count.",
        _summary(lambda quotas: quotas.held_before, lambda quotas: quotas.held_seconds),
    ),
    MetricDefinition(
        "principal_connection_throttle_time_seconds",
        "summary",
        ("listener",),
        "seconds",
        "How long clients were not read because of the rate of their principal; those that were not held do not count.",
        _summary(lambda quotas: quotas.principal_held, lambda quotas: quotas.principal_held_seconds),
    ),
    MetricDefinition(
        "acceptor_blocked_seconds_total",
        "counter",
        ("listener",),
        "seconds",
        "Time during which the listener accepted nothing because of a rate or a number of connections. Limits of "
        "addresses never block it.",
        _by_listener(lambda quotas: quotas.blocked_seconds),
    ),
    MetricDefinition(
        "quota_addresses",
        "gauge",
        ("quota",),
        "addresses",
        f"Client addresses of which something is kept: `{RATE}` those whose rate is measured, `{CONNECTIONS}` those "
        "with open connections.",
        _quotas(lambda quotas: [((RATE,), quotas.addresses_tracked), ((CONNECTIONS,), quotas.addresses_connected)]),
    ),
    MetricDefinition(
        "quota_principals",
        "gauge",
        ("quota",),
        "principals",
        f"Authenticated principals of which something is kept, while any has a limit: `{RATE}` those whose rate is "
        f"measured, `{CONNECTIONS}` those with open connections.",
        _quotas(lambda quotas: [((RATE,), quotas.principals_tracked), ((CONNECTIONS,), quotas.principals_connected)]),
    ),
    MetricDefinition(
        "config_info",
        "gauge",
        ("hash",),
        "",
        "Always 1; `hash` is the same wherever the same configuration runs.",
        _config(lambda reload: [((reload.hash,), 1)]),
    ),
    MetricDefinition(
        "config_reloads_total",
        "counter",
        ("result",),
        "reloads",
        "Times the configuration was read again: `applied`, `unchanged`, or `rejected`, which changes nothing.",
        _config(lambda reload: [((result,), count) for result, count in reload.results.items()]),
    ),
    MetricDefinition(
        "config_last_reload_successful",
        "gauge",
        (),
        "",
        "0 while the last reload was rejected, that is: while the file is not what runs.",
        _config(lambda reload: [((), reload.last_successful)]),
    ),
    MetricDefinition(
        "config_last_reload_success_timestamp_seconds",
        "gauge",
        (),
        "seconds since 1970",
        "When the file was last read and found good, at the start or later.",
        _config(lambda reload: [((), reload.loaded_at)]),
    ),
    MetricDefinition(
        "quota_source_up",
        "gauge",
        (),
        "",
        "Whether the cluster answered when it was last asked for its quotas; no series where it is not asked.",
        _source(lambda source: source.ok),
    ),
    MetricDefinition(
        "quota_source_last_success_timestamp_seconds",
        "gauge",
        (),
        "seconds since 1970",
        "When the cluster last answered; NaN where it never did. Until it does again, its last quotas stay.",
        _source(lambda source: source.last_ok_at),
    ),
    MetricDefinition(
        "quota_source_problem",
        "gauge",
        (),
        "",
        "1 while the cluster's quotas limit the sidecar itself, or cannot be read although they should apply; "
        "`brokerside quotas` shows the reason.",
        _source(lambda source: source.problem),
    ),
)
