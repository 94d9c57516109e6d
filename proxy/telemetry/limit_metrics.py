"""The metrics of limits on connections, and of where they come from. docs/limits.md maps them to Kafka's MBeans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from proxy.limits.model import UNLIMITED, QuotaKind, QuotaScope, QuotasState, ThrottleAction, ThrottleKind
from proxy.reload import ReloadState
from proxy.telemetry.family import Definition, Samples
from proxy.telemetry.snapshot import QuotaSource, Snapshot

RATE, CONNECTIONS = get_args(QuotaKind)

KINDS: tuple[tuple[QuotaScope, QuotaKind, ThrottleAction], ...] = (
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
)
"""Every kind of throttling there is, so that each series exists from the start."""


def _gate(read: Callable[[QuotasState], Samples]) -> Callable[[Snapshot], Samples]:
    """Read from what the gate says; a process without one has no samples."""
    return lambda s: read(s.quotas) if s.quotas is not None else ()


def _by_listener(read: Callable[[QuotasState], Mapping[str, float]]) -> Callable[[Snapshot], Samples]:
    return _gate(lambda gate: [((listener,), value) for listener, value in read(gate).items()])


def _summary(
    counts: Callable[[QuotasState], Mapping[str, float]], sums: Callable[[QuotasState], Mapping[str, float]]
) -> Callable[[Snapshot], Samples]:
    return _gate(lambda gate: [((listener,), count, sums(gate)[listener]) for listener, count in counts(gate).items()])


def _config(read: Callable[[ReloadState], Samples]) -> Callable[[Snapshot], Samples]:
    return lambda s: read(s.reload) if s.reload is not None else ()


def _source(read: Callable[[QuotaSource], float]) -> Callable[[Snapshot], Samples]:
    return lambda s: [((), read(s.source))] if s.source is not None else ()


def _limits(gate: QuotasState) -> Samples:
    return [
        ((state.scope, state.listener, state.quota, state.action), state.limit)
        for state in gate.limits
        if state.limit < UNLIMITED
    ]


def _rates(scope: str) -> Callable[[QuotasState], Iterator[tuple[str, float]]]:
    """Read the rates that are measured, with the listener they are of."""

    def rates(gate: QuotasState) -> Iterator[tuple[str, float]]:
        for state in gate.limits:
            if state.scope == scope and state.quota == RATE and not math.isnan(state.used):
                yield state.listener, state.used

    return rates


def _throttled(gate: QuotasState) -> Iterator[tuple[tuple[str, ...], float]]:
    for listener in gate.admitted:
        for kind in KINDS:
            yield (listener, *kind), gate.throttled.get(ThrottleKind(listener, *kind), 0)


LIMIT_METRICS: tuple[Definition, ...] = (
    Definition(
        "quota_limit",
        "gauge",
        ("scope", "listener", "quota", "action"),
        "connections, or connections per second",
        "Each limit there is on the whole sidecar (`broker`, `listener` empty), on a listener, or on each address that "
        "has none of its own (`ip`, `listener` empty); without a limit no series. "
        "`action`: `enforce`, or `observe` for a dry run.",
        _gate(_limits),
    ),
    Definition(
        "connection_accept_rate",
        "gauge",
        ("listener",),
        "connections per second",
        "Connections accepted on the listener, over the quota's window; without a limit not measured, no series.",
        _gate(lambda gate: [((listener,), rate) for listener, rate in _rates("listener")(gate)]),
    ),
    Definition(
        "broker_connection_accept_rate",
        "gauge",
        (),
        "connections per second",
        "The same of all listeners together, but for a protected one.",
        _gate(lambda gate: [((), rate) for _, rate in _rates("broker")(gate)]),
    ),
    Definition(
        "ip_connection_accept_rate",
        "gauge",
        ("ip",),
        "connections per second",
        "The same of one client address: of the busiest ones that have a limit. The one label here whose values are "
        "not known before; how many there are at a time is bounded.",
        _gate(lambda gate: [((top.address,), top.rate) for top in gate.addresses if not math.isnan(top.rate)]),
    ),
    Definition(
        "connections_admitted_total",
        "counter",
        ("listener",),
        "connections",
        "Accepted connections that the limits let through.",
        _by_listener(lambda gate: gate.admitted),
    ),
    Definition(
        "connections_throttled_total",
        "counter",
        ("listener", "scope", "quota", "action"),
        "connections",
        "Accepted connections that met a limit, by what they met: `delay` (nothing was accepted on the listener until "
        "there was room), `hold` (set aside to be looked at again), `drop` (closed), `observe` (nothing: a dry run). "
        "One that was held and then closed counts in both.",
        _gate(_throttled),
    ),
    Definition(
        "connections_waiting",
        "gauge",
        ("listener",),
        "connections",
        "Accepted connections that wait for the limit of the listener or the broker. Mostly one: while it does, the "
        "others stay in the kernel's queue.",
        _by_listener(lambda gate: gate.waiting),
    ),
    Definition(
        "connections_queued",
        "gauge",
        ("listener",),
        "connections",
        "Connections in the kernel's queue, not accepted yet and in no other number.",
        _by_listener(lambda gate: gate.queued),
    ),
    Definition(
        "connections_held",
        "gauge",
        ("listener",),
        "connections",
        "Accepted connections that are held because of the rate of their address.",
        _by_listener(lambda gate: gate.held),
    ),
    Definition(
        "connection_accept_throttle_time_seconds",
        "summary",
        ("listener",),
        "seconds",
        "Delays of connections because of the rate of the listener or the broker; those without a delay do not count.",
        _summary(lambda gate: gate.delayed, lambda gate: gate.delayed_seconds),
    ),
    Definition(
        "ip_connection_accept_throttle_time_seconds",
        "summary",
        ("listener",),
        "seconds",
        "Holds of connections because of the rate of their address; those that were not held do not count.",
        _summary(lambda gate: gate.held_before, lambda gate: gate.held_seconds),
    ),
    Definition(
        "acceptor_blocked_seconds_total",
        "counter",
        ("listener",),
        "seconds",
        "Time during which the listener accepted nothing because of a rate or a number of connections. Limits of "
        "addresses never block it.",
        _by_listener(lambda gate: gate.blocked_seconds),
    ),
    Definition(
        "quota_addresses",
        "gauge",
        ("quota",),
        "addresses",
        f"Client addresses of which something is kept: `{RATE}` those whose rate is measured, `{CONNECTIONS}` those "
        "with open connections.",
        _gate(lambda gate: [((RATE,), gate.addresses_tracked), ((CONNECTIONS,), gate.addresses_connected)]),
    ),
    Definition(
        "config_info",
        "gauge",
        ("hash",),
        "",
        "Always 1; `hash` is the same wherever the same configuration runs.",
        _config(lambda reload: [((reload.hash,), 1)]),
    ),
    Definition(
        "config_reloads_total",
        "counter",
        ("result",),
        "reloads",
        "Times the configuration was read again: `applied`, `unchanged`, or `rejected`, which changes nothing.",
        _config(lambda reload: [((result,), count) for result, count in reload.results.items()]),
    ),
    Definition(
        "config_last_reload_successful",
        "gauge",
        (),
        "",
        "0 while the last reload was rejected, that is: while the file is not what runs.",
        _config(lambda reload: [((), reload.last_successful)]),
    ),
    Definition(
        "config_last_reload_success_timestamp_seconds",
        "gauge",
        (),
        "seconds since 1970",
        "When the file was last read and found good, at the start or later.",
        _config(lambda reload: [((), reload.loaded_at)]),
    ),
    Definition(
        "quota_source_up",
        "gauge",
        (),
        "",
        "Whether the cluster answered when it was last asked for its quotas; no series where it is not asked.",
        _source(lambda source: source.ok),
    ),
    Definition(
        "quota_source_last_success_timestamp_seconds",
        "gauge",
        (),
        "seconds since 1970",
        "When the cluster last answered; NaN where it never did. Until it does again, its last quotas stay.",
        _source(lambda source: source.last_ok_at),
    ),
    Definition(
        "quota_source_problem",
        "gauge",
        (),
        "",
        "1 while the cluster's quotas limit the sidecar itself, or what should count here is not told; "
        "`brokerside quotas` says what it is.",
        _source(lambda source: source.problem),
    ),
)
