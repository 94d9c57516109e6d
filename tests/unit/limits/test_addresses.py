"""Rates of addresses: who is held, who enters after that, and what is remembered of whom."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter

import pytest

from proxy.limits import rate_sensors
from proxy.limits.connection_quotas import ConnectionQuotas
from proxy.limits.model import Limits, ListenerLimits, Quota
from tests.unit.limits.simulation import A, B, Client, Simulation, admitted, limits, refused

Ends = Counter[tuple[int | None, int | None]]


def ends(clients: list[Client]) -> Ends:
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


@pytest.mark.promise("CONTRIBUTING.md", "What is kept of a client address is small, and goes once it was idle.")
@pytest.mark.promise(
    "limits.md", "A measured address takes less than a kilobyte of memory, and nothing once it is idle."
)
def test_an_address_takes_less_than_a_kibibyte_and_nothing_once_it_was_idle() -> None:
    """Each is as large as it can be, with every sample in use."""
    samples, now = 12, 0
    quotas: ConnectionQuotas = ConnectionQuotas(
        Limits({"CLIENT": ListenerLimits()}, ip_rates={"<default>": Quota(5)}, ip_connections=Quota(100)),
        admit=lambda _listener, _token: None,
        refuse=lambda _listener, _token: None,
        is_disconnected=lambda _token: False,
        evict=lambda _listeners: None,
        on_throttle=lambda _throttle: None,
    )
    addresses = [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(1_000)]
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(samples):
            now += 1_000
            for address in addresses:
                quotas.submit("CLIENT", address, 0, now)
        assert quotas.open_total == samples * len(addresses)
        assert tracemalloc.get_traced_memory()[0] <= 1_024 * len(addresses)
        for address in addresses * samples:
            quotas.release("CLIENT", address, now)
        assert len(quotas.sensors.addresses) == len(addresses)
        now += samples * 1_000
        while quotas.sensors.addresses:
            before = len(quotas.sensors.addresses)
            quotas.sensors.addresses.forget_idle(now)
            assert len(quotas.sensors.addresses) < before
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] <= 102 * len(addresses)  # Python's dicts keep their tables
        assert not quotas.open_by_address
    finally:
        tracemalloc.stop()
