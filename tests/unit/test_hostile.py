"""What is checked of the sidecar during attacks."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaException

from proxy.core.counters import ListenerCounters
from proxy.errors import LocalError
from proxy.telemetry.metrics import render
from proxy.telemetry.snapshot import Snapshot
from tests.hostile import checks, honest
from tests.hostile.__main__ import Run
from tests.hostile.checks import Probe
from tests.hostile.honest import percentiles
from tests.integration.metrics import unbalanced
from tests.unit.quotas_states import unlimited


@pytest.mark.parametrize(
    ("active", "found"),
    [
        (3, []),
        (2, ["B: accepted 13, active 2, waiting 1, held 2, closed 7"]),
        (4, ["B: accepted 13, active 4, waiting 1, held 2, closed 7"]),
    ],
)
def test_a_listener_whose_connections_are_not_all_counted_is_named(active: int, found: list[str]) -> None:
    a, b = ListenerCounters(accepted=2, active=2), ListenerCounters(accepted=13, active=active)
    b.closed.update(client_closed=4, consumer_failed=3)
    quotas = unlimited("A", "B")
    quotas.waiting["B"], quotas.held["B"] = 1, 2
    assert unbalanced(render(Snapshot({"A": a, "B": b}, quotas=quotas)).decode()) == found


@pytest.mark.parametrize(
    ("probe", "ok"),
    [
        (Probe(0.9, 0.0), True),
        (Probe(1.1, 0.0), False),
        (Probe(6.0, 5.1), True),  # the kernel ran others for so long
        (Probe(6.0, 4.9), False),
        (Probe(20.0, 20.0, "timed out"), False),
    ],
)
def test_a_late_probe_is_the_sidecars_unless_it_had_no_processor(probe: Probe, ok: bool) -> None:
    assert [check.ok for check in checks.livez([Probe(0.01, 0.0), probe])] == [ok]


def test_without_a_probe_nothing_is_known() -> None:
    assert [check.ok for check in checks.livez([])] == [False]


@pytest.mark.parametrize(
    ("revoked", "commits", "ok"),
    [
        ([], [(100.0, 0.01)], True),
        ([110.0, 110.0], [(100.0, 9.999)], False),
        ([110.0, 132.0], [(100.0, 12.0)], True),  # until the session timeout, 20 s, after it
        ([109.0], [(100.0, 12.0)], False),
        ([132.1], [(100.0, 12.0)], False),
        ([50.0], [(100.0, 12.0)], False),
        ([115.0, 300.0], [(100.0, 12.0)], False),
        ([115.0, 300.0], [(100.0, 12.0), (200.0, 0.01), (285.0, 10.0)], True),
        ([110.0], None, False),
        (None, [(100.0, 12.0)], False),
    ],
)
def test_consumers_lose_partitions_only_where_kafka_commits_nothing(
    revoked: list[float] | None, commits: list[tuple[float, float]] | None, ok: bool
) -> None:
    found = {"produced": 5, "lost": 0, "again": 0, "revoked": revoked, "failures": [], "got": {"one": 3, "two": 2}}
    transactions = None if commits is None else {"commits": commits}
    assert [check.ok for check in checks.consumed(found, transactions)] == [ok, True, True]


def test_to_start_a_transactional_producer_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

    class Producer:
        """Its first transaction fails, and each start takes 15 s."""

        ends: ClassVar = iter([KafkaException("timed out"), None, None])

        def __init__(self, settings: dict[str, Any]) -> None:
            pass

        def init_transactions(self, timeout: float) -> None:
            clock.sleep(15)

        def begin_transaction(self) -> None:
            pass

        def produce(self, topic: str, value: bytes) -> None:
            pass

        def commit_transaction(self, timeout: float) -> None:
            clock.sleep(2)
            if (error := next(self.ends)) is not None:
                raise error

    clock = Clock()
    monkeypatch.setattr(honest, "time", clock)
    monkeypatch.setattr(honest, "Producer", Producer)
    found = honest.commit("kafka:9092", 34, "topic")
    assert [round(began, 3) for began, _ in found["commits"]] == [115.0, round(132 + honest.PAUSE, 3)]
    assert [round(took, 3) for _, took in found["commits"]] == [2.0, 2.0]
    assert (found["count"], found["errors"], found["max"]) == (2, 1, 2000.0)


@pytest.mark.parametrize(
    ("slow", "stalls", "ok"),
    [
        ([], [(11.0, 18.0)], True),
        ([(5.0, 2.0)] * 20, [(11.0, 18.0)], False),
        ([(10.5, 19.0)] * 20, [(11.0, 18.0)], True),  # the broker stood still from 11 to 29
        ([(10.5, 190.0)] * 20, [(11.0, 18.0)], False),
        ([(5.0, 4.0)] * 20, [(11.0 + 2 * n, 1.0) for n in range(20)], False),  # by 2 % of stalls none is slow elsewhere
        ([(11.0 + 2 * n, 1.0) for n in range(20)], [(11.0 + 2 * n, 1.0) for n in range(20)], True),
    ],
)
def test_small_requests_are_slow_only_while_the_broker_is(
    slow: list[tuple[float, float]], stalls: list[tuple[float, float]], ok: bool
) -> None:
    fast = [(float(n), 0.002) for n in range(1000)]
    made = checks.latencies(_small(fast), _small(fast + slow), _small(fast + stalls))
    assert [check.ok for check in made] == [ok, ok or slow[0][1] < 18, True]


def test_a_broker_that_always_stands_still_allows_no_more_than_quiet_requests() -> None:
    made = checks.latencies(_small([(0.0, 0.002)]), _small([(1.0, 0.011)]), _small([(1.0, 0.1)]))
    assert [check.ok for check in made] == [False, True, True]


def test_a_step_that_fails_is_a_check_and_the_next_one_is_made() -> None:
    run = Run(["frames"], 1, 1)
    with run.step("first"):
        raise LocalError("it did not end within 60 s")
    with run.step("second"):
        pass
    assert [(check.what, check.ok) for check in run.checks] == [("first", False)]


def _small(requests: list[tuple[float, float]]) -> dict[str, Any]:
    """What ``honest.small`` counts of requests that began and took so long; those of more than 18 s have failed."""
    made = [(at, took, took > 18) for at, took in requests]
    counts = {"requests": made, "count": len(requests), "errors": 0, "foreign": 0}
    return {**counts, **percentiles([took * 1000 for _, took in requests])}
