"""``python -m tests.tools.bench``: measure contestants side by side; ``… report FILE``: print the tables again."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import DecodeError

from proxy.errors import LocalError
from tests.tools.bench.contestants import CONTESTANTS
from tests.tools.bench.features import Features
from tests.tools.bench.grids import EVENTS, KEYS
from tests.tools.bench.group_scale import GroupScale, GroupTakeover
from tests.tools.bench.group_spread import GroupSpread
from tests.tools.bench.groups import GroupEvents
from tests.tools.bench.jobs import Jobs
from tests.tools.bench.kafka import RealKafka, listeners
from tests.tools.bench.loop_delays import LoopDelays
from tests.tools.bench.plot import svg
from tests.tools.bench.report import failures, filled, markdown, text
from tests.tools.bench.results import Results
from tests.tools.bench.runner import new_results, run
from tests.tools.bench.scenarios import LOADS, Footprint, Idle, Scenario, Workers
from tests.tools.bench.stage import FULL, QUICK, Stage
from tests.tools.bench.tls import Tls

OUT = Path(".brokerside/bench")
FLEET: tuple[Scenario, ...] = (Features(), GroupEvents(), GroupScale(), GroupTakeover(), GroupSpread())
"""One to four minutes of each for a round: a run that is not quick has them where they are named."""

SLOW_TO_FETCH = ("haproxy-3",)
"""Unpacked by mmdebstrap, minutes on a busy machine: a quick run has it where it is named."""

DEFAULT: tuple[Scenario, ...] = (*LOADS, LoopDelays(), Footprint(), Idle(), Workers(), Tls(), RealKafka(), Jobs())
SCENARIOS = (*DEFAULT, *FLEET)


def main(arguments: list[str]) -> int:
    try:
        return _report(arguments[1:]) if arguments[:1] == ["report"] else _bench(_options(arguments))
    except (LocalError, OSError, DecodeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


def _bench(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is ended
    results = new_results(options.only, options.rounds, quick=options.quick)
    interrupted = False
    try:
        folder = Path(tempfile.mkdtemp(prefix="brokerside-bench-"))
        kafka = any(isinstance(one, RealKafka) for one in options.scenarios)
        further = listeners(options.only) if kafka else {}
        given = ("scale_seconds", "job_events", "job_keys", "job_rounds")
        chosen = {name: value for name in given if (value := getattr(options, name)) is not None}
        sizes = replace(QUICK if options.quick else FULL, **chosen)
        with Stage(folder, sizes, further) as stage:
            run(stage, options.only, options.scenarios, options.rounds, results)
    except KeyboardInterrupt:
        interrupted = True
        print("bench: interrupted; this is what was measured until then", file=sys.stderr)
    options.out.mkdir(parents=True, exist_ok=True)
    results.save(options.out / "bench.json")
    (options.out / "bench.md").write_text(markdown(results) + "\n")
    (options.out / "bench.svg").write_text(svg(results))
    print(text(results))
    print(f"\nalso in {options.out}: bench.json, bench.md, bench.svg")
    return 130 if interrupted else int(bool(failures(results)))


def _options(arguments: list[str]) -> argparse.Namespace:
    names = ", ".join(one.name for one in CONTESTANTS)
    scenarios = ", ".join(one.name for one in SCENARIOS)
    without = f"all but {', '.join(one.name for one in FLEET)}, with --quick all"
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench", description=__doc__)
    parser.add_argument("--only", type=_chosen(CONTESTANTS), help=f"contestants, of {names}")
    parser.add_argument("--scenarios", type=_chosen(SCENARIOS), help=f"of {scenarios}; by default {without}")
    parser.add_argument("--rounds", type=int, default=None, help="default 5, with --quick 1")
    parser.add_argument("--scale-seconds", type=float, help="watch idle consumers for so long, default 60")
    parser.add_argument("--job-events", type=_numbers(EVENTS), help="of topics that jobs read, default 1000000")
    parser.add_argument("--job-keys", type=_numbers(KEYS), help="a minute, of each of them, default 500,5000")
    parser.add_argument("--job-rounds", type=int, help="of each of them, after a first one; default 1")
    parser.add_argument("--quick", action="store_true", help="everything once and small, in a few minutes")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder for the results, default {OUT}")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 5)
    without_slow = [one for one in CONTESTANTS if not options.quick or one.name not in SLOW_TO_FETCH]
    options.only = options.only or without_slow
    options.scenarios = options.scenarios or list(SCENARIOS if options.quick else DEFAULT)
    return options


def _report(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.bench report", description="Print the tables of a run."
    )
    parser.add_argument("file", type=Path, help="its bench.json")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_const", const=markdown, dest="form", help="for a page")
    form.add_argument("--svg", action="store_const", const=svg, dest="form", help="as a picture")
    form.add_argument("--into", type=Path, metavar="PAGE", help="put tables and picture into a page of docs/")
    options = parser.parse_args(arguments)
    results = Results.load(options.file)
    if options.into is None:
        print((options.form or text)(results))
    else:
        picture = options.into.parent / "images" / f"{options.into.stem}.svg"
        shown = f"![Figures of the tables as bars](images/{picture.name})\n\n{markdown(results)}"
        options.into.write_text(filled(options.into.read_text(), shown))
        picture.write_text(svg(results))
    return 0


class Named(Protocol):
    """What is chosen by name on the command line."""

    @property
    def name(self) -> str:
        """Unique among its kind."""


Choice = TypeVar("Choice", bound=Named)


def _chosen(known: Sequence[Choice]) -> Callable[[str], list[Choice]]:
    by_name = {one.name: one for one in known}

    def parse(names: str) -> list[Choice]:
        unknown = set(names.split(",")) - by_name.keys()
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are {', '.join(by_name)}")
        return [one for name, one in by_name.items() if name in names.split(",")]

    return parse


def _numbers(known: Sequence[int]) -> Callable[[str], tuple[int, ...]]:
    def parse(numbers: str) -> tuple[int, ...]:
        chosen = tuple(map(int, numbers.split(",")))
        if not set(chosen) <= set(known):
            raise argparse.ArgumentTypeError(f"{numbers}: there are {', '.join(map(str, known))}")
        return chosen

    return parse


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
