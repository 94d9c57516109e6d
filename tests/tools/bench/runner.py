"""The rounds: every scenario on every contestant, one after the other, beginning with another one each time."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from proxy.errors import LocalError
from tests.tools.bench.contestants import Contestant
from tests.tools.bench.report import NOISY
from tests.tools.bench.results import Measurement, Results, rotated
from tests.tools.bench.scenarios import Measured, Scenario
from tests.tools.bench.stage import Stage
from tests.tools.fetched import MissingError


def run(
    stage: Stage, contestants: Sequence[Contestant], scenarios: Sequence[Scenario], rounds: int, results: Results
) -> None:
    """Fill ``results``, with a line on stderr for each measurement; an error of one does not end the others."""
    present = list(contestants)
    begun = time.monotonic()
    for number in range(rounds):
        for scenario in scenarios:
            if number >= scenario.rounds(stage.sizes):
                continue
            for contestant in rotated(_takers(scenario, present), number):
                try:
                    measured = _quietest(stage, scenario, contestant)
                except MissingError as reason:
                    present.remove(contestant)
                    results.titles.pop(contestant.name, None)
                    results.missing[contestant.name] = str(reason)
                    _say(f"{contestant.name} is missing: {reason}")
                    continue
                except Exception as error:  # of whatever kind: the figures of the others are worth having
                    measured = Measured({}, 0.0, _sentence(error))
                results.versions = stage.versions
                one = Measurement(
                    scenario.name, contestant.name, number, measured.figures, measured.foreign, measured.error
                )
                results.measurements.append(one)
                _say(f"{time.monotonic() - begun:5.0f} s  round {number + 1}/{rounds}  {progress(one)}")


def _takers(scenario: Scenario, present: Sequence[Contestant]) -> list[Contestant]:
    return [one for one in present if scenario.takes(one) and scenario.name in (one.scenarios or [scenario.name])]


def _sentence(error: BaseException) -> str:
    """What to say of an error; one that nobody has foreseen is printed with its traceback, too."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, LocalError):
        return str(error)
    if not isinstance(error, OSError):
        traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


def _quietest(stage: Stage, scenario: Scenario, contestant: Contestant) -> Measured:
    """Measure, and once more if others were using the machine; return the quieter of the two."""
    stage.wait_quiet()
    first = scenario.measure(stage, contestant)
    if first.foreign <= NOISY or not stage.sizes.quiet_wait:
        return first
    stage.wait_quiet()
    return min(first, scenario.measure(stage, contestant), key=lambda measured: measured.foreign)


def progress(one: Measurement) -> str:
    figures = "  ".join(
        f"{name} {value:,.4g}" if value < 1e4 else f"{name} {value:,.0f}" for name, value in one.figures.items()
    )
    others = f"  (others: {one.foreign:.0%} of a CPU)" if one.foreign > NOISY else ""
    return f"{one.scenario:<9} {one.contestant:<24} {figures or 'FAILED: ' + one.error}{others}"


def new_results(contestants: Sequence[Contestant], rounds: int, *, quick: bool = False) -> Results:
    """Results of nothing yet, and of which machine."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    machine = {
        "cpu": f"{len(os.sched_getaffinity(0))} CPUs ({model})",
        "kernel": f"Linux {platform.release().partition('-')[0]}",
        "python": f"Python {platform.python_version()}",
    }
    made = datetime.now(UTC).strftime("%Y-%m-%d")
    return Results(made, machine, rounds, quick, titles={one.name: one.title for one in contestants})


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
