"""What a consumer's membership hears (``ConsumerMembership.handle``). Times are milliseconds of the clock it gets."""

from __future__ import annotations

from typing import NamedTuple


class ConsumerStarted(NamedTuple):
    """The consumer has its streams: it may search for its coordinator."""


class LinkConnected(NamedTuple):
    """Effect ``OpenLink`` is done: the connection is there, and logged in where a login is configured."""


class LinkFailed(NamedTuple):
    """Effect ``OpenLink`` could not be done."""

    reason: str
    """A sentence for the log."""
    refused: bool = False
    """Whether the address refused the connection: no process listens there."""
    fatal: bool = False
    """Whether it is of no use to try again, as with a login that is refused."""


class LinkEnded(NamedTuple):
    """The connection has ended, in whatever way; not reported after an effect ``CloseLink``."""

    reason: str


class FrameReceived(NamedTuple):
    """A whole frame without its size. Frames that were read before a ``CloseLink`` are not reported after it."""

    frame: bytes
    heard_at: int
    """The last moment at which the receive buffer was seen empty before the frame's last byte was read. What
    lay in the buffer of a paused process is as old as the pause."""


class FetcherDone(NamedTuple):
    """Effect ``AssignPartitions`` is done. Effects are done in their order."""

    command: int
    error: str | None = None


class OffsetOutOfRange(NamedTuple):
    """The broker no longer has, or does not yet have, an offset that was to be fetched. The partition stands still."""

    topic: str
    partition: int
    epoch: int
    """As in ``FetchedFrom``."""
    offset: int


class SubscriptionChanged(NamedTuple):
    """The consumer's topics or streams are other ones: it leaves, and registers again."""

    topic_count: str


class LeaveRequested(NamedTuple):
    """The consumer is to leave its group for good."""

    error: str | None = None
    """Why, if it is not the application that wants it."""


MembershipEvent = (
    ConsumerStarted
    | LinkConnected
    | LinkFailed
    | LinkEnded
    | FrameReceived
    | FetcherDone
    | OffsetOutOfRange
    | SubscriptionChanged
    | LeaveRequested
    | None
)
"""None: nothing has happened but that time has passed (``ConsumerMembership.due``)."""
