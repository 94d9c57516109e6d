"""Which partitions each sidecar holds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from proxy.fleet.election import RETURN_AFTER_MS
from proxy.fleet.group_elections import GroupElections, candidates_of, held_by_others, holders_of, leader_of
from proxy.fleet.membership import Member, RegistryContent
from proxy.fleet.sidecar_record import SidecarRecord

LEADERS = (1, 2, 3, 1)


def content(
    holds: Mapping[int, Mapping[str, int]], *, unfit: tuple[int, ...] = (), dead: tuple[int, ...] = ()
) -> RegistryContent:
    members = {
        one: Member(
            SidecarRecord(
                {}, (), f"kafka-{one}", 9092, "1", boot_id=f"boot-{one}", coordinates=one not in unfit, holds=held
            ),
            alive=one not in dead,
        )
        for one, held in holds.items()
    }
    return RegistryContent(members, {}, {f"sidecar/{one}": 1000 for one in holds})


def test_candidates_run_and_register_that_they_coordinate() -> None:
    found = content({1: {}, 2: {"groups/0": 4}, 3: {}, 4: {}}, unfit=(3,), dead=(4,))
    assert candidates_of(found, 1, "boot-1") == {1: {}, 2: {"groups/0": 4}}
    assert candidates_of(found, 1, "another run") == {2: {"groups/0": 4}}


@pytest.mark.promise(
    "coordinator.md",
    "Each partition is held by the sidecar of the broker which leads it, else by another one that runs.",
)
def test_who_is_named_as_the_holder() -> None:
    assert holders_of({1: {}, 2: {}, 3: {}}, LEADERS, 4) == {0: 1, 1: 2, 2: 3, 3: 1}
    assert set(holders_of({2: {}, 3: {}}, LEADERS, 4).values()) <= {2, 3}
    assert holders_of({}, LEADERS, 4) == {}
    candidates = {1: {"groups/0": 4}, 2: {"groups/0": 5, "groups/1": 0}, 3: {"features/0": 9}}
    assert holders_of(candidates, LEADERS, 3) == {0: 2, 1: 2, 2: 3}, "by the highest claim"
    both = {1: {"groups/0": 0}, 2: {"groups/0": 0}}
    assert holders_of(both, (2,), 1) == {0: 2}, "one that is not open counts least"
    assert holders_of({1: {}, 2: {}, 3: {}}, (), 6) == holders_of({3: {}, 1: {}, 2: {}}, (), 6), "all find it alike"
    assert leader_of(7, LEADERS) is None


def test_each_partition_has_an_election_of_its_own() -> None:
    elections = GroupElections(1)
    assert elections.decide({1: {}, 2: {"groups/3": 7}}, LEADERS, 4, 0) == ([0], [])
    candidates = {1: {"groups/0": 1}, 2: {"groups/3": 7}}
    # The leader's sidecar takes a partition from another one once it has been fit for a while.
    assert elections.decide(candidates, LEADERS, 4, RETURN_AFTER_MS - 1) == ([], [])
    assert elections.decide(candidates, LEADERS, 4, RETURN_AFTER_MS) == ([3], [])
    # One that is no candidate lets all go.
    assert elections.decide({2: {}}, LEADERS, 4, RETURN_AFTER_MS + 1) == ([], [0, 3])
    # Partitions beyond those that groups are spread over are never taken.
    assert GroupElections(1).decide({1: {}}, (1,) * 24, 12, 0) == (list(range(12)), [])
    # A lost partition is left alone for a while.
    elections = GroupElections(1)
    elections.decide({1: {}}, LEADERS, 2, 0)
    elections.lost(0, 0)
    assert elections.decide({1: {}}, LEADERS, 2, 4999) == ([], [])
    assert elections.decide({1: {}}, LEADERS, 2, 5000) == ([0], [])


def test_a_sidecar_that_leaves_sees_who_has_taken_over() -> None:
    candidates = {1: {"groups/0": 3, "groups/1": 3, "groups/2": 3}, 2: {"groups/1": 4}, 3: {"groups/2": 0}}
    assert held_by_others({0, 1, 2}, candidates, 1) == {1, 2}
