"""The table ``quota_advice``."""

import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from proxy.limits.sampled_rate import SampledRate
from spark_jobs.schemas import COMPLETENESS, CONNECTIONS, THROTTLES
from tests.spark import derived
from tests.spark.derived import NOON, after, alive
from tests.spark.stored import Row, rows

Rows = Sequence[dict[str, Any]]

RATE, NUMBER = "connection_creation_rate", "connections"


def opened(at: float, until: float | None = None, **changes: Any) -> dict[str, Any]:
    key = {"day": after(at).date(), "cluster_id": "cluster", "broker_id": 1, "boot_id": "boot"}
    who = {"listener": "CLIENT", "client_ip": "10.0.0.7", "principal": "User:alice"}
    closed = None if until is None else after(until)
    return {**key, **who, "opened_at": after(at), "closed_at": closed, **changes}


def made(connections: Rows, throttles: Rows = (), completeness: Rows | None = None) -> dict[tuple[Any, ...], Row]:
    """The rows of the table by cluster, broker, scope, listener and quota; every connection has an id of its own."""
    numbered = [{"connection_id": f"c{number}", **one} for number, one in enumerate(connections)]
    reported = alive(0, 3_600) if completeness is None else completeness
    given = {CONNECTIONS: numbered, THROTTLES: throttles, COMPLETENESS: reported}
    found = derived.rows("quota_advice", {table.name: rows(table, *each) for table, each in given.items()})
    by = {(row.cluster_id, row.broker_id, row.scope, row.listener, row.quota): row for row in found}
    assert len(by) == len(found)
    return by


@pytest.mark.promise(
    "tables/quota_advice.md", "`quota_advice` names rates that would have let through every connection that came."
)
def test_a_rate_is_about_what_the_sidecar_would_have_measured() -> None:
    random = Random(7)
    poisson, at = [], 0.0
    while at < 60_000:
        poisson.append(int(at))
        at += random.expovariate(5) * 1_000
    milliseconds = {
        "even": [130 + 100 * number for number in range(300)], "slow": [2_500 * number for number in range(20)],
        "one": [0], "storm": sorted(random.randrange(3_000) for _ in range(300)), "poisson": poisson,
        "bursts": sorted(random.randrange(200) + 8_000 * burst for burst in range(5) for _ in range(40)),
    }  # fmt: skip
    reported = [opened(ms / 1_000, cluster_id=name) for name, all_ms in milliseconds.items() for ms in all_ms]
    found = made(reported)
    for name, all_ms in milliseconds.items():
        row = found[name, 1, "broker", None, RATE]
        seconds = Counter(ms // 1_000 for ms in all_ms)
        of_window = {second: sum(seconds[second - back] for back in range(11)) for second in seconds}
        assert row.peak == max(of_window.values()) / 10, name
        sidecar, measured = SampledRate(11, 1_000), 0.0
        for ms in all_ms:
            sidecar.record(1, ms)
            measured = max(measured, sidecar.per_second(ms))
        assert 0.9 <= row.peak / measured <= 1.11, name
        assert row.advice == max(1, math.ceil(row.peak * 1.5)) >= measured, name
        ordered = sorted(of_window.values())
        assert row.p99 == ordered[math.ceil(0.99 * len(ordered)) - 1] / 10, name
        assert row.observations == len(all_ms)


@pytest.mark.promise(
    "tables/quota_advice.md",
    "`quota_advice` has the highest number of connections that were open at once, and whose the last one was.",
)
def test_the_number_that_was_open_at_a_time() -> None:
    """3 from second 20 to 30; what ends in an instant makes room for what begins in it."""
    reported = [
        opened(0, 50), opened(10, 30), opened(20, 40, principal="User:bob"), opened(30, 60), opened(40, 41),
        opened(50, 50), opened(55),
    ]  # fmt: skip
    row = made(reported)["cluster", 1, "ip", None, NUMBER]
    assert row == {
        "day": NOON.date(), "cluster_id": "cluster", "scope": "ip", "broker_id": 1, "listener": None, "quota": NUMBER,
        "config": "max.connections.per.ip", "observations": 7, "since": after(0), "until": after(55), "p99": 3.0,
        "peak": 3.0, "peak_at": after(20), "peak_by": "10.0.0.7 User:bob", "throttled": 0, "advice": 5,
    }  # fmt: skip


@pytest.mark.promise(
    "tables/quota_advice.md", "`quota_advice` has a value for each limit of the sidecar, by broker and for all of them."
)
def test_each_limit_counts_its_own() -> None:
    reported = [
        *[opened(0) for _ in range(4)],
        *[opened(0, listener="TLS", client_ip="10.0.0.8", principal="User:bob") for _ in range(5)],
        *[opened(0, listener="TLS", client_ip="10.0.0.9") for _ in range(3)],
        *[opened(0, broker_id=2, boot_id="b2", client_ip="10.0.0.9") for _ in range(10)],
    ]
    found = made(reported)
    numbers = {key[1:4]: row.peak for key, row in found.items() if key[4] == NUMBER}
    assert numbers == {
        (1, "broker", None): 12, (1, "listener", "CLIENT"): 4, (1, "listener", "TLS"): 8, (1, "ip", None): 5,
        (2, "broker", None): 10, (2, "listener", "CLIENT"): 10, (2, "ip", None): 10, (None, "broker", None): 12,
        (None, "listener", "CLIENT"): 10, (None, "listener", "TLS"): 8, (None, "ip", None): 10,
    }  # fmt: skip
    assert {key[1:4]: row.peak for key, row in found.items() if key[4] == RATE} == {
        key: number / 10 for key, number in numbers.items()
    }
    assert {row.config for row in found.values()} == {
        "max.connection.creation.rate", "max.connections", "listener.name.client.max.connection.creation.rate",
        "listener.name.client.max.connections", "listener.name.tls.max.connection.creation.rate",
        "listener.name.tls.max.connections", "ips.<default>.connection_creation_rate", "max.connections.per.ip",
    }  # fmt: skip
    who = {key[1]: row.peak_by for key, row in found.items() if key[2:] == ("ip", None, NUMBER)}
    assert who == {1: "10.0.0.8 User:bob", 2: "10.0.0.9 User:alice", None: "10.0.0.9 User:alice"}
    assert found["cluster", None, "broker", None, NUMBER].observations == 22


def test_one_whose_end_was_not_reported_is_open_as_long_as_its_sidecar_ran() -> None:
    """Three at second 5; then one each at second 1,000, when the first run may be gone."""
    cases = {
        "alive": alive(0, 3_600),
        "killed": [*alive(0, 330), *alive(400, 3_600, boot="next")],
        "ended": [*alive(0, 330, ended=True), *alive(335, 3_600, boot="next")],
        "worker": [*alive(0, 3_600), *alive(0, 3_590, boot="next")],
    }
    reported = [opened(5, cluster_id=name) for name in cases for _ in range(3)]
    reported += [opened(1_000, 1_001, cluster_id=name, boot_id="next") for name in cases]
    seen = [{**row, "cluster_id": name} for name, case in cases.items() for row in case]
    found = made(reported, completeness=seen)
    assert {name: found[name, 1, "broker", None, NUMBER].peak for name in cases} == {
        "alive": 4, "killed": 3, "ended": 3, "worker": 4,
    }  # fmt: skip


def test_one_whose_beginning_was_not_reported() -> None:
    reported = [opened(0, 90, opened_at=None, duration_ms=30_000), opened(0, opened_at=None)]
    row = made(reported)["cluster", 1, "broker", None, RATE]
    assert (row.observations, row.since, row.peak, row.advice) == (1, after(60), 0.1, 1)


def test_one_that_says_it_was_open_for_30_000_years_does_not_count() -> None:
    """Its row would be of a day that Python does not have, and the table could not be computed."""
    assert not made([opened(0, 90, opened_at=None, duration_ms=10**15)])


def test_connections_that_met_a_limit_of_the_kind() -> None:
    def throttled(scope: str, count: int, *, at: float = 10, **changes: Any) -> dict[str, Any]:
        key = {"day": NOON.date(), "minute": NOON, "cluster_id": "cluster", "broker_id": 1, "listener": "CLIENT"}
        reported = {
            "first_at": after(at), "last_at": after(at) + timedelta(seconds=1), "client_ip": "*", "action": "hold",
        }  # fmt: skip
        return {**key, **reported, "scope": scope, "quota": RATE, "count": count, **changes}

    reported = [
        throttled("broker", 1), throttled("broker", 2, listener="TLS"), throttled("broker", 4, broker_id=2),
        throttled("listener", 8), throttled("listener", 16, listener="TLS"), throttled("ip", 32),
        throttled("ip", 64, action="observe"), throttled("ip", 128, quota=NUMBER), throttled("broker", 256, at=100),
        throttled("broker", 512, cluster_id="west"),
    ]  # fmt: skip
    found = made([opened(0), opened(20), opened(1, broker_id=2, boot_id="b2")], reported)
    assert {key[1:]: row.throttled for key, row in found.items() if row.throttled} == {
        (1, "broker", None, RATE): 3, (None, "broker", None, RATE): 7, (1, "listener", "CLIENT", RATE): 8,
        (None, "listener", "CLIENT", RATE): 8, (1, "ip", None, RATE): 96, (None, "ip", None, RATE): 96,
        (1, "ip", None, NUMBER): 128, (None, "ip", None, NUMBER): 128,
    }  # fmt: skip
