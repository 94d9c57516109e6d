"""What quotas report of themselves, and how much memory its addresses take."""

from __future__ import annotations

import gc
import math
import tracemalloc

import pytest

from proxy.limits.model import UNLIMITED, AddressState, Limits, ListenerLimits, Quota
from proxy.limits.quotas_state import MAX_ADDRESSES_SHOWN
from proxy.limits.rate_sensors import RateSensors
from tests.unit.limits.simulation import A, B, Simulation


def busy() -> Simulation:
    """CLIENT waits for a slot; A and B are held, and B has a connection."""
    listeners = {"CLIENT": ListenerLimits(Quota(50), Quota(21)), "OTHER": ListenerLimits(Quota(50))}
    simulation = Simulation(
        Limits(
            listeners=listeners,
            rate=Quota(50),
            ip_rates={A: Quota(2)},
            ip_connections=Quota(30, "observe"),
        )
    )
    simulation.connect([0] * 25)
    simulation.connect([1, 2], address=B)
    simulation.run(100)
    return simulation


def test_limits_are_reported_the_broker_and_each_listener_limited_or_not() -> None:
    now = busy().state(100)
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


def test_counts_are_reported_every_listener() -> None:
    now = busy().state(100)
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


def test_addresses_are_reported_with_their_limits_the_fastest_first() -> None:
    now = busy().state(100)
    one, other = now.addresses
    assert one == AddressState(A, 20 / 10.1, 2, 20, 30, 5)
    assert (other.address, other.rate_limit, other.connections, other.connections_limit) == (B, UNLIMITED, 1, 30)
    assert math.isnan(other.rate)
    assert (now.addresses_tracked, now.addresses_connected) == (1, 2)


def test_delays_are_reported_in_seconds() -> None:
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


@pytest.mark.promise(
    "limits.md", "A measured address takes less than a kilobyte of memory, and nothing once it is idle."
)
def test_an_address_costs_less_than_a_kilobyte_and_nothing_once_it_is_idle() -> None:
    addresses = [f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}" for i in range(5_000)]
    sensors = RateSensors(Limits(listeners={"CLIENT": ListenerLimits()}, ip_rates={"<default>": Quota(100)}))
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for second in range(11):  # every sample is in use
            for address in addresses:
                sensors.count_address(address, second * 1_000)
        full, _ = tracemalloc.get_traced_memory()
        for _ in range(len(addresses) // 1_000):
            sensors.addresses.forget_idle(60_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(sensors.addresses) == 0
    assert (full - before) / len(addresses) < 1_024
    assert (after - before) < 0.01 * (full - before)
