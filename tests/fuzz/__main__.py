"""``python -m tests.fuzz``: all targets, in parallel, with figures. See ``--help``."""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from tests.fuzz.observed import ALL
from tests.fuzz.run import BLOCK, MAX_CPU_MS, Failure, Figures, run_block, show

SAVED = Path(".brokerside/fuzz")
SILENCE = 120
"""Seconds without a finished block after which a process is given up: its input never ends."""

SHOWN = 3
"""Failures of one kind that are shown and saved."""

Work = tuple[str, int]


class Sums:
    """What all blocks of one target gave together."""

    def __init__(self) -> None:
        self.inputs = self.size = self.memory = self.failures = 0
        self.slowest_ms = 0.0
        self.kinds: Counter[str] = Counter()

    def add(self, figures: Figures) -> Iterator[Failure]:
        """Take a block; yields the failures that are to be shown."""
        self.inputs += figures.inputs
        self.size += figures.size
        self.slowest_ms = max(self.slowest_ms, figures.slowest_ms)
        self.memory = max(self.memory, figures.memory)
        self.failures += len(figures.failures)
        for failure in figures.failures:
            self.kinds[failure.kind] += 1
            if self.kinds[failure.kind] <= SHOWN:
                yield failure


def work(names: list[str], inputs: int) -> Iterator[Work]:
    """Blocks of all targets by turns."""
    blocks = -(-inputs // BLOCK)
    for number, name in enumerate(islice(cycle(names), blocks)):
        yield name, number // len(names)


def process(
    names: list[str],
    seed: str,
    inputs: int,
    share: int,
    shares: int,
    until: float,
    results: multiprocessing.Queue[object],
) -> None:
    """Run every ``shares``th block."""
    for name, number in islice(work(names, inputs), share, None, shares):
        if time.monotonic() > until:
            break
        results.put((share, name, number, None))
        results.put((share, name, number, run_block(ALL[name], seed, number)))
    results.put((share, "", 0, None))


def main() -> int:
    """Run what the command line says; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many, of all targets together")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop anyway")
    parser.add_argument("--seed", default=str(int(time.time())), help="what inputs follow from (default: the time)")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--targets", nargs="+", choices=list(ALL), default=list(ALL), metavar="TARGET")
    options = parser.parse_args()
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[object] = context.Queue()
    started = time.monotonic()
    until = started + options.seconds
    running = {}
    for share in range(options.processes):
        arguments = (options.targets, options.seed, options.inputs, share, options.processes, until, results)
        running[share] = context.Process(target=process, args=arguments)
        running[share].start()
    print(f"[fuzz] seed {options.seed}, {options.inputs:,} inputs of {', '.join(options.targets)}", flush=True)
    sums = {name: Sums() for name in options.targets}
    heard = dict.fromkeys(running, started)
    doing: dict[int, Work] = {}
    shown = started
    while running:
        try:
            share, name, number, figures = results.get(timeout=5)  # type: ignore[misc]
        except queue.Empty:
            pass
        else:
            heard[share] = time.monotonic()
            if not name:
                running.pop(share).join()
            elif figures is None:
                doing[share] = name, number
            else:
                for failure in sums[name].add(figures):
                    show(failure, failure.save(SAVED))
        now = time.monotonic()
        for share in [share for share in running if now - heard[share] > SILENCE]:
            name, number = doing[share]
            print(f"[fuzz] {name}: block {number} does not end", flush=True)
            sums[name].failures += 1
            running.pop(share).kill()
        if now - shown > 30:
            shown = now
            report(sums, now - started)
    table(sums, options.seed, time.monotonic() - started)
    return int(any(one.failures for one in sums.values()))


def report(sums: dict[str, Sums], seconds: float) -> None:
    inputs = sum(one.inputs for one in sums.values())
    failures = sum(one.failures for one in sums.values())
    print(f"[fuzz] {inputs:,} inputs, {failures} failures, {inputs / seconds:,.0f}/s", flush=True)


def table(sums: dict[str, Sums], seed: str, seconds: float) -> None:
    """Print the result."""
    print(
        f"\nseed {seed}, {seconds:,.0f} s; time: the slowest of a sample (CPU, ms; more than {MAX_CPU_MS} is marked);"
    )
    print("memory: the most that one of a sample took beyond its share, in KiB\n")
    print(f"{'target':<16}{'inputs':>12}{'MB':>8}{'time':>9}{'memory':>9}{'failures':>10}")
    for name, one in sums.items():
        mark = "!" if one.slowest_ms > MAX_CPU_MS else " "
        print(
            f"{name:<16}{one.inputs:>12,}{one.size / 1e6:>8,.0f}{one.slowest_ms:>8.2f}{mark}"
            f"{one.memory / 1024:>9.0f}{one.failures:>10}"
        )
    print(f"{'':<16}{sum(one.inputs for one in sums.values()):>12,}")
    for name, one in sums.items():
        for kind, count in one.kinds.most_common():
            print(f"{name}: {count} × {kind}")


if __name__ == "__main__":
    sys.exit(main())
