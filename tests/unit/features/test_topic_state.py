"""What a process knows of the features' topic."""

from __future__ import annotations

import pytest

from proxy.features.records import (
    CONTROLLER_KEY,
    FEATURES_KEY,
    ControllerClaim,
    FeatureUpdate,
    FinalizedFeatures,
    FinalizedRange,
    UpdateOutcome,
    UpdateProposal,
    encode,
    update_key,
)
from proxy.features.topic_state import MAX_IDS, MAX_OPEN_PROPOSALS, TopicState

FIRST = FinalizedFeatures(1, {"brokerside.quota.ip": FinalizedRange(1, 1)})
PROPOSAL = UpdateProposal(1, "boot", 1_000, (FeatureUpdate("brokerside.quota.ip", 2),))


def name(number: int) -> str:
    return f"{number:032x}"


def test_what_cannot_be_read_is_ignored_and_counted() -> None:
    topic = TopicState()
    topic.apply(FEATURES_KEY, encode(FIRST), 5)
    assert topic.apply(FEATURES_KEY, b"{", 6) == "malformed"
    assert topic.apply(b"groups", b"{}", 6) == "malformed"
    assert (topic.finalized, topic.later_layout) == (FIRST, False)
    assert topic.apply(FEATURES_KEY, encode(FinalizedFeatures(9, {}, version=2)), 7) == "later_layout"
    assert (topic.finalized, topic.present, topic.later_layout) == (FIRST, True, True)
    assert topic.apply(CONTROLLER_KEY, encode(ControllerClaim(3, 1, "boot", version=2)), 7) == "later_layout"
    assert topic.claim is None
    assert topic.ignored == {"malformed": 2, "later_layout": 2}
    topic.apply(FEATURES_KEY, encode(FIRST), 8)
    assert not topic.later_layout


def test_a_proposal_is_open_until_it_has_an_outcome() -> None:
    topic = TopicState()
    topic.apply(update_key(name(1)), encode(PROPOSAL), 5)
    topic.apply(update_key(name(2)), encode(PROPOSAL), 6)
    assert {update: one.at for update, one in topic.proposals.items()} == {name(1): 5, name(2): 6}
    topic.apply(update_key(name(1)), encode(UpdateOutcome(0, epoch=2)), 7)
    assert list(topic.proposals) == [name(2)]
    assert topic.outcomes[name(1)] == (UpdateOutcome(0, epoch=2), 7)
    topic.apply(update_key(name(1)), encode(PROPOSAL), 8)
    assert list(topic.proposals) == [name(2)], "it has an outcome"
    topic.apply(update_key(name(1)), None, 9)
    topic.apply(update_key(name(2)), None, 9)
    assert (topic.proposals, topic.outcomes) == ({}, {})


def test_of_too_many_proposals_only_the_ids_are_kept() -> None:
    topic = TopicState()
    for number in range(MAX_OPEN_PROPOSALS + MAX_IDS + 5):
        topic.apply(update_key(name(number)), encode(PROPOSAL), 5)
    assert len(topic.proposals) == MAX_OPEN_PROPOSALS
    assert len(topic.excess) == MAX_IDS
    assert next(iter(topic.excess)) == name(MAX_OPEN_PROPOSALS)
    topic.apply(update_key(name(MAX_OPEN_PROPOSALS)), encode(UpdateOutcome(96)), 6)
    assert len(topic.excess) == MAX_IDS - 1


@pytest.mark.promise(
    "features.md", "A sidecar ignores a record of the finalized levels whose epoch is below one that it has read."
)
def test_a_record_with_a_lower_epoch_is_not_followed() -> None:
    """Somebody has written a record of a controller once more."""
    topic = TopicState()
    second = FinalizedFeatures(2, {})
    for record in (FIRST, second):
        topic.apply(FEATURES_KEY, encode(record), 5)
    assert topic.apply(FEATURES_KEY, encode(FIRST), 6) == "older"
    assert (topic.finalized, topic.present) == (second, False)
    third = FinalizedFeatures(3, {})
    assert topic.apply(FEATURES_KEY, encode(third), 7) is None
    assert (topic.finalized, topic.present) == (third, True)


def test_the_levels_survive_their_deletion_and_a_new_beginning() -> None:
    topic = TopicState()
    topic.apply(FEATURES_KEY, encode(FIRST), 5)
    topic.apply(FEATURES_KEY, None, 6)
    assert (topic.finalized, topic.present) == (FIRST, False)
    topic.apply(FEATURES_KEY, encode(FIRST), 5)
    topic.apply(CONTROLLER_KEY, encode(ControllerClaim(3, 1, "boot")), 7)
    topic.apply(update_key(name(1)), encode(PROPOSAL), 5)
    topic.restart()
    assert (topic.finalized, topic.present, topic.claim, topic.proposals) == (FIRST, False, None, {})
