"""What the topic ``__brokerside_features`` says, as far as one process has read it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from proxy.features.records import (
    FEATURES_KEY,
    GROUPS_KEY,
    ControllerClaim,
    FinalizedFeatures,
    GroupsPartitions,
    UpdateOutcome,
    UpdateProposal,
    decode,
    has_later_layout,
    update_of_key,
)

MAX_OPEN_PROPOSALS = 32
"""Proposals without an outcome that are kept; of further ones only the ids are, and the controller refuses them."""

MAX_IDS = 1000
"""Ids of further proposals that are kept, and outcomes: the newest."""

OUTCOME_KEPT_MS = 600_000
"""Milliseconds until an outcome is deleted from the topic."""

MAX_OUTCOMES = 256
"""Outcomes that the topic keeps; with more, the oldest are deleted before their time."""


class OpenProposal(NamedTuple):
    """A proposal without an outcome. ``at``: when the broker appended it, in milliseconds since 1970."""

    proposal: UpdateProposal
    at: int


class KnownOutcome(NamedTuple):
    """An outcome. ``at``: when the broker appended it, in milliseconds since 1970."""

    outcome: UpdateOutcome
    at: int


class TopicState:
    """The last record of each key, in the order of the topic.

    finalized     of the records ``features`` that were ever read, the last one with the highest epoch; it survives
                  ``restart``. One with a lower epoch is not followed: a topic that was deleted begins at 1 again, and
                  whoever may write it can repeat what a controller has signed.
    present       whether the topic's last readable one is that.
    later_layout  whether the topic's last record ``features`` is of a later layout than this release reads.
    claim         the last claim, or None.
    groups        the last record ``groups``, or None; it survives ``restart``. ``groups_present``: the topic has it.
    proposals     by id, those without an outcome, in their order.
    excess        ids of those beyond ``MAX_OPEN_PROPOSALS``, in their order.
    outcomes      by id, in their order.
    ignored       numbers of records that were ignored, by reason: malformed, later_layout, older.
    """

    def __init__(self) -> None:
        self.finalized: FinalizedFeatures | None = None
        self.groups: GroupsPartitions | None = None
        self.ignored: Counter[str] = Counter()
        self.restart()

    def restart(self) -> None:
        """Forget what the topic said, except the finalized levels: it will be read from its beginning again."""
        self.present = False
        self.later_layout = False
        self.claim: ControllerClaim | None = None
        self.groups_present = False
        self.proposals: dict[str, OpenProposal] = {}
        self.excess: dict[str, None] = {}
        self.outcomes: dict[str, KnownOutcome] = {}

    def missing_groups(self, partitions: int) -> GroupsPartitions | None:
        """Return the record ``groups`` that the topic ought to have; None if it has it. ``partitions``: of the topic of
        groups now; 0: it is not there, or not known."""
        if self.groups_present or not (self.groups or partitions):
            return None
        return self.groups or GroupsPartitions(partitions)

    def old_outcomes(self, now: int) -> list[str]:
        """Return the ids of the outcomes to be deleted. ``now``: by the brokers' clock."""
        excess = len(self.outcomes) - MAX_OUTCOMES
        kept_until = [known.at + OUTCOME_KEPT_MS for known in self.outcomes.values()]
        return [update for place, update in enumerate(self.outcomes) if place < excess or kept_until[place] <= now]

    def apply(self, key: bytes, value: bytes | None, at: int) -> str | None:
        """Apply one record of the topic. Return why it is ignored, None if it is not.

        ``value``: None for a tombstone. ``at``: when the broker appended it, in milliseconds since 1970.
        """
        reason = self._apply(key, value, at)
        if reason is not None:
            self.ignored[reason] += 1
        return reason

    def _apply(self, key: bytes, value: bytes | None, at: int) -> str | None:
        if value is None:
            self._delete(key)
            return None
        record = decode(key, value)
        if record is None:
            later = has_later_layout(value)
            if key == FEATURES_KEY and later:
                self.later_layout = True
            elif key == GROUPS_KEY:  # nobody knows where a group belongs, and nobody may decide it anew
                self.groups, self.groups_present = None, True
            return "later_layout" if later else "malformed"
        if isinstance(record, FinalizedFeatures):
            self.later_layout = False
            if self.finalized is not None and record.epoch < self.finalized.epoch:
                was_present, self.present = self.present, False
                return "older" if was_present else None  # else it is read from its beginning again
            self.finalized, self.present = record, True
        elif isinstance(record, ControllerClaim):
            self.claim = record
        elif isinstance(record, GroupsPartitions):
            self.groups, self.groups_present = record, True
        else:
            self._update(update_of_key(key) or "", record, at)
        return None

    def _update(self, update: str, record: UpdateProposal | UpdateOutcome, at: int) -> None:
        if isinstance(record, UpdateOutcome):
            self._close(update)
            self.outcomes.setdefault(update, KnownOutcome(record, at))
            if len(self.outcomes) > MAX_IDS:
                del self.outcomes[next(iter(self.outcomes))]
        elif update in self.proposals or update in self.outcomes:
            return
        elif len(self.proposals) < MAX_OPEN_PROPOSALS:
            self.proposals[update] = OpenProposal(record, at)
        elif len(self.excess) < MAX_IDS:
            self.excess[update] = None

    def _close(self, update: str) -> None:
        self.proposals.pop(update, None)
        self.excess.pop(update, None)

    def _delete(self, key: bytes) -> None:
        update = update_of_key(key)
        if update is not None:
            self._close(update)
            self.outcomes.pop(update, None)
        elif key == FEATURES_KEY:
            self.present = self.later_layout = False
        elif key == GROUPS_KEY:
            self.groups_present = False
