"""What quotas report of themselves and of the connections that they throttle."""

from __future__ import annotations

import math

import pytest

from proxy.limits import throttle_reports as module
from proxy.limits.model import UNLIMITED, AddressState, Limits, ListenerLimits, Quota, Throttle, ThrottleAction
from proxy.limits.quotas_state import MAX_ADDRESSES_SHOWN
from proxy.limits.throttle_reports import (
    MANY,
    ThrottleAggregator,
)
from tests.unit.limits.simulation import A, B, Simulation


def test_limits_counts_and_addresses_are_reported() -> None:
    """CLIENT waits for a slot; A and B are held, and B has a connection."""
    listeners = {"CLIENT": ListenerLimits(Quota(50), Quota(21)), "OTHER": ListenerLimits(Quota(50))}
    of_addresses = {"ip_rates": {A: Quota(2)}, "ip_connections": Quota(30, "observe")}
    simulation = Simulation(Limits(listeners, Quota(50), **of_addresses))
    simulation.connect([0] * 25)
    simulation.connect([1, 2], address=B)
    simulation.run(100)
    now = simulation.state(100)
    assert [(one.scope, one.listener, one.quota, one.limit, one.action) for one in now.limits] == [
        ("broker", "", "connection_creation_rate", 50, "enforce"),
        ("broker", "", "connections", UNLIMITED, "enforce"),
        ("listener", "CLIENT", "connection_creation_rate", 50, "enforce"),
        ("listener", "CLIENT", "connections", 21, "enforce"),
        ("listener", "OTHER", "connection_creation_rate", 50, "enforce"),
        ("listener", "OTHER", "connections", UNLIMITED, "enforce"),
        ("ip", "", "connection_creation_rate", UNLIMITED, "enforce"),
        ("ip", "", "connections", 30, "observe"),
        ("principal", "", "connection_creation_rate", UNLIMITED, "enforce"),
        ("principal", "", "connections", UNLIMITED, "enforce"),
    ]
    per_second = 22 / 10.1  # 20 of A, one of B, and one that waits
    assert [one.used for one in now.limits[:6]] == pytest.approx([per_second, 21, per_second, 21, 0, 0])
    assert now.waiting == {"CLIENT": 1, "OTHER": 0}
    assert now.held == {"CLIENT": 5, "OTHER": 0}
    assert now.admitted == {"CLIENT": 21, "OTHER": 0}
    assert now.held_before == {"CLIENT": 5, "OTHER": 0}
    assert now.held_seconds == {"CLIENT": 2.5, "OTHER": 0}
    assert now.delayed == now.delayed_seconds == {"CLIENT": 0, "OTHER": 0}
    assert now.blocked_seconds == {"CLIENT": 0.098, "OTHER": 0}
    assert now.throttled == {
        ("CLIENT", "ip", "connection_creation_rate", "hold"): 5,
        ("CLIENT", "listener", "connections", "delay"): 1,
    }
    one, other = now.addresses
    assert one == AddressState(A, 20 / 10.1, 2, 20, 30, 5)
    assert (other.address, other.rate_limit, other.connections, other.connections_limit) == (B, UNLIMITED, 1, 30)
    assert math.isnan(other.rate)
    assert (now.addresses_tracked, now.addresses_connected) == (1, 2)
    simulation = Simulation(Limits(listeners={"CLIENT": ListenerLimits(Quota(1))}, samples=2))
    simulation.connect([0, 0, 0])
    simulation.run()
    now = simulation.state(simulation.now)
    assert (now.delayed, now.delayed_seconds, now.blocked_seconds) == ({"CLIENT": 2}, {"CLIENT": 2.0}, {"CLIENT": 2.0})


def test_only_the_busiest_of_many_addresses_are_reported() -> None:
    simulation = Simulation(Limits(listeners={"CLIENT": ListenerLimits()}, ip_rates={"<default>": Quota(100)}))
    for i in range(200):
        simulation.connect([i] * (1 + i % 7), address=f"10.0.0.{i}")
    simulation.run()
    for client in simulation.clients:
        if client.address.endswith("6"):
            simulation.leave(client)
    now = simulation.state(simulation.now)
    assert len(now.addresses) == MAX_ADDRESSES_SHOWN
    assert now.addresses_tracked == 200
    assert [one.rate for one in now.addresses[: MAX_ADDRESSES_SHOWN // 2]] == pytest.approx(
        [7 / 10] * (MAX_ADDRESSES_SHOWN // 2), rel=0.05
    )
    assert {one.connections for one in now.addresses} <= {0, 7}


def throttle(address: str = A, done: ThrottleAction = "hold", observed: float = 3.0, delay_ms: int = 500) -> Throttle:
    return Throttle("CLIENT", address, "ip", "connection_creation_rate", done, 2, observed, delay_ms)


@pytest.mark.promise(
    "limits-operation.md", "Throttled connections are reported in a bounded number of groups, and no count is lost."
)
def test_of_more_addresses_than_are_reported_the_rest_is_reported_together() -> None:
    gathered = ThrottleAggregator()
    for i in range(3_000):
        gathered.add(throttle(f"10.{i // 256}.0.{i % 256}", done="hold" if i % 3 else "drop"), float(i))
    gathered.add(throttle("10.0.0.1"), 3_000.0)  # among the first, and still reported by name
    reports = gathered.take_reports()
    named = [report for report in reports if report.address != MANY]
    assert len(named) == module.MAX_REPORTS
    assert {report.action: report.count for report in reports if report.address == MANY} == {
        "hold": 1_334,
        "drop": 666,
    }
    assert sum(report.count for report in reports) == 3_001
    assert max(report.last_at for report in named) == 3_000.0
