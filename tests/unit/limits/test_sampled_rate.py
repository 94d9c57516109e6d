"""The sampled rate by Kafka's numbers: what a real broker was measured to do, on a virtual clock."""

from __future__ import annotations

import pytest

from proxy.limits.sampled_rate import MIN_ELAPSED_MS, SampledRate, exceeds, throttle_time, throttle_time_rounded_up
from tests.unit.limits.simulation import A, Simulation, admitted, limits, refused


def first_delayed(simulation: Simulation) -> tuple[int, int, int | None]:
    """Its place among the clients, from 1, for how long it was delayed, and when it was accepted."""
    for place, client in enumerate(simulation.clients, start=1):
        assert client.admitted is not None
        assert client.accepted is not None
        if client.admitted > client.accepted:
            return place, client.admitted - client.accepted, client.accepted
    raise AssertionError("nobody was delayed")


@pytest.mark.parametrize(
    ("limit", "at"),
    [
        (20, {1: 0, 200: 0, 201: 50, 210: 500, 240: 11_950, 300: 11_950}),
        (5, {50: 0, 51: 200, 60: 6_000}),
        (1, {10: 0, 11: 1_000, 12: 2_000}),
    ],
)
def test_a_burst_enters_at_the_times_a_broker_was_measured_with(limit: int, at: dict[int, int]) -> None:
    simulation = Simulation(limits(limit))
    clients = simulation.connect([0] * max(at))
    simulation.run()
    assert {place: clients[place - 1].admitted for place in at} == at


@pytest.mark.parametrize(("samples", "first", "last"), [(11, (321, 700, 8_000), 18_000), (2, (41, 367, 1_000), 20_000)])
def test_forty_a_second_at_a_limit_of_thirty(samples: int, first: tuple[int, int, int], last: int) -> None:
    simulation = Simulation(limits(30, samples=samples))
    clients = simulation.connect(range(0, 15_000, 25))
    simulation.run()
    assert first_delayed(simulation) == first
    assert clients[-1].admitted == last


@pytest.mark.parametrize("samples", [11, 2])
def test_an_address_twice_as_fast_as_its_limit_is_let_in_half_the_time(samples: int) -> None:
    simulation = Simulation(limits(samples=samples, ips={A: 20}))
    clients = simulation.connect(range(0, 60_000, 25))
    simulation.run()
    assert (len(admitted(clients)), len(refused(clients))) == (1_200, 1_200)


def test_an_address_ten_times_as_fast_as_its_limit() -> None:
    simulation = Simulation(limits(ips={A: 5}))
    clients = simulation.connect(range(0, 30_000, 20))
    simulation.run()
    assert len(admitted(clients)) == 172
    assert sum(client.admitted is not None and client.admitted > client.at for client in clients) == 16


def test_a_whole_burst_is_exactly_ten_seconds_worth() -> None:
    simulation = Simulation(limits(7))
    clients = simulation.connect([0] * 100)
    simulation.run(until=0)
    assert len(admitted(clients)) == 7 * 10


def test_nothing_recorded_is_no_rate() -> None:
    assert SampledRate(11, 1000).measure(5) == (0, 10_000)
    assert SampledRate(11, 1000).per_second(5) == 0
    assert SampledRate(1, 1000).measure(5) == (0, MIN_ELAPSED_MS)


def test_what_is_taken_back_later_never_shows_as_less_than_nothing() -> None:
    rate = SampledRate(2, 1000)
    rate.record(1, 0)
    rate.record(-1, 1_999)
    assert rate.measure(2_500) == (-1, 1_501)
    assert rate.per_second(2_500) == 0


def test_a_sample_counts_until_its_last_record_is_a_whole_window_old() -> None:
    rate = SampledRate(2, 1000)
    rate.record(3, 0)
    rate.record(4, 999)
    assert rate.measure(2_998) == (7, 2_998)
    assert not rate.is_idle(2_998)
    assert rate.measure(2_999) == (0, 1_000)
    assert rate.is_idle(2_999)


def test_exactly_as_many_as_the_limit_are_not_over() -> None:
    assert not exceeds(200, 10_000, 20)
    assert exceeds(201, 10_000, 20)


@pytest.mark.parametrize(
    ("count", "window", "limit", "half_up", "up"),
    [
        (201, 10_000, 20, 50, 50),
        (4, 1_000, 3, 333, 334),
        (5, 1_000, 3, 667, 667),
        (17, 1_000, 16, 63, 63),  # 62.5
    ],
)
def test_the_wait_is_rounded_as_kafka_does_or_up(count: int, window: int, limit: int, half_up: int, up: int) -> None:
    assert throttle_time(count, window, limit) == half_up
    assert throttle_time_rounded_up(count, window, limit) == up
