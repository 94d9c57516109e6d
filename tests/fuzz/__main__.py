"""``python -m tests.fuzz``: all targets, in parallel, with figures. See ``--help``."""

import argparse
import faulthandler
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import cpu_count, get_context
from pathlib import Path

from tests.fuzz.observed import ALL
from tests.fuzz.run import BLOCK, MAX_CPU_MS, Figures, run_block

SAVED = Path(".brokerside/fuzz")
SILENCE = 120
"""Seconds after which a process whose block has not ended exits with its stack: its input never ends."""

SHOWN = 3
"""Failures of one kind that are shown and saved."""


def block(name: str, seed: str, number: int, until: float) -> Figures | None:
    """Run a block in a process of the pool, or nothing where the time is over."""
    if time.monotonic() > until:
        return None
    faulthandler.dump_traceback_later(SILENCE, exit=True)
    try:
        return run_block(ALL[name], seed, number)
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> int:
    """Run what the command line says; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many, of all targets together")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop anyway")
    parser.add_argument("--seed", default=str(int(time.time())), help="what inputs follow from (default: the time)")
    parser.add_argument("--processes", type=int, default=cpu_count())
    parser.add_argument("--targets", nargs="+", choices=list(ALL), default=list(ALL), metavar="TARGET")
    options = parser.parse_args()
    print(f"[fuzz] seed {options.seed}, {options.inputs:,} inputs of {', '.join(options.targets)}", flush=True)
    started = shown = time.monotonic()
    sums: defaultdict[str, list[Figures]] = defaultdict(list)
    kinds: Counter[tuple[str, str]] = Counter()
    with ProcessPoolExecutor(options.processes, get_context("fork")) as pool:
        names = options.targets
        blocks = [
            pool.submit(block, names[at % len(names)], options.seed, at // len(names), started + options.seconds)
            for at in range(-(-options.inputs // BLOCK))
        ]
        which = {one: names[at % len(names)] for at, one in enumerate(blocks)}
        for done in as_completed(blocks):
            if (figures := done.result()) is None:
                continue
            for failure in figures.failures:
                kinds[failure.target, failure.kind] += 1
                if kinds[failure.target, failure.kind] <= SHOWN:
                    print(f"[fuzz] {failure.target}: {failure.kind}\n{failure.text}{failure.save(SAVED)}", flush=True)
            sums[which[done]].append(figures._replace(failures=[]))
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                inputs = sum(one.inputs for some in sums.values() for one in some)
                print(f"[fuzz] {inputs:,} inputs, {kinds.total()} failures", flush=True)
    table(sums, kinds, options.seed, time.monotonic() - started)
    return int(bool(kinds))


def table(sums: dict[str, list[Figures]], kinds: Counter[tuple[str, str]], seed: str, seconds: float) -> None:
    """Print the result."""
    print(f"\nseed {seed}, {seconds:,.0f} s; time: the slowest of a sample (CPU, ms; over {MAX_CPU_MS} is marked);")
    print("memory: the most that one of a sample took beyond its share, in KiB\n")
    print(f"{'target':<16}{'inputs':>12}{'MB':>8}{'time':>9}{'memory':>9}")
    for name, some in sums.items():
        slowest = max(one.slowest_ms for one in some)
        print(
            f"{name:<16}{sum(one.inputs for one in some):>12,}{sum(one.size for one in some) / 1e6:>8,.0f}"
            f"{slowest:>8.2f}{'!' if slowest > MAX_CPU_MS else ' '}{max(one.memory for one in some) / 1024:>9.0f}"
        )
    print(f"{'':<16}{sum(one.inputs for some in sums.values() for one in some):>12,}")
    for (name, kind), count in kinds.most_common():
        print(f"{name}: {count} × {kind}")


if __name__ == "__main__":
    sys.exit(main())
