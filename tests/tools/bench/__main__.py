"""``python -m tests.tools.bench``: measure contestants side by side; ``… report FILE``: print the tables again."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import DecodeError

from proxy.errors import LocalError
from tests.tools.bench.contestants import CONTESTANTS, Contestant
from tests.tools.bench.group_scale import GroupScale
from tests.tools.bench.groups import GroupEvents
from tests.tools.bench.jobs import Jobs
from tests.tools.bench.kafka import RealKafka
from tests.tools.bench.report import NOISY, failures, markdown, svg
from tests.tools.bench.results import Measurement, Results, rotated
from tests.tools.bench.scenarios import LOADS, Footprint, Idle, Measured, Scenario, Workers
from tests.tools.bench.stage import FULL, QUICK, Stage
from tests.tools.bench.tls import Tls
from tests.tools.fetched import MissingError

OUT = Path(".brokerside/bench")
GROUPS: tuple[Scenario, ...] = (GroupEvents(), GroupScale())
"""One to four minutes of each for a round: a run that is not quick has them where they are named."""

SLOW_TO_FETCH = ("haproxy-3",)
"""Unpacked by mmdebstrap, minutes on a busy machine: a quick run has it where it is named."""

DEFAULT: tuple[Scenario, ...] = (*LOADS, Footprint(), Idle(), Workers(), Tls(), RealKafka(), Jobs())
SCENARIOS = (*DEFAULT, *GROUPS)


def main(arguments: list[str]) -> int:
    try:
        return _report(arguments[1:]) if arguments[:1] == ["report"] else _bench(_options(arguments))
    except (LocalError, OSError, DecodeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


def _bench(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is ended
    results = _new_results(options.only, options.rounds, quick=options.quick)
    interrupted = False
    try:
        folder = Path(tempfile.mkdtemp(prefix="brokerside-bench-"))
        given = ("scale_seconds", "job_events", "job_keys")
        chosen = {name: value for name in given if (value := getattr(options, name)) is not None}
        sizes = replace(QUICK if options.quick else FULL, **chosen)
        with Stage(folder, sizes) as stage:
            _run(stage, options.only, options.scenarios, options.rounds, results)
    except KeyboardInterrupt:
        interrupted = True
        print("bench: interrupted; this is what was measured until then", file=sys.stderr)
    options.out.mkdir(parents=True, exist_ok=True)
    results.save(options.out / "bench.json")
    (options.out / "bench.md").write_text(markdown(results) + "\n")
    (options.out / "bench.svg").write_text(svg(results))
    print(markdown(results))
    print(f"\nalso in {options.out}: bench.json, bench.md, bench.svg")
    return 130 if interrupted else int(bool(failures(results)))


def _options(arguments: list[str]) -> argparse.Namespace:
    names = ", ".join(one.name for one in CONTESTANTS)
    scenarios = ", ".join(one.name for one in SCENARIOS)
    without = f"all but {', '.join(one.name for one in GROUPS)}, with --quick all"
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench", description=__doc__)
    parser.add_argument("--only", type=_chosen(CONTESTANTS), help=f"contestants, of {names}")
    parser.add_argument("--scenarios", type=_chosen(SCENARIOS), help=f"of {scenarios}; by default {without}")
    parser.add_argument("--rounds", type=int, default=None, help="default 5, with --quick 1")
    parser.add_argument("--scale-seconds", type=float, help="watch idle consumers for so long, default 60")
    parser.add_argument("--job-events", type=_numbers, help="of topics that jobs read, default 1000000")
    parser.add_argument("--job-keys", type=_numbers, help="a minute, of each of them, default 500,5000")
    parser.add_argument("--quick", action="store_true", help="everything once and small, in a few minutes")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder for the results, default {OUT}")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 5)
    without_slow = [one for one in CONTESTANTS if not options.quick or one.name not in SLOW_TO_FETCH]
    options.only = options.only or without_slow
    options.scenarios = options.scenarios or list(SCENARIOS if options.quick else DEFAULT)
    return options


def _run(
    stage: Stage, contestants: Sequence[Contestant], scenarios: Sequence[Scenario], rounds: int, results: Results
) -> None:
    """Fill ``results``, with a line on stderr for each measurement; an error of one does not end the others."""
    present = list(contestants)
    begun = time.monotonic()
    for number in range(rounds):
        for scenario in scenarios:
            if number >= scenario.most_rounds:
                continue
            takers = [
                one for one in present if scenario.takes(one) and scenario.name in (one.scenarios or [scenario.name])
            ]
            for contestant in rotated(takers, number):
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
                _say(f"{time.monotonic() - begun:5.0f} s  round {number + 1}/{rounds}  {_progress(one)}")


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


def _progress(one: Measurement) -> str:
    figures = "  ".join(
        f"{name} {value:,.4g}" if value < 1e4 else f"{name} {value:,.0f}" for name, value in one.figures.items()
    )
    others = f"  (others: {one.foreign:.0%} of a CPU)" if one.foreign > NOISY else ""
    return f"{one.scenario:<9} {one.contestant:<24} {figures or 'FAILED: ' + one.error}{others}"


def _new_results(contestants: Sequence[Contestant], rounds: int, *, quick: bool = False) -> Results:
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


def _report(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.bench report", description="Print the tables of a run."
    )
    parser.add_argument("file", type=Path, help="its bench.json")
    parser.add_argument("--svg", action="store_const", const=svg, default=markdown, dest="form", help="as a picture")
    options = parser.parse_args(arguments)
    print(options.form(Results.load(options.file)))
    return 0


def _chosen(known: Sequence[Any]) -> Callable[[str], list[Any]]:
    by_name = {one.name: one for one in known}

    def parse(names: str) -> list[Any]:
        unknown = set(names.split(",")) - by_name.keys()
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are {', '.join(by_name)}")
        return [one for name, one in by_name.items() if name in names.split(",")]

    return parse


def _numbers(numbers: str) -> tuple[int, ...]:
    return tuple(map(int, numbers.split(",")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
