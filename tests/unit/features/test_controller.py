"""The feature controller: each transition of its table, and what it writes."""

from collections.abc import Iterator

import pytest

from proxy.features.catalog import AUDIT_EVENT_SCHEMA
from proxy.features.controller import BOOTSTRAP_AFTER_MS
from proxy.features.controller_states import ControllerState, ReadRegistry, WriteTransaction
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
    update_key,
)
from proxy.features.topic_state import MAX_OPEN_PROPOSALS, OUTCOME_KEPT_MS
from proxy.features.transaction_queue import READ_BACK_MS, RETRY_AFTER_MS
from tests.unit.features.fleets import (
    BROKER_CLOCK,
    Executor,
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


def test_it_fences_reads_and_claims_before_it_serves_and_clears_what_the_one_before_has_left() -> None:
    one = executor()
    one.propose(1, to(3))
    pending = PendingUpdate(name(1), finalized(3))
    one.put(FEATURES_KEY, FinalizedFeatures(4, finalized(2), pending, 2))
    one.put(CONTROLLER_KEY, ControllerClaim(6, 2, "another"))
    one.waits = (WriteTransaction,)
    one.hold()
    assert (one.controller.state, one.controller.claim) == (OPENING, 0)
    one.waits = ()
    one.go()
    assert (one.controller.state, one.controller.claim) == (SERVING, 7)
    assert one.written(0) == {
        CONTROLLER_KEY: ControllerClaim(7, 1, "boot"),
        FEATURES_KEY: FinalizedFeatures(4, finalized(2), None, 1, BROKER_CLOCK),
        update_key(name(1)): UpdateOutcome(96, "the feature controller has moved; ask again", 4),
    }
    assert (one.lines[0].event, one.lines[0].fields) == ("feature_controller", {"change": "taken", "claim": 7})
    new = executor()
    new.put(FEATURES_KEY, FinalizedFeatures(0, {}, PendingUpdate("", finalized(3)), 2))
    new.hold()
    assert new.controller.state is BOOTSTRAP
    assert list(new.written(0)) == [CONTROLLER_KEY, FEATURES_KEY], "an intent of its own has no outcome"


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


@pytest.mark.promise(
    "features.md", "The controller replaces an older record of the levels by those that it knows, with the next epoch."
)
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


@pytest.mark.promise("features.md", "An applied epoch above 2^62 in the registry is not believed.")
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


@pytest.mark.promise(
    "features.md", "If the topic is deleted, levels are written again above every epoch that a sidecar has applied."
)
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


@pytest.mark.promise(
    "features.md", "Levels that a later release has finalized in a layout of its own are left as they are."
)
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


@pytest.mark.promise(
    "features.md", "A new fleet finalizes the highest level that all of its sidecars and registered readers support."
)
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


@pytest.mark.promise("features.md", "An update is applied when every sidecar that ran follows its epoch.")
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
    one.waits = ()
    one.see(sidecar(1, epoch=5), Participant("sidecar/2", "", {}, running=True))
    one.propose(2, to(0, 2))
    assert one.outcome(2).waits_for == (1,), "one without features is not waited for"


@pytest.mark.promise(
    "features.md", "An update that a participant which starts meanwhile does not support is withdrawn."
)
def test_an_update_that_no_longer_fits_after_the_barrier_is_withdrawn() -> None:
    one = changing()
    one.participants = [sidecar(1), sidecar(2), reader("tables", 1)]
    one.go()
    assert one.controller.state is SERVING
    assert one.levels == FinalizedFeatures(4, finalized(2), None, 1, BROKER_CLOCK)
    assert one.outcome(1).code == 95
    assert str(one.outcome(1).message).endswith(f"{AUDIT_EVENT_SCHEMA}: reader tables supports 1 to 1; asked: 3")


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


@pytest.mark.promise("features.md", "While an update is under way, others fail with FEATURE_UPDATE_IN_PROGRESS.")
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


def test_validation_what_changes_nothing_and_what_is_wrong_write_no_levels() -> None:
    asker = {"principal": "User:alice", "client_ip": "10.0.0.1", "listener": "A"}
    for updates, fields, code in (
        ([to(3)], {"validate_only": True}, 0),
        ([to(9)], {"validate_only": True}, 95),
        ([to(2)], {}, 0),
        ([to(2)], {"api_version": 0}, 95),  # version 0 refuses the level that is finalized
        ([to(3), to(9, feature="brokerside.none")], asker, 95),
    ):
        one = serving()
        one.propose(1, *updates, **fields)
        assert (one.controller.state, one.levels.features) == (SERVING, finalized(2)), (updates, fields)
        assert (one.outcome(1).code, one.outcome(1).waits_for) == (code, ()), (updates, fields)
        assert FEATURES_KEY not in one.written(), (updates, fields)
    line = one.lines[-1]
    assert (line.event, line.fields["code"]) == ("features_refused", 95)
    assert {key: line.fields[key] for key in asker} == asker


@pytest.mark.promise("features.md", "At most 32 updates wait for the controller.")
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


@pytest.mark.promise(
    "features.md", "A release that no longer works with level 1 raises the minimum once all participants support it."
)
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


@pytest.mark.promise("features.md", "A controller that another sidecar has replaced writes no more.")
def test_the_claim_of_another_sidecar_ends_it() -> None:
    for state in (OPENING, BOOTSTRAP, SERVING, CHANGING, APPLYING):
        if state in (OPENING, BOOTSTRAP):
            one = executor()
            one.waits = (WriteTransaction,) if state is OPENING else ()
            one.hold()
        else:
            one = serving() if state is SERVING else changing()
            if state is APPLYING:
                one.go()
        assert one.controller.state is state
        if state is not OPENING:
            one.put(CONTROLLER_KEY, ControllerClaim(1, 1, "boot"))
            assert one.controller.state is state, "its own claim, read twice"
        one.put(CONTROLLER_KEY, ControllerClaim(99, 2, "another"))
        assert (one.controller.state, one.controller.claim, one.closed) == (AWAY, 0, 1), state
        assert one.lines[-1].fields == {"change": "lost", "reason": "another sidecar has become the controller"}, state
        one.tick(60_000)
        assert one.waiting == [], state


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
    one.read(GROUPS_KEY, None)
    assert one.written() == {GROUPS_KEY: GroupsPartitions(12)}, "a deleted one is written again as it was"
    one = serving()
    one.controller.records([(GROUPS_KEY, b'{"partitions":12,"version":2}', BROKER_CLOCK)], 0)
    writes = len(one.writes)
    one.controller.group_partitions = 12
    one.tick(1)
    assert (len(one.writes), one.controller.topic.groups) == (writes, None), "one that cannot be read is left"


def test_the_highest_epoch_and_claim_are_no_failure_and_an_intent_of_nobody_is_withdrawn() -> None:
    """Each sidecar would seem to follow a change as soon as it is made."""
    one = executor()
    one.put(FEATURES_KEY, FinalizedFeatures(MAX_COUNT, finalized(2)))
    one.put(CONTROLLER_KEY, ControllerClaim(MAX_COUNT, 7, "boot"))
    one.hold()
    one.tick(20_000)
    assert one.controller.state is SERVING
    one.propose(1, to(3))
    assert (one.levels.features, one.levels.pending, one.outcome(1).code) == (finalized(2), None, 96)
    assert "cannot grow" in (one.outcome(1).message or "")
    assert not one.controller.topic.ignored
    one = serving()
    one.put(FEATURES_KEY, FinalizedFeatures(4, finalized(2), PendingUpdate("", finalized(3, 3))))
    assert (one.levels.epoch, one.levels.features, one.levels.pending) == (4, finalized(2), None)
    assert one.controller.state is SERVING


def failing(one: Executor) -> Iterator[int]:
    """Let each write fail; yields the milliseconds after which the next comes."""
    while True:
        (write,) = [each for each in one.waiting if isinstance(each, WriteTransaction)]
        one.waiting.clear()
        one.do(one.controller.write_failed(write.number, one.now))
        waited = 0
        while not one.waiting:
            one.tick(100)
            waited += 100
        yield waited


@pytest.mark.promise(
    "features.md",
    "While the topic of features cannot be written, its levels stay as they are and the write is repeated.",
)
def test_a_write_that_fails_is_repeated_and_nothing_goes_on_without_it() -> None:
    one = serving()
    one.waits = (WriteTransaction,)
    one.propose(1, to(3), timeout=60_000)
    failures = failing(one)
    assert [next(failures) for _ in range(4)] == list(RETRY_AFTER_MS[:4])
    assert next(failures) == next(failures) == RETRY_AFTER_MS[-1]
    assert one.controller.state is CHANGING
    (write,) = one.waiting
    assert update_key(name(1)) in write.records, "its time is over by now"
    one.waits = ()
    one.go()
    assert (one.controller.state, one.outcome(1).code) == (SERVING, 96)
    assert (one.levels.epoch, one.levels.pending) == (4, None)


def test_what_was_read_back_is_not_written_again_and_what_comes_meanwhile_goes_into_the_next_write() -> None:
    one = serving()
    one.waits = (WriteTransaction,)
    one.propose(1, to(2))
    (write,) = one.waiting
    one.waiting.clear()
    one.read(update_key(name(1)), write.records[update_key(name(1))])
    one.do(one.controller.write_failed(write.number, 0))
    one.tick(20_000)
    assert one.waiting == []
    one.propose(2, to(2))
    (second,) = one.waiting
    assert list(second.records) == [update_key(name(2))]
    one = serving()
    one.waits = (WriteTransaction,)
    for number in (1, 2, 3):
        one.propose(number, to(2))
    assert len(one.waiting) == 1
    one.waits = ()
    one.go()
    assert list(one.written()) == [update_key(name(2)), update_key(name(3))]


def test_a_write_that_cannot_be_read_back_ends_it() -> None:
    one = executor()
    one.waits = (WriteTransaction,)
    one.hold()
    (write,) = one.waiting
    one.do(one.controller.written(write.number, one.now))
    one.tick(READ_BACK_MS - 1)
    assert one.controller.state is OPENING
    one.tick(1)
    assert one.controller.state is AWAY
    assert one.lines[-1].fields["reason"] == "what was written cannot be read"
