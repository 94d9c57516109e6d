"""``python -m tests.tools.simulation``: schedules in all processors, with figures. See ``--help``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from itertools import islice

from tests.tools.simulation.run import run, story

SHOWN = 10
"""Failures that are shown."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000, help="how many (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="run only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    options = parser.parse_args()
    if options.seed is not None:
        lines = story(options.seed).splitlines()
        print("\n".join(lines if options.trace else lines[-1:]))
        return int("all invariants hold" not in lines[-1])

    began = time.monotonic()
    with multiprocessing.Pool() as pool:
        seeds = range(options.first, options.first + options.schedules)
        outcomes = list(pool.imap_unordered(run, seeds, chunksize=25))
    failures = sorted(one for one in outcomes if one.failure is not None)
    for one in islice(failures, SHOWN):
        print(f"seed {one.seed}: {one.failure}\n  python -m tests.tools.simulation --seed {one.seed} --trace")
    recoveries = sorted(one.recovery for one in outcomes if one.failure is None) or [0]
    hours = sum(one.lasted for one in outcomes) / 3_600_000
    print(
        f"{len(outcomes)} schedules from seed {options.first} in {time.monotonic() - began:.0f} s"
        f" ({hours:.1f} virtual hours), {len(failures)} failed\n"
        f"messages handed out: {sum(one.handed_out for one in outcomes)},"
        f" replayed: {sum(one.replayed for one in outcomes)}; skipped: 0\n"
        f"well again after the last fault: median {recoveries[len(recoveries) // 2]} ms, longest {recoveries[-1]} ms"
    )
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
