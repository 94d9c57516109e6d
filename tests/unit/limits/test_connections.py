"""Limits of open connections, new limits while they are open, waiting and held, and what quotas report."""

import math

import pytest

from proxy.limits import throttle_reports as module
from proxy.limits.connection_quotas import ConnectionQuotas
from proxy.limits.model import (
    UNLIMITED,
    AddressState,
    Limits,
    ListenerLimits,
    Quota,
    QuotaKind,
    QuotaScope,
    Throttle,
    ThrottleAction,
)
from proxy.limits.quotas_state import MAX_ADDRESSES_SHOWN
from proxy.limits.throttle_reports import MANY, ThrottleAggregator
from tests.unit.limits.simulation import A, B, Simulation, admitted, limits, refused


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
    assert {report.action: report.count for report in reports if report.address == MANY} == {"hold": 1_334, "drop": 666}
    assert sum(report.count for report in reports) == 3_001
    assert max(report.last_at for report in named) == 3_000.0
