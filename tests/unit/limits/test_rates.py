"""Rates of a listener and of the broker: who waits, for how long, and who does not."""

from __future__ import annotations

import pytest

from proxy.limits.model import UNLIMITED, Limits, ListenerLimits, Quota
from tests.unit.limits.simulation import A, B, Simulation, admitted, limits


@pytest.mark.promise("limits.md", "Without a key there is no limit: nobody waits, and no address is measured.")
def test_without_limits_nobody_waits_and_no_address_is_measured() -> None:
    for own in (None, UNLIMITED):
        simulation = Simulation(limits(own))
        clients = simulation.connect(i // 3 for i in range(3_000))
        simulation.run()
        assert admitted(clients) == [client.at for client in clients], own
        assert simulation.throttles == [], own
        assert simulation.quotas.next_timer() is None, own
        assert len(simulation.quotas.sensors.addresses) == 0, own
        assert simulation.quotas.sensors.violations("CLIENT", 0) == [], own


@pytest.mark.promise(
    "limits.md",
    "Connections of the inter-broker listener do not count in the rate of all listeners, and never wait for it.",
)
def test_the_inter_broker_listener_is_spared_the_brokers_rate() -> None:
    own = {"CLIENT": ListenerLimits(rate=Quota(20)), "INTERNAL": ListenerLimits(rate=Quota(20), protected=True)}
    alone = Simulation(Limits(listeners=own, rate=Quota(20)))
    beside = Simulation(Limits(listeners=own, rate=Quota(20)))
    expected, clients = alone.connect(range(0, 60_000, 10)), beside.connect(range(0, 60_000, 10))
    internal = beside.connect(range(5, 60_000, 100), "INTERNAL")
    alone.run(60_000)
    beside.run(60_000)
    assert admitted(internal) == [client.at for client in internal]
    assert admitted(clients) == admitted(expected)


def test_the_inter_broker_listener_keeps_its_own_rate_and_that_of_addresses() -> None:
    own = ListenerLimits(rate=Quota(20), protected=True)
    simulation = Simulation(Limits(listeners={"INTERNAL": own}, rate=Quota(1), ip_rates={B: Quota(2)}))
    many = simulation.connect([0] * 201, "INTERNAL", A)
    simulation.run()
    assert many[-1].admitted == 50
    held = simulation.connect([20_000] * 21, "INTERNAL", B)
    simulation.run(20_000)
    assert len(admitted(held)) == 20


@pytest.mark.promise(
    "limits.md",
    "While a connection waits for a limit of its listener, that listener accepts nothing, "
    "and the other listeners continue.",
)
def test_while_one_waits_its_listener_accepts_nothing_and_others_do() -> None:
    own = ListenerLimits(rate=Quota(20))
    simulation = Simulation(Limits(listeners={"CLIENT": own, "OTHER": own}))
    clients = simulation.connect([0] * 203, "CLIENT")
    other = simulation.connect([10], "OTHER")
    simulation.run(49)
    assert simulation.quotas.is_blocked("CLIENT")
    assert not simulation.quotas.is_blocked("OTHER")
    assert other[0].admitted == 10
    assert [client.accepted for client in clients[-3:]] == [0, None, None]
    assert simulation.quotas.next_timer() == 50
    simulation.run(50)
    assert [client.accepted for client in clients[-3:]] == [0, 50, None]


def test_of_two_exceeded_rates_the_longer_delay_counts_and_both_are_measured() -> None:
    own = ListenerLimits(rate=Quota(5))
    simulation = Simulation(Limits(listeners={"OTHER": own, "CLIENT": own}, rate=Quota(5)))
    first = simulation.connect([0] * 50, "CLIENT")
    other = simulation.connect([1], "OTHER")
    last = simulation.connect([1], "CLIENT")  # the 51st of its listener, the 52nd of the broker
    simulation.run()
    assert admitted(first + other + last) == [*[0] * 50, 200, 400]
    assert [(throttle.scope, throttle.delay_ms) for throttle in simulation.throttles] == [
        ("broker", 199),
        ("broker", 399),
    ]
    rates = [simulation.quotas.sensors.rate(name, 400) for name in ("OTHER", "CLIENT", None)]
    assert rates == pytest.approx([1 / 10.399, 51 / 10.4, 52 / 10.4])
    listeners = {"OTHER": ListenerLimits(rate=Quota(6)), "CLIENT": ListenerLimits(rate=Quota(5))}
    simulation = Simulation(Limits(listeners=listeners, rate=Quota(6)))
    simulation.connect([0] * 10, "OTHER")
    clients = simulation.connect([1] * 51, "CLIENT")  # 51 at 5/s need 10.2 s, 61 at 6/s less
    simulation.run()
    assert clients[-1].admitted == 201
    assert [(throttle.scope, throttle.delay_ms) for throttle in simulation.throttles] == [("listener", 200)]


@pytest.mark.promise(
    "limits.md", "The rate of a listener or of all listeners delays each connection by a second at most."
)
def test_a_delay_is_never_longer_than_a_window() -> None:
    simulation = Simulation(limits(1_000))
    simulation.connect([0] * 5_000)
    simulation.run()
    simulation.update_limits(limits(1))
    clients = simulation.connect([1_000] * 4)
    simulation.run()
    assert admitted(clients) == [2_000, 3_000, 4_000, 5_000]


def test_one_a_second_always_enters() -> None:
    """If a second late: the first one still counts when the 11th comes, and 11 in 10 s are more than one a second."""
    simulation = Simulation(limits(1))
    clients = simulation.connect(range(0, 100_000, 1_000))
    simulation.run()
    assert admitted(clients) == [client.at + (1_000 if client.at >= 10_000 else 0) for client in clients]


def test_a_free_slot_does_not_cut_a_delay_short() -> None:
    for left_at, enters_at in [(10, 50), (50, 50), (90, 90)]:
        own = ListenerLimits(rate=Quota(20), connections=Quota(200))
        simulation = Simulation(Limits(listeners={"CLIENT": own}))
        clients = simulation.connect([0] * 201)
        simulation.run(left_at)
        assert clients[-1].admitted is None, (left_at, enters_at)
        simulation.leave(clients[0])
        simulation.run()
        assert clients[-1].admitted == enters_at, (left_at, enters_at)
        assert simulation.quotas.total_blocked("CLIENT", 1_000) == enters_at, (left_at, enters_at)


def test_blocked_time_is_that_of_rates_and_slots_and_grows_while_it_lasts() -> None:
    own = {"CLIENT": ListenerLimits(connections=Quota(1)), "OTHER": ListenerLimits()}
    simulation = Simulation(Limits(listeners=own, ip_rates={B: Quota(1)}, samples=2))
    clients = simulation.connect([0, 100], "CLIENT")
    simulation.connect([0] * 5, "OTHER", B)
    simulation.run(400)
    assert simulation.quotas.total_blocked("CLIENT", 400) == 300
    simulation.now = 500
    simulation.leave(clients[0])
    assert [simulation.quotas.total_blocked(name, 9_000) for name in own] == [400, 0]


def test_rates_of_listeners_are_measured_without_a_limit_as_kafka_does() -> None:
    listeners = {"CLIENT": ListenerLimits(), "OTHER": ListenerLimits(), "INTERNAL": ListenerLimits(protected=True)}
    simulation = Simulation(Limits(listeners=listeners))
    simulation.connect([0] * 20)
    simulation.connect([0] * 10, listener="OTHER")
    simulation.connect([0] * 5, listener="INTERNAL")
    simulation.run()
    rate = simulation.quotas.sensors.rate
    assert [rate(name, 0) for name in ("CLIENT", "OTHER", "INTERNAL", None)] == [2.0, 1.0, 0.5, 3.0]
    assert rate("CLIENT", 11_000) == 0


def test_a_new_limit_counts_what_was_accepted_before_it() -> None:
    simulation = Simulation(limits())
    simulation.connect([0] * 150)
    simulation.run()
    simulation.update_limits(limits(10))
    (next_,) = simulation.connect([0])
    simulation.run()
    assert next_.admitted == 1_000
