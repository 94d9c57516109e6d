"""Schedules of the coordinator's simulation, and whether it finds the mistakes that it has to find."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.tools.simulation.coverage import Cell, all_cells
from tests.tools.simulation.invariants import InvariantError
from tests.tools.simulation.mutations import MUTATIONS, Mutation
from tests.tools.simulation.run import run, run_all, story
from tests.tools.simulation.world import World

FIRST_SEED = 20_000
"""Its schedules visit every cell soon."""

SCHEDULES = 400
"""In the test run; ``python -m tests.tools.simulation`` runs more."""

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


@pytest.mark.parametrize("seed", FOUND)
def test_invariants_hold_where_they_once_did_not(seed: int) -> None:
    assert run(seed).failure is None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mistake_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.patch(monkeypatch)
    for seed in range(MUTANT_SCHEDULES):
        try:
            World(seed, faults=mutation.faults).run()
        except InvariantError as error:
            if error.name in mutation.invariants:
                return
    pytest.fail(f"not found in {MUTANT_SCHEDULES} schedules")


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_a_seed_repeats_exactly(hash_seed: str) -> None:
    code = "from tests.tools.simulation.run import story; print('\\n'.join(map(story, range(12))))"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert printed == "\n".join(map(story, range(12))) + "\n"
