"""Asks a broker, as one of its clients, whether the client may read a group and topics. Nothing is changed or read.

The broker checks the right to the group of a Heartbeat before the member, and the right to each topic of a Fetch before
all else about it; at the last of all offsets there is nothing to fetch. Source: ``KafkaApis.handleHeartbeatRequest``,
``handleFetchRequest``; HeartbeatRequest.json version 0, FetchRequest.json version 4.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

from proxy.coordinator.codes import RegistrationCode
from proxy.core.interceptor import BrokerCall
from proxy.core.wire import TRUNCATED, Buffer, int32_length, string
from proxy.errors import MalformedBody

HEARTBEAT, FETCH = 12, 1
HEARTBEAT_VERSION, FETCH_VERSION = 0, 4

MAX_TOPICS_ASKED = 1000
"""Topics of one Fetch: as many as a consumer may name. The response has about 60 bytes and the name of each."""

NOBODY = b"brokerside"
"""A member that no group has."""

LAST_OFFSET = 2**63 - 1

_generation = struct.pack(">i", -1)
_member = struct.pack(">h", len(NOBODY)) + NOBODY
_int16 = struct.Struct(">h")
_fetch = struct.Struct(">iiiibi")
_one_partition = struct.pack(">iiqi", 1, 0, LAST_OFFSET, 1)
_answered_partition = struct.Struct(">ihqq")
_ABORTED_SIZE = 16


class Rights(NamedTuple):
    """What a client may read. ``unreadable``: of the topics that were asked about those that it may not."""

    may_read_group: bool
    unreadable: frozenset[str] = frozenset()


async def ask_rights(call: BrokerCall, group_id: str | None, topics: Collection[str]) -> Rights:
    """Ask about a group, unless it is None, and then about topics. Raises MalformedBody."""
    if group_id is not None:
        answer = await call(HEARTBEAT, HEARTBEAT_VERSION, encode_group_question(group_id))
        if not decode_group_answer(answer):
            return Rights(False)
    asked, unreadable = list(topics), set[str]()
    for at in range(0, len(asked), MAX_TOPICS_ASKED):
        question = encode_topics_question(asked[at : at + MAX_TOPICS_ASKED])
        unreadable |= decode_topics_answer(await call(FETCH, FETCH_VERSION, question))
    return Rights(True, frozenset(unreadable))


def encode_group_question(group_id: str) -> bytes:
    """Return the body of a Heartbeat."""
    return _text(group_id) + _generation + _member


def decode_group_answer(body: Buffer) -> bool:
    """Return whether the group may be read. Raises MalformedBody."""
    try:
        return bool(_int16.unpack_from(body)[0] != RegistrationCode.GROUP_DENIED)
    except TRUNCATED:
        raise MalformedBody("broker", "a response to Heartbeat without an error code") from None


def encode_topics_question(topics: Collection[str]) -> bytes:
    """Return the body of a Fetch: no wait, no bytes, and of each topic partition 0."""
    return _fetch.pack(-1, 0, 0, 1, 0, len(topics)) + b"".join([_text(topic) + _one_partition for topic in topics])


def decode_topics_answer(body: Buffer) -> set[str]:
    """Return the topics that may not be read. Raises MalformedBody."""
    unreadable = set()
    try:
        topics, pos = int32_length(body, 4)  # after the throttle time
        for _ in range(topics):
            name, pos = string(body, pos)
            partitions, pos = int32_length(body, pos)
            for _ in range(partitions):
                _, error_code, _, _ = _answered_partition.unpack_from(body, pos)
                aborted, pos = int32_length(body, pos + _answered_partition.size)
                records, pos = int32_length(body, pos + _ABORTED_SIZE * max(aborted, 0))
                pos += max(records, 0)
                if error_code == RegistrationCode.TOPIC_DENIED and name is not None:
                    unreadable.add(name.decode(errors="replace"))
        if pos > len(body):
            raise IndexError
    except TRUNCATED:
        raise MalformedBody("broker", "a response to Fetch that ends too early") from None
    return unreadable


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw
