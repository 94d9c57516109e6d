"""The present state of a gate, for people and for metrics."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import Any

from proxy.limits.gate import Gate
from proxy.limits.model import DEFAULT_ADDRESS, AddressState, GateState, LimitState

TOP = 20
"""Addresses told of at most: half of them by rate, the others by open connections."""


def state(gate: Gate[Any], now: int) -> GateState:
    """Return what ``gate`` does now. ``now``: milliseconds, as for the gate."""
    held = Counter(arrival.listener for _, _, arrival in gate.held)
    return GateState(
        limits=tuple(_limits(gate, now)),
        addresses=tuple(_addresses(gate, now)),
        addresses_tracked=gate.sensors.addresses,
        addresses_connected=len(gate.open_by_address),
        waiting={name: len(line) for name, line in gate.lines.items()},
        held={name: held[name] for name in gate.lines},
        throttled={(*kind,): count for kind, count in gate.throttled.items()},
        delayed={name: count for name, (count, _) in gate.delays.items()},
        delayed_seconds={name: total / 1000 for name, (_, total) in gate.delays.items()},
        held_before={name: count for name, (count, _) in gate.holds.items()},
        held_seconds={name: total / 1000 for name, (_, total) in gate.holds.items()},
        blocked_seconds={name: gate.blocked(name, now) / 1000 for name in gate.lines},
        admitted=dict(gate.admitted),
    )


def _limits(gate: Gate[Any], now: int) -> list[LimitState]:
    limits, rate = gate.limits, gate.sensors.rate
    found = [
        LimitState("broker", "", "connection_creation_rate", limits.rate.limit, limits.rate.action, rate(None, now)),
        LimitState("broker", "", "connections", limits.connections.limit, limits.connections.action, gate.total),
    ]
    for name, own in limits.listeners.items():
        used = rate(name, now)
        found += [
            LimitState("listener", name, "connection_creation_rate", own.rate.limit, own.rate.action, used),
            LimitState("listener", name, "connections", own.connections.limit, own.connections.action, gate.open[name]),
        ]
    each, many = limits.ip_rate(DEFAULT_ADDRESS), limits.ip_connections
    return [
        *found,
        LimitState("ip", "", "connection_creation_rate", each.limit, each.action, math.nan),
        LimitState("ip", "", "connections", many.limit, many.action, math.nan),
    ]


def _addresses(gate: Gate[Any], now: int) -> list[AddressState]:
    sensors = gate.sensors
    held = Counter(arrival.address for _, _, arrival in gate.held)
    rates = {address: sensors.address_rate(address, now) for address in sensors.recent()}
    fastest = heapq.nlargest(TOP // 2, rates, key=lambda address: rates[address])
    fullest = heapq.nlargest(TOP, gate.open_by_address, key=gate.open_by_address.__getitem__)
    chosen = list(dict.fromkeys([*fastest, *fullest]))[:TOP]
    found = [
        AddressState(
            address,
            rate=rates[address] if address in rates else sensors.address_rate(address, now),
            rate_limit=sensors.quota_of(address).limit,
            connections=gate.open_by_address.get(address, 0),
            connections_limit=gate.limit_of(address).limit,
            held=held[address],
        )
        for address in chosen
    ]
    return sorted(found, key=lambda one: (math.isnan(one.rate), -one.rate, -one.connections, one.address))
