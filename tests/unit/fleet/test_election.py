"""Which sidecar holds a partition of a log, and when it takes it or lets it go."""

from __future__ import annotations

from collections import Counter

import pytest

from proxy.fleet.election import AWAY_AFTER_LOSS_MS, RETURN_AFTER_MS, Decision, Election, holder

STAY, TAKE, LET_GO = Decision.STAY, Decision.TAKE, Decision.LET_GO


@pytest.mark.promise(
    "features.md", "The feature controller is the sidecar in front of the leader of the topic of features."
)
def test_the_leader_s_sidecar_holds_the_partition() -> None:
    assert holder("features", 0, 2, [1, 2, 3]) == 2


@pytest.mark.promise(
    "features.md",
    "Without a sidecar in front of the leader, all sidecars find the same other one to be the controller.",
)
def test_without_the_leader_s_sidecar_all_find_the_same_one() -> None:
    found = holder("features", 0, 4, [1, 2, 3])
    assert found in (1, 2, 3)
    assert found == holder("features", 0, None, [3, 2, 1]) == holder("features", 0, 9, [2, 3, 1])
    assert holder("features", 0, 4, []) is None


def test_partitions_spread_over_sidecars_and_only_those_of_one_that_is_gone_move() -> None:
    before = {number: holder("groups", number, None, [1, 2, 3]) for number in range(300)}
    assert min(Counter(before.values()).values()) > 50
    after = {number: holder("groups", number, None, [1, 3]) for number in range(300)}
    assert all(after[number] == before[number] for number in before if before[number] != 2)


def test_it_takes_what_nobody_holds_once_its_own_record_was_read_back() -> None:
    election = Election("features", 0, 1)
    assert election.decide(1, {2: 0}, 0) is STAY
    assert not election.held
    assert election.decide(1, {1: 0, 2: 0}, 10) is TAKE
    assert election.held
    assert election.decide(1, {1: 1, 2: 0}, 20) is STAY


def test_the_leader_s_sidecar_takes_it_back_after_30_seconds() -> None:
    election = Election("features", 0, 1)
    assert election.decide(1, {1: 0, 2: 5}, 1_000) is STAY
    assert election.decide(1, {1: 0, 2: 5}, 1_000 + RETURN_AFTER_MS - 1) is STAY
    assert election.decide(1, {1: 0, 2: 5}, 1_000 + RETURN_AFTER_MS) is TAKE


def test_another_one_than_the_leader_s_takes_nothing_that_is_held() -> None:
    own = holder("features", 0, None, [1, 2])
    assert own is not None
    election = Election("features", 0, own)
    other = 3 - own
    assert election.decide(None, {own: 0, other: 5}, 0) is STAY
    assert election.decide(None, {own: 0, other: 5}, 10 * RETURN_AFTER_MS) is STAY
    assert election.decide(None, {own: 0, other: 0}, 10 * RETURN_AFTER_MS) is TAKE


def held(now: int = 0) -> Election:
    election = Election("features", 0, 1)
    assert election.decide(1, {1: 0, 2: 0}, now) is TAKE
    return election


def test_it_lets_go_after_another_one_should_hold_it_for_30_seconds() -> None:
    election = held()
    assert election.decide(2, {1: 1, 2: 0}, 1_000) is STAY
    assert election.decide(1, {1: 1, 2: 0}, 20_000) is STAY
    assert election.decide(2, {1: 1, 2: 0}, 30_000) is STAY
    assert election.decide(2, {1: 1, 2: 0}, 30_000 + RETURN_AFTER_MS - 1) is STAY
    assert election.decide(2, {1: 1, 2: 0}, 30_000 + RETURN_AFTER_MS) is LET_GO
    assert not election.held
    assert election.decide(2, {1: 1, 2: 0}, 31_000 + RETURN_AFTER_MS) is STAY


def test_it_lets_go_at_once_when_it_is_not_fit() -> None:
    election = held()
    assert election.decide(1, {2: 0}, 1) is LET_GO
    assert not election.held


def test_after_a_loss_it_stays_away_for_5_seconds() -> None:
    election = held()
    election.lost(1_000)
    assert not election.held
    assert election.decide(1, {1: 1, 2: 0}, 1_000 + AWAY_AFTER_LOSS_MS - 1) is STAY
    assert election.decide(1, {1: 1, 2: 0}, 1_000 + AWAY_AFTER_LOSS_MS) is TAKE
