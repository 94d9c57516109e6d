"""The feature controller: each transition of its table, and what it writes."""

from __future__ import annotations

import pytest

from proxy.features.catalog import AUDIT_EVENT_SCHEMA
from proxy.features.controller import BOOTSTRAP_AFTER_MS, FeatureController
from proxy.features.controller_states import (
    TRANSITIONS,
    ControllerEvent,
    ControllerState,
    ReadRegistry,
    WriteTransaction,
)
from proxy.features.participants import MAX_APPLIED_EPOCH, Participant
from proxy.features.records import (
    CONTROLLER_KEY,
    FEATURES_KEY,
    GROUPS_KEY,
    MAX_COUNT,
    ControllerClaim,
    FinalizedFeatures,
    GroupsPartitions,
    PendingUpdate,
    UpdateOutcome,
    encode,
    update_key,
)
from proxy.features.topic_state import MAX_OPEN_PROPOSALS, MAX_OUTCOMES, OUTCOME_KEPT_MS
from tests.unit.features.fleets import (
    BROKER_CLOCK,
    changing,
    executor,
    finalized,
    name,
    reader,
    serving,
    sidecar,
    to,
)

AWAY, OPENING, BOOTSTRAP, SERVING, CHANGING, APPLYING = ControllerState


# ---- opening ----------------------------------------------------------------------------------------------------


def test_it_fences_reads_and_claims_before_it_serves() -> None:
    one = executor()
    one.put(FEATURES_KEY, FinalizedFeatures(4, finalized(2)))
    one.put(CONTROLLER_KEY, ControllerClaim(6, 2, "another"))
    one.waits = (WriteTransaction,)
    one.hold()
    assert (one.controller.state, one.controller.claim) == (OPENING, 0)
    (write,) = one.waiting
    assert isinstance(write, WriteTransaction)
    assert dict(write.records) == {CONTROLLER_KEY: encode(ControllerClaim(7, 1, "boot"))}
    one.go()
    assert (one.controller.state, one.controller.claim) == (SERVING, 7)
    assert [(line.event, dict(line.fields)) for line in one.lines] == [
        ("feature_controller", {"change": "taken", "claim": 7})
    ]


def test_what_the_controller_before_has_left_is_cleared() -> None:
    one = executor()
    one.propose(1, to(3))
    pending = PendingUpdate(name(1), finalized(3))
    one.put(FEATURES_KEY, FinalizedFeatures(4, finalized(2), pending, 2))
    one.hold()
    assert one.controller.state is SERVING
    assert one.written(0) == {
        CONTROLLER_KEY: ControllerClaim(1, 1, "boot"),
        FEATURES_KEY: FinalizedFeatures(4, finalized(2), None, 1, BROKER_CLOCK),
        update_key(name(1)): UpdateOutcome(96, "the feature controller has moved; ask again", 4),
    }


def test_an_intent_of_the_controller_before_itself_has_no_outcome() -> None:
    one = executor()
    one.put(FEATURES_KEY, FinalizedFeatures(0, {}, PendingUpdate("", finalized(3)), 2))
    one.hold()
    assert one.controller.state is BOOTSTRAP
    assert list(one.written(0)) == [CONTROLLER_KEY, FEATURES_KEY]


def test_proposals_from_before_are_served_in_their_order_unless_they_are_too_old() -> None:
    one = executor()
    one.put(FEATURES_KEY, FinalizedFeatures(4, finalized(2)))
    one.propose(1, to(3), age=20_001)
    one.propose(2, to(3), age=501, timeout=500)
    one.propose(3, to(3), age=500, timeout=501)
    one.propose(4, to(3))
    one.waits = (ReadRegistry,)
    one.hold()
    assert one.controller.state is CHANGING
    assert one.outcome(1) == one.outcome(2) == UpdateOutcome(96, "the update has timed out before it was looked at", 4)
    assert one.outcome(4).message == (
        f"FEATURE_UPDATE_IN_PROGRESS: another update is under way ({AUDIT_EVENT_SCHEMA}); ask again"
    )
    one.go()
    assert one.outcome(3).code == 0


def test_levels_that_were_deleted_are_written_again() -> None:
    one = executor()
    one.put(FEATURES_KEY, FinalizedFeatures(4, finalized(2)))
    one.do(one.controller.restarted(0))
    one.hold()
    assert one.controller.state is SERVING
    assert (one.levels.epoch, one.levels.features) == (5, finalized(2))
    one.read(FEATURES_KEY, None)
    assert (one.levels.epoch, one.levels.features, one.controller.topic.present) == (6, finalized(2), True)


def test_an_older_record_is_replaced_by_the_levels_that_it_knows() -> None:
    """In each state in which it is the controller, and before."""
    older = FinalizedFeatures(3, finalized(1))
    one = executor()
    one.put(FEATURES_KEY, FinalizedFeatures(4, finalized(2)))
    one.put(FEATURES_KEY, older)
    assert (one.levels.epoch, one.controller.topic.present) == (4, False)
    one.hold()
    assert (one.levels.epoch, one.levels.features, one.controller.topic.present) == (5, finalized(2), True)
    one.put(FEATURES_KEY, older)
    assert (one.levels.epoch, one.levels.features) == (6, finalized(2))
    one.waits = (ReadRegistry,)
    one.propose(1, to(3))
    one.put(FEATURES_KEY, older)
    one.go()
    assert (one.levels.epoch, one.levels.features, one.outcome(1).epoch) == (7, finalized(3), 7)
    one.put(FEATURES_KEY, older)
    one.see(sidecar(1, epoch=7), sidecar(2, epoch=7))
    assert (one.levels.epoch, one.levels.features, one.controller.topic.present) == (8, finalized(3), True)


def test_a_new_fleet_begins_above_what_a_sidecar_has_applied() -> None:
    """The topic was deleted, and no controller remembers its levels."""
    one = executor()
    one.see(sidecar(1), sidecar(2, epoch=7), sidecar(3, running=False, epoch=9))
    one.hold()
    one.tick(BOOTSTRAP_AFTER_MS)
    assert (one.levels.epoch, one.levels.features) == (10, finalized(3))
    assert one.controller.state is APPLYING


def test_a_sidecar_that_comes_with_a_later_epoch_gets_one_that_is_later_still() -> None:
    one = serving()
    one.see(sidecar(1, epoch=4), sidecar(2, epoch=4))
    assert one.levels.epoch == 4
    one.see(sidecar(1, epoch=4), sidecar(2, epoch=6))
    assert (one.levels.epoch, one.levels.features) == (7, finalized(2))


def test_no_epoch_that_a_record_of_the_registry_claims_ends_the_growth() -> None:
    one = serving()
    one.see(sidecar(1, epoch=4), sidecar(2, epoch=4), sidecar(9, running=False, epoch=MAX_COUNT))
    one.tick(1000)
    assert one.levels.epoch == 4
    one.see(sidecar(1, epoch=MAX_COUNT), sidecar(2, epoch=MAX_COUNT))
    one.propose(1, to(1, 2))
    assert (one.levels.epoch, one.controller.state) == (5, APPLYING), "what is no epoch of the topic is not applied"

    one = serving()
    one.see(sidecar(1, epoch=4), sidecar(2, epoch=MAX_APPLIED_EPOCH))
    assert one.levels.epoch == MAX_APPLIED_EPOCH + 1
    one.propose(1, to(1, 2))
    assert (one.levels.epoch, one.controller.state) == (MAX_APPLIED_EPOCH + 2, APPLYING)


def test_a_change_that_a_sidecar_ignores_is_written_again_above_what_that_has_read() -> None:
    """The topic was deleted, and sidecar 2 has read a later epoch than the controller."""
    one = serving()
    one.see(sidecar(1, epoch=4), sidecar(2, epoch=4))
    one.propose(1, to(1, 2))
    one.waits = (WriteTransaction,)
    one.see(sidecar(1, epoch=5), sidecar(2, epoch=7))
    assert one.controller.state is APPLYING
    one.waits = ()
    one.go()
    assert (one.levels.epoch, one.levels.features, one.controller.state) == (8, finalized(1), APPLYING)
    one.see(sidecar(1, epoch=8), sidecar(2, epoch=7))
    assert one.controller.state is APPLYING
    one.see(sidecar(1, epoch=8), sidecar(2, epoch=8))
    assert (one.levels.epoch, one.controller.state) == (8, SERVING)
    assert len([line for line in one.lines if line.event == "features_finalized"]) == 1


def test_levels_of_a_later_layout_are_left_alone() -> None:
    one = executor(low=2)
    one.put(FEATURES_KEY, FinalizedFeatures(9, {}, version=2))
    one.hold()
    one.tick(2 * BOOTSTRAP_AFTER_MS)
    one.propose(1, to(3))
    assert one.controller.state is SERVING
    assert one.outcome(1).code == 96
    assert "a later release has finalized the levels" in str(one.outcome(1).message)
    assert all(FEATURES_KEY not in write.records for write in one.writes)


def test_reports_for_what_is_over_are_ignored() -> None:
    one = changing()
    (barrier,) = one.waiting
    assert isinstance(barrier, ReadRegistry)
    fence, write = 1, one.writes[-1].number
    one.do(one.controller.lost("why", 0))
    one.do(one.controller.barrier_passed(barrier.number, one.participants, 0))
    one.do(one.controller.opened(fence, 0))
    one.do(one.controller.written(write, 0))
    one.do(one.controller.write_failed(write, 0))
    assert one.controller.state is AWAY
    one.waits = ()
    one.hold()
    assert one.controller.state is SERVING
    assert one.outcome(1).code == 96
    one.do(one.controller.opened(fence, 0))
    assert one.controller.claim == 2


# ---- bootstrap --------------------------------------------------------------------------------------------------


def test_a_new_fleet_finalizes_the_highest_common_level_after_10_seconds() -> None:
    one = executor()
    one.see(sidecar(1), sidecar(2, 2), reader("tables", 3))
    one.hold()
    assert one.controller.state is BOOTSTRAP
    one.tick(BOOTSTRAP_AFTER_MS - 1)
    one.propose(1, to(3))
    assert one.controller.state is BOOTSTRAP
    assert one.outcome(1) == UpdateOutcome(
        96, "the levels of the fleet are not finalized yet: the fleet has just started; ask again", 0
    )
    one.waits = (ReadRegistry,)
    one.tick(1)
    assert one.controller.state is CHANGING
    at = BROKER_CLOCK + BOOTSTRAP_AFTER_MS
    assert one.levels == FinalizedFeatures(0, {}, PendingUpdate("", finalized(2)), 1, at)
    one.go()
    assert one.levels == FinalizedFeatures(1, finalized(2), None, 1, at)
    assert one.controller.state is APPLYING
    one.see(sidecar(1, epoch=1), sidecar(2, 2, epoch=1))
    assert one.controller.state is SERVING
    assert one.lines[-1].event == "features_finalized"
    assert one.lines[-1].fields["epoch"] == 1


def test_a_new_fleet_waits_until_all_sidecars_register_features() -> None:
    one = executor()
    old = Participant("sidecar/2", "0.0.9", {}, running=True)
    one.see(sidecar(1), old)
    one.hold()
    one.tick(BOOTSTRAP_AFTER_MS)
    one.propose(1, to(3))
    assert one.controller.state is BOOTSTRAP
    assert "sidecar 2 registers no features" in str(one.outcome(1).message)
    one.see(sidecar(1), old._replace(running=False))
    one.propose(2, to(3))
    assert one.controller.state is BOOTSTRAP
    assert "there is no level that all sidecars and readers support" in str(one.outcome(2).message)
    one.see(sidecar(1), sidecar(2))
    assert one.levels.features == finalized(3)


def test_a_bootstrap_that_no_longer_fits_begins_again() -> None:
    one = executor()
    one.hold()
    one.waits = (ReadRegistry,)
    one.tick(BOOTSTRAP_AFTER_MS)
    one.participants = [sidecar(1), sidecar(2, 1)]
    one.go()
    assert one.controller.state is CHANGING
    assert one.levels.pending == PendingUpdate("", finalized(1))
    one.go()
    assert (one.levels.epoch, one.levels.features) == (1, finalized(1))


# ---- updates ----------------------------------------------------------------------------------------------------


def test_an_update_is_an_intent_a_barrier_and_a_final_record_with_its_outcome() -> None:
    one = serving()
    one.waits = (ReadRegistry,)
    one.propose(1, to(3))
    assert one.levels == FinalizedFeatures(4, finalized(2), PendingUpdate(name(1), finalized(3)), 1, BROKER_CLOCK)
    one.participants = [sidecar(1), sidecar(2), reader("tables", 3), sidecar(3, running=True)]
    one.go()
    assert one.written() == {
        FEATURES_KEY: FinalizedFeatures(5, finalized(3), None, 1, BROKER_CLOCK),
        update_key(name(1)): UpdateOutcome(0, None, 5, (1, 2, 3)),
    }
    assert one.controller.state is APPLYING
    one.see(sidecar(1, epoch=5), sidecar(2, epoch=5), sidecar(3, epoch=4))
    assert one.controller.state is APPLYING
    one.see(sidecar(1, epoch=5), sidecar(2, epoch=5), sidecar(3, epoch=5))
    assert one.controller.state is SERVING


def test_the_registry_is_read_after_the_intent_was_read_back() -> None:
    one = serving()
    one.waits = (WriteTransaction, ReadRegistry)
    one.propose(1, to(3))
    (write,) = one.waiting
    assert isinstance(write, WriteTransaction)
    one.waiting.clear()
    one.do(one.controller.written(write.number, 0))
    assert one.waiting == [], "it is committed, but it cannot be read yet"
    one.read(FEATURES_KEY, write.records[FEATURES_KEY])
    assert [type(each) for each in one.waiting] == [ReadRegistry]


def test_a_sidecar_without_features_is_not_waited_for() -> None:
    one = serving(3)
    one.see(sidecar(1), Participant("sidecar/2", "", {}, running=True))
    one.propose(1, to(0, 2))
    assert one.outcome(1).waits_for == (1,)


def test_an_update_that_no_longer_fits_after_the_barrier_is_withdrawn() -> None:
    one = changing()
    one.participants = [sidecar(1), sidecar(2), reader("tables", 1)]
    one.go()
    assert one.controller.state is SERVING
    assert one.levels == FinalizedFeatures(4, finalized(2), None, 1, BROKER_CLOCK)
    assert one.outcome(1).code == 95
    assert str(one.outcome(1).message).endswith(f"{AUDIT_EVENT_SCHEMA}: reader tables supports 1 to 1; asked: 3")


def test_levels_that_somebody_else_has_changed_meanwhile() -> None:
    one = changing()
    one.put(FEATURES_KEY, FinalizedFeatures(7, {}))
    one.go()
    assert one.outcome(1) == UpdateOutcome(96, "the levels have changed meanwhile; ask again", 7)


def test_an_update_that_is_not_finalized_in_time_is_withdrawn() -> None:
    one = changing()
    one.tick(19_999)
    assert one.controller.state is CHANGING
    one.tick(1)
    assert one.controller.state is SERVING
    assert one.outcome(1) == UpdateOutcome(96, "the update has timed out before it was finalized", 4)
    assert one.levels.pending is None
    one.go()
    assert one.controller.state is SERVING, "a late barrier"


def test_another_update_meanwhile_fails() -> None:
    one = changing()
    one.propose(2, to(1, 2))
    one.go()
    assert one.controller.state is APPLYING
    one.propose(3, to(1, 2), validate_only=True)
    one.go()
    for number in (2, 3):
        assert one.outcome(number).code == 96
        assert str(one.outcome(number).message).startswith("FEATURE_UPDATE_IN_PROGRESS: another update is under way")
    assert one.outcome(1).code == 0


def test_an_update_by_a_client_that_has_the_answer_to_the_one_before_is_served() -> None:
    """Its sidecar has read of the registry that all follow the levels, and the controller has not."""
    one = serving()
    one.waits = (ReadRegistry,)
    one.propose(1, to(3))
    one.go()
    assert one.controller.state is APPLYING
    one.waits = (ReadRegistry,)
    one.propose(2, to(1, 2))
    assert name(2) not in one.controller.topic.outcomes
    one.participants = [sidecar(1, epoch=5), sidecar(2, epoch=5)]
    one.go()
    assert one.controller.state is CHANGING
    one.go()
    assert one.outcome(2).code == 0


def test_sidecars_that_do_not_apply_are_waited_for_as_long_as_the_update_may_take() -> None:
    one = serving()
    one.propose(1, to(3), timeout=3_000)
    assert one.controller.state is APPLYING
    one.tick(2_999)
    assert one.controller.state is APPLYING
    one.tick(1)
    assert one.controller.state is SERVING


def test_an_update_that_is_wrong_changes_nothing() -> None:
    one = serving()
    one.propose(1, to(3), to(9, feature="brokerside.none"), principal="User:alice", client_ip="10.0.0.1", listener="A")
    assert one.controller.state is SERVING
    assert one.outcome(1).code == 95
    assert one.levels.features == finalized(2)
    line = one.lines[-1]
    assert line.event == "features_refused"
    assert (line.fields["code"], line.fields["principal"], line.fields["client_ip"], line.fields["listener"]) == (
        95, "User:alice", "10.0.0.1", "A",
    )  # fmt: skip


@pytest.mark.parametrize("upgrade", [to(3), to(2)])
def test_validation_and_what_changes_nothing_write_no_levels(upgrade: object) -> None:
    one = serving()
    one.propose(1, upgrade, validate_only=upgrade == to(3))  # type: ignore[arg-type]
    assert one.controller.state is SERVING
    assert one.outcome(1) == UpdateOutcome(0, None, 4)
    assert FEATURES_KEY not in one.written()


def test_validation_finds_what_is_wrong() -> None:
    one = serving()
    one.propose(1, to(9), validate_only=True)
    assert one.outcome(1).code == 95


def test_version_0_refuses_the_level_that_is_finalized() -> None:
    one = serving()
    one.propose(1, to(2), api_version=0)
    assert one.outcome(1).code == 95


def test_with_another_status_it_is_as_if_nothing_were_finalized() -> None:
    one = executor()
    one.put(FEATURES_KEY, FinalizedFeatures(4, finalized(2), status=0))
    one.hold()
    one.propose(1, to(1))
    assert one.outcome(1).code == 0
    assert one.levels.status == 1
    assert list(one.levels.features) == [AUDIT_EVENT_SCHEMA]


def test_of_too_many_proposals_the_last_ones_fail() -> None:
    one = executor()
    one.put(FEATURES_KEY, FinalizedFeatures(4, finalized(2)))
    for number in range(MAX_OPEN_PROPOSALS + 2):
        one.propose(number, to(2))
    one.hold()
    assert {one.outcome(number).code for number in range(MAX_OPEN_PROPOSALS)} == {0}
    for number in (MAX_OPEN_PROPOSALS, MAX_OPEN_PROPOSALS + 1):
        assert one.outcome(number) == UpdateOutcome(
            96, "FEATURE_UPDATE_IN_PROGRESS: more than 32 updates are waiting; ask again", 4
        )


# ---- what it does by itself -------------------------------------------------------------------------------------


def test_the_minimum_of_a_release_rises_once_all_support_it() -> None:
    one = executor(low=2)
    one.put(FEATURES_KEY, FinalizedFeatures(4, finalized(3)))
    one.see(sidecar(1), reader("tables", 1))
    one.hold()
    assert one.controller.state is SERVING
    refused = [line for line in one.lines if line.event == "features_refused"]
    assert [line.fields["message"] for line in refused] == [
        f"{AUDIT_EVENT_SCHEMA}: reader tables supports 1 to 1; minimum of this release: 2"
    ]
    one.tick(1_000)
    assert len([line for line in one.lines if line.event == "features_refused"]) == 1, "it is said once"
    one.waits = (ReadRegistry,)
    one.see(sidecar(1), reader("tables", 3))
    assert one.levels.pending == PendingUpdate("", finalized(3, 2))
    one.propose(1, to(2, 2))
    assert "another update is under way (by the controller itself)" in str(one.outcome(1).message)
    one.go()
    assert (one.levels.epoch, one.levels.features) == (5, finalized(3, 2))


def test_outcomes_are_deleted_after_10_minutes() -> None:
    one = serving()
    one.propose(1, to(2))
    one.tick(OUTCOME_KEPT_MS - 1)
    assert name(1) in one.controller.topic.outcomes
    one.tick(1)
    assert one.written() == {update_key(name(1)): None}
    assert one.controller.topic.outcomes == {}
    writes = len(one.writes)
    one.tick(1_000)
    assert len(one.writes) == writes


def test_the_oldest_of_many_outcomes_are_deleted_earlier() -> None:
    one = serving()
    for number in range(MAX_OUTCOMES + 3):
        one.propose(number, to(2))
    one.tick(1)
    assert list(one.controller.topic.outcomes) == [name(number) for number in range(3, MAX_OUTCOMES + 3)]


# ---- other controllers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [OPENING, BOOTSTRAP, SERVING, CHANGING, APPLYING])
def test_the_claim_of_another_sidecar_ends_it(state: ControllerState) -> None:
    if state in (OPENING, BOOTSTRAP):
        one = executor()
        one.waits = (WriteTransaction,) if state is OPENING else ()
        one.hold()
    else:
        one = serving() if state is SERVING else changing()
        if state is APPLYING:
            one.go()
    assert one.controller.state is state
    one.put(CONTROLLER_KEY, ControllerClaim(99, 2, "another"))
    assert (one.controller.state, one.controller.claim, one.closed) == (AWAY, 0, 1)
    assert one.lines[-1].fields == {"change": "lost", "reason": "another sidecar has become the controller"}
    one.tick(60_000)
    assert one.waiting == []


def test_claims_from_before_end_nothing() -> None:
    one = executor()
    one.waits = (WriteTransaction,)
    one.put(CONTROLLER_KEY, ControllerClaim(5, 2, "another"))
    one.do([])
    one.hold()
    one.go()
    one.go()
    assert one.controller.state is BOOTSTRAP
    one.put(CONTROLLER_KEY, ControllerClaim(6, 1, "boot"))
    assert one.controller.state is BOOTSTRAP, "its own claim, written twice"


def test_after_it_was_lost_it_can_become_the_controller_again() -> None:
    one = serving()
    one.do(one.controller.lost("fenced", 0))
    one.do(one.controller.lost("fenced", 0))
    assert (one.controller.state, one.closed) == (AWAY, 1)
    one.propose(1, to(3))
    assert one.controller.topic.outcomes == {}, "somebody else's task"
    one.hold()
    assert one.controller.state is APPLYING
    assert one.controller.claim == 2


def test_every_transition_is_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    visited = set()
    move = FeatureController._move

    def noted(self: FeatureController, event: ControllerEvent) -> None:
        visited.add((self.state, event))
        move(self, event)

    monkeypatch.setattr(FeatureController, "_move", noted)
    test_it_fences_reads_and_claims_before_it_serves()
    test_a_new_fleet_finalizes_the_highest_common_level_after_10_seconds()
    test_a_bootstrap_that_no_longer_fits_begins_again()
    test_an_update_is_an_intent_a_barrier_and_a_final_record_with_its_outcome()
    test_an_update_that_no_longer_fits_after_the_barrier_is_withdrawn()
    for state in (OPENING, BOOTSTRAP, SERVING, CHANGING, APPLYING):
        test_the_claim_of_another_sidecar_ends_it(state)
    assert visited == {(state, event) for state, events in TRANSITIONS.items() for event in events}


# ---- partitions of groups (S1-33) ------------------------------------------------------------------------------


def test_the_number_of_partitions_of_groups_is_written_once_and_stays() -> None:
    one = serving()
    one.tick(1)
    assert one.controller.topic.groups is None
    one.controller.group_partitions = 12
    one.tick(1)
    assert one.written() == {GROUPS_KEY: GroupsPartitions(12)}
    writes = len(one.writes)
    one.controller.group_partitions = 24
    one.tick(1)
    assert (len(one.writes), one.controller.topic.groups) == (writes, GroupsPartitions(12))


def test_a_deleted_number_of_partitions_is_written_again_as_it_was() -> None:
    one = serving()
    one.put(GROUPS_KEY, GroupsPartitions(12))
    one.controller.group_partitions = 24
    one.read(GROUPS_KEY, None)
    assert one.written() == {GROUPS_KEY: GroupsPartitions(12)}


def test_a_number_of_partitions_that_cannot_be_read_is_left_as_it_is() -> None:
    one = serving()
    one.controller.records([(GROUPS_KEY, b'{"partitions":12,"version":2}', BROKER_CLOCK)], 0)
    writes = len(one.writes)
    one.controller.group_partitions = 12
    one.tick(1)
    assert (len(one.writes), one.controller.topic.groups) == (writes, None)
