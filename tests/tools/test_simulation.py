"""Schedules of the coordinator's simulation, and whether it finds the mistakes that it has to find."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from proxy.coordinator.held_partition import HeldPartition
from proxy.coordinator.member import GroupMember
from tests.tools.simulation import faults
from tests.tools.simulation.run import run, story
from tests.tools.simulation.world import World

FIRST_SEED = 20_000

FOUND = (
    404_417, 510_855, 1_103_945, 3_104_400, 6_211_987, 7_103_898, 7_107_900, 7_121_482, 7_300_042, 8_300_707, 8_519_229,
    8_549_915,
)  # fmt: skip
"""Seeds of schedules that a mistake was found with."""


def failures(*seeds: int) -> dict[int, str]:
    return {seed: failure for seed in seeds if (failure := run(seed)) is not None}


@pytest.mark.promise("coordinator.md", "No partition has two owners at a time, whatever fails or is late.")
@pytest.mark.promise("consumer.md", "Two consumers never hand out messages of one partition at the same time.")
def test_invariants_hold_in_some_schedules() -> None:
    assert failures(*FOUND, *range(FIRST_SEED, FIRST_SEED + 40)) == {}


@pytest.mark.slow
def test_invariants_hold_in_many_schedules() -> None:
    assert failures(*range(FIRST_SEED + 40, FIRST_SEED + 500)) == {}


def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions of a consumer that has failed are free at once; a coordinator is never mute."""

    def found(*which: faults.Fault) -> set[str]:
        outcomes = (World(seed, faults=which) for seed in range(100))
        for world in outcomes:
            try:
                world.run()
            except AssertionError as error:
                return {str(error)[:2]}
        return set()

    with monkeypatch.context() as patch:
        patch.setattr(GroupMember, "free_at", lambda self, ended_at: ended_at)
        assert found(faults.lose, faults.cut_connection, faults.reset, faults.freeze_and_cut_off) == {"I4"}
    monkeypatch.setattr(HeldPartition, "may_speak", lambda self, now, write_timeout_ms: self.is_open())
    assert found(faults.split, faults.take_over, faults.cut_sidecar_off_from_kafka) == {"I3"}


@pytest.mark.slow
def test_a_seed_repeats_exactly() -> None:
    """Also where sets have another order."""
    code = "from tests.tools.simulation.run import story; print('\\n'.join(map(story, range(6))))"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
    assert printed.stdout == "\n".join(map(story, range(6))) + "\n"
