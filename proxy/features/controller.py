"""The feature controller as states: the one sidecar that changes finalized levels. Pure, without IO and clock.

An executor reports events by the methods of ``FeatureController``. Each returns effects, which the executor then
carries out in their order. Every sidecar has a controller; all but one are ``AWAY``.

A change of levels is two writes with a barrier between. The controller writes its *intent* (``pending``), reads it
back, reads the registry to the end that it has now, checks again, and writes the *final* record. A participant that
starts registers first and reads the levels after. Of two that write first and read after, at least one sees the other:
no change misses a participant, and no participant misses a change. The intent has to be read back since Kafka
acknowledges a transaction before readers see it.

Source: KIP-584, "changes to the Kafka controller".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import structs

from proxy.features.catalog import RELEASE_MIN_LEVELS, SUPPORTED, UNSAFE_TO_LEAVE, LevelRange
from proxy.features.controller_states import (
    TRANSITIONS,
    CloseProducer,
    ControllerEvent,
    ControllerState,
    Effect,
    FencePredecessor,
    LogLine,
    ReadRegistry,
)
from proxy.features.level_change import LevelChange
from proxy.features.levels import ranges
from proxy.features.participants import Participant, last_applied_epoch
from proxy.features.records import (
    CONTROLLER_KEY,
    ENABLED,
    FEATURES_KEY,
    GROUPS_KEY,
    MAX_COUNT,
    ControllerClaim,
    Finalized,
    FinalizedFeatures,
    PendingUpdate,
    UpdateOutcome,
    UpdateProposal,
    encode,
    update_key,
)
from proxy.features.topic_state import MAX_OPEN_PROPOSALS, OpenProposal, TopicState
from proxy.features.transaction_queue import TransactionQueue
from proxy.features.updates import (
    FEATURE_UPDATE_FAILED,
    IN_PROGRESS,
    INVALID_UPDATE_VERSION,
    MAX_WAIT_MS,
    NONE,
    UpdateRefused,
    check,
    common_levels,
    listed,
    raised_minimums,
    wait_ms,
)

BOOTSTRAP_AFTER_MS = 10_000
"""Milliseconds from the opening to the first finalized levels: the sidecars of a new fleet start one after another."""


class FeatureController:
    """The controller of one sidecar.

    state         see ``ControllerState``.
    topic         what the topic says, as far as it was read; kept in every state.
    claim         the number of the own claim once it was read back, to be published in ``holds``; else 0.
    participants  as last reported.
    group_partitions  of the topic of groups, as the brokers have it now; set by the executor, 0 while it is not known.

    ``now`` is in milliseconds, monotonic. Times of records are by the brokers' clocks. The executor calls one method at
    a time, and ``tick`` at least once a second.
    """

    def __init__(
        self,
        broker_id: int,
        boot_id: str,
        *,
        supported: Mapping[str, LevelRange] = SUPPORTED,
        min_levels: Mapping[str, int] = RELEASE_MIN_LEVELS,
        unsafe_to_leave: Mapping[str, int] = UNSAFE_TO_LEAVE,
    ) -> None:
        self._broker_id, self._boot_id = broker_id, boot_id
        self._supported, self._min_levels, self._unsafe_to_leave = supported, min_levels, unsafe_to_leave
        self.state = ControllerState.AWAY
        self.topic = TopicState()
        self.participants: Sequence[Participant] = ()
        self.group_partitions = 0
        self._steps: Mapping[ControllerState, Callable[[int], None]] = {
            ControllerState.AWAY: lambda now: None,
            ControllerState.OPENING: self._open,
            ControllerState.BOOTSTRAP: self._bootstrap,
            ControllerState.SERVING: self._serve,
            ControllerState.CHANGING: self._change_levels,
            ControllerState.APPLYING: self._wait_for_sidecars,
        }
        self._number = 0
        self._clock_offset = 0
        """Milliseconds from ``now`` to the time of the brokers, by the last record that was read."""
        self._effects: list[Effect] = []
        self._forget()

    def _forget(self) -> None:
        self.claim = 0
        self._own_claim: bytes | None = None
        """The claim that was written; None until the topic was read to its end."""
        self._opening = 0
        self._since = 0
        """When the claim was read back."""
        self._queue = TransactionQueue()
        self._change: LevelChange | None = None
        self._blocked: str | None = None

    # Events

    def hold(self, now: int) -> list[Effect]:
        """Become the controller: the election says ``TAKE``. Participants were reported before."""
        self._move(ControllerEvent.HELD)
        self._opening = self._next_number()
        self._effects.append(FencePredecessor(self._opening))
        return self._flush(now)

    def opened(self, number: int, now: int) -> list[Effect]:
        """The controller before is fenced, and the topic was then read to its end."""
        if self.state is not ControllerState.OPENING or number != self._opening or self._own_claim is not None:
            return self._flush(now)
        topic = self.topic
        number = min((topic.claim.claim if topic.claim else 0) + 1, MAX_COUNT)
        self._own_claim = encode(ControllerClaim(number, self._broker_id, self._boot_id))
        self._queue.put(CONTROLLER_KEY, self._own_claim)
        known = topic.finalized
        if topic.present and not topic.later_layout and known is not None and known.pending is not None:
            self._put_features(structs.replace(known, pending=None), now)
            if known.pending.update in topic.proposals:
                self._answer(known.pending.update, FEATURE_UPDATE_FAILED, "the feature controller has moved; ask again")
        self._restore(now)
        return self._flush(now)

    def records(self, records: Iterable[tuple[bytes, bytes | None, int]], now: int) -> list[Effect]:
        """Committed records of the topic were read, in the order of the topic; in every state, from the beginning.

        Each is a key, a value (None for a tombstone), and when the broker appended it, in milliseconds since 1970; 0 if
        the topic has the writers' times. However many there are, what they ask for is looked at once, after the last.
        """
        effects: list[Effect] = []
        for key, value, at in records:
            self.topic.apply(key, value, at)
            self._clock_offset = at - now
            if self._queue.read(key, value):
                self._read_back(key)
            elif key == CONTROLLER_KEY and self._own_claim is not None and value != self._own_claim:
                effects += self.lost("another sidecar has become the controller", now)
        return effects + self._flush(now)

    def restarted(self, now: int) -> list[Effect]:
        """The topic will be read from its beginning again: it was deleted, or the place in it was lost."""
        self.topic.restart()
        return self.lost("the topic is read from its beginning again", now)

    def written(self, number: int, now: int) -> list[Effect]:
        """A write is committed."""
        self._queue.written(number, now)
        return self._flush(now)

    def write_failed(self, number: int, now: int) -> list[Effect]:
        """A write has failed, or it is unknown whether it is committed; it will be repeated."""
        self._queue.failed(number, now)
        return self._flush(now)

    def barrier_passed(self, number: int, participants: Sequence[Participant], now: int) -> list[Effect]:
        """The registry was read to the end that was measured after ``ReadRegistry``; this is what it says."""
        self.participants = participants
        change = self._change
        if change is not None and change.barrier == number and not change.is_withdrawn:
            if not change.epoch:
                self._confirm(change, now)
            elif not self._is_applied(change):
                self._refuse_others(change, change.others)
                change.others = ()
        return self._flush(now)

    def participants_changed(self, participants: Sequence[Participant], now: int) -> list[Effect]:
        """The registry says something new."""
        self.participants = participants
        return self._flush(now)

    def tick(self, now: int) -> list[Effect]:
        """Time has passed."""
        if self._queue.is_stuck(now):
            return self.lost("what was written cannot be read", now)
        return self._flush(now)

    def lost(self, reason: str, now: int) -> list[Effect]:
        """Stop being the controller; nothing happens if it is not. All reports for earlier effects are then ignored.

        ``reason``, for the log: the producer was fenced or cannot be used, the election says ``LET_GO``, the sidecar
        ends.
        """
        if self.state is not ControllerState.AWAY:
            self._move(ControllerEvent.LOST)
            self._effects.append(CloseProducer())
            self._log("feature_controller", change="lost", reason=reason)
            self._forget()
        return self._flush(now)

    # States

    def _open(self, now: int) -> None:
        if self._own_claim is None or self._queue.has_unread():
            return
        self.claim = self.topic.claim.claim if self.topic.claim else 0
        self._since = now
        self._log("feature_controller", change="taken", claim=self.claim)
        self._move(ControllerEvent.OPENED_EMPTY if self._is_empty() else ControllerEvent.OPENED)

    def _bootstrap(self, now: int) -> None:
        features = common_levels(self._supported, self.participants)
        running = [one for one in self.participants if one.running and one.broker_id is not None]
        if silent := [one.label for one in running if not one.supported]:
            reason = f"{listed(silent)} registers no features"
        elif not features:
            reason = "there is no level that all sidecars and readers support"
        elif now - self._since < BOOTSTRAP_AFTER_MS:
            reason = "the fleet has just started"
        else:
            self._begin(LevelChange("", None, features, now + MAX_WAIT_MS), now)
            return
        text = f"the levels of the fleet are not finalized yet: {reason}; ask again"
        self._answer_all(FEATURE_UPDATE_FAILED, text, self._unanswered())

    def _serve(self, now: int) -> None:
        self._restore(now)
        if self._queue.is_unread(FEATURES_KEY):
            return
        if (reason := self._why_unchangeable()) is not None:
            self._answer_all(FEATURE_UPDATE_FAILED, reason, self._unanswered())
            return
        if self.topic.present and self._base().pending is not None:  # nobody changes anything: it is not a controller's
            self._put_features(structs.replace(self._base(), pending=None), now)
            return
        if (groups := self.topic.missing_groups(self.group_partitions)) and not self._queue.is_unread(GROUPS_KEY):
            self._queue.put(GROUPS_KEY, encode(groups))
        self._answer_excess()
        for update, waiting in list(self.topic.proposals.items()):
            if not self._is_answered(update):
                self._propose(update, waiting, now)
                if self.state is not ControllerState.SERVING:
                    return
        self._raise_minimums(now)
        self._delete_outcomes(now)

    def _why_unchangeable(self) -> str | None:
        if self.topic.later_layout:
            return "a later release has finalized the levels, and the feature controller cannot read its record"
        if self._base().epoch == MAX_COUNT:  # nobody could find out who follows a change
            return "the epoch of the finalized levels is the highest possible one and cannot grow"
        return None

    def _change_levels(self, now: int) -> None:
        change = self._under_way()
        self._refuse_others(change, self._unanswered(change.update))
        if change.is_withdrawn:
            if not self._queue.is_unread(FEATURES_KEY):
                self._change = None
                self._move(ControllerEvent.WITHDRAWN_EMPTY if self._is_empty() else ControllerEvent.WITHDRAWN)
        elif now >= change.deadline:
            self._withdraw(change, FEATURE_UPDATE_FAILED, "the update has timed out before it was finalized", now)
        elif not change.barrier and not self._queue.is_unread(FEATURES_KEY):
            change.barrier = self._next_number()
            self._effects.append(ReadRegistry(change.barrier))

    def _wait_for_sidecars(self, now: int) -> None:
        change = self._under_way()
        self._restore(now)
        if not self._queue.is_unread(FEATURES_KEY) and (self._is_applied(change) or now >= change.deadline):
            self._change = None
            self._move(ControllerEvent.APPLIED)
            return
        self._answer_excess()
        if (others := self._unanswered()) and not change.others:
            # Their clients may have the answer to this change already: their sidecars have read more of the registry.
            change.others, change.barrier = others, self._next_number()
            self._effects.append(ReadRegistry(change.barrier))

    def _is_applied(self, change: LevelChange) -> bool:
        """A sidecar with a later epoch than the topic has read it before the topic was deleted. It ignores the change
        until ``_restore`` has written it once more."""
        if self._queue.is_unread(FEATURES_KEY):
            return False
        epoch = self._base().epoch
        return {one.broker_id for one in self.participants if one.applied_epoch == epoch} >= {*change.waits_for}

    # Changes of levels

    def _propose(self, update: str, waiting: OpenProposal, now: int) -> None:
        proposal = waiting.proposal
        left = wait_ms(proposal.timeout_ms) - max(now + self._clock_offset - waiting.at, 0)
        if left < 0:
            self._refuse(update, proposal, FEATURE_UPDATE_FAILED, "the update has timed out before it was looked at")
            return
        try:
            features = self._check(proposal)
        except UpdateRefused as refused:
            self._refuse(update, proposal, INVALID_UPDATE_VERSION, str(refused))
            return
        if proposal.validate_only or features == self._finalized():
            self._answer(update, NONE, None)
        else:
            self._begin(LevelChange(update, proposal, features, now + left), now)

    def _check(self, proposal: UpdateProposal) -> Finalized:
        return check(
            proposal.updates,
            self._finalized(),
            self.participants,
            api_version=proposal.api_version,
            supported=self._supported,
            unsafe_to_leave=self._unsafe_to_leave,
        )

    def _begin(self, change: LevelChange, now: int) -> None:
        """Write the intent."""
        self._change = change
        self._put_features(structs.replace(self._base(), pending=PendingUpdate(change.update, change.features)), now)
        self._move(ControllerEvent.FITS)

    def _confirm(self, change: LevelChange, now: int) -> None:
        """Check again after the barrier: write the final record, or withdraw the intent."""
        try:
            features = self._check(change.proposal) if change.proposal is not None else self._own_target()
        except UpdateRefused as refused:
            self._withdraw(change, INVALID_UPDATE_VERSION, str(refused), now)
            return
        if features != change.features:
            self._withdraw(change, FEATURE_UPDATE_FAILED, "the levels have changed meanwhile; ask again", now)
            return
        change.epoch = self._next_epoch()
        change.waits_for = tuple(
            one.broker_id for one in self.participants if one.running and one.supported and one.broker_id is not None
        )
        self._put_features(FinalizedFeatures(change.epoch, change.features), now)
        if change.update:
            self._put_outcome(change.update, UpdateOutcome(NONE, None, change.epoch, change.waits_for))
        self._move(ControllerEvent.CONFIRMED)

    def _withdraw(self, change: LevelChange, code: int, message: str, now: int) -> None:
        change.is_withdrawn = True
        self._put_features(structs.replace(self._base(), pending=None), now)
        if change.proposal is not None:
            self._refuse(change.update, change.proposal, code, message)

    def _own_target(self) -> Finalized:
        """Return what the controller finalizes without a proposal."""
        return common_levels(self._supported, self.participants) if self._is_empty() else self._minimums()[0]

    def _minimums(self) -> tuple[Finalized, str | None]:
        return raised_minimums(self._finalized(), self._min_levels, self.participants)

    def _raise_minimums(self, now: int) -> None:
        target, blocked = self._minimums()
        if blocked != self._blocked:
            self._blocked = blocked
            if blocked is not None:
                self._log("features_refused", message=blocked)
        if target != self._finalized():
            self._begin(LevelChange("", None, target, now + MAX_WAIT_MS), now)

    def _restore(self, now: int) -> None:
        """Write the levels that this process knows, if the record was deleted, if another one is older, or if a sidecar
        has applied a later epoch, from before the topic was deleted: it does not follow an older one."""
        topic, known = self.topic, self.topic.finalized
        if topic.later_layout or self._queue.is_unread(FEATURES_KEY) or known is None or known.epoch == 0:
            return
        if not topic.present or self._last_epoch() > known.epoch:
            self._put_features(structs.replace(known, epoch=self._next_epoch(), pending=None), now)

    def _last_epoch(self) -> int:
        """The last epoch that anybody is known to have seen."""
        return max(self._base().epoch, last_applied_epoch(self.participants))

    def _next_epoch(self) -> int:
        return min(self._last_epoch() + 1, MAX_COUNT)

    def _is_empty(self) -> bool:
        return self._base().epoch == 0 and not self.topic.later_layout

    def _base(self) -> FinalizedFeatures:
        return self.topic.finalized or FinalizedFeatures(0, {})

    def _finalized(self) -> Finalized:
        base = self._base()
        return base.features if base.status == ENABLED else {}

    def _under_way(self) -> LevelChange:
        assert self._change is not None
        return self._change

    # Outcomes

    def _refuse_others(self, change: LevelChange, others: Sequence[str]) -> None:
        asked = change.proposal
        what = listed(one.feature for one in asked.updates) if asked else "by the controller itself"
        text = f"{IN_PROGRESS}another update is under way ({what}); ask again"
        self._answer_all(FEATURE_UPDATE_FAILED, text, others)

    def _unanswered(self, but: str = "") -> tuple[str, ...]:
        return tuple(one for one in self.topic.proposals if one != but and not self._is_answered(one))

    def _answer_all(self, code: int, message: str, updates: Sequence[str]) -> None:
        for update in updates:
            self._refuse(update, self.topic.proposals[update].proposal, code, message)
        self._answer_excess()

    def _answer_excess(self) -> None:
        for update in self.topic.excess:
            if not self._is_answered(update):
                text = f"{IN_PROGRESS}more than {MAX_OPEN_PROPOSALS} updates are waiting; ask again"
                self._answer(update, FEATURE_UPDATE_FAILED, text)

    def _refuse(self, update: str, proposal: UpdateProposal, code: int, message: str) -> None:
        self._answer(update, code, message)
        self._log(
            "features_refused",
            update=update,
            code=code,
            message=message,
            asked_by=proposal.asked_by,
            principal=proposal.principal,
            client_ip=proposal.client_ip,
            listener=proposal.listener,
        )

    def _answer(self, update: str, code: int, message: str | None) -> None:
        self._put_outcome(update, UpdateOutcome(code, message, self._base().epoch))

    def _put_outcome(self, update: str, outcome: UpdateOutcome) -> None:
        self._queue.put(update_key(update), encode(outcome))

    def _is_answered(self, update: str) -> bool:
        return self._queue.is_unread(update_key(update))

    def _delete_outcomes(self, now: int) -> None:
        for update in self.topic.old_outcomes(now + self._clock_offset):
            if not self._is_answered(update):
                self._queue.put(update_key(update), None)

    # Records and effects

    def _put_features(self, record: FinalizedFeatures, now: int) -> None:
        at = now + self._clock_offset
        self._queue.put(FEATURES_KEY, encode(structs.replace(record, controller=self._broker_id, at=at)))

    def _read_back(self, key: bytes) -> None:
        change = self._change
        if key == FEATURES_KEY and change is not None and change.epoch == self._base().epoch:
            asked = change.proposal
            self._log(
                "features_finalized",
                epoch=change.epoch,
                features={name: str(levels) for name, levels in ranges(change.features).items()},
                update=change.update,
                principal=asked.principal if asked else "",
                client_ip=asked.client_ip if asked else "",
                listener=asked.listener if asked else "",
            )

    def _log(self, event: str, **fields: object) -> None:
        self._effects.append(LogLine(event, fields))

    def _move(self, event: ControllerEvent) -> None:
        self.state = TRANSITIONS[self.state][event]

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _flush(self, now: int) -> list[Effect]:
        """Do what can be done, and return all effects since the last call."""
        before = None
        while before is not self.state:
            before = self.state
            self._steps[self.state](now)
        writing = self._queue.start(self._number + 1, now)
        if writing is not None:
            self._number = writing.number
            self._effects.append(writing)
        effects, self._effects = self._effects, []
        return effects
