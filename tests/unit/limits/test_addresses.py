"""Rates of addresses: who is held, who enters after that, and what is remembered of whom."""

from __future__ import annotations

from collections import Counter

import pytest

from proxy.limits import rate_sensors
from proxy.limits.model import Limits, Quota
from tests.unit.limits.simulation import A, B, Client, Simulation, admitted, limits, refused

Ends = Counter[tuple[int | None, int | None]]


def ends(clients: list[Client]) -> Ends:
    """How many were (admitted, refused) at which time."""
    return Counter((client.admitted, client.refused) for client in clients)


@pytest.mark.promise(
    "limits.md",
    "A connection beyond the rate of its address is held for a second at most; then it enters or is closed.",
)
def test_after_the_hold_one_enters_and_the_others_are_closed() -> None:
    for samples, burst in ((2, 20), (11, 200)):
        simulation = Simulation(limits(samples=samples, ips={A: 20}))
        clients = simulation.connect([0] * (burst + 5))
        others = simulation.connect([0, 10, 49], address=B)
        simulation.run()
        assert ends(clients) == {(0, None): burst, (50, None): 1, (None, 50): 4}, samples
        assert admitted(others) == [0, 10, 49], samples
    simulation = Simulation(limits(samples=2, ips={A: 3}))
    clients = simulation.connect([0] * 4)
    simulation.run()
    assert admitted(clients) == [0, 0, 0, 334], "rounded up, so that the second look does not come too early"


@pytest.mark.promise("limits.md", "With `ip.throttle.recheck: false` every held connection is closed, as Kafka does.")
def test_as_kafka_does_without_a_second_look_all_held_are_closed() -> None:
    simulation = Simulation(limits(ips={"<default>": 2}, recheck=False))
    clients = simulation.connect([0] * 30)
    simulation.run()
    assert ends(clients) == {(0, None): 20, (None, 500): 10}
    assert [throttle.observed for throttle in simulation.throttles] == [2.1] * 20


def test_nobody_is_held_for_longer_than_a_second() -> None:
    for recheck in [True, False]:
        simulation = Simulation(limits(ips={A: 20}, recheck=recheck))
        clients = simulation.connect(i * 25_000 // 10_000 for i in range(10_000))
        simulation.run()
        assert len(admitted(clients)) == 697, recheck  # ± 2 % of 20 × (25 + 10)
        assert len(refused(clients)) == 10_000 - 697, recheck
        assert max((client.admitted or client.refused or 0) - client.at for client in clients) == 1_000, recheck


@pytest.mark.promise(
    "limits.md",
    "At most `ip.throttle.max.delayed` connections are held at a time, and further ones are closed at once.",
)
def test_no_more_are_held_than_may_be() -> None:
    simulation = Simulation(limits(ips={A: 2}, max_held=1_000))
    clients = simulation.connect(i // 5 for i in range(5_000))
    most = 0
    for instant in range(2_500):
        simulation.run(instant)
        most = max(most, len(simulation.quotas.held))
    assert most == 1_000
    at_once = [client for client in clients if client.at in (client.admitted, client.refused)]
    assert len(refused(at_once)) > 1_000
    assert simulation.quotas.holds["CLIENT"][0] == 5_000 - len(at_once)
    assert simulation.quotas.held == []


def test_a_held_connection_counts_nowhere_until_it_enters() -> None:
    simulation = Simulation(limits(1_000, samples=2, ips={A: 20}, rate=Quota(1_000)))
    simulation.connect([0] * 25)
    simulation.run(0)
    quotas = simulation.quotas
    rates = quotas.sensors
    assert (quotas.open_total, quotas.open_by_listener, quotas.open_by_address) == (20, {"CLIENT": 20}, {A: 20})
    assert (len(quotas.held), quotas.is_blocked("CLIENT"), quotas.total_blocked("CLIENT", 0)) == (5, False, 0)
    assert rates.rate("CLIENT", 0) == rates.rate(None, 0) == rates.addresses.per_second(A, 0) == 20
    simulation.run()
    assert rates.rate("CLIENT", 50) == rates.rate(None, 50) == rates.addresses.per_second(A, 50) == 21 / 1.05


def test_an_address_of_its_own_quota_does_not_have_the_default_one() -> None:
    simulation = Simulation(limits(samples=2, ips={"<default>": 1, A: 5}))
    one, other = simulation.connect([0] * 10, address=A), simulation.connect([0] * 10, address=B)
    simulation.run(0)
    assert (len(admitted(one)), len(admitted(other))) == (5, 1)


def test_addresses_are_forgotten_when_nothing_of_them_counts_any_more() -> None:
    simulation = Simulation(limits(ips={"<default>": 5}))
    for i in range(1_500):
        simulation.connect([i // 100], address=f"10.1.{i // 256}.{i % 256}")
    simulation.run()
    measured = simulation.quotas.sensors.addresses
    measured.forget_idle(10_999)
    assert len(measured) == 1_500
    measured.forget_idle(11_000)
    assert len(measured) == 1_400
    measured.forget_idle(12_000)  # a thousand at a time
    assert len(measured) == 400
    measured.forget_idle(12_000)
    assert len(measured) == 0


def test_beyond_the_most_addresses_the_one_unused_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_sensors, "MAX_MEASURED_ADDRESSES", 3)
    simulation = Simulation(limits(ips={"<default>": 5}))
    for at, address in enumerate(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.4"]):
        simulation.connect([at], address=address)
    simulation.run()
    assert simulation.quotas.sensors.addresses.recent() == ["10.0.0.4", "10.0.0.1", "10.0.0.3"]


@pytest.mark.promise(
    "limits.md",
    "IPv6 addresses count together by their first 64 bits, and an address with a limit of its own counts alone.",
)
def test_what_an_address_is_counted_as() -> None:
    for address, length, quota_key in [
        ("10.0.0.7", 64, "10.0.0.7"),
        ("2001:db8::1", 64, "2001:db8::/64"),
        ("2001:db8::ffff:1", 64, "2001:db8::/64"),
        ("2001:db8:0:1::1", 64, "2001:db8:0:1::/64"),
        ("2001:db8:0:1::1", 48, "2001:db8::/48"),
        ("2001:db8::1", 128, "2001:db8::1"),
        ("2001:db8::7", 64, "2001:db8::7"),
        ("2001:db8::8", 64, "2001:db8::8"),
        ("2001:db8::9", 64, "2001:db8::9"),
    ]:
        limits = Limits(
            {},
            ip_rates={"2001:db8::7": Quota(5)},
            stored_ip_rates={"2001:db8::8": 5},
            ip_connections_overrides={"2001:db8::9": 5},
            ip_v6_prefix_length=length,
        )
        assert limits.quota_key(address) == quota_key, (address, length, quota_key)
