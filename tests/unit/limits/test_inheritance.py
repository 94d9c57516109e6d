"""A successor continues with what its predecessor has measured, as if there were one process."""

from __future__ import annotations

import pytest

from proxy.limits.connection_quotas import ConnectionQuotas
from proxy.limits.model import Limits, ListenerLimits, Quota
from tests.unit.limits.simulation import A, B, Simulation, admitted, limits, refused


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


def test_connections_of_the_predecessor_count_until_they_end() -> None:
    most = Limits(
        listeners={"CLIENT": ListenerLimits(connections=Quota(3))}, ip_connections=Quota(2), connections=Quota(4)
    )
    simulation = Succession(most)
    first = simulation.connect([0, 0])
    simulation.run(0)
    simulation.hand_over()
    refused_ones, other, waiting = (
        simulation.connect([1]),
        simulation.connect([1], address=B),
        simulation.connect([2], address=B),
    )
    simulation.run(10)
    assert (refused(refused_ones), admitted(other), admitted(waiting)) == ([1], [1], [])
    simulation.leave(first[0])
    assert admitted(waiting) == [10]


def test_a_pause_that_ends_changes_no_rate_and_admits_nobody_meanwhile() -> None:
    simulation = Succession(limits(20, samples=2))
    clients = simulation.connect([0] * 40)
    simulation.run(5)
    before = len(admitted(clients))
    simulation.quotas.pause()
    simulation.run(1_500)
    assert len(admitted(clients)) == before
    assert simulation.quotas.next_timer() is None
    simulation.quotas.resume(simulation.now)
    simulation.run(20_000)
    assert len(admitted(clients)) == 40
