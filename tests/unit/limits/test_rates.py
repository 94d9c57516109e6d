"""Rates of a listener and of the broker: who waits, for how long, and who does not."""

from __future__ import annotations

import pytest

from proxy.limits.admission_pace import ADMISSION_COST, ARRIVAL_COST, FIRST, AdmissionPace
from proxy.limits.connection_quotas import MAX_ENDED_HOLDS
from proxy.limits.model import UNLIMITED, Limits, ListenerLimits, Quota
from tests.unit.limits.simulation import A, B, Simulation, admitted, limits, refused


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


@pytest.mark.promise(
    "limits.md",
    "A rate is measured over 11 windows of a second, as in Kafka: after a pause, ten times the limit pass at once.",
)
def test_connections_enter_at_the_times_a_broker_was_measured_with() -> None:
    for limit, at in (
        (20, {1: 0, 200: 0, 201: 50, 210: 500, 240: 11_950, 300: 11_950}),
        (7, {70: 0, 71: 143}),
        (5, {50: 0, 51: 200, 60: 6_000}),
        (1, {10: 0, 11: 1_000, 12: 2_000}),
    ):
        simulation = Simulation(limits(limit))
        clients = simulation.connect([0] * max(at))
        simulation.run()
        assert {place: clients[place - 1].admitted for place in at} == at, limit
    for samples, first, accepted, delay, last in ((11, 321, 8_000, 700, 18_000), (2, 41, 1_000, 367, 20_000)):
        simulation = Simulation(limits(30, samples=samples))
        clients = simulation.connect(range(0, 15_000, 25))  # forty a second
        simulation.run()
        waited = [client for client in clients if client.admitted != client.accepted]
        assert clients.index(waited[0]) + 1 == first, samples
        assert (waited[0].accepted, waited[0].admitted) == (accepted, accepted + delay), samples
        assert clients[-1].admitted == last, samples
        simulation = Simulation(limits(samples=samples, ips={A: 20}))
        clients = simulation.connect(range(0, 60_000, 25))
        simulation.run()
        assert (len(admitted(clients)), len(refused(clients))) == (1_200, 1_200), samples


def pace(own: int | None = None, broker: int | None = None, *, protected: bool = False, action="enforce") -> Limits:
    rates = [Quota(limit, action) if limit else Quota() for limit in (own, broker)]
    listeners = {"CLIENT": ListenerLimits(rate=rates[0], protected=protected), "OTHER": ListenerLimits()}
    return Limits(listeners=listeners, rate=rates[1])


def admit_at(pace: AdmissionPace, now: int, *, costs=(ARRIVAL_COST, ADMISSION_COST), listener="CLIENT", most=50) -> int:
    """Take what may pass at ``now``, and return how many connections that are."""
    for count in range(most):
        if pace.next_at(listener) > now:
            return count
        for cost in costs:
            pace.record(listener, cost, now)
    return most


@pytest.mark.promise(
    "limits.md",
    "On a listener with a rate, at most two connections per millisecond are admitted, "
    "and 1,000 per second after the first hundred.",
)
def test_a_burst_passes_in_steps():
    for given, per_ms, per_second in [
        (pace(100), 2, 1000),
        (pace(100, 20), 2, 1000),
        (pace(None, 100), 2, 1000),
        (pace(1500), 3, 3000),
        (pace(1500, 2000), 3, 3000),
        (pace(1250), 3, 2500),
        (pace(2000, protected=True, broker=10), 4, 4000),
    ]:
        paced = AdmissionPace(given)
        passed = [admit_at(paced, now) for now in range(1000, 2000)]
        assert passed[:50] == [per_ms] * 50, given
        assert max(passed) == per_ms, given
        assert sum(passed) == pytest.approx(per_second + min(FIRST, 1000 * per_ms - per_second), abs=2), given


def test_the_pace_is_of_one_listener_and_its_enforced_limit():
    paced = AdmissionPace(pace(100))
    passed = [admit_at(paced, now, costs=(ARRIVAL_COST,)) for now in range(1000, 2000)]
    assert sum(passed) == pytest.approx(4 * (1000 + FIRST), abs=4), "refused connections cost a quarter"
    paced = AdmissionPace(pace(100))
    assert (admit_at(paced, 1000), admit_at(paced, 1000, listener="OTHER")) == (2, 50)
    assert paced.next_at("CLIENT") == paced.next_timer(1000) == 1001
    assert paced.next_timer(1001) is None
    assert [admit_at(paced, 1010), admit_at(paced, 5000)] == [2, 2], "a late step admits no more than any other"
    paced.update_limits(pace())
    assert admit_at(paced, 5000) == 50
    for given in [pace(), pace(None, 10, protected=True), pace(10, action="observe")]:
        paced = AdmissionPace(given)
        assert (admit_at(paced, 1000), paced.next_timer(1000)) == (50, None), given


@pytest.mark.promise("limits.md", "A client that leaves while its connection waits counts in no rate.")
def test_clients_that_gave_up_take_nobody_s_turn() -> None:
    simulation = Simulation(limits(20, samples=2))
    crowd = simulation.connect([0] * 600)
    for client in crowd:
        client.patience = 4_000
    simulation.run(until=10_000)
    assert len(admitted(crowd)) == 20 * 4
    assert set(refused(crowd)) == {4_000}
    late = simulation.connect([10_000] * 20)
    simulation.run()
    assert max(admitted(late)) <= 11_000


def test_where_nobody_had_to_wait_nobody_is_asked() -> None:
    """A client may send all it has and end its side, before it is accepted."""
    simulation = Simulation(limits(20, samples=2))
    half_closed = simulation.connect([0, 100, 200])
    for client in half_closed:
        client.patience = 0
    simulation.run()
    assert admitted(half_closed) == [0, 100, 200]


@pytest.mark.promise(
    "limits.md", "At most eight held connections are admitted or closed in one turn of the event loop."
)
def test_many_holds_that_end_together_take_turns_and_keep_their_order() -> None:
    own = {"CLIENT": ListenerLimits(connections=Quota(40))}
    simulation = Simulation(Limits(listeners=own, ip_rates={A: Quota(20)}, samples=2))
    held = simulation.connect([0] * 40)[20:]
    inside = simulation.connect([0] * 20, address=B)
    simulation.run(until=49)
    simulation.now = 5_000
    simulation.quotas.process_timers(simulation.now)
    assert len(simulation.quotas.held) == 20 - MAX_ENDED_HOLDS
    assert simulation.quotas.next_timer() == 50
    simulation.run(until=5_000)
    assert not simulation.quotas.held
    for number, client in enumerate(inside):
        simulation.leave(client)
        assert admitted(held) == [5_000] * (number + 1)
        assert held[number].admitted == 5_000
