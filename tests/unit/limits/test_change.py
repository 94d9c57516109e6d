"""New limits while connections are open, waiting and held: nothing measured is lost, and nobody's delay changes."""

from __future__ import annotations

import pytest

from proxy.limits.connection_quotas import ConnectionQuotas
from proxy.limits.model import Limits
from tests.unit.limits.simulation import A, Simulation, admitted, limits


@pytest.mark.promise("limits.md", "A new limit applies to what is already measured.")
def test_a_listeners_limit_changes_over_what_was_measured() -> None:
    simulation = Simulation(limits(20, samples=2))
    clients = simulation.connect([0] * 40)
    simulation.run(0)
    simulation.update_limits(limits(30, samples=2))
    simulation.run(50)
    assert len(admitted(clients)) == 31  # the one that waited, and those 30 a second leave room for
    simulation.update_limits(limits(samples=2))
    simulation.run(90)
    assert len(admitted(clients)) == 40


@pytest.mark.promise("limits.md", "Connections that wait or are held when limits change keep their deadline.")
def test_who_waits_keeps_its_delay_and_who_is_held_is_looked_at_again_by_the_new_limit() -> None:
    simulation = Simulation(limits(1, samples=2))
    clients = simulation.connect([0] * 4)
    simulation.run(10)
    simulation.update_limits(limits(1_000, samples=2))
    simulation.run()
    assert admitted(clients) == [0, 1_000, 1_000, 1_000]
    simulation = Simulation(limits(samples=2, ips={A: 2}))
    clients = simulation.connect([0] * 6)
    simulation.run(10)
    simulation.update_limits(limits(samples=2, ips={A: 3}))
    simulation.run()
    assert [(client.admitted, client.refused) for client in clients] == [
        *[(0, None)] * 2,
        *[(500, None)] * 2,  # four in one and a half seconds
        *[(None, 500)] * 2,
    ]


@pytest.mark.promise("limits.md", "A change of the windows starts measuring again, with a whole burst.")
def test_another_window_begins_anew() -> None:
    simulation = Simulation(limits(20, samples=2, ips={A: 20}))
    first = simulation.connect([0] * 20)
    simulation.run(0)
    simulation.update_limits(limits(20, samples=3, ips={A: 20}))
    second = simulation.connect([0] * 41)
    simulation.run(0)
    assert (len(admitted(first)), len(admitted(second))) == (20, 40)


class Succession(Simulation):
    """``hand_over`` replaces the process in which the limits are, as a takeover does."""

    def hand_over(self, to: Limits | None = None) -> None:
        old = self.quotas
        old.pause()
        open_ones = [client for client in self.clients if client.admitted is not None]
        self.limits = to or self.limits
        self.quotas = ConnectionQuotas(
            self.limits,
            admit=self._admit,
            refuse=self._refuse,
            is_disconnected=self._is_gone,
            evict=self._evict,
            on_throttle=self.throttles.append,
        )
        for rate in old.sensors.measured():
            self.quotas.sensors.restore(rate)
        for client in open_ones:
            self.quotas.count_open(client.listener, client.address)
        for state, client in old.pending():
            self.quotas.restore_pending(client.listener, client.address, client, state)
        self.quotas.process_timers(self.now)


@pytest.mark.promise(
    "limits.md", "Measured rates, waiting and held connections continue through a restart with `--takeover`."
)
def test_rates_and_holds_are_as_exact_as_without_a_change_of_the_process() -> None:
    """Of the burst the window lets 200 in; whoever waits for it, and all later ones, wait as long as ever."""
    burst, steady = [0] * 150 + list(range(100, 14_000, 25)), range(0, 3_000, 70)
    for own, times, until, instants in (
        (limits(20), burst, 20_000, (0, 1, 1_500, 3_900, 10_999, 12_000)),
        (limits(ips={A: 5}, samples=2), steady, 9_000, (0, 400, 1_000, 1_700)),
    ):
        for at in instants:
            runs = []
            for changes in (False, True):
                simulation = Succession(own)
                simulation.connect(times)
                simulation.run(at)
                if changes:
                    simulation.hand_over()
                simulation.run(until)
                runs.append(sorted((client.admitted or -1, client.refused or -1) for client in simulation.clients))
            assert runs[0] == runs[1], (own, at)
