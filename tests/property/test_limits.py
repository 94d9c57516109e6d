"""Limits against a port of Kafka's classes, against what they promise, and against any order of events."""

import math
from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.limits.connection_quotas import ConnectionQuotas
from proxy.limits.model import DEFAULT_ADDRESS, Limits, ListenerLimits, Quota, Throttle
from proxy.limits.principal_quotas import PrincipalQuotas
from proxy.limits.quotas_state import collect_state
from proxy.limits.sampled_rate import SampledRate, exceeds, throttle_time
from tests.unit.limits.simulation import A, B, Client, Simulation, ignored, limits


class Sample:
    def __init__(self, now: int) -> None:
        self.reset(now)

    def reset(self, now: int) -> None:
        self.started = now
        self.last_event = now
        self.total = 0.0


class KafkaRate:
    """``org.apache.kafka.common.metrics.stats.Rate`` over a ``WindowedSum``, line by line and in floats."""

    def __init__(self, samples: int, window_ms: int) -> None:
        self.num = samples
        self.window_ms = window_ms
        self.samples: list[Sample] = []
        self.current = 0

    def record(self, value: int, now: int) -> None:
        sample = self._current_sample(now)
        if now - sample.started >= self.window_ms:
            self.current = (self.current + 1) % (self.num + 1)
            if self.current >= len(self.samples):
                self.samples.append(Sample(now))
            else:
                self._current_sample(now).reset(now)
            sample = self._current_sample(now)
        sample.total += value
        sample.last_event = now

    def window_size(self, now: int) -> int:
        for sample in self.samples:
            if now - sample.last_event >= self.num * self.window_ms:
                sample.reset(now)
        self._current_sample(now)
        elapsed = now - min(sample.started for sample in self.samples)
        full_windows = elapsed // self.window_ms
        if full_windows < self.num - 1:
            elapsed += (self.num - 1 - full_windows) * self.window_ms
        return max(elapsed, 1)

    def total(self, now: int) -> float:
        self.window_size(now)
        return sum(sample.total for sample in self.samples)

    def measure(self, now: int) -> float:
        return self.total(now) / (self.window_size(now) / 1000)

    def throttle_ms(self, limit: int, now: int) -> int:
        observed = self.measure(now)
        return math.floor((observed - limit) / limit * self.window_size(now) + 0.5)

    def _current_sample(self, now: int) -> Sample:
        if not self.samples:
            self.samples.append(Sample(now))
        return self.samples[self.current]


SIZES = st.tuples(st.integers(1, 12), st.sampled_from([1, 7, 1000, 3000]))

# Steps in windows, so that every size of window sees short ones, long ones and those on a boundary.
STEPS = st.one_of(
    st.just(0.0), st.floats(0, 1), st.floats(0, 3), st.sampled_from([1, 2, 9, 10, 11, 12, 13]), st.floats(0, 40)
)
RECORDS = st.lists(st.tuples(STEPS, st.sampled_from([1, 1, 1, 1, -1])), min_size=1, max_size=80)


@pytest.mark.promise("limits.md", "Rates of connections are measured as Kafka measures them, sample by sample.")
@given(SIZES, RECORDS, st.integers(1, 50), st.lists(st.floats(0, 1), max_size=4))
def test_the_rate_is_kafkas(
    size: tuple[int, int], records: list[tuple[float, int]], limit: int, looks: list[float]
) -> None:
    rate, kafka, now = SampledRate(*size), KafkaRate(*size), 0
    for step, value in records:
        passed = round(step * size[1])
        for part in sorted(looks):  # they change nothing
            rate.measure(now + int(part * passed))
            rate.is_idle(now + int(part * passed))
        now += passed
        if rate.is_idle(now):  # what has expired may be forgotten
            rate = SampledRate(*size)
        rate.record(value, now)
        assert not rate.is_idle(now)
        kafka.record(value, now)
        count, window = rate.measure(now)
        assert (count, window) == (kafka.total(now), kafka.window_size(now))
        if exceeds(count, window, limit):
            exact = (count * 1000 - limit * window) / limit
            slack = 1 if math.isclose(exact % 1, 0.5, abs_tol=1e-6) else 0  # a float may fall on either side
            assert abs(throttle_time(count, window, limit) - kafka.throttle_ms(limit, now)) <= slack
            assert kafka.measure(now) > limit * (1 - 1e-9)
        else:
            assert kafka.measure(now) <= limit * (1 + 1e-9)


# ---- what a limit promises ------------------------------------------------------------------------------------------

ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 17, 100, 999, 1000, 1001, 5_000, 30_000]), st.sampled_from([1, 1, 2, 10, 60])
    ),
    min_size=1,
    max_size=15,
)


def times(arrivals: list[tuple[int, int]]) -> list[int]:
    """Bursts after pauses, as the time of each connection."""
    now, found = 0, []
    for pause, burst in arrivals:
        now += pause
        found += [now] * burst
    return found


def most_over(clients: list[Client], limit: int, samples: int) -> float:
    """How many connections more than ``limit × (t + samples − 1 windows)`` had entered at any time t."""
    entered = sorted(client.admitted for client in clients if client.admitted is not None)
    first = entered[0] if entered else 0
    return max(
        (count - limit * ((at - first) / 1000 + samples - 1) for count, at in enumerate(entered, start=1)), default=0.0
    )


def rounding(limit: int) -> float:
    """Connections by which Kafka's delay, rounded half up, may be too short."""
    return limit * 0.0005 + 1e-6


@pytest.mark.promise(
    "limits.md", "A listener never accepts more connections than its rate allows over the configured samples."
)
@given(ARRIVALS, st.integers(1, 30), st.sampled_from([2, 3, 11]))
@example([(0, 121), (1001, 120)], 30, 3)
def test_a_listener_never_exceeds_its_rate(arrivals: list[tuple[int, int]], limit: int, samples: int) -> None:
    """By more than one: where the window has just become shorter, a delay of at most a window may be too short."""
    simulation = Simulation(limits(limit, samples=samples))
    clients = simulation.connect(times(arrivals))
    simulation.run()
    assert all(client.admitted is not None for client in clients)
    assert most_over(clients, limit, samples) <= 1 + rounding(limit)
    assert all(throttle.delay_ms <= 1000 for throttle in simulation.throttles)


@pytest.mark.promise(
    "limits.md",
    "An address never enters more often than its rate; a waiting connection enters or is closed within a second.",
)
@given(ARRIVALS, ARRIVALS, st.integers(1, 30), st.sampled_from([2, 11]), st.booleans())
def test_an_address_never_exceeds_its_rate(
    first: list[tuple[int, int]], second: list[tuple[int, int]], limit: int, samples: int, recheck: bool
) -> None:
    simulation = Simulation(limits(samples=samples, ips={A: limit, B: limit + 1}, recheck=recheck))
    one = simulation.connect(times(first), address=A)
    other = simulation.connect(times(second), address=B)
    simulation.run()
    assert most_over(one, limit, samples) <= 1e-6
    assert most_over(other, limit + 1, samples) <= 1e-6
    ends = Counter((client.admitted is None) + (client.refused is None) for client in one + other)
    assert set(ends) == {1}
    assert all((client.admitted or client.refused or 0) - client.at <= 1000 for client in one + other)


# ---- any order of events --------------------------------------------------------------------------------------------

LISTENERS = ("CLIENT", "OTHER", "INTERNAL")
MAX_HELD = 5

QUOTAS = st.one_of(
    st.just(Quota()), st.builds(Quota, st.integers(1, 6), st.sampled_from(["enforce", "enforce", "observe"]))
)
ANY_LIMITS = st.builds(
    Limits,
    listeners=st.fixed_dictionaries(
        {name: st.builds(ListenerLimits, QUOTAS, QUOTAS, st.just(name == "INTERNAL")) for name in LISTENERS}
    ),
    rate=QUOTAS,
    connections=QUOTAS,
    ip_rates=st.dictionaries(st.sampled_from([A, DEFAULT_ADDRESS]), QUOTAS),
    ip_connections=QUOTAS,
    ip_connections_overrides=st.dictionaries(st.just(B), st.integers(0, 4)),
    samples=st.sampled_from([1, 2, 11]),
    recheck=st.booleans(),
    max_held=st.just(MAX_HELD),
)


class Everything(RuleBasedStateMachine):
    """Whatever happens, each connection that arrives is either admitted or refused, once, and no limit is exceeded."""

    @initialize(limits=ANY_LIMITS, evicts_at_once=st.booleans())
    def begin(self, limits: Limits, evicts_at_once: bool) -> None:
        self.now = 0
        self.arrived = 0
        self.settled: set[int] = set()
        self.open: list[tuple[int, str, str]] = []
        self.reported = Counter[tuple[str, str, str, str]]()
        self.of: dict[int, tuple[str, str]] = {}
        self.evicts_at_once = evicts_at_once
        self.gone: set[int] = set()
        self.quotas: ConnectionQuotas = ConnectionQuotas(
            limits,
            admit=self.admit,
            refuse=self.refuse,
            is_disconnected=self.gone.__contains__,
            evict=self.evict,
            on_throttle=self.note,
        )
        self.principals = PrincipalQuotas(limits, hold=ignored, resume=ignored, close=ignored, on_throttle=self.note)

    def admit(self, listener: str, token: int) -> None:
        assert token not in self.settled
        self.settled.add(token)
        where, address = self.of[token]
        assert where == listener
        self.open.append((token, where, address))
        limits, own = self.quotas.limits, self.quotas.limits.listeners[listener]
        if own.connections.enforced:
            assert self.quotas.open_by_listener[listener] <= own.connections.limit
        if limits.connections.enforced and not own.protected:
            assert self.quotas.open_total <= limits.connections.limit
        if self.quotas.connection_quota(address).enforced:
            assert self.quotas.open_by_address[address] <= self.quotas.connection_quota(address).limit

    def refuse(self, listener: str, token: int) -> None:
        assert token not in self.settled
        self.settled.add(token)
        assert self.of[token][0] == listener

    def evict(self, listeners: Collection[str]) -> None:
        assert set(listeners) == {"CLIENT", "OTHER"}
        idle = next((one for one in self.open if one[1] in listeners), None)
        if self.evicts_at_once and idle is not None:
            self.end(idle)

    def note(self, throttle: Throttle) -> None:
        assert throttle.delay_ms <= 1000
        assert throttle.observed >= throttle.limit
        self.reported[throttle.listener, throttle.scope, throttle.quota, throttle.action] += 1

    def end(self, one: tuple[int, str, str]) -> None:
        self.open.remove(one)
        self.quotas.release(one[1], one[2], self.now)

    @rule(listener=st.sampled_from(LISTENERS), address=st.sampled_from([A, B, "::1"]), count=st.integers(1, 8))
    def arrive(self, listener: str, address: str, count: int) -> None:
        for _ in range(count):
            if not self.quotas.is_blocked(listener):
                self.arrived += 1
                self.of[self.arrived] = (listener, address)
                self.quotas.submit(listener, address, self.arrived, self.now)

    @precondition(lambda self: self.arrived > len(self.settled))
    @rule(which=st.integers(0, 1_000))
    def give_up(self, which: int) -> None:
        waiting = sorted(self.of.keys() - self.settled)
        self.gone.add(waiting[which % len(waiting)])

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 1_000))
    def leave(self, which: int) -> None:
        self.end(self.open[which % len(self.open)])

    @rule(ms=st.sampled_from([0, 1, 50, 500, 1_000, 3_000, 20_000]))
    def pass_time(self, ms: int) -> None:
        until = self.now + ms
        while (due := self.quotas.next_timer()) is not None and due <= until:
            self.now = max(self.now, due)
            self.quotas.process_timers(self.now)
        self.now = until
        self.quotas.sensors.addresses.forget_idle(self.now)

    @rule(limits=ANY_LIMITS)
    def change(self, limits: Limits) -> None:
        self.quotas.update_limits(limits, self.now)

    @rule()
    def ask(self) -> None:
        collect_state(self.quotas, self.principals, self.now)

    @invariant()
    def nobody_is_lost(self) -> None:
        quotas = self.quotas
        waiting = [arrival.token for line in quotas.queues.values() for arrival in line]
        held = [arrival.token for _, _, arrival in quotas.held]
        assert sorted([*self.settled, *waiting, *held]) == list(range(1, self.arrived + 1))
        assert len(held) <= MAX_HELD
        assert all(due <= self.now + 1000 for due, _, _ in quotas.held)

    @invariant()
    def counts_are_of_what_is_open(self) -> None:
        quotas = self.quotas
        assert quotas.open_total == len(self.open) == sum(quotas.open_by_listener.values())
        assert {name: count for name, count in quotas.open_by_listener.items() if count} == Counter(
            one[1] for one in self.open
        )
        assert quotas.open_by_address == Counter(one[2] for one in self.open)
        assert quotas.throttled == self.reported

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        due = self.quotas.next_timer()
        assert due is None or due > self.now

    def teardown(self) -> None:
        """Once limits are gone and a second has passed, all have entered or been refused."""
        self.change(Limits(listeners=dict.fromkeys(LISTENERS, ListenerLimits())))
        self.pass_time(1_000)
        assert self.settled == set(range(1, self.arrived + 1))
        for one in list(self.open):
            self.end(one)
        assert (self.quotas.open_total, self.quotas.open_by_address) == (0, {})


TestEverything = Everything.TestCase
TestEverything.settings = settings(stateful_step_count=40)
