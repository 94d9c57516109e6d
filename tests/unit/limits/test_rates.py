"""Rates of a listener, the broker and addresses: who waits or is held, for how long, and what is remembered."""

import gc
import tracemalloc
from collections import Counter

import pytest

from proxy.limits import rate_sensors
from proxy.limits.admission_pace import ADMISSION_COST, ARRIVAL_COST, FIRST, AdmissionPace
from proxy.limits.connection_quotas import MAX_ENDED_HOLDS, ConnectionQuotas
from proxy.limits.model import UNLIMITED, Limits, ListenerLimits, Quota
from tests.unit.limits.simulation import A, B, Client, Simulation, admitted, limits, refused


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
