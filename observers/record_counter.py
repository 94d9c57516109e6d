"""Counts records that no header counts: those in compressed message sets of Kafka before 0.11 (magic 0 and 1).

Opt-in (``observer.records.deep``) and for observers' threads only: it decompresses, within ``DecompressionBudget``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from observers.api import ObservedExchange
from observers.decompress import DECODERS, DecompressionBudget, DecompressionError
from proxy.core.records import COMPRESSION, CONTROL, ENTRY_HEADER, SHORTEST
from proxy.core.struct import SchemaError, UnknownMessage, view

# length, magic, attributes of magic 0 and 1
_entry = struct.Struct(">8xi4xbb").unpack_from
# attributes and number of records of magic 2
_batch = struct.Struct(">21xh34xi").unpack_from
_int32 = struct.Struct(">i").unpack_from


def count_compressed_records(exchange: ObservedExchange) -> tuple[Any, Any]:
    """Return the facts of request and response. Records that were ``claimed`` are exact if they can be counted.

    That needs the bodies (``request_raw``, ``response_raw``); what cannot be counted stays as it is.
    """
    request, response = exchange.request, exchange.response
    if _has_claimed_records(request) and exchange.request_raw is not None:
        request = _with_exact_records(
            exchange, request, exchange.request_raw, ("topic_data", "partition_data"), response=False
        )
    if _has_claimed_records(response) and exchange.response_raw is not None:
        response = _with_exact_records(
            exchange, response, exchange.response_raw, ("responses", "partitions"), response=True
        )
    return request, response


def _has_claimed_records(facts: Any) -> bool:
    return facts is not None and any(
        getattr(part, "records", None) and part.records.claimed for part in facts.partitions
    )


def _with_exact_records(
    exchange: ObservedExchange, facts: Any, body: bytes, names: tuple[str, str], *, response: bool
) -> Any:
    try:
        topics = view(exchange.api_key, exchange.api_version, body, response=response).get_array(names[0]) or ()
        sets = [part.get_records("records") for topic in topics for part in topic.get_array(names[1])]
    except (SchemaError, UnknownMessage):  # the walkers read it, so it is neither
        return facts
    parts = []
    for part, records in zip(facts.partitions, sets, strict=True):
        count = None
        if part.records.claimed and records is not None and records.data is not None:
            count = count_records(records.data)
        if count is not None:
            part = replace(part, records=replace(part.records, records=count, claimed=False))
            if response:  # the fetch may have begun inside the first message set
                part = replace(part, aborted_records=-1)
        parts.append(part)
    return replace(facts, partitions=tuple(parts))


def count_records(record_set: memoryview) -> int | None:
    """Return the exact number of records of a record set, or None if they cannot be counted.

    As in ``RecordSet.records``, control batches and a cut last batch do not count. None: bytes that are no record set,
    or a compressed set that is not whole, holds compressed ones again (Kafka refuses these, too), or takes more than
    its DecompressionBudget to read. Never raises.
    """
    budget = DecompressionBudget(len(record_set))
    pos, end = 0, len(record_set)
    count = 0
    try:
        while end - pos >= ENTRY_HEADER:
            length, magic, attributes = _entry(record_set, pos)
            if length < SHORTEST.get(magic, length + 1):
                return None
            stop = pos + 12 + length
            if stop > end:
                break
            budget.charge_steps(1)
            if magic == 2:
                attributes, records = _batch(record_set, pos)
                if records < 0:
                    return None
                count += 0 if attributes & CONTROL else records
            elif attributes & COMPRESSION:
                value = _compressed_value(record_set[pos:stop], magic)
                count += _count_entries(DECODERS[attributes & COMPRESSION](value, budget), budget)
            else:
                count += 1
            pos = stop
    except (DecompressionError, KeyError):  # KeyError: a codec that these magics do not have
        return None
    return count


def _compressed_value(entry: memoryview, magic: int) -> bytes:
    """The value of an entry of magic 0 or 1, which must end it."""
    pos = ENTRY_HEADER + (8 if magic == 1 else 0)  # after the timestamp
    try:
        pos += 4 + max(_int32(entry, pos)[0], 0)  # after the key
        size = _int32(entry, pos)[0]
    except struct.error:
        raise DecompressionError from None
    if size < 0 or pos + 4 + size != len(entry):
        raise DecompressionError
    return bytes(entry[pos + 4 :])


def _count_entries(blocks: Iterator[bytes | bytearray], budget: DecompressionBudget) -> int:
    """Number of entries of magic 0 and 1 that ``blocks`` are made of."""
    count = 0
    skip = 0  # bytes of the current entry still to come
    head: bytes | bytearray = b""  # of an entry whose header is not whole; never together with a skip
    for part in blocks:
        block = head + part if head else part
        pos, end = skip, len(block)
        before = count
        while pos + ENTRY_HEADER <= end:
            length, magic, attributes = _entry(block, pos)
            if not 0 <= magic <= 1 or length < SHORTEST[magic] or attributes & COMPRESSION:
                raise DecompressionError
            count += 1
            pos += 12 + length
        budget.charge_steps(count - before)
        skip, head = (pos - end, b"") if pos > end else (0, block[pos:])
    if skip or head:
        raise DecompressionError
    return count
