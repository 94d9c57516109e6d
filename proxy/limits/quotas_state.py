"""The current state of the connection quotas, for people and for metrics."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping

from proxy.limits.connection_quotas import ConnectionQuotas
from proxy.limits.model import (
    DEFAULT_ADDRESS,
    DEFAULT_USER,
    AddressState,
    LimitState,
    PrincipalState,
    QuotasState,
)
from proxy.limits.principal_quotas import PrincipalQuotas
from proxy.limits.rate_sensors import KeyedRates

MAX_ADDRESSES_SHOWN = 20
"""Addresses in the state: half of them those with the highest rate, the others those with the most open connections."""

MAX_PRINCIPALS_SHOWN = 20
"""Principals in the state, chosen in the same way."""


def collect_state(quotas: ConnectionQuotas, principals: PrincipalQuotas, now: int) -> QuotasState:
    """Return the current state of the limits. ``now``: milliseconds of the clock of both."""
    held = Counter(arrival.listener for _, _, arrival in quotas.held)
    return QuotasState(
        limits=tuple(_limits(quotas, now)),
        addresses=tuple(_addresses(quotas, now)),
        addresses_tracked=len(quotas.sensors.addresses),
        addresses_connected=len(quotas.open_by_address),
        principals=tuple(_principals(principals, now)),
        principals_tracked=len(principals.rates),
        principals_connected=len(principals.open_by_principal),
        principal_held={name: count for name, (count, _) in principals.holds.items()},
        principal_held_seconds={name: total / 1000 for name, (_, total) in principals.holds.items()},
        waiting={name: len(line) for name, line in quotas.queues.items()},
        held={name: held[name] for name in quotas.queues},
        throttled={**quotas.throttled, **principals.throttled},
        delayed={name: count for name, (count, _) in quotas.delays.items()},
        delayed_seconds={name: total / 1000 for name, (_, total) in quotas.delays.items()},
        held_before={name: count for name, (count, _) in quotas.holds.items()},
        held_seconds={name: total / 1000 for name, (_, total) in quotas.holds.items()},
        blocked_seconds={name: quotas.total_blocked(name, now) / 1000 for name in quotas.queues},
        admitted=dict(quotas.admitted),
    )


def _limits(quotas: ConnectionQuotas, now: int) -> list[LimitState]:
    limits, rate = quotas.limits, quotas.sensors.rate
    found = [
        LimitState("broker", "", "connection_creation_rate", limits.rate.limit, limits.rate.action, rate(None, now)),
        LimitState("broker", "", "connections", limits.connections.limit, limits.connections.action, quotas.open_total),
    ]
    for name, own in limits.listeners.items():
        used = rate(name, now)
        found += [
            LimitState("listener", name, "connection_creation_rate", own.rate.limit, own.rate.action, used),
            LimitState(
                "listener",
                name,
                "connections",
                own.connections.limit,
                own.connections.action,
                quotas.open_by_listener[name],
            ),
        ]
    each, many = limits.ip_rate(DEFAULT_ADDRESS), limits.ip_connections
    user, logins = limits.principal_rate(DEFAULT_USER), limits.principal_connections
    return [
        *found,
        LimitState("ip", "", "connection_creation_rate", each.limit, each.action, math.nan),
        LimitState("ip", "", "connections", many.limit, many.action, math.nan),
        LimitState("principal", "", "connection_creation_rate", user.limit, user.action, math.nan),
        LimitState("principal", "", "connections", logins.limit, logins.action, math.nan),
    ]


def _addresses(quotas: ConnectionQuotas, now: int) -> list[AddressState]:
    sensors = quotas.sensors
    held = Counter(arrival.address for _, _, arrival in quotas.held)
    found = [
        AddressState(
            address,
            rate=sensors.addresses.per_second(address, now),
            rate_limit=sensors.rate_quota(address).limit,
            connections=quotas.open_by_address.get(address, 0),
            connections_limit=quotas.connection_quota(address).limit,
            held=held[address],
        )
        for address in _busiest(sensors.addresses, quotas.open_by_address, MAX_ADDRESSES_SHOWN, now)
    ]
    return sorted(found, key=lambda one: (math.isnan(one.rate), -one.rate, -one.connections, one.address))


def _principals(quotas: PrincipalQuotas, now: int) -> list[PrincipalState]:
    limits = quotas.limits
    found = [
        PrincipalState(
            principal,
            rate=quotas.rates.per_second(principal, now),
            rate_limit=limits.principal_rate(principal).limit,
            connections=quotas.open_by_principal.get(principal, 0),
            connections_limit=limits.principal_connection_quota(principal).limit,
        )
        for principal in _busiest(quotas.rates, quotas.open_by_principal, MAX_PRINCIPALS_SHOWN, now)
    ]
    return sorted(found, key=lambda one: (math.isnan(one.rate), -one.rate, -one.connections, one.principal))


def _busiest(rates: KeyedRates, connections: Mapping[str, int], most: int, now: int) -> list[str]:
    """Return those with the highest rate, at most half of ``most``, then those with the most open connections."""
    recent = {key: rates.per_second(key, now) for key in rates.recent()}
    fastest = heapq.nlargest(most // 2, recent, key=recent.__getitem__)
    fullest = heapq.nlargest(most, connections, key=connections.__getitem__)
    return list(dict.fromkeys([*fastest, *fullest]))[:most]
