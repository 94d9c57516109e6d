"""Walkers of ProduceRequest and ProduceResponse, versions 0–13 (ProduceRequest.json, ProduceResponse.json)."""

from __future__ import annotations

import struct

from proxy.core.bodies import MAX_PARTITIONS
from proxy.core.budget import NAME
from proxy.core.exchange import EMPTY_RECORD_SET, AnsweredPartition, ProducedPartition, ProduceRequest, ProduceResponse
from proxy.core.records import BATCH_HEADER
from proxy.core.wire import TRUNCATED, Buffer, DecodeError
from tests.oracle.message_parts import NO_TAGS, pass_tags
from tests.oracle.records import one_batch, record_set
from tests.oracle.steps import FLEXIBLE, OLD, WITH_IDS, Kept, Walker, refuse_count

_int32 = struct.Struct(">i").unpack_from
_acks_timeout = struct.Struct(">hi").unpack_from
_READERS = [OLD] * 9 + [FLEXIBLE] * 4 + [WITH_IDS]

# partition, error code, base offset; then log append time (v2+) and log start offset (v5+)
_ANSWERS = [struct.Struct(">ihq")] * 2 + [struct.Struct(">ihq8x")] * 3 + [struct.Struct(">ihq16x")] * 9


def produce_request(buf: Buffer, pos: int, version: int, kept: Kept) -> Walker[ProduceRequest]:
    """Walk a ProduceRequest."""
    flexible = version >= 9
    length, text, name = _READERS[version]
    transactional_id = None
    partitions: list[ProducedPartition] = kept.partitions
    while True:
        mark = pos
        try:
            if version >= 3:
                transactional_id, pos = text(buf, pos)
            acks, timeout_ms = _acks_timeout(buf, pos)
            topics, pos = length(buf, pos + 6)
            break
        except TRUNCATED:
            buf, pos = yield mark
    if transactional_id:
        kept.names += NAME + len(transactional_id)
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
                    (partition,) = _int32(buf, pos)
                    size, pos = length(buf, pos + 4)
                    records = one_batch(buf, pos, size) if size >= BATCH_HEADER else None
                    break
                except TRUNCATED:
                    buf, pos = yield mark
            if records is not None:
                pos += size
            elif size > 0:
                records, buf, pos = yield from record_set(buf, pos, size, [])
            else:
                records = EMPTY_RECORD_SET
            partitions.append(ProducedPartition(topic, partition, records))
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
    return ProduceRequest(acks, timeout_ms, transactional_id, tuple(partitions), version >= 13), pos


def produce_response(buf: Buffer, pos: int, version: int, kept: Kept) -> Walker[ProduceResponse]:
    """Walk a ProduceResponse."""
    flexible = version >= 9
    length, text, name = _READERS[version]
    answer = _ANSWERS[version]
    partitions: list[AnsweredPartition] = kept.partitions
    while True:
        mark = pos
        try:
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
            while True:
                mark = pos
                try:
                    partition, error_code, base_offset = answer.unpack_from(buf, pos)
                    pos += answer.size
                    errors = 0
                    if version >= 8:
                        errors, pos = length(buf, pos)
                    break
                except TRUNCATED:
                    buf, pos = yield mark
            if errors < 0:
                refuse_count(errors)
            while errors:
                errors -= 1
                while True:
                    mark = pos
                    try:
                        _, pos = text(buf, pos + 4)
                        break
                    except TRUNCATED:
                        buf, pos = yield mark
                if flexible:
                    buf, pos = yield from pass_tags(buf, pos)
            while version >= 8:
                mark = pos
                try:
                    _, pos = text(buf, pos)
                    break
                except TRUNCATED:
                    buf, pos = yield mark
            partitions.append(AnsweredPartition(topic, partition, error_code, base_offset))
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
    throttle_ms = 0
    while version >= 1:
        mark = pos
        try:
            (throttle_ms,) = _int32(buf, pos)
            pos += 4
            break
        except TRUNCATED:
            buf, pos = yield mark
    if flexible:
        if buf[pos : pos + 1] == NO_TAGS:
            pos += 1
        else:
            buf, pos = yield from pass_tags(buf, pos)
    return ProduceResponse(throttle_ms, tuple(partitions), version >= 13), pos
