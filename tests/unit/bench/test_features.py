"""What features cost: from the turns of a sidecar with them and one without."""

from __future__ import annotations

import pytest

from proxy.errors import LocalError
from tests.bench import features
from tests.bench.features import cost_figures
from tests.bench.report import goal_rows
from tests.bench.stage import Outcome
from tests.unit.bench.samples import results


def turn(cpu: float, requests: int, errors: int = 0) -> Outcome:
    return Outcome({"requests": requests, "errors": errors}, cpu, 0.0)


def test_cost_is_all_cpu_by_all_requests_and_the_ratio_that_of_the_sides() -> None:
    figures = cost_figures(
        {
            "small_off": [turn(1.0, 100_000), turn(3.0, 100_000)],
            "small_on": [turn(2.1, 100_000), turn(2.1, 100_000)],
            "storm_off": [turn(1.0, 10_000)],
            "storm_on": [turn(2.0, 10_000)],
        }
    )
    assert figures == pytest.approx(
        {
            "small_off_cpu_us": 20.0,
            "small_on_cpu_us": 21.0,
            "small_ratio": 1.05,
            "storm_off_cpu_us": 100.0,
            "storm_on_cpu_us": 200.0,
            "storm_ratio": 2.0,
        }
    )


def test_requests_that_failed_are_said() -> None:
    figures = cost_figures({name: [turn(1.0, 10, 1), turn(1.0, 10, 2)] for name in ("small_off", "small_on")} | {
        name: [turn(1.0, 10)] for name in ("storm_off", "storm_on")
    })  # fmt: skip
    assert {name: value for name, value in figures.items() if name.endswith("errors")} == {
        "small_off_errors": 3,
        "small_on_errors": 3,
    }


@pytest.mark.parametrize(("worst", "verdict"), [(1.02, "reached"), (1.03, "not reached")])
def test_a_goal_for_every_round_is_reached_by_the_worst(worst: float, verdict: str) -> None:
    made = results({("features", "brokerside"): {"small_ratio": [0.98, worst, 1.0]}})
    assert goal_rows(made)[1][1:] == [f"1.00 (0.98–{worst:.2f})", "≤ 1.02", verdict]


@pytest.mark.parametrize(
    ("command", "problem"), [(["false"], "exit 1"), (["sleep", "60"], "no answer within"), (["true"], "")]
)
def test_a_tool_that_fails_fails_its_measurement_alone(
    monkeypatch: pytest.MonkeyPatch, command: list[str], problem: str
) -> None:
    monkeypatch.setattr(features, "tool", lambda *_: command)
    monkeypatch.setattr(features, "TOOL_TIMEOUT", 0.2 if problem.startswith("no") else 10.0)
    if not problem:
        features._run_tool(["downgrade"])
        return
    with pytest.raises(LocalError, match=problem):
        features._run_tool(["downgrade"])
