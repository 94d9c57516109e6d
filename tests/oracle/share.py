"""Walkers of ShareFetchRequest and ShareFetchResponse (KIP-932), versions 0–2 (the JSON files of these names).

Version 0 is the early access of Kafka 3.9 and 4.0; all versions are flexible and carry topic ids. Their facts are those
of Fetch, without what a share group does not have.
"""

from __future__ import annotations

import struct

from proxy.core.bodies import MAX_PARTITIONS
from proxy.core.budget import NAME
from proxy.core.exchange import EMPTY_RECORD_SET, FetchedPartition, FetchRequest, FetchResponse, WantedPartition
from proxy.core.wire import TRUNCATED, Buffer, compact_length, compact_string
from tests.oracle.message_parts import Part, pass_tags
from tests.oracle.records import Batch, given_records, record_set
from tests.oracle.steps import WITH_IDS, Kept, Walker, array_length, forgotten_topics, refuse_count, uuid

# share session epoch, max wait, min bytes; then max bytes, most records and batch size (v1+), how to acquire and
# whether acknowledgements renew (v2+)
_WISHES = [struct.Struct(">iii4x"), struct.Struct(">iii12x"), struct.Struct(">iii14x")]

# partition; then the most bytes wanted (v0)
_WANTED = [struct.Struct(">i4x"), struct.Struct(">i"), struct.Struct(">i")]

_throttle_error = struct.Struct(">ih").unpack_from
_partition_error = struct.Struct(">ih").unpack_from


def share_fetch_request(buf: Buffer, pos: int, version: int, kept: Kept) -> Walker[FetchRequest]:
    """Walk a ShareFetchRequest."""
    wishes, wanted = _WISHES[version], _WANTED[version]
    partitions: list[WantedPartition] = kept.partitions
    while True:
        mark = pos
        try:
            group, pos = compact_string(buf, pos)
            _, pos = compact_string(buf, pos)  # member
            session_epoch, max_wait_ms, min_bytes = wishes.unpack_from(buf, pos)
            break
        except TRUNCATED:
            buf, pos = yield mark
    topics, buf, pos = yield from array_length(buf, pos + wishes.size)
    if group:
        kept.names += NAME + len(group)
    while topics:
        topics -= 1
        while True:
            mark = pos
            try:
                topic, pos = uuid(buf, pos)
                count, pos = compact_length(buf, pos)
                break
            except TRUNCATED:
                buf, pos = yield mark
        if count < 0 or len(partitions) + count > MAX_PARTITIONS:
            refuse_count(count)
        if count:
            kept.names += NAME + len(topic)
        while count:
            count -= 1
            while True:
                mark = pos
                try:
                    (partition,) = wanted.unpack_from(buf, pos)
                    break
                except TRUNCATED:
                    buf, pos = yield mark
            acknowledged, buf, pos = yield from array_length(buf, pos + wanted.size)
            while acknowledged:
                acknowledged -= 1
                types, buf, pos = yield from array_length(buf, pos + 16)  # after first and last offset
                buf, pos = yield from pass_tags(buf, pos + types)
            partitions.append(WantedPartition(topic, partition, -1))
            buf, pos = yield from pass_tags(buf, pos)
        buf, pos = yield from pass_tags(buf, pos)
    forgotten, buf, pos = yield from forgotten_topics(buf, pos, WITH_IDS, kept)
    buf, pos = yield from pass_tags(buf, pos)
    wanted_partitions = tuple(partitions)
    facts = FetchRequest(
        -1, max_wait_ms, min_bytes, 0, session_epoch, wanted_partitions, True, forgotten, group_id=group or None
    )
    return facts, pos


def share_fetch_response(buf: Buffer, pos: int, version: int, kept: Kept) -> Walker[FetchResponse]:
    """Walk a ShareFetchResponse."""
    lock_bytes = 4 if version >= 1 else 0  # how long acquired records are locked
    partitions: list[FetchedPartition] = kept.partitions
    while True:
        mark = pos
        try:
            throttle_ms, error_code = _throttle_error(buf, pos)
            _, pos = compact_string(buf, pos + 6)  # message
            break
        except TRUNCATED:
            buf, pos = yield mark
    topics, buf, pos = yield from array_length(buf, pos + lock_bytes)
    while topics:
        topics -= 1
        while True:
            mark = pos
            try:
                topic, pos = uuid(buf, pos)
                count, pos = compact_length(buf, pos)
                break
            except TRUNCATED:
                buf, pos = yield mark
        if count < 0 or len(partitions) + count > MAX_PARTITIONS:
            refuse_count(count)
        if count:
            kept.names += NAME + len(topic)
        while count:
            count -= 1
            while True:
                mark = pos
                try:
                    partition, error = _partition_error(buf, pos)
                    _, pos = compact_string(buf, pos + 6)  # its message
                    _, pos = compact_string(buf, pos + 2)  # after the error of acknowledging, its message
                    break
                except TRUNCATED:
                    buf, pos = yield mark
            buf, pos = yield from pass_tags(buf, pos + 8)  # the current leader and its epoch
            while True:
                mark = pos
                try:
                    size, pos = compact_length(buf, pos)
                    break
                except TRUNCATED:
                    buf, pos = yield mark
            readings: list[Batch] = []
            if size > 0:
                records, buf, pos = yield from record_set(buf, pos, size, readings)
            else:
                records = EMPTY_RECORD_SET
            buf, pos = yield from _acquired(buf, pos)
            partitions.append(FetchedPartition(topic, partition, error, -1, records, *given_records(readings, [])))
            buf, pos = yield from pass_tags(buf, pos)
        buf, pos = yield from pass_tags(buf, pos)
    buf, pos = yield from _endpoints(buf, pos)
    buf, pos = yield from pass_tags(buf, pos)
    return FetchResponse(throttle_ms, error_code, 0, tuple(partitions), True), pos


def _acquired(buf: Buffer, pos: int) -> Part:
    """Pass the ranges of acquired records: first and last offset, number of deliveries."""
    ranges, buf, pos = yield from array_length(buf, pos)
    for _ in range(ranges):
        buf, pos = yield from pass_tags(buf, pos + 18)
    return buf, pos


def _endpoints(buf: Buffer, pos: int) -> Part:
    """Pass the leaders' addresses: node id, host, port, rack."""
    endpoints, buf, pos = yield from array_length(buf, pos)
    for _ in range(endpoints):
        while True:
            mark = pos
            try:
                _, pos = compact_string(buf, pos + 4)
                _, pos = compact_string(buf, pos + 4)
                break
            except TRUNCATED:
                buf, pos = yield mark
        buf, pos = yield from pass_tags(buf, pos)
    return buf, pos
