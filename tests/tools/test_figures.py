"""How the tools come from what they measured to the numbers and verdicts that the documentation has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tools.bench.group_members import Ownership, Transition
from tests.tools.bench.group_scale import lateness_p99
from tests.tools.bench.report import (
    NOT_REACHED,
    ONE_ROUND,
    OVERLAP,
    REACHED,
    Figure,
    Goal,
    Section,
    goal_rows,
    section_rows,
    verdict,
)
from tests.tools.bench.results import Measurement, Results, ratios_within, summary
from tests.tools.conformance.crowd import Visits
from tests.tools.conformance.storm import SMOOTH, Beside
from tests.tools.conformance.verdicts import ENOUGH, judge_beside
from tests.tools.hostile import checks
from tests.tools.hostile.checks import Probe
from tests.tools.hostile.honest import percentiles


def results(*measured: tuple[str, str, int, dict[str, float]]) -> Results:
    made = Results("2026-01-01", {"cpu": "2 CPUs"}, 2, titles={name: name for _, name, _, _ in measured})
    made.measurements = [Measurement(*one) for one in measured]
    return made


@pytest.mark.promise("performance.md", "A goal is reached where its median reaches it and the ranges do not overlap.")
def test_a_goal_that_chance_decides_is_not_decided() -> None:
    at_most, at_least = (Goal("", "", "", "", "haproxy", 1.1, at_least=way) for way in (False, True))
    for goal, own, reference, expected in (
        (at_most, [10, 11], [10.5, 11], REACHED),
        (at_most, [10, 12], [10.5, 11], OVERLAP),
        (at_most, [13, 14], [10, 11], NOT_REACHED),
        (at_most, [10], [10], ONE_ROUND),
        (at_least, [15, 16], [10, 11], REACHED),
        (at_least, [10, 16], [10, 11], OVERLAP),
        (at_least, [10, 10], [10, 11], NOT_REACHED),
    ):
        ratios = ratios_within(dict(enumerate(own)), dict(enumerate(reference)))
        assert verdict(goal, own, reference, ratios) == expected, (goal, own, reference)


def test_ratios_are_of_one_round_and_the_audit_costs_what_is_more_than_without_it() -> None:
    assert ratios_within({0: 2.0, 1: 9.0, 3: 6.0}, {0: 1.0, 2: 1.0, 3: 4.0}) == [2.0, 1.5]
    found = summary([3.0, 1.0, 2.0])
    assert found is not None
    assert (found.median, found.least, found.greatest) == (2.0, 1.0, 3.0)
    made = results(
        ("small", "haproxy", 0, {"cpu_us": 10.0}), ("small", "haproxy", 1, {"cpu_us": 20.0}),
        ("small", "brokerside", 0, {"cpu_us": 11.0}), ("small", "brokerside", 1, {"cpu_us": 21.0}),
        ("small", "brokerside-audit", 0, {"cpu_us": 13.0}), ("small", "brokerside-audit", 1, {"cpu_us": 22.0}),
    )  # fmt: skip
    assert made.by_round("audit", "brokerside-audit", "cpu_us") == {0: 2.0, 1: 1.0}
    rows = section_rows(made, Section("small", "", (Figure("cpu_us", "CPU", 1),)))
    assert rows[2] == ["brokerside", "16.0 (11.0–21.0)", "1.08 (1.05–1.10)"]
    assert [row[-1] for row in goal_rows(made)[1:]] == [OVERLAP, OVERLAP, "kafka-proxy is missing"]


async def test_a_partition_is_without_an_owner_from_one_to_the_next() -> None:
    owned = Ownership(2, "group")
    owned.transitions = [
        Transition(*one) for one in ((1.0, 0, None), (5.0, 0, None), (5.5, 0, "b"), (6.0, 1, None), (6.2, 1, "a"))
    ]
    assert owned.gaps(5.0, ["a", "a"]) == pytest.approx([0.5, 0.2])
    owned.assign("a", {0})
    owned.assign("b", {0, 1})
    assert (owned.overlaps, owned.settled(["b"])) == (1, True)
    late = [[n * 2.0 + (0.5 if n == 50 else 0.0) for n in range(101)]]
    assert lateness_p99(late, 2.0) == pytest.approx(0.0, abs=0.5)
    assert lateness_p99([[0.0]], 2.0) is None


def test_a_limit_is_judged_by_what_the_sidecar_adds() -> None:
    for during, past, admitted, expected in (
        (0.0012, 0.001, 100, [True, True]),
        (0.0013, 0.001, 101, [False, False]),
        (0.0024, 0.002, 98, [True, False]),
        (0.0026, 0.002, 100, [False, True]),
    ):
        latencies = [[one] * ENOUGH for one in (0.001, during, 0.001, past)]
        beside = Beside(SMOOTH, *latencies, 1000, admitted, allowed=100, answered=99)
        assert [check.ok for check in judge_beside([beside])] == expected, (during, past, admitted)
    visits = Visits(0.0, [0.0] * 4, [0.0, 0.5, 0.9, 0.0], [-1.0, -1.0, -1.0, 0.1], [1.0, 1.5, 1.9, 0.2], ["fin"] * 4)
    assert (visits.most_held(), visits.holds()) == (3, pytest.approx([1.0] * 3))


def small(requests: list[tuple[float, float]]) -> dict[str, Any]:
    made = [(at, took, took > 18) for at, took in requests]
    counts = {"requests": made, "count": len(requests), "errors": 0, "foreign": 0}
    return {**counts, **percentiles([took * 1000 for _, took in requests])}


def test_an_attack_is_judged_by_what_is_the_sidecars() -> None:
    fast = [(float(n), 0.002) for n in range(1000)]
    for slow, stalls, ok in (
        ([], [(11.0, 18.0)], True),
        ([(5.0, 2.0)] * 20, [(11.0, 18.0)], False),
        ([(10.5, 19.0)] * 20, [(11.0, 18.0)], True),  # the broker stood still from 11 to 29
        ([(10.5, 190.0)] * 20, [(11.0, 18.0)], False),
    ):
        made = [check.ok for check in checks.latencies(small(fast), small(fast + slow), small(fast + stalls))]
        assert made[0] == ok, (slow, stalls)
    for probe, ok in (
        (Probe(0.9, 0.0), True),
        (Probe(1.1, 0.0), False),
        (Probe(6.0, 5.1), True),
        (Probe(2, 2, "x"), False),
    ):
        assert [check.ok for check in checks.livez([probe])] == [ok], probe
    found = {"produced": 5, "lost": 0, "again": 0, "failures": [], "got": {}}
    for revoked, commits, ok in (
        ([], [(100.0, 0.01)], True),
        ([110.0], [(100.0, 9.999)], False),
        ([110.0, 132.0], [(100.0, 12.0)], True),
        ([132.1], [(100.0, 12.0)], False),
        (None, [(100.0, 12.0)], False),
    ):
        made = [check.ok for check in checks.consumed({**found, "revoked": revoked}, {"commits": commits})]
        assert made == [ok, True, True], (revoked, commits)
