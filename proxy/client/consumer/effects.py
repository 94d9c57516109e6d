"""What a consumer's membership asks for: ``ConsumerMembership.handle`` returns a list of these, to be done in order."""

from __future__ import annotations

from typing import NamedTuple

from proxy.config.values import Endpoint


class OpenLink(NamedTuple):
    """Connect, and log in where a login is configured; then ``LinkConnected`` or ``LinkFailed``.

    There is one connection at most: the one before has ended, or was closed.
    """

    address: Endpoint


class SendToCoordinator(NamedTuple):
    """Send a whole frame, with its size."""

    frame: bytes


class CloseLink(NamedTuple):
    """Close the connection, or give up connecting. Nothing is reported of it any more."""

    reset: bool
    """True: with a reset (RST). False: after what was sent, with a FIN: so the coordinator learns that the consumer
    has stopped."""


class FetchedFrom(NamedTuple):
    """One partition of an assignment."""

    topic: str
    partition: int
    leader: int
    thread: int
    """Number of the stream that gets its messages, from 0, among those of the topic."""
    offset: int
    """Where fetching begins: an offset, or -2 (smallest) or -1 (largest), as in librdkafka."""
    epoch: int
    """Which assignment fetching began with: a partition that is there with the same epoch goes on where it is."""


class AssignPartitions(NamedTuple):
    """Fetch from these partitions, and from no other ones; then ``FetcherDone``.

    What was fetched and not handed out is dropped, but for partitions that go on.
    """

    command: int
    """Numbers the effects of this kind, from 1."""
    partitions: tuple[FetchedFrom, ...]


class MembershipEnded(NamedTuple):
    """It has left its group, or cannot be in it. Nothing follows."""

    error: str | None
    """None: the application wanted it."""


class LogMembership(NamedTuple):
    """Write a log line. ``level``: ``info`` or ``warning``."""

    level: str
    message: str


MembershipEffect = OpenLink | SendToCoordinator | CloseLink | AssignPartitions | MembershipEnded | LogMembership
