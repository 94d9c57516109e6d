"""The facts a walker has to find in a message, computed from the message's values."""

from __future__ import annotations

import re
import struct
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from proxy.core.accessors import Accessors, Records
from proxy.core.bodies import MAX_ABORTED_TRANSACTIONS
from proxy.core.exchange import (
    AnsweredPartition,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RequestFacts,
    ResponseFacts,
    WantedPartition,
)
from proxy.core.records import CONTROL, ENTRY_HEADER, TRANSACTIONAL, sums_of
from proxy.core.struct import view
from proxy.core.wire import DecodeError
from proxy.errors import MalformedBody
from tests.tools.messages import Made, Values


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
    state: dict[str, Any] = values.get("replica_state") or {}
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


class Batch(NamedTuple):
    """What the header of a batch says; an entry of magic 0 or 1 counts as one record."""

    base_offset: int
    attributes: int = 0
    last_offset_delta: int = 0
    producer_id: int = -1
    count: int = 1


def batches_of(data: bytes | None) -> list[Batch]:
    """The whole batches of a record set."""
    found, pos, data = list[Batch](), 0, data or b""
    while len(data) - pos >= ENTRY_HEADER:
        base_offset, length, magic = struct.unpack_from(">qi4xb", data, pos)
        if pos + 12 + length > len(data):
            break
        found.append(
            Batch(base_offset, *struct.unpack_from(">hi16xq6xi", data, pos + 21)) if magic == 2 else Batch(base_offset)
        )
        pos += 12 + length
    return found


def given_records(batches: Sequence[Batch], aborted: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Return records of the first batch that a client is given, its last offset delta, and the aborted records.

    A batch is aborted if the last aborted transaction of its producer that began up to its last offset has not ended
    with a marker yet. ``aborted``: producer ids and first offsets.
    """
    known = len(aborted) <= MAX_ABORTED_TRANSACTIONS
    ended: set[tuple[int, int]] = set()
    first = (0, 0)
    left_out = 0
    for number, batch in enumerate(batches):
        given = 0 if batch.attributes & CONTROL else batch.count
        last_offset = batch.base_offset + max(batch.last_offset_delta, 0)
        begun = [one for one in aborted if one[0] == batch.producer_id and one[1] <= last_offset]
        if known and begun and batch.count and max(begun) not in ended:
            if batch.attributes & CONTROL:
                ended.add(max(begun))
            elif batch.attributes & TRANSACTIONAL:
                left_out += batch.count
                given = 0
        if not number:
            first = given, batch.last_offset_delta
    return *first, left_out if known else -1


def of_struct(name: str, key: int, version: int, body: bytes) -> RequestFacts | ResponseFacts:
    """The facts of the message ``name`` that the struct views read in ``body``, which are held to Kafka's own classes.

    Raises MalformedBody where there are none, and UnicodeEncodeError for texts that are not ASCII.
    """
    made = view(key, version, body, response=name.endswith("response"))
    try:
        values = _plain(made)
    except DecodeError as nonsense:
        raise MalformedBody("broker", nonsense.detail) from None
    if made._end() != len(body):
        raise MalformedBody("broker", "the end is elsewhere")
    found: RequestFacts | ResponseFacts = globals()[name](version, values)
    return found


NOT_KEPT = {
    "ClusterId", "RackId", "MemberId", "CurrentLeader", "DivergingEpoch", "SnapshotId", "NodeEndpoints",
}  # fmt: skip
"""Fields that no walker reads, so that it does not see whether they are null."""


def _plain(value: Any, name: str = "") -> Any:
    """A field's value as the values of ``messages``."""
    match value:
        case Accessors():
            names = (one for one in value.field_names() if one not in NOT_KEPT)
            return {re.sub("(?<!^)(?=[A-Z])", "_", one).lower(): _plain(value.get(one), one) for one in names}
        case tuple():
            return [_plain(one, name) for one in value]
        case Records():
            data = bytes(value.data or b"")
            return Made(data, sums_of(data))
        case str() if name == "TopicId":
            return urlsafe_b64decode(value + "==")
        case str():
            return value.encode("ascii")
        case _:
            return value
