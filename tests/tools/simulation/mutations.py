"""Mistakes in the coordinator or in what carries its effects out. Each has to be found by an invariant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from proxy.coordinator import machine, member, membership
from proxy.coordinator.group import Attempt, Group
from proxy.coordinator.held_partition import HeldPartition
from proxy.coordinator.member import GroupMember
from proxy.coordinator.rebalance import Rebalancer
from tests.tools.simulation import faults
from tests.tools.simulation.consumer import Consumer
from tests.tools.simulation.faults import Fault

Patch = Callable[[pytest.MonkeyPatch], None]


class Mutation(NamedTuple):
    """``patch`` makes the mistake; ``invariants``: those that may find it; ``faults``: what goes wrong meanwhile."""

    name: str
    patch: Patch
    invariants: frozenset[str]
    faults: Sequence[Fault]


def start_before_commit(patch: pytest.MonkeyPatch) -> None:
    commit = Rebalancer._commit

    def mistake(self: Rebalancer, group: Group, attempt: Attempt, now: int) -> None:
        commit(self, group, attempt, now)
        writes = self._state.writes
        writes.ended(writes._next - 1, True, now)

    patch.setattr(Rebalancer, "_commit", mistake)


def free_at_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupMember, "free_at", lambda self, ended_at: ended_at)


def never_mute(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldPartition, "may_speak", lambda self, now, write_timeout_ms: self.is_open())


def heard_when_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Consumer, "_heard", lambda self, arrived: self.clock())


def wait_of_a_session_timeout(patch: pytest.MonkeyPatch) -> None:
    for module in (machine, membership):
        patch.setattr(module, "free_after_takeover", lambda fenced_at, timeout, write_timeout: fenced_at + timeout)


def one_number_twice(patch: pytest.MonkeyPatch) -> None:
    can_begin = Rebalancer._can_begin

    def mistake(self: Rebalancer, group: Group, now: int) -> Any:
        group.committing_level = 0
        return can_begin(self, group, now)

    patch.setattr(Rebalancer, "_can_begin", mistake)
    patch.setattr(Group, "next_generation", lambda self: self.generation + 1)


def three_open_pings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(member, "MAX_OPEN_PINGS", 3)


CUT_OFF = (faults.lose, faults.cut_connection, faults.reset, faults.freeze_and_cut_off)
TAKEOVER = (faults.split, faults.split, faults.take_over, faults.cut_sidecar_off_from_kafka)

MUTATIONS = (
    Mutation("start before commit", start_before_commit, frozenset({"I3"}), (faults.leave, faults.kill_consumer)),
    Mutation("free at failure", free_at_failure, frozenset({"I4"}), CUT_OFF),
    Mutation("never mute", never_mute, frozenset({"I3"}), TAKEOVER),
    Mutation("heard when read", heard_when_read, frozenset({"I4"}), (faults.freeze_and_cut_off,)),
    Mutation("wait of T after a takeover", wait_of_a_session_timeout, frozenset({"I4"}), (faults.split,)),
    Mutation("two generations with one number", one_number_twice, frozenset({"I2"}), (faults.commit_is_late,)),
    Mutation("three open pings", three_open_pings, frozenset({"I7"}), (faults.stop_consumer,)),
)
