"""The sampled rate by Kafka's numbers: what a real broker was measured to do, on a virtual clock."""

from __future__ import annotations

import pytest

from proxy.limits.sampled_rate import MIN_ELAPSED_MS, SampledRate, exceeds, throttle_time, throttle_time_rounded_up
from tests.unit.limits.simulation import A, Simulation, admitted, limits, refused


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


def test_what_counts_and_until_when() -> None:
    assert SampledRate(11, 1000).measure(5) == (0, 10_000)
    assert SampledRate(11, 1000).per_second(5) == 0
    assert SampledRate(1, 1000).measure(5) == (0, MIN_ELAPSED_MS)
    taken_back = SampledRate(2, 1000)
    taken_back.record(1, 0)
    taken_back.record(-1, 1_999)
    assert taken_back.measure(2_500) == (-1, 1_501)
    assert taken_back.per_second(2_500) == 0, "never less than nothing"
    rate = SampledRate(2, 1000)
    rate.record(3, 0)
    rate.record(4, 999)
    assert rate.measure(2_998) == (7, 2_998)
    assert not rate.is_idle(2_998)
    assert rate.measure(2_999) == (0, 1_000), "a sample counts until its last record is a whole window old"
    assert rate.is_idle(2_999)
    assert not exceeds(200, 10_000, 20), "exactly as many as the limit are not over"
    assert exceeds(201, 10_000, 20)


def test_the_wait_is_rounded_as_kafka_does_or_up() -> None:
    for count, window, limit, half_up, up in [
        (201, 10_000, 20, 50, 50),
        (4, 1_000, 3, 333, 334),
        (5, 1_000, 3, 667, 667),
        (17, 1_000, 16, 63, 63),  # 62.5
    ]:
        assert throttle_time(count, window, limit) == half_up, (count, window, limit, half_up, up)
        assert throttle_time_rounded_up(count, window, limit) == up, (count, window, limit, half_up, up)
