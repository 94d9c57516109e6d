"""The current state of the connection quotas, for people and for metrics."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import Any

from proxy.limits.connection_quotas import ConnectionQuotas
from proxy.limits.model import DEFAULT_ADDRESS, AddressState, LimitState, QuotasState

MAX_ADDRESSES_SHOWN = 20
"""Addresses in the state: half of them those with the highest rate, the others those with the most open connections."""


def collect_state(quotas: ConnectionQuotas[Any], now: int) -> QuotasState:
    """Return the current state of ``quotas``. ``now``: milliseconds of the clock of ``quotas``."""
    held = Counter(arrival.listener for _, _, arrival in quotas.held)
    return QuotasState(
        limits=tuple(_limits(quotas, now)),
        addresses=tuple(_addresses(quotas, now)),
        addresses_tracked=quotas.sensors.addresses,
        addresses_connected=len(quotas.open_by_address),
        waiting={name: len(line) for name, line in quotas.queues.items()},
        held={name: held[name] for name in quotas.queues},
        throttled=dict(quotas.throttled),
        delayed={name: count for name, (count, _) in quotas.delays.items()},
        delayed_seconds={name: total / 1000 for name, (_, total) in quotas.delays.items()},
        held_before={name: count for name, (count, _) in quotas.holds.items()},
        held_seconds={name: total / 1000 for name, (_, total) in quotas.holds.items()},
        blocked_seconds={name: quotas.total_blocked(name, now) / 1000 for name in quotas.queues},
        admitted=dict(quotas.admitted),
    )


def _limits(quotas: ConnectionQuotas[Any], now: int) -> list[LimitState]:
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
    return [
        *found,
        LimitState("ip", "", "connection_creation_rate", each.limit, each.action, math.nan),
        LimitState("ip", "", "connections", many.limit, many.action, math.nan),
    ]


def _addresses(quotas: ConnectionQuotas[Any], now: int) -> list[AddressState]:
    sensors = quotas.sensors
    held = Counter(arrival.address for _, _, arrival in quotas.held)
    rates = {address: sensors.address_rate(address, now) for address in sensors.recent_addresses()}
    fastest = heapq.nlargest(MAX_ADDRESSES_SHOWN // 2, rates, key=lambda address: rates[address])
    fullest = heapq.nlargest(MAX_ADDRESSES_SHOWN, quotas.open_by_address, key=quotas.open_by_address.__getitem__)
    chosen = list(dict.fromkeys([*fastest, *fullest]))[:MAX_ADDRESSES_SHOWN]
    found = [
        AddressState(
            address,
            rate=rates[address] if address in rates else sensors.address_rate(address, now),
            rate_limit=sensors.rate_quota(address).limit,
            connections=quotas.open_by_address.get(address, 0),
            connections_limit=quotas.connection_quota(address).limit,
            held=held[address],
        )
        for address in chosen
    ]
    return sorted(found, key=lambda one: (math.isnan(one.rate), -one.rate, -one.connections, one.address))
