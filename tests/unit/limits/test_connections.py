"""Limits of open connections: of a listener, of the broker, of an address; and the listener that is let in anyway."""

from __future__ import annotations

import pytest

from proxy.limits.model import Limits, ListenerLimits, Quota
from tests.unit.limits.simulation import A, B, Simulation, admitted, refused


def of(broker: int, own: int, *names: str) -> Limits:
    """Limits of the broker, and of each listener; ``INTERNAL`` is protected."""
    listeners = {name: ListenerLimits(connections=Quota(own), protected=name == "INTERNAL") for name in names}
    return Limits(listeners=listeners, connections=Quota(broker))


def per_ip(limit: int, overrides: dict[str, int] | None = None) -> Limits:
    return Limits(
        listeners={"CLIENT": ListenerLimits(rate=Quota(1_000))},
        rate=Quota(1_000),
        ip_rates={"<default>": Quota(1_000)},
        ip_connections=Quota(limit),
        ip_connections_overrides=overrides or {},
    )


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


def test_a_full_broker_stops_all_its_listeners() -> None:
    simulation = Simulation(of(100, 60, "CLIENT", "OTHER"))
    clients, other = simulation.connect([0] * 60), simulation.connect([1] * 60, "OTHER")
    simulation.run(5_000)
    assert (len(admitted(clients)), len(admitted(other))) == (60, 40)
    assert [throttle.scope for throttle in simulation.throttles] == ["broker"]
    simulation.leave(clients[0])
    assert len(admitted(other)) == 41
    assert simulation.quotas.open_total == 100


def test_the_inter_broker_listener_enters_a_full_broker_and_one_other_has_to_go() -> None:
    simulation = Simulation(of(100, 100, "CLIENT", "OTHER", "INTERNAL"))
    clients = simulation.connect([0] * 101)
    internal = simulation.connect([1], "INTERNAL")
    simulation.run(1)
    assert admitted(internal) == [1]
    assert simulation.evictions == [["CLIENT", "OTHER"]]
    simulation.leave(clients[0])
    assert simulation.quotas.open_total == 100
    assert clients[100].admitted is None
    simulation.leave(clients[1])
    assert clients[100].admitted == 1
    assert len(simulation.evictions) == 1


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
    simulation = Simulation(per_ip(20))
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


def test_overrides_take_the_place_of_the_limit_of_addresses() -> None:
    alone = Limits(listeners={"CLIENT": ListenerLimits()}, ip_connections_overrides={A: 1})
    for limits, expected in ((per_ip(2, {A: 3, B: 0}), [3, 0, 2]), (alone, [1, 5, 5])):
        simulation = Simulation(limits)
        crowds = [simulation.connect([0] * 5, address=address) for address in (A, B, "10.0.0.3")]
        simulation.run()
        assert [len(admitted(clients)) for clients in crowds] == expected, limits
