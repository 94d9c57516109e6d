"""Asks a broker, as one of its clients, whether the client may read a group and topics. Nothing is changed or read.

Of an OffsetCommit the broker checks the right to the group first, then that to each topic, and then that the partition
exists. The one that is named never does, so that nothing is ever committed, not even by a broker that takes commits of
a member that no group has. A Fetch would do as well, but brokers keep metrics of each topic that one has named, whether
it exists or not, until they end (docs/decisions/0037-groups-in-kafka.md). About a group alone a Heartbeat is sent: the
right is checked before the member. Source: ``KafkaApis.handleOffsetCommitRequest``, ``handleHeartbeatRequest``;
OffsetCommitRequest.json version 2, HeartbeatRequest.json version 0.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

from proxy.coordinator.codes import RegistrationCode
from proxy.core.interceptor import BrokerCall
from proxy.core.wire import TRUNCATED, Buffer, int32_length, string
from proxy.errors import MalformedBody

HEARTBEAT, OFFSET_COMMIT = 12, 8
HEARTBEAT_VERSION, OFFSET_COMMIT_VERSION = 0, 2

MAX_TOPICS_ASKED = 1000
"""Topics of one question: as many as a consumer may name. The response has 12 bytes and the name of each."""

NOBODY = b"brokerside"
"""A member that no group has."""

NO_PARTITION = 2**31 - 1
"""A partition that no topic has."""

_member = struct.pack(">h", len(NOBODY)) + NOBODY
_heartbeat = struct.pack(">i", -1) + _member
_commit = struct.pack(">i", 2**31 - 1) + _member + struct.pack(">q", -1)
"""The last of all generations; the broker's own retention."""
_one_partition = struct.pack(">iiqh", 1, NO_PARTITION, 0, -1)
_int16 = struct.Struct(">h")
_answered_partition = struct.Struct(">ih")


class Rights(NamedTuple):
    """What a client may read. ``unreadable``: of the topics that were asked about those that it may not."""

    may_read_group: bool
    unreadable: frozenset[str] = frozenset()


async def ask_rights(call: BrokerCall, group_id: str, topics: Collection[str]) -> Rights:
    """Ask about a group, and about topics. Raises MalformedBody."""
    if not topics:
        return Rights(decode_group_answer(await call(HEARTBEAT, HEARTBEAT_VERSION, encode_group_question(group_id))))
    asked, unreadable = list(topics), set[str]()
    for at in range(0, len(asked), MAX_TOPICS_ASKED):
        question = encode_topics_question(group_id, asked[at : at + MAX_TOPICS_ASKED])
        found = decode_topics_answer(await call(OFFSET_COMMIT, OFFSET_COMMIT_VERSION, question))
        if not found.may_read_group:
            return found
        unreadable |= found.unreadable
    return Rights(True, frozenset(unreadable))


def encode_group_question(group_id: str) -> bytes:
    """Return the body of a Heartbeat."""
    return _text(group_id) + _heartbeat


def decode_group_answer(body: Buffer) -> bool:
    """Return whether the group may be read. Raises MalformedBody."""
    try:
        return bool(_int16.unpack_from(body)[0] != RegistrationCode.GROUP_DENIED)
    except TRUNCATED:
        raise MalformedBody("broker", "a response to Heartbeat without an error code") from None


def encode_topics_question(group_id: str, topics: Collection[str]) -> bytes:
    """Return the body of an OffsetCommit: of each topic a partition that does not exist."""
    named = [_text(topic) + _one_partition for topic in topics]
    return _text(group_id) + _commit + struct.pack(">i", len(topics)) + b"".join(named)


def decode_topics_answer(body: Buffer) -> Rights:
    """Return what may be read of what was asked about. Raises MalformedBody."""
    unreadable = set()
    try:
        topics, pos = int32_length(body, 0)
        for _ in range(topics):
            name, pos = string(body, pos)
            partitions, pos = int32_length(body, pos)
            for _ in range(partitions):
                _, error_code = _answered_partition.unpack_from(body, pos)
                pos += _answered_partition.size
                if error_code == RegistrationCode.GROUP_DENIED:
                    return Rights(False)
                if error_code == RegistrationCode.TOPIC_DENIED and name is not None:
                    unreadable.add(name.decode(errors="replace"))
    except TRUNCATED:
        raise MalformedBody("broker", "a response to OffsetCommit that ends too early") from None
    return Rights(True, frozenset(unreadable))


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw
