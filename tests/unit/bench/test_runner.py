"""The rounds: who begins, what is repeated, and that nothing is dropped in silence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.errors import LocalError
from tests.bench.contestants import Contestant
from tests.bench.results import Measurement, Results
from tests.bench.runner import new_results, progress, run
from tests.bench.scenarios import Measured
from tests.bench.stage import QUICK, Sizes
from tests.tools.fetched import MissingError

A, B, C = (Contestant(name, name.upper(), None) for name in "abc")


@dataclass
class Scripted:
    """A scenario whose measurements are given; an exception is raised."""

    script: dict[str, list[Measured | Exception]] = field(default_factory=dict)
    name: str = "scripted"
    at_most: int = 9
    reason: str = ""
    only: str = "abc"
    asked: list[str] = field(default_factory=list)

    def rounds(self, sizes: Sizes) -> int:
        return self.at_most

    def impossible(self) -> str:
        return self.reason

    def takes(self, contestant: Contestant) -> bool:
        return contestant.name in self.only

    def measure(self, stage: Any, contestant: Contestant) -> Measured:
        self.asked.append(contestant.name)
        left = self.script.get(contestant.name)
        answer = left.pop(0) if left else Measured({"x": 1.0}, 0.0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def done(scenario: Scripted, rounds: int = 1, quiet_wait: float = 0.0) -> Results:
    results = new_results([A, B, C], rounds)
    stage: Any = SimpleNamespace(sizes=replace(QUICK, quiet_wait=quiet_wait), wait_quiet=lambda: None, versions={})
    run(stage, [A, B, C], [scenario], rounds, results)
    return results


def test_each_round_begins_with_another_contestant() -> None:
    scenario = Scripted()
    done(scenario, rounds=3)
    assert "".join(scenario.asked) == "abcbcacab"


def test_who_is_missing_is_said_once_and_asked_no_more() -> None:
    scenario = Scripted({"b": [MissingError("not here")]})
    results = done(scenario, rounds=2)
    assert results.missing == {"b": "not here"}
    assert list(results.titles) == ["a", "c"]
    assert scenario.asked.count("b") == 1


def test_a_failure_is_kept_and_ends_nothing() -> None:
    results = done(Scripted({"a": [LocalError("it ended")]}), rounds=2)
    assert Measurement("scripted", "a", 0, {}, error="it ended") in results.measurements
    assert len(results.measurements) == 6


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError("no answer"), "TimeoutError: no answer"),
        (KeyError("x"), "KeyError: 'x'"),
        (ExceptionGroup("two", [LocalError("it ended"), KeyError("x")]), "it ended"),
    ],
)
def test_a_failure_of_any_kind_ends_nothing_and_is_said(error: Exception, said: str) -> None:
    results = done(Scripted({"a": [error]}))
    assert {one.contestant: one.error for one in results.measurements} == {"a": said, "b": "", "c": ""}


def test_a_contestant_may_be_for_some_scenarios_alone() -> None:
    scenario = Scripted()
    of_others, of_this = (
        Contestant(name, name, None, scenarios=(for_,)) for name, for_ in (("d", "x"), ("e", "scripted"))
    )
    results = new_results([], 1)
    stage: Any = SimpleNamespace(sizes=QUICK, wait_quiet=lambda: None, versions={})
    scenario.only = "ade"
    run(stage, [A, of_others, of_this], [scenario], 1, results)
    assert scenario.asked == ["a", "e"]


def test_what_is_impossible_is_skipped_with_its_reason() -> None:
    scenario = Scripted(reason="no such key")
    assert done(scenario).skipped == {"scripted": "no such key"}
    assert not scenario.asked


def test_what_takes_long_is_measured_in_fewer_rounds() -> None:
    scenario = Scripted(at_most=1, only="a")
    done(scenario, rounds=3)
    assert scenario.asked == ["a"]


@pytest.mark.parametrize(("second", "kept"), [(0.1, 2.0), (0.9, 1.0)])
def test_a_disturbed_measurement_is_repeated_once_and_the_quieter_one_kept(second: float, kept: float) -> None:
    scenario = Scripted({"a": [Measured({"x": 1.0}, 0.5), Measured({"x": 2.0}, second)]}, only="a")
    results = done(scenario, quiet_wait=1.0)
    assert [one.figures["x"] for one in results.measurements] == [kept]


def test_a_quick_run_repeats_nothing() -> None:
    scenario = Scripted({"a": [Measured({"x": 1.0}, 0.5)]}, only="a")
    done(scenario)
    assert scenario.asked == ["a"]


def test_progress_says_what_was_measured_and_who_disturbed() -> None:
    line = progress(Measurement("small", "haproxy", 0, {"cpu_us": 12.345, "per_s": 58_123.4}, foreign=0.4))
    assert " ".join(line.split()) == "small haproxy cpu_us 12.35 per_s 58,123 (others: 40% of a CPU)"
    assert "FAILED: it ended" in progress(Measurement("small", "haproxy", 0, {}, error="it ended"))
