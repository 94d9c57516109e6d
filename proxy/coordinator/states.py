"""The states of partitions, groups and members, as data. A pair of state and event that is not here does not happen.

Every change of a state goes through ``next_state``. What is done in a state, and when an event happens, stands in the
modules that own the state: ``held_partition``, ``group`` and ``member``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class PartitionState(Enum):
    """What this sidecar does with a partition of the groups' topic. One that is not held has no state."""

    NOMINAL = "nominal"
    """Held by name only: its log is empty, and nobody has asked yet. It has no producer."""
    OPENING = "opening"
    """The predecessor is fenced, the log is read, the claim is written."""
    OPEN = "open"
    """Its groups are served."""
    MUTE = "mute"
    """The claim was not confirmed in time: nothing is sent to consumers, and no timeout of theirs counts."""
    AWAY = "away"
    """Another sidecar is to hold it. All memory of it is dropped."""


class PartitionEvent(Enum):
    """What changes the state of a partition."""

    ASKED = "asked"
    """A consumer registers."""
    OPENED = "opened"
    """The predecessor is fenced, the log is read, the claim is committed."""
    UNCONFIRMED = "unconfirmed"
    """No committed write has begun within ``state.write.timeout.ms``, and there are registered consumers."""
    CONFIRMED = "confirmed"
    """A write that began within that time is committed."""
    LOST = "lost"
    """Fenced, held by another, not fit, or the end of this sidecar."""


class GroupState(Enum):
    """What a group is doing."""

    EMPTY = "empty"
    """No member. Its owners stay as they are."""
    RETURNING = "returning"
    """After a takeover: waits for the members that the records name."""
    STABLE = "stable"
    """No attempt is under way. One may be queued."""
    STOPPING = "stopping"
    """Waits for the responses to StopFetcher."""
    COMMITTING = "committing"
    """Waits until offsets and owners are committed, then for the offsets to start at."""
    STARTING = "starting"
    """Waits for the responses to StartFetcher."""
    BACKOFF = "backoff"
    """An attempt has failed; the next one begins after ``rebalance.backoff.ms``."""
    FAILED = "failed"
    """All retries have failed; the connections of all members are being closed."""


class GroupStateEvent(Enum):
    """What changes the state of a group."""

    REGISTERED = "registered"
    """A member is registered."""
    LOADED = "loaded"
    """The records that a predecessor wrote name members."""
    NOT_NECESSARY = "not_necessary"
    """An attempt has found nothing to do."""
    RESUME = "resume"
    """Nothing changes hands: members that wait for StartFetcher start what they own, and nobody stops."""
    STOP = "stop"
    """Somebody has to stop first."""
    COMMIT = "commit"
    """Nobody fetches any more what he loses."""
    COMMITTED = "committed"
    """The owners are committed, and the offsets to start at are known."""
    STARTED = "started"
    """All members have confirmed StartFetcher."""
    ATTEMPT_FAILED = "attempt_failed"
    """A member has not answered in time or has answered with an error, or the owners could not be committed."""
    MEMBER_GONE = "member_gone"
    """A member has failed or left."""
    GIVEN_UP = "given_up"
    """``max.rebalance.retries`` are used up, or there is no valid assignment."""
    EMPTIED = "emptied"
    """The last member is gone. In an attempt, ``MEMBER_GONE`` comes before."""


class MemberState(Enum):
    """What a consumer may be doing."""

    REGISTERING = "registering"
    """Its record is being written. It has no answer yet."""
    IDLE = "idle"
    """Registered, and fetches nothing."""
    STARTING = "starting"
    """StartFetcher was sent, and is not confirmed."""
    FETCHING = "fetching"
    STOPPING = "stopping"
    """StopFetcher was sent, and is not confirmed: it may still fetch."""
    RETURNED = "returned"
    """Back after a takeover: it may fetch what the records say, and got no request yet."""
    ABSENT = "absent"
    """The records of a predecessor name it. It may fetch, and is not back yet."""
    GONE = "gone"


class MemberEvent(Enum):
    """What changes the state of a member."""

    ACCEPTED = "accepted"
    """Its registration is answered with 0."""
    RETURN = "return"
    """The same, and the records of a predecessor name it."""
    START = "start"
    """StartFetcher is sent."""
    STARTED = "started"
    """It has confirmed the latest StartFetcher."""
    STOP = "stop"
    """StopFetcher is sent."""
    STOPPED = "stopped"
    """It has confirmed the latest StopFetcher, and fetches nothing."""
    PARTLY_STOPPED = "partly_stopped"
    """The same of a StopFetcher that named partitions: it goes on with the others."""
    END = "end"
    """It left, failed, was replaced or denied; its time is over; or it is back on a connection."""


PARTITIONS: Mapping[PartitionState, Mapping[PartitionEvent, PartitionState]] = {
    PartitionState.NOMINAL: {
        PartitionEvent.ASKED: PartitionState.OPENING,
        PartitionEvent.LOST: PartitionState.AWAY,
    },
    PartitionState.OPENING: {
        PartitionEvent.OPENED: PartitionState.OPEN,
        PartitionEvent.LOST: PartitionState.AWAY,
    },
    PartitionState.OPEN: {
        PartitionEvent.UNCONFIRMED: PartitionState.MUTE,
        PartitionEvent.LOST: PartitionState.AWAY,
    },
    PartitionState.MUTE: {
        PartitionEvent.CONFIRMED: PartitionState.OPEN,
        PartitionEvent.LOST: PartitionState.AWAY,
    },
    PartitionState.AWAY: {},
}

GROUPS: Mapping[GroupState, Mapping[GroupStateEvent, GroupState]] = {
    GroupState.EMPTY: {
        GroupStateEvent.REGISTERED: GroupState.STABLE,
        GroupStateEvent.LOADED: GroupState.RETURNING,
    },
    GroupState.RETURNING: {
        GroupStateEvent.REGISTERED: GroupState.RETURNING,
        GroupStateEvent.RESUME: GroupState.STARTING,
        GroupStateEvent.NOT_NECESSARY: GroupState.STABLE,
        GroupStateEvent.STOP: GroupState.STOPPING,
        GroupStateEvent.COMMIT: GroupState.COMMITTING,
        GroupStateEvent.MEMBER_GONE: GroupState.RETURNING,
        GroupStateEvent.GIVEN_UP: GroupState.FAILED,
        GroupStateEvent.EMPTIED: GroupState.EMPTY,
    },
    GroupState.STABLE: {
        GroupStateEvent.REGISTERED: GroupState.STABLE,
        GroupStateEvent.NOT_NECESSARY: GroupState.STABLE,
        GroupStateEvent.RESUME: GroupState.STARTING,
        GroupStateEvent.STOP: GroupState.STOPPING,
        GroupStateEvent.COMMIT: GroupState.COMMITTING,
        GroupStateEvent.MEMBER_GONE: GroupState.STABLE,
        GroupStateEvent.GIVEN_UP: GroupState.FAILED,
        GroupStateEvent.EMPTIED: GroupState.EMPTY,
    },
    GroupState.STOPPING: {
        GroupStateEvent.REGISTERED: GroupState.STOPPING,
        GroupStateEvent.COMMIT: GroupState.COMMITTING,
        GroupStateEvent.ATTEMPT_FAILED: GroupState.BACKOFF,
        GroupStateEvent.MEMBER_GONE: GroupState.STABLE,
    },
    GroupState.COMMITTING: {
        GroupStateEvent.REGISTERED: GroupState.COMMITTING,
        GroupStateEvent.COMMITTED: GroupState.STARTING,
        GroupStateEvent.ATTEMPT_FAILED: GroupState.BACKOFF,
        GroupStateEvent.MEMBER_GONE: GroupState.STABLE,
    },
    GroupState.STARTING: {
        GroupStateEvent.REGISTERED: GroupState.STARTING,
        GroupStateEvent.STARTED: GroupState.STABLE,
        GroupStateEvent.ATTEMPT_FAILED: GroupState.BACKOFF,
        GroupStateEvent.MEMBER_GONE: GroupState.STABLE,
    },
    GroupState.BACKOFF: {
        GroupStateEvent.REGISTERED: GroupState.BACKOFF,
        GroupStateEvent.NOT_NECESSARY: GroupState.STABLE,
        GroupStateEvent.RESUME: GroupState.STARTING,
        GroupStateEvent.STOP: GroupState.STOPPING,
        GroupStateEvent.COMMIT: GroupState.COMMITTING,
        GroupStateEvent.MEMBER_GONE: GroupState.BACKOFF,
        GroupStateEvent.GIVEN_UP: GroupState.FAILED,
        GroupStateEvent.EMPTIED: GroupState.EMPTY,
    },
    GroupState.FAILED: {
        GroupStateEvent.EMPTIED: GroupState.EMPTY,
    },
}

MEMBERS: Mapping[MemberState, Mapping[MemberEvent, MemberState]] = {
    MemberState.REGISTERING: {
        MemberEvent.ACCEPTED: MemberState.IDLE,
        MemberEvent.RETURN: MemberState.RETURNED,
        MemberEvent.END: MemberState.GONE,
    },
    MemberState.IDLE: {
        MemberEvent.START: MemberState.STARTING,
        MemberEvent.END: MemberState.GONE,
    },
    MemberState.STARTING: {
        MemberEvent.START: MemberState.STARTING,
        MemberEvent.STARTED: MemberState.FETCHING,
        MemberEvent.STOP: MemberState.STOPPING,
        MemberEvent.END: MemberState.GONE,
    },
    MemberState.FETCHING: {
        MemberEvent.START: MemberState.STARTING,
        MemberEvent.STOP: MemberState.STOPPING,
        MemberEvent.END: MemberState.GONE,
    },
    MemberState.STOPPING: {
        MemberEvent.STOP: MemberState.STOPPING,
        MemberEvent.STOPPED: MemberState.IDLE,
        MemberEvent.PARTLY_STOPPED: MemberState.FETCHING,
        MemberEvent.START: MemberState.STARTING,
        MemberEvent.END: MemberState.GONE,
    },
    MemberState.RETURNED: {
        MemberEvent.START: MemberState.STARTING,
        MemberEvent.STOP: MemberState.STOPPING,
        MemberEvent.END: MemberState.GONE,
    },
    MemberState.ABSENT: {
        MemberEvent.END: MemberState.GONE,
    },
    MemberState.GONE: {},
}


class ImpossibleTransitionError(Exception):
    """An event does not happen in a state: an error of the coordinator itself."""


def next_state(table: Mapping[S, Mapping[E, S]], state: S, event: E) -> S:
    """Return the state that follows. Raises ``ImpossibleTransitionError`` for a pair that the table does not have."""
    try:
        return table[state][event]
    except KeyError:
        raise ImpossibleTransitionError(f"{type(state).__name__} {state.value}: {event.value}") from None
