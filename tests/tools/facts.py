"""The facts a walker has to find in a message, computed from the message's values."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from proxy.core.exchange import (
    AnsweredPartition,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
    WantedPartition,
)
from proxy.core.records import SHORTEST
from tests.oracle.records import batches_of, given_records
from tests.tools.messages import Values


def produce_request(version: int, values: Values) -> ProduceRequest:
    partitions = tuple(
        ProducedPartition(topic, one["index"], one["records"].sums)
        for topic, one in _each(values["topic_data"], "partition_data")
    )
    return ProduceRequest(
        values["acks"], values["timeout_ms"], values.get("transactional_id"), partitions, version >= 13
    )


def produce_response(version: int, values: Values) -> ProduceResponse:
    partitions = tuple(
        AnsweredPartition(topic, one["index"], one["error_code"], one["base_offset"])
        for topic, one in _each(values["responses"], "partition_responses")
    )
    return ProduceResponse(values.get("throttle_time_ms", 0), partitions, version >= 13)


def fetch_request(version: int, values: Values) -> FetchRequest:
    state: dict[str, Any] = values.get("replica_state", {})
    return FetchRequest(
        values.get("replica_id", state.get("replica_id", -1)),
        values["max_wait_ms"],
        values["min_bytes"],
        values.get("session_id", 0),
        values.get("session_epoch", -1),
        tuple(
            WantedPartition(topic, one["partition"], one["fetch_offset"])
            for topic, one in _each(values["topics"], "partitions")
        ),
        version >= 13,
        tuple(_each(values.get("forgotten_topics_data", ()), "partitions")),
        values.get("isolation_level", 0),
    )


def fetch_response(version: int, values: Values) -> FetchResponse:
    partitions = tuple(
        FetchedPartition(
            topic,
            one["partition_index"],
            one["error_code"],
            one["high_watermark"],
            one["records"].sums,
            *given_records(
                batches_of(one["records"].data),
                [(each["producer_id"], each["first_offset"]) for each in one.get("aborted_transactions") or ()],
            ),
        )
        for topic, one in _each(values["responses"], "partitions")
    )
    session = values.get("throttle_time_ms", 0), values.get("error_code", 0), values.get("session_id", 0)
    return FetchResponse(*session, partitions, version >= 13)


def share_fetch_request(version: int, values: Values) -> FetchRequest:
    return FetchRequest(
        -1,
        values["max_wait_ms"],
        values["min_bytes"],
        0,
        values["share_session_epoch"],
        tuple(
            WantedPartition(topic, one["partition_index"], -1) for topic, one in _each(values["topics"], "partitions")
        ),
        True,
        tuple(_each(values["forgotten_topics_data"], "partitions")),
        group_id=values["group_id"] or None,
    )


def share_fetch_response(version: int, values: Values) -> FetchResponse:
    known = {**values, "responses": [
        {**topic, "partitions": [{**one, "high_watermark": -1} for one in topic["partitions"]]}
        for topic in values["responses"]
    ]}  # fmt: skip
    return fetch_response(13, known)


def _each(topics: Iterable[Values], partitions: str) -> Iterator[tuple[bytes, Any]]:
    """Each partition, with the name or id of its topic."""
    for topic in topics:
        named = next(topic[key] for key in ("topic_id", "topic", "name") if key in topic)
        yield from ((named, one) for one in topic[partitions])


def counted(data: bytes) -> RecordSet | None:
    """What its batches' headers say, read in the plainest way; None where they make no sense."""
    pos, batches, records, claimed = 0, 0, 0, False
    first = (-1, -1, -1, -1, -1)
    while len(data) - pos >= 18:
        offset, length = struct.unpack_from(">qi", data, pos)
        magic = struct.unpack_from("b", data, pos + 16)[0]
        if magic not in (0, 1, 2) or length < SHORTEST[magic]:
            return None
        if pos + 12 + length > len(data):
            break
        if magic == 2:
            attributes = struct.unpack_from(">h", data, pos + 21)[0]
            producer_id, epoch, sequence, count = struct.unpack_from(">qhii", data, pos + 43)
            if count < 0:
                return None
            records += 0 if attributes & 32 else count
            own = (2, producer_id, epoch, sequence, offset)
        else:
            claimed = claimed or data[pos + 17] & 7 != 0
            records += 1
            own = (magic, -1, -1, -1, offset)
        first = own if not batches else first
        batches += 1
        pos += 12 + length
    return RecordSet(len(data), batches, records, *first, claimed)
