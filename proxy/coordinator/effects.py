"""What the coordinator asks for (``Coordinator.handle`` returns a list of these, to be done in their order)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from proxy.coordinator.events import PartitionOffsets
from proxy.coordinator.records import GroupRecord
from proxy.core.causes import Cause


class OpenPartition(NamedTuple):
    """Fence the predecessor, read the partition to its end, write the claim; then ``PartitionOpened``."""

    partition: int


class ClosePartition(NamedTuple):
    """Let the producer of the partition go. Nothing is reported for it any more."""

    partition: int


class HoldPartition(NamedTuple):
    """Publish in the registry (``SidecarRecord.holds``) that this sidecar holds the partition."""

    partition: int
    claim: int
    """0: it is not open yet."""


class WriteRecords(NamedTuple):
    """Write records and offsets in one transaction; then ``WriteCommitted``, ``WriteAborted`` or ``PartitionLost``."""

    partition: int
    write: int
    """Numbers the writes of this process, from 0."""
    records: Sequence[GroupRecord]
    """Records with a value of None are tombstones."""
    offsets: Mapping[str, PartitionOffsets]
    """Offsets to commit, by group (TxnOffsetCommit, generation -1)."""


class ConfirmClaim(NamedTuple):
    """Write the partition's claim again: it proves that this sidecar still holds it.

    Then ``WriteCommitted`` or ``WriteAborted`` with write -1, or ``PartitionLost``.
    """

    partition: int


class SendFrame(NamedTuple):
    """Send a whole frame, with its size, to a consumer."""

    connection: int
    frame: bytes


class ConsumerAccepted(NamedTuple):
    """The connection is a registered member's now: ``TCP_USER_TIMEOUT`` is set to the value, in milliseconds."""

    connection: int
    user_timeout_ms: int


class CloseConsumer(NamedTuple):
    """Close a connection after what was sent to it. Nothing is reported for it any more."""

    connection: int
    cause: Cause


class ReadCommittedOffsets(NamedTuple):
    """Read the committed offsets of a group (OffsetFetch with ``require_stable``); then ``CommittedOffsetsRead``."""

    partition: int
    group: str
    read: int
    """Numbers the reads of this process, from 0."""


class FindOrdinaryMembers(NamedTuple):
    """Ask Kafka whether the group has members of Kafka's own protocols; then ``OrdinaryMembersFound``."""

    group: str


class WatchTopics(NamedTuple):
    """What ``TopicsChanged`` has to be about from now on; one is reported as soon as the brokers have answered."""

    watch: int
    """Numbers these effects of this process, from 0."""
    names: frozenset[str]
    all_topics: bool
    """Then ``names`` is empty: a group subscribes by pattern, or too many topics are named."""


class LogGroupEvent(NamedTuple):
    """Write a log line. ``level``: ``info``, ``warning`` or ``error``."""

    level: str
    event: str
    fields: Mapping[str, Any]


class CountGroupEvent(NamedTuple):
    """Add to a metric: its name without the prefix, the values of its labels, and how much."""

    metric: str
    labels: tuple[str, ...]
    amount: float = 1


Effect = (
    OpenPartition
    | ClosePartition
    | HoldPartition
    | WriteRecords
    | ConfirmClaim
    | SendFrame
    | ConsumerAccepted
    | CloseConsumer
    | ReadCommittedOffsets
    | FindOrdinaryMembers
    | WatchTopics
    | LogGroupEvent
    | CountGroupEvent
)
