"""``python -m tests.tools.simulation``: schedules in all processors, with figures. Failures are named."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice

from tests.tools.simulation.coverage import Cell, all_cells
from tests.tools.simulation.run import Outcome, run_all, story

SHARE = 25
"""Schedules that a process runs at a time."""

SHOWN = 10
"""Failures that are shown."""


def run_share(seeds: range) -> tuple[list[Outcome], set[Cell]]:
    outcomes, cells = [], set[Cell]()
    for outcome, visited in run_all(seeds):
        outcomes.append(outcome)
        cells = visited
    return outcomes, cells


def shares(first: int, schedules: int) -> Iterator[range]:
    end = first + schedules
    for at in range(first, end, SHARE):
        yield range(at, min(at + SHARE, end))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="run only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one for each processor")
    options = parser.parse_args()
    if options.seed is not None:
        lines = story(options.seed).splitlines()
        print("\n".join(lines if options.trace else lines[-1:]))
        return int("all invariants hold" not in lines[-1])

    began, outcomes, cells = time.monotonic(), list[Outcome](), set[Cell]()
    with multiprocessing.Pool(options.processes) as pool:
        for some, visited in pool.imap_unordered(run_share, shares(options.first, options.schedules)):
            outcomes += some
            cells |= visited
    seconds = time.monotonic() - began

    failures = sorted(one for one in outcomes if one.failure is not None)
    for one in islice(failures, SHOWN):
        print(f"seed {one.seed}: {one.failure}\n  python -m tests.tools.simulation --seed {one.seed} --trace")
    recoveries = sorted(one.recovery for one in outcomes if one.failure is None) or [0]
    hours = sum(one.lasted for one in outcomes) / 3_600_000
    print(
        f"{len(outcomes)} schedules from seed {options.first} in {seconds:.0f} s ({hours:.1f} virtual hours), "
        f"{len(failures)} failed\n"
        f"messages handed out: {sum(one.handed_out for one in outcomes)}, "
        f"replayed: {sum(one.replayed for one in outcomes)}; skipped: 0\n"
        f"well again after the last fault: median {recoveries[len(recoveries) // 2]} ms, longest {recoveries[-1]} ms\n"
        f"cells of the tables visited: {len(cells)} of {len(all_cells())}"
    )
    for cell in sorted(all_cells() - cells):
        print("  not visited:", *cell)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
