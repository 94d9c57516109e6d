"""Metadata about topics, all their partitions among them, as requests and responses (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from proxy.config.values import Endpoint
from proxy.core.wire import Buffer
from proxy.rpc.messages import METADATA, RpcRequest, flexible_request, flexible_response

VERSION = 12
"""Of Metadata: the first one whose request may have topic ids, for brokers since 3.1."""

LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 7

LEADER_NOT_AVAILABLE = 5

CONSUMER, LATEST, ANY_EPOCH = -1, -1, -1
"""Of ListOffsets: asked by no replica, for the end, with no known epoch of the leader."""


class DescribedTopic(NamedTuple):
    """One topic. ``leaders``: broker id by partition, -1 where there is none."""

    topic_id: str
    leaders: tuple[int, ...]


def describe_topics_request(names: Iterable[str] | None) -> RpcRequest:
    """Ask for topics by name, without creating any; None: for all that may be described."""
    topics = None if names is None else [{"Name": name} for name in names]
    return flexible_request(METADATA, VERSION, {"Topics": topics})


def decode_described_topics(answer: Buffer) -> dict[str, DescribedTopic]:
    """Return the topics that exist, by name. Takes a microsecond or two for each partition."""
    found = {}
    for one in flexible_response(METADATA, VERSION, answer).get("Topics"):
        if not one.get("ErrorCode"):
            leaders = {part.get("PartitionIndex"): part.get("LeaderId") for part in one.get("Partitions")}
            known = tuple(leaders.get(partition, -1) for partition in range(len(leaders)))
            found[one.get("Name")] = DescribedTopic(one.get("TopicId"), known)
    return found


def decode_leaders(answer: Buffer, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, Endpoint]]:
    """Return the addresses of the leaders of partitions, from the same response; else LEADER_NOT_AVAILABLE."""
    metadata = flexible_response(METADATA, VERSION, answer)
    brokers = {one.get("NodeId"): Endpoint(one.get("Host"), one.get("Port")) for one in metadata.get("Brokers")}
    found = dict.fromkeys(partitions, (LEADER_NOT_AVAILABLE, Endpoint("", 0)))
    for one in metadata.get("Topics"):
        for part in one.get("Partitions") if one.get("Name") == topic else ():
            if (leader := brokers.get(part.get("LeaderId"))) is not None:
                found[part.get("PartitionIndex")] = 0, leader
    return found


def end_offsets_request(topic: str, partitions: Sequence[int]) -> RpcRequest:
    """Ask the leader of these partitions where they end, records of transactions that are not over included."""
    asked = [{"PartitionIndex": one, "CurrentLeaderEpoch": ANY_EPOCH, "Timestamp": LATEST} for one in partitions]
    values = {"ReplicaId": CONSUMER, "Topics": [{"Name": topic, "Partitions": asked}]}
    return flexible_request(LIST_OFFSETS, LIST_OFFSETS_VERSION, values)


def decode_end_offsets(answer: Buffer) -> dict[int, tuple[int, int]]:
    """Return Kafka's error code and the end of each partition, of the one topic that was asked for."""
    topics = flexible_response(LIST_OFFSETS, LIST_OFFSETS_VERSION, answer).get("Topics")
    parts = [part for topic in topics for part in topic.get("Partitions")]
    return {part.get("PartitionIndex"): (part.get("ErrorCode"), part.get("Offset")) for part in parts}
