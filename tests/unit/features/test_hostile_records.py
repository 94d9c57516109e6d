"""The controller, and records that no sidecar can have written: whoever may write the topic may write anything."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED
from proxy.features.controller import FeatureController
from proxy.features.controller_states import ControllerState, Effect, FencePredecessor, ReadRegistry, WriteTransaction
from proxy.features.participants import Participant
from proxy.features.records import (
    CONTROLLER_KEY,
    FEATURES_KEY,
    MAX_COUNT,
    ControllerClaim,
    FeatureUpdate,
    FinalizedFeatures,
    FinalizedRange,
    PendingUpdate,
    UpdateProposal,
    encode,
    update_key,
)
from proxy.features.topic_state import MAX_IDS, MAX_OPEN_PROPOSALS
from proxy.features.transaction_queue import TransactionQueue
from proxy.features.updates import FEATURE_UPDATE_FAILED

SIDECAR = Participant("sidecar/1", "1", SUPPORTED, running=True)
PROPOSAL = encode(UpdateProposal(1, "boot", 20_000, (FeatureUpdate(AUDIT_EVENT_SCHEMA, 9),)))
NOW = 60_000


class Fleet:
    """A controller whose writes are committed and read back at once. ``written``: all of its records."""

    def __init__(self) -> None:
        self.controller = FeatureController(1, "boot")
        self.written: list[tuple[bytes, bytes | None]] = []
        self.controller.participants_changed([SIDECAR], 0)

    def serve(self) -> None:
        """Become the controller, and finalize the first levels if there are none."""
        self.run(self.controller.hold(NOW))
        for seconds in (20, 40):
            self.run(self.controller.tick(NOW + 1000 * seconds))
        assert self.controller.state is ControllerState.SERVING

    def run(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case FencePredecessor(number):
                    self.run(self.controller.opened(number, NOW))
                case WriteTransaction(number, records):
                    self.written += records.items()
                    self.run(self.controller.written(number, NOW))
                    self.run(self.controller.records([(key, value, NOW) for key, value in records.items()], NOW))
                case ReadRegistry(number):
                    self.run(self.controller.barrier_passed(number, [SIDECAR], NOW))


def test_many_records_of_one_read_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    is_unread = TransactionQueue.is_unread

    def counting(queue: TransactionQueue, key: bytes) -> bool:
        nonlocal looks
        looks += 1
        return is_unread(queue, key)

    fleet = Fleet()
    fleet.serve()
    monkeypatch.setattr(TransactionQueue, "is_unread", counting)
    proposals = MAX_OPEN_PROPOSALS + MAX_IDS
    fleet.run(fleet.controller.records([(update_key(f"{n:032x}"), PROPOSAL, NOW) for n in range(proposals)], NOW))

    assert (fleet.controller.topic.proposals, fleet.controller.topic.excess) == ({}, {})
    assert looks < 10 * proposals


def test_the_highest_epoch_and_claim_there_can_be_are_no_failure_and_no_change_is_reported_as_applied() -> None:
    """Each sidecar would seem to follow a change as soon as it is made."""
    fleet = Fleet()
    levels = {AUDIT_EVENT_SCHEMA: FinalizedRange(1, 1)}
    found = [
        (FEATURES_KEY, encode(FinalizedFeatures(MAX_COUNT, levels)), NOW),
        (CONTROLLER_KEY, encode(ControllerClaim(MAX_COUNT, 7, "boot")), NOW),
    ]
    fleet.run(fleet.controller.records(found, NOW))
    fleet.serve()
    raised = encode(UpdateProposal(1, "boot", 20_000, (FeatureUpdate(AUDIT_EVENT_SCHEMA, 2),)))
    fleet.run(fleet.controller.records([(update_key("a" * 32), raised, NOW + 40_000)], NOW + 40_000))

    topic = fleet.controller.topic
    assert topic.finalized is not None
    assert (topic.finalized.features, topic.finalized.pending) == (levels, None)
    assert topic.outcomes["a" * 32].outcome.code == FEATURE_UPDATE_FAILED
    assert "cannot grow" in (topic.outcomes["a" * 32].outcome.message or "")
    assert not topic.ignored


def test_an_intent_of_nobody_is_withdrawn() -> None:
    fleet = Fleet()
    fleet.serve()
    before = fleet.controller.topic.finalized
    assert before is not None
    intent = FinalizedFeatures(
        before.epoch, before.features, PendingUpdate("", {AUDIT_EVENT_SCHEMA: FinalizedRange(3, 3)})
    )
    fleet.run(fleet.controller.records([(FEATURES_KEY, encode(intent), NOW)], NOW))

    after = fleet.controller.topic.finalized
    assert after is not None
    assert (after.epoch, after.features, after.pending) == (before.epoch, before.features, None)
    assert fleet.controller.state is ControllerState.SERVING
