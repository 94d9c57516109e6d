"""Schedules of the coordinator's simulation, and whether it finds the mistakes that it has to find."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.tools.simulation.coverage import Cell, all_cells
from tests.tools.simulation.invariants import InvariantError
from tests.tools.simulation.mutations import MUTATIONS
from tests.tools.simulation.run import run, run_all, story
from tests.tools.simulation.world import World

FIRST_SEED = 20_000
"""Its schedules visit every cell soon."""

SCHEDULES = 400
"""In a whole test run; ``python -m tests.tools.simulation`` runs more."""

MOST_SCHEDULES = 1500
"""Until every cell of the tables is visited."""

FOUND = (
    404_417, 510_855, 1_103_945, 3_104_400, 6_211_987, 7_103_898, 7_107_900, 7_121_482, 7_300_042, 8_300_707, 8_519_229,
    8_549_915,
)  # fmt: skip
"""Seeds of schedules that a mistake was found with."""

MUTANT_SCHEDULES = 300
"""Within which a mistake has to be found."""

TOO_MANY = "there is no valid assignment: a member would own more partitions than an int16 counts"

UNREACHABLE: dict[Cell, str] = {
    ("group", "returning", "given_up"): TOO_MANY,
    ("group", "stable", "given_up"): TOO_MANY,
}
"""Cells that no schedule visits, and why. The tests of the tables do."""


@pytest.mark.promise("coordinator.md", "No partition has two owners at a time, whatever fails or is late.")
def test_invariants_hold_in_some_schedules() -> None:
    seeds = (*FOUND, *range(FIRST_SEED, FIRST_SEED + 60))
    assert {seed: failure for seed in seeds if (failure := run(seed).failure) is not None} == {}


@pytest.mark.slow
def test_invariants_hold_and_every_cell_is_visited() -> None:
    failures: list[str] = []
    reachable, visited = all_cells() - UNREACHABLE.keys(), set[Cell]()
    for number, (outcome, visited) in enumerate(run_all(range(FIRST_SEED, FIRST_SEED + MOST_SCHEDULES)), start=1):
        if outcome.failure is not None:
            failures.append(f"--seed {outcome.seed}: {outcome.failure}")
        if number >= SCHEDULES and reachable <= visited:
            break
    assert failures == []
    assert reachable - visited == set()


@pytest.mark.slow
def test_each_mistake_is_found() -> None:
    for mutation in MUTATIONS:
        with pytest.MonkeyPatch.context() as patch:
            mutation.patch(patch)
            for seed in range(MUTANT_SCHEDULES):
                try:
                    World(seed, faults=mutation.faults).run()
                except InvariantError as error:
                    if error.name in mutation.invariants:
                        break
            else:
                pytest.fail(f"{mutation.name}: not found in {MUTANT_SCHEDULES} schedules")


@pytest.mark.slow
def test_a_seed_repeats_exactly() -> None:
    code = "from tests.tools.simulation.run import story; print('\\n'.join(map(story, range(12))))"
    for hash_seed in ("0", "1"):
        printed = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        assert printed == "\n".join(map(story, range(12))) + "\n", hash_seed
