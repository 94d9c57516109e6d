"""Walkers of FetchRequest and FetchResponse, versions 0–18 (FetchRequest.json, FetchResponse.json)."""

from __future__ import annotations

import struct
from collections.abc import Generator

from proxy.core.bodies import MAX_PARTITIONS
from proxy.core.budget import NAME
from proxy.core.exchange import EMPTY_RECORD_SET, FetchedPartition, FetchRequest, FetchResponse, WantedPartition
from proxy.core.wire import TRUNCATED, Buffer, DecodeError, uvarint
from tests.oracle.message_parts import NO_TAGS, pass_tags
from tests.oracle.records import Batch, given_records, record_set
from tests.oracle.steps import FLEXIBLE, OLD, WITH_IDS, Kept, Walker, forgotten_topics, refuse_count

_READERS = [OLD] * 12 + [FLEXIBLE] + [WITH_IDS] * 6

REPLICA_STATE = 1
"""Tag of the request's ReplicaState (v15+), which begins with the replica id."""

_int32 = struct.Struct(">i").unpack_from

# replica id (until v14), max wait, min bytes; then max bytes (v3+) and isolation level (v4+)
_WISHES = [
    *[struct.Struct(">iii")] * 3,
    struct.Struct(">iii4x"),
    *[struct.Struct(">iii4xb")] * 11,
    *[struct.Struct(">ii4xb")] * 4,
]
_session = struct.Struct(">ii").unpack_from

# partition and fetch offset; between them the leader epoch (v9+), after them the epoch last fetched (v12+), the log
# start offset (v5+) and the most bytes wanted
_WANTED = [
    *[struct.Struct(">iq4x")] * 5,
    *[struct.Struct(">iq12x")] * 4,
    *[struct.Struct(">i4xq12x")] * 3,
    *[struct.Struct(">i4xq16x")] * 7,
]

# partition, error code, high watermark; then last stable offset (v4+) and log start offset (v5+)
_FETCHED = [struct.Struct(">ihq")] * 4 + [struct.Struct(">ihq8x")] + [struct.Struct(">ihq16x")] * 14

_aborted = struct.Struct(">qq").unpack_from  # producer id and first offset
_throttle_error_session = struct.Struct(">ihi").unpack_from


def fetch_request(buf: Buffer, pos: int, version: int, kept: Kept) -> Walker[FetchRequest]:
    """Walk a FetchRequest."""
    flexible = version >= 12
    length, text, name = _READERS[version]
    wishes, wanted = _WISHES[version], _WANTED[version]
    no_topics = b"\1" if flexible else bytes(4)
    replica_id = -1
    isolation_level = 0
    session_id, session_epoch = 0, -1
    partitions: list[WantedPartition] = kept.partitions
    while True:
        mark = pos
        try:
            found = list(wishes.unpack_from(buf, pos))
            if version >= 4:
                isolation_level = found.pop()
            *replica, max_wait_ms, min_bytes = found
            pos += wishes.size
            if version >= 7:
                session_id, session_epoch = _session(buf, pos)
                pos += 8
            topics, pos = length(buf, pos)
            break
        except TRUNCATED:
            buf, pos = yield mark
    if replica:
        replica_id = replica[0]
    if topics < 0:
        refuse_count(topics)
    while topics:
        topics -= 1
        while True:
            mark = pos
            try:
                topic, pos = name(buf, pos)
                count, pos = length(buf, pos)
                break
            except TRUNCATED:
                buf, pos = yield mark
        if topic is None:
            raise DecodeError("a topic without a name")
        if count < 0 or len(partitions) + count > MAX_PARTITIONS:
            refuse_count(count)
        if count:
            kept.names += NAME + len(topic)
        while count:
            count -= 1
            while True:
                mark = pos
                try:
                    partition, fetch_offset = wanted.unpack_from(buf, pos)
                    pos += wanted.size
                    break
                except TRUNCATED:
                    buf, pos = yield mark
            partitions.append(WantedPartition(topic, partition, fetch_offset))
            if flexible:
                if buf[pos : pos + 1] == NO_TAGS:
                    pos += 1
                else:
                    buf, pos = yield from pass_tags(buf, pos)
        if flexible:
            if buf[pos : pos + 1] == NO_TAGS:
                pos += 1
            else:
                buf, pos = yield from pass_tags(buf, pos)
    forgotten: tuple[tuple[bytes, int], ...] = ()
    if version >= 7:
        if buf[pos : pos + len(no_topics)] == no_topics:
            pos += len(no_topics)
        else:
            forgotten, buf, pos = yield from forgotten_topics(buf, pos, _READERS[version], kept)
    while version >= 11:
        mark = pos
        try:
            _, pos = text(buf, pos)
            break
        except TRUNCATED:
            buf, pos = yield mark
    if flexible:
        if buf[pos : pos + 1] == NO_TAGS:
            pos += 1
        elif version < 15:
            buf, pos = yield from pass_tags(buf, pos)
        else:
            replica_id, buf, pos = yield from _replica_id(buf, pos)
    facts = FetchRequest(
        replica_id, max_wait_ms, min_bytes, session_id, session_epoch, tuple(partitions), version >= 13, forgotten,
        isolation_level,
    )  # fmt: skip
    return facts, pos


def _replica_id(buf: Buffer, pos: int) -> Generator[int, tuple[bytes, int], tuple[int, Buffer, int]]:
    """Pass the tagged fields that end a request; return the replica id among them (−1 without), buffer and position."""
    replica_id = -1
    while True:
        mark = pos
        try:
            count, pos = uvarint(buf, pos)
            break
        except TRUNCATED:
            buf, pos = yield mark
    for _ in range(count):
        while True:
            mark = pos
            try:
                tag, pos = uvarint(buf, pos)
                size, pos = uvarint(buf, pos)
                if tag == REPLICA_STATE:
                    (replica_id,) = _int32(buf, pos)
                break
            except TRUNCATED:
                buf, pos = yield mark
        if tag == REPLICA_STATE and size < 4:
            raise DecodeError(f"a replica state of {size} bytes")
        pos += size
    return replica_id, buf, pos


def fetch_response(buf: Buffer, pos: int, version: int, kept: Kept) -> Walker[FetchResponse]:
    """Walk a FetchResponse."""
    flexible = version >= 12
    length, _, name = _READERS[version]
    fetched = _FETCHED[version]
    replica_bytes = 4 if version >= 11 else 0  # the preferred read replica
    throttle_ms = error_code = session_id = 0
    partitions: list[FetchedPartition] = kept.partitions
    while True:
        mark = pos
        try:
            if version >= 7:
                throttle_ms, error_code, session_id = _throttle_error_session(buf, pos)
                pos += 10
            elif version >= 1:
                (throttle_ms,) = _int32(buf, pos)
                pos += 4
            topics, pos = length(buf, pos)
            break
        except TRUNCATED:
            buf, pos = yield mark
    if topics < 0:
        refuse_count(topics)
    while topics:
        topics -= 1
        while True:
            mark = pos
            try:
                topic, pos = name(buf, pos)
                count, pos = length(buf, pos)
                break
            except TRUNCATED:
                buf, pos = yield mark
        if topic is None:
            raise DecodeError("a topic without a name")
        if count < 0 or len(partitions) + count > MAX_PARTITIONS:
            refuse_count(count)
        if count:
            kept.names += NAME + len(topic)
        while count:
            count -= 1
            aborted = 0
            while True:
                mark = pos
                try:
                    partition, error, high_watermark = fetched.unpack_from(buf, pos)
                    pos += fetched.size
                    if version >= 4:
                        aborted, pos = length(buf, pos)
                    break
                except TRUNCATED:
                    buf, pos = yield mark
            transactions: list[tuple[int, int]] = []
            while aborted > 0:
                aborted -= 1
                while True:
                    try:
                        transactions.append(_aborted(buf, pos))
                        break
                    except TRUNCATED:
                        buf, pos = yield pos
                pos += 16
                if flexible:
                    buf, pos = yield from pass_tags(buf, pos)
            readings: list[Batch] = []
            while True:
                mark = pos
                try:
                    size, pos = length(buf, pos + replica_bytes)
                    break
                except TRUNCATED:
                    buf, pos = yield mark
            if size > 0:
                records, buf, pos = yield from record_set(buf, pos, size, readings)
            else:
                records = EMPTY_RECORD_SET
            partitions.append(
                FetchedPartition(
                    topic, partition, error, high_watermark, records, *given_records(readings, transactions)
                )
            )
            if flexible:
                if buf[pos : pos + 1] == NO_TAGS:
                    pos += 1
                else:
                    buf, pos = yield from pass_tags(buf, pos)
        if flexible:
            if buf[pos : pos + 1] == NO_TAGS:
                pos += 1
            else:
                buf, pos = yield from pass_tags(buf, pos)
    if flexible:
        if buf[pos : pos + 1] == NO_TAGS:
            pos += 1
        else:
            buf, pos = yield from pass_tags(buf, pos)
    return FetchResponse(throttle_ms, error_code, session_id, tuple(partitions), version >= 13), pos
