"""Limits of open connections: of a listener, of the broker, of an address; and the listener that is let in anyway."""

from __future__ import annotations

import pytest

from proxy.limits.model import Limits, ListenerLimits, Quota, QuotaKind, QuotaScope
from tests.unit.limits.simulation import A, B, Simulation, admitted, refused


def of(broker: int, own: int, *names: str) -> Limits:
    """Limits of the broker, and of each listener; ``INTERNAL`` is protected."""
    listeners = {name: ListenerLimits(connections=Quota(own), protected=name == "INTERNAL") for name in names}
    return Limits(listeners=listeners, connections=Quota(broker))


@pytest.mark.promise(
    "limits.md", "At `max.connections` of a listener nothing is accepted there until another connection of it ends."
)
def test_a_full_listener_accepts_nothing_until_one_has_left() -> None:
    simulation = Simulation(of(100, 50, "CLIENT", "OTHER"))
    clients = simulation.connect([0] * 60)
    other = simulation.connect([1] * 10, "OTHER")
    simulation.run(5_000)
    assert (len(admitted(clients)), len(admitted(other))) == (50, 10)
    assert len(simulation.quotas.queues["CLIENT"]) == 1
    simulation.leave(clients[0])
    assert clients[50].admitted == 5_000
    assert clients[51].admitted is None
    assert refused(clients) == []


@pytest.mark.promise(
    "limits.md",
    "Each inter-broker connection beyond `max.connections` costs exactly one connection of another listener.",
)
def test_each_one_that_is_too_many_costs_exactly_one_even_where_it_ends_at_once() -> None:
    simulation = Simulation(of(10, 100, "CLIENT", "INTERNAL"))
    clients = iter(simulation.connect([0] * 12))
    simulation.on_evict = lambda listeners: simulation.leave(next(clients))
    internal = simulation.connect([1] * 3, "INTERNAL")
    simulation.run(1)
    assert admitted(internal) == [1, 1, 1]
    assert len(simulation.evictions) == 3
    assert simulation.quotas.open_by_listener == {"CLIENT": 7, "INTERNAL": 3}


@pytest.mark.promise(
    "limits.md", "A connection beyond the number of its address is closed at once, without using up any rate."
)
def test_one_too_many_of_an_address_is_refused_at_once_and_touches_no_rate() -> None:
    rate = Quota(1_000)
    own = ListenerLimits(rate=rate)
    simulation = Simulation(Limits({"CLIENT": own}, rate, ip_rates={"<default>": rate}, ip_connections=Quota(20)))
    clients = simulation.connect([0] * 30, address=A)
    other = simulation.connect([0] * 5, address=B)
    simulation.run()
    assert admitted(clients) == [0] * 20
    assert refused(clients) == [0] * 10
    assert admitted(other) == [0] * 5
    sensors = simulation.quotas.sensors
    assert [sensors.rate("CLIENT", 0), sensors.rate(None, 0), sensors.addresses.per_second(A, 0)] == [2.5, 2.5, 2.0]
    simulation.leave(clients[0])
    again = simulation.connect([0] * 2, address=A)
    simulation.run()
    assert [(client.admitted, client.refused) for client in again] == [(0, None), (None, 0)]


RATE = Quota(20, "observe")
FULL = Quota(200, "observe")
ONE = {"CLIENT": ListenerLimits()}

CASES: list[tuple[Limits, QuotaScope, QuotaKind, int]] = [
    (Limits(listeners=ONE, rate=RATE), "broker", "connection_creation_rate", 10),
    (Limits(listeners={"CLIENT": ListenerLimits(rate=RATE)}), "listener", "connection_creation_rate", 10),
    (Limits(listeners=ONE, ip_rates={A: RATE}), "ip", "connection_creation_rate", 10),
    (Limits(listeners=ONE, connections=FULL), "broker", "connections", 10),
    (Limits(listeners={"CLIENT": ListenerLimits(connections=FULL)}), "listener", "connections", 10),
    (Limits(listeners=ONE, ip_connections=FULL), "ip", "connections", 10),
    (Limits(listeners=ONE, ip_connections=FULL, ip_connections_overrides={A: 190}), "ip", "connections", 20),
]


@pytest.mark.promise(
    "limits-operation.md",
    "With `action: observe` a limit counts and reports what it would have throttled, and does nothing.",
)
def test_all_enter_at_once_and_what_is_too_many_is_reported() -> None:
    for case in CASES:
        limits, scope, what, count = case
        simulation = Simulation(limits)
        clients = simulation.connect([0] * 210)
        simulation.run()
        assert admitted(clients) == [0] * 210, case
        assert simulation.quotas.throttled == {("CLIENT", scope, what, "observe"): count}, case
        assert len(simulation.throttles) == count, case
        assert simulation.quotas.total_blocked("CLIENT", 0) == 0, case
        assert simulation.quotas.held == [], case
        assert simulation.evictions == [], case


def test_one_quota_observes_while_another_is_enforced() -> None:
    own = ListenerLimits(rate=Quota(5))
    simulation = Simulation(Limits(listeners={"CLIENT": own}, rate=Quota(2, "observe"), samples=2))
    clients = simulation.connect([0] * 6)
    simulation.run()
    assert admitted(clients) == [0, 0, 0, 0, 0, 200]
    assert simulation.quotas.throttled == {
        ("CLIENT", "broker", "connection_creation_rate", "observe"): 4,
        ("CLIENT", "listener", "connection_creation_rate", "delay"): 1,
    }
