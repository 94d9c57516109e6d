"""Events of what the cluster has: its topics, what members of groups do, and the ends of partitions. See event.py."""

from __future__ import annotations

import msgspec


class InventoryTopic(msgspec.Struct, omit_defaults=True, gc=False):
    """One topic that exists."""

    topic: str
    """Its name."""
    topic_id: str | None = None
    """Its id as Kafka prints it; None where the cluster gives none."""
    partitions: int = 0
    """How many partitions it has."""
    internal: bool = False
    """Whether it is one of Kafka's own."""


class InventoryEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="topic_inventory"):
    """Topics that exist: the whole list each hour and when it has changed, in as many parts as needed."""

    seq: int
    """Number of the event, as for every kind."""
    ts: int
    """When the cluster was asked."""
    part: int
    """Number of this part, from 1."""
    parts: int
    """Parts of this list."""
    inventory: tuple[InventoryTopic, ...] = ()
    """By name, the parts following each other."""


class CommittedPartition(msgspec.Struct, omit_defaults=True, gc=False):
    """The last offset that a member committed for one partition."""

    topic: str
    """Topic name; ``id:<topic id>`` where the wire carried only the id and the cluster did not know its name."""
    partition: int
    """Partition number."""
    offset: int
    """Offset of the next record that the group reads."""
    ts: int
    """When the broker took it."""
    transactional: bool = False
    """True where it is part of a transaction: it counts once that commits, and not at all if it is aborted."""


class GroupEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="group"):
    """What one member of a group did since the last such event, as the sidecar of the group's coordinator saw it.

    Where it committed more than 1,000 offsets, more events follow with further offsets and no sums.
    """

    seq: int
    """Number of the event, as for every kind."""
    listener: str
    """Name of the listener the client came in by."""
    principal: str
    """Who the client is, as in a request."""
    client_ip: str
    """Address of the client."""
    group_id: str | None
    """The consumer, share or streams group; never None."""
    ts_first: int
    """When the first of these requests was answered."""
    ts_last: int
    """When the last of them was answered."""
    requests: int = 0
    """JoinGroup, SyncGroup, Heartbeat, OffsetCommit and the like that were answered."""
    client_id: str | None = None
    """As the client chose it."""
    member_id: str | None = None
    """Member of the group; None of a commit without membership, as by ``kafka-consumer-groups --reset-offsets``."""
    group_instance_id: str | None = None
    """Static member of the group (KIP-345)."""
    generation_id: int = -1
    """Last generation of the group that the member knew, or its member epoch (KIP-848)."""
    group_type: str | None = None
    """``classic``, ``consumer``, ``share`` or ``streams``; None where its requests do not say."""
    commits: int = 0
    """Requests in which the broker took offsets."""
    committed: tuple[CommittedPartition, ...] = ()
    """The last offset of every partition in them."""
    offsets_not_listed: int = 0
    """Offsets that are not listed: those after the first 1,000 of one request, and those for which the interval had no
    room, once for each commit."""
    fetched: tuple[str, ...] = ()
    """Topics of which the same connection fetched records."""


class EndOffset(msgspec.Struct, omit_defaults=True, gc=False):
    """The end of one partition, as last seen."""

    topic: str
    """Topic name; ``id:<topic id>`` where the wire carried only the id and the cluster did not know its name."""
    partition: int
    """Partition number."""
    offset: int
    """The high watermark of a fetch, or what follows the records of an acknowledged produce."""
    ts: int
    """When the broker said so."""


class EndOffsetsEvent(msgspec.Struct, omit_defaults=True, gc=False, tag_field="kind", tag="end_offsets"):
    """Ends of the partitions that were written or fetched since the last such event, in as many events as needed."""

    seq: int
    """Number of the event, as for every kind."""
    ts: int
    """When the event was made."""
    end_offsets: tuple[EndOffset, ...] = ()
    """One for each partition."""
