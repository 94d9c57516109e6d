"""Which sidecar holds a partition of a log, and when it takes it or lets it go."""

from collections import Counter
from collections.abc import Mapping

import pytest

from proxy.fleet.election import AWAY_AFTER_LOSS_MS, RETURN_AFTER_MS, Decision, Election, holder
from proxy.fleet.group_elections import GroupElections, candidates_of, held_by_others, holders_of, leader_of
from proxy.fleet.membership import Member, RegistryContent
from proxy.fleet.sidecar_record import SidecarRecord

STAY, TAKE, LET_GO = Decision.STAY, Decision.TAKE, Decision.LET_GO
LEADERS = (1, 2, 3, 1)


@pytest.mark.promise(
    "features.md", "The feature controller is the sidecar in front of the leader of the topic of features."
)
@pytest.mark.promise(
    "features.md",
    "Without a sidecar in front of the leader, all sidecars find the same other one to be the controller.",
)
def test_the_leader_s_sidecar_holds_the_partition_else_one_that_all_find() -> None:
    assert holder("features", 0, 2, [1, 2, 3]) == 2
    found = holder("features", 0, 4, [1, 2, 3])
    assert found in (1, 2, 3)
    assert found == holder("features", 0, None, [3, 2, 1]) == holder("features", 0, 9, [2, 3, 1])
    assert holder("features", 0, 4, []) is None
    before = {number: holder("groups", number, None, [1, 2, 3]) for number in range(300)}
    assert min(Counter(before.values()).values()) > 50
    after = {number: holder("groups", number, None, [1, 3]) for number in range(300)}
    assert all(after[number] == before[number] for number in before if before[number] != 2), "only those of one gone"


def test_the_leader_s_sidecar_takes_what_nobody_holds_at_once_and_else_after_30_seconds() -> None:
    election = Election("features", 0, 1)
    assert election.decide(1, {2: 0}, 0) is STAY, "its own record was not read back"
    assert not election.held
    assert election.decide(1, {1: 0, 2: 0}, 10) is TAKE
    assert election.held
    assert election.decide(1, {1: 1, 2: 0}, 20) is STAY
    election.lost(1_000)
    assert not election.held
    assert election.decide(1, {1: 1, 2: 0}, 1_000 + AWAY_AFTER_LOSS_MS - 1) is STAY
    assert election.decide(1, {1: 1, 2: 0}, 1_000 + AWAY_AFTER_LOSS_MS) is TAKE

    election = Election("features", 0, 1)
    for later in (0, RETURN_AFTER_MS - 1):
        assert election.decide(1, {1: 0, 2: 5}, 1_000 + later) is STAY
    assert election.decide(1, {1: 0, 2: 5}, 1_000 + RETURN_AFTER_MS) is TAKE

    own = holder("features", 0, None, [1, 2])
    election = Election("features", 0, own)
    for at in (0, 10 * RETURN_AFTER_MS):
        assert election.decide(None, {own: 0, 3 - own: 5}, at) is STAY, "another one than the leader's takes nothing"
    assert election.decide(None, {own: 0, 3 - own: 0}, 10 * RETURN_AFTER_MS) is TAKE


def test_it_lets_go_when_it_is_not_fit_or_another_one_should_hold_it_for_30_seconds() -> None:
    election = Election("features", 0, 1)
    assert election.decide(1, {1: 0, 2: 0}, 0) is TAKE
    for leader, at in ((2, 1_000), (1, 20_000), (2, 30_000), (2, 30_000 + RETURN_AFTER_MS - 1)):
        assert election.decide(leader, {1: 1, 2: 0}, at) is STAY
    assert election.decide(2, {1: 1, 2: 0}, 30_000 + RETURN_AFTER_MS) is LET_GO
    assert not election.held
    assert election.decide(2, {1: 1, 2: 0}, 31_000 + RETURN_AFTER_MS) is STAY
    election = Election("features", 0, 1)
    assert election.decide(1, {1: 0, 2: 0}, 0) is TAKE
    assert election.decide(1, {2: 0}, 1) is LET_GO
    assert not election.held


def test_candidates_run_and_register_that_they_coordinate() -> None:
    holds: dict[int, Mapping[str, int]] = {1: {}, 2: {"groups/0": 4}, 3: {}, 4: {}}
    members = {
        one: Member(
            SidecarRecord({}, (), "kafka", 9092, "1", boot_id=f"boot-{one}", coordinates=one != 3, holds=held),
            alive=one != 4,
        )
        for one, held in holds.items()
    }
    found = RegistryContent(members, {}, {f"sidecar/{one}": 1000 for one in holds})
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
    candidates = {1: {"groups/0": 3, "groups/1": 3, "groups/2": 3}, 2: {"groups/1": 4}, 3: {"groups/2": 0}}
    assert held_by_others({0, 1, 2}, candidates, 1) == {1, 2}, "seen by one that leaves"


def test_each_partition_has_an_election_of_its_own() -> None:
    elections = GroupElections(1)
    assert elections.decide({1: {}, 2: {"groups/3": 7}}, LEADERS, 4, 0) == ([0], [])
    candidates = {1: {"groups/0": 1}, 2: {"groups/3": 7}}
    assert elections.decide(candidates, LEADERS, 4, RETURN_AFTER_MS - 1) == ([], [])
    assert elections.decide(candidates, LEADERS, 4, RETURN_AFTER_MS) == ([3], [])
    assert elections.decide({2: {}}, LEADERS, 4, RETURN_AFTER_MS + 1) == ([], [0, 3]), "it is no candidate any more"
    # Partitions beyond those that groups are spread over are never taken.
    assert GroupElections(1).decide({1: {}}, (1,) * 24, 12, 0) == (list(range(12)), [])
    elections = GroupElections(1)
    elections.decide({1: {}}, LEADERS, 2, 0)
    elections.lost(0, 0)
    assert elections.decide({1: {}}, LEADERS, 2, 4999) == ([], []), "a lost partition is left alone for a while"
    assert elections.decide({1: {}}, LEADERS, 2, 5000) == ([0], [])
