"""``python -m tests.tools.simulation.run SEED``: print what happens in one schedule; ``… FIRST COUNT``: run many, and
print the seeds of those that fail."""

from __future__ import annotations

import multiprocessing
import sys
import traceback

from tests.tools.simulation.invariants import InvariantError
from tests.tools.simulation.world import World

REPEATED_EVERY = 20
"""Of the seeds, those whose events are given to a second coordinator (I10)."""


def run(seed: int) -> str | None:
    """Return which invariant does not hold, or what failed."""
    return _failure(World(seed, keeps_history=seed % REPEATED_EVERY == 0))


def story(seed: int) -> str:
    """Run a schedule again and return a trace of it."""
    world = World(seed, tracing=True, keeps_history=True)
    end = _failure(world) or f"all invariants hold; well again after {world.recovery} ms"
    return "\n".join((*world.story, f"{world.timeline.now:>7} {end}"))


def _failure(world: World) -> str | None:
    try:
        world.run()
        world.repeat()
    except InvariantError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return None


def main(first: int, count: int = 0) -> None:
    if not count:
        print(story(first))
        return
    seeds = range(first, first + count)
    with multiprocessing.Pool() as pool:
        for seed, failure in zip(seeds, pool.imap(run, seeds, chunksize=25), strict=True):
            if failure is not None:
                print(f"seed {seed}: {failure}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
