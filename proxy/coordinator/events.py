"""What the coordinator hears (``Coordinator.handle``). Times are milliseconds of the clock that ``handle`` gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proxy.coordinator.records import GroupRecord
from proxy.coordinator.wire import EndpointEntry, RegisterConsumerRequest

PartitionOffsets = Mapping[tuple[str, int], int]
"""The next offset to consume, by topic and partition."""


class PartitionAssigned(NamedTuple):
    """This sidecar is to hold a partition of the groups' topic (``proxy.fleet.election``)."""

    partition: int
    is_empty: bool
    """Whether the partition's log has no record: it is opened only when a consumer registers."""


class PartitionOpened(NamedTuple):
    """Effect ``OpenPartition`` is done: the predecessor is fenced, the log is read, the claim is committed."""

    partition: int
    claim: int
    claimed_at: int
    """When the write of the claim began. The predecessor cannot write since then."""
    records: Sequence[GroupRecord]
    """The latest record of each key, but for claims and tombstones."""


class PartitionLost(NamedTuple):
    """Another writer has fenced this one, another sidecar is to hold the partition, or this one ends or is not fit."""

    partition: int
    reason: str
    """A short constant: ``fenced``, ``other_holder``, ``not_fit``, ``evacuated``, ``stopping``, ``open_failed`` or
    ``stuck``."""


class WriteCommitted(NamedTuple):
    """A ``WriteRecords`` effect is committed; also of an effect ``ConfirmClaim`` (its ``write`` is -1)."""

    partition: int
    write: int
    began_at: int
    """When the transaction began: a successor's fence came later than that."""


class WriteAborted(NamedTuple):
    """A write is not committed, and never will be; its ``write`` as in ``WriteCommitted``. The writer goes on."""

    partition: int
    write: int
    reason: str


class ConsumerRegistered(NamedTuple):
    """A client has sent RegisterConsumer on a connection that was given to the coordinator. It may read the group."""

    connection: int
    """Numbers connections of consumers in this process, never used again."""
    correlation_id: int
    api_version: int
    request: RegisterConsumerRequest
    client_id: str
    principal: str
    client_ip: str
    listener: str
    unreadable: frozenset[str]
    """Topics that the client may not read: those of its subscription that exist and were asked about."""


class RightsChanged(NamedTuple):
    """The rights of a member's client were asked for again."""

    connection: int
    may_read_group: bool
    unreadable: frozenset[str]


class ResponseReceived(NamedTuple):
    """A whole frame of a consumer, without its size: a response to what was sent to it."""

    connection: int
    frame: bytes


class ConnectionBuffered(NamedTuple):
    """The kernel has not taken all bytes of the frames sent so far: what is left may be sent at any later time."""

    connection: int


class ConnectionDrained(NamedTuple):
    """The kernel has now taken all bytes of the frames sent so far."""

    connection: int


class ConsumerConnectionEnded(NamedTuple):
    """A consumer's connection has ended; not reported after an effect ``CloseConsumer``."""

    connection: int
    by_peer: bool
    """Whether the consumer's own kernel has ended it (FIN). A reset or a timeout may have any cause."""
    cause: str
    """As in the connection's ``closed`` event: ``client_closed``, ``client_reset``, ``consumer_malformed``, …"""


class TopicFactsOfGroups(NamedTuple):
    """One topic of the cluster, as the brokers described it."""

    topic_id: str
    """Kafka's text form; another id under the same name is another topic."""
    leaders: tuple[int, ...]
    """Broker id of the leader by partition; -1 where there is none. Its length is the number of partitions."""


class TopicsChanged(NamedTuple):
    """All topics that are watched, after a change. A topic that is not there does not exist (or is not readable)."""

    watch: int
    """The ``WatchTopics`` that was in force when the brokers were asked. Each is reported once, changed or not."""
    topics: Mapping[str, TopicFactsOfGroups]


class EndpointsChanged(NamedTuple):
    """The brokers, as clients of each listener dial them: for StartFetcher."""

    endpoints: Mapping[str, Sequence[EndpointEntry]]


class CommittedOffsetsRead(NamedTuple):
    """Effect ``ReadCommittedOffsets`` is done."""

    partition: int
    group: str
    read: int
    """As in the effect."""
    offsets: PartitionOffsets | None
    """Only partitions that have one; None: they could not be read, and are asked for again."""


class OrdinaryMembersFound(NamedTuple):
    """Effect ``FindOrdinaryMembers`` is done: whether Kafka's own coordinator has members of this group."""

    group: str
    has_members: bool | None
    """None: it could not be asked."""


class SettingsChanged(NamedTuple):
    """The configuration was reloaded. ``proxy.coordinator.settings.CoordinatorSettings``."""

    settings: object


Event = (
    PartitionAssigned
    | PartitionOpened
    | PartitionLost
    | WriteCommitted
    | WriteAborted
    | ConsumerRegistered
    | RightsChanged
    | ResponseReceived
    | ConnectionBuffered
    | ConnectionDrained
    | ConsumerConnectionEnded
    | TopicsChanged
    | EndpointsChanged
    | CommittedOffsetsRead
    | OrdinaryMembersFound
    | SettingsChanged
    | None
)
"""None: nothing has happened but that time has passed (``Coordinator.due``)."""
