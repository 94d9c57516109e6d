"""Clients that give up while they wait, and what is reported of a wait for a slot."""

from __future__ import annotations

import pytest

from proxy.limits.connection_quotas import MAX_ENDED_HOLDS
from proxy.limits.model import Limits, ListenerLimits, Quota
from tests.unit.limits.simulation import A, B, Simulation, admitted, limits, refused

RATE, CONNECTIONS = "connection_creation_rate", "connections"


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


def test_whoever_gives_up_while_it_is_held_is_not_counted_again() -> None:
    simulation = Simulation(limits(samples=2, ips={A: 20}))
    crowd = simulation.connect([0] * 25)
    for client in crowd[20:]:
        client.patience = 10
    simulation.run()
    assert len(refused(crowd)) == 5
    assert simulation.quotas.throttled["CLIENT", "ip", RATE, "drop"] == 0
    assert simulation.quotas.sensors.addresses.per_second(A, 50) == pytest.approx(20 / 1.05)


def test_whoever_gives_up_in_front_of_a_slot_does_not_get_it() -> None:
    simulation = Simulation(Limits(listeners={"CLIENT": ListenerLimits(connections=Quota(1))}))
    inside, impatient, patient = simulation.connect([0, 1, 2])
    impatient.patience = 100
    simulation.run(until=1_000)
    simulation.leave(inside)
    assert impatient.refused == patient.admitted == 1_000


def test_where_nobody_had_to_wait_nobody_is_asked() -> None:
    """A client may send all it has and end its side, before it is accepted."""
    simulation = Simulation(limits(20, samples=2))
    half_closed = simulation.connect([0, 100, 200])
    for client in half_closed:
        client.patience = 0
    simulation.run()
    assert admitted(half_closed) == [0, 100, 200]


def test_a_slot_that_is_taken_during_a_delay_is_reported_when_it_is_missed() -> None:
    own = {"CLIENT": ListenerLimits(rate=Quota(1), connections=Quota(12)), "OTHER": ListenerLimits()}
    simulation = Simulation(Limits(listeners=own, connections=Quota(12), samples=11))
    simulation.connect([0] * 10)
    (delayed,) = simulation.connect([1])
    simulation.connect([2, 3], "OTHER")
    simulation.run(until=60_000)
    assert delayed.admitted is None
    assert simulation.quotas.missing_slot("CLIENT") == ("broker", Quota(12), 12)
    assert simulation.quotas.missing_slot("OTHER") is None
    assert simulation.quotas.throttled["CLIENT", "broker", CONNECTIONS, "delay"] == 1
    assert simulation.quotas.next_timer() is None


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
