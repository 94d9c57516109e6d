"""Runs schedules, and repeats them."""

from __future__ import annotations

import traceback
from typing import NamedTuple

from tests.tools.simulation.invariants import InvariantError
from tests.tools.simulation.world import World

REPEATED_EVERY = 20
"""Of the seeds, those whose events are given to a second coordinator (I10)."""


class Outcome(NamedTuple):
    """Of one schedule. Times in virtual milliseconds. ``failure``: None if all invariants held."""

    seed: int
    failure: str | None
    lasted: int = 0
    recovery: int = 0
    handed_out: int = 0
    replayed: int = 0


def run(seed: int) -> Outcome:
    world = World(seed, keeps_history=seed % REPEATED_EVERY == 0)
    try:
        world.run()
        world.repeat()
    except InvariantError as error:
        return Outcome(seed, str(error), world.timeline.now)
    except Exception:
        return Outcome(seed, traceback.format_exc(), world.timeline.now)
    return Outcome(seed, None, world.timeline.now, world.recovery, world.handed_out, world.replayed)


def story(seed: int) -> str:
    """Run a schedule again and return a trace of it."""
    world = World(seed, tracing=True, keeps_history=True)
    try:
        world.run()
        world.repeat()
        end = f"all invariants hold; well again after {world.recovery} ms"
    except InvariantError as error:
        end = str(error)
    except Exception:
        end = traceback.format_exc()
    return "\n".join((*world.story, f"{world.timeline.now:>7} {end}"))
