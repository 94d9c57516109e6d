"""The request and the response of an exchange as read-only structs, for KIP-388 observers.

Where the body was kept, every field of it can be read (``proxy.core.struct``). Where it was too long, or not asked for,
the facts that were read as it passed stand in for Produce, Fetch and ShareFetch: topics, partitions, sizes and counts
of records, offsets, errors. Else there is a size, and no field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

from observers.api import ObservableStruct, ObservedExchange
from proxy.core.accessors import Accessors, Records, printed_id, put
from proxy.core.schema import TOPIC, TOPIC_ID, Field, Layout, UnknownMessage, layout, plain, private_layout
from proxy.core.struct import NameOf, view, view_as

__all__ = ["FactsView", "NameOf", "request_view", "response_view"]

FACT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "transactional_id": ("TransactionalId",),
    "acks": ("Acks",),
    "timeout_ms": ("TimeoutMs",),
    "replica_id": ("ReplicaId",),
    "max_wait_ms": ("MaxWaitMs",),
    "min_bytes": ("MinBytes",),
    "session_id": ("SessionId",),
    "group_id": ("GroupId",),
    "session_epoch": ("SessionEpoch", "ShareSessionEpoch"),
    "throttle_ms": ("ThrottleTimeMs",),
    "partition": ("Index", "Partition", "PartitionIndex"),
    "fetch_offset": ("FetchOffset",),
    "error_code": ("ErrorCode",),
    "base_offset": ("BaseOffset",),
    "high_watermark": ("HighWatermark",),
}
"""Attributes of facts, and the fields that have their values in the versions that define these fields."""

TOPIC_ARRAYS = ("TopicData", "Topics", "Responses")
PARTITION_ARRAYS = ("PartitionData", "Partitions", "PartitionResponses")

NO_PRIVATE_APIS: Mapping[int, str] = MappingProxyType({})


def request_view(
    exchange: ObservedExchange, name_of: NameOf, private: Mapping[int, str] = NO_PRIVATE_APIS
) -> ObservableStruct:
    """Return the request of ``exchange``; ``size_of`` is its frame's. ``private``: the sidecar's own apis, by key."""
    raw, facts = exchange.request_raw, exchange.request
    return _view(exchange, raw, facts, exchange.request_bytes, name_of, private, response=False)


def response_view(
    exchange: ObservedExchange, name_of: NameOf, private: Mapping[int, str] = NO_PRIVATE_APIS
) -> ObservableStruct:
    """Return the response of ``exchange``; as ``request_view``."""
    raw, facts = exchange.response_raw, exchange.response
    return _view(exchange, raw, facts, exchange.response_bytes, name_of, private, response=True)


def _view(
    exchange: ObservedExchange,
    raw: bytes | None,
    facts: Any,
    size: int,
    name_of: NameOf,
    private: Mapping[int, str],
    *,
    response: bool,
) -> ObservableStruct:
    key, version = exchange.api_key, exchange.api_version
    try:
        if raw is not None and key in private:
            return view_as(private_layout(private[key], version, response=response), raw, response=response, size=size)
        if raw is not None:
            return view(key, version, raw, response=response, size=size, name_of=name_of)
        if facts is not None:
            return _facts_view(layout(key, version, response=response), facts, size, name_of)
    except UnknownMessage:
        pass  # newer than the definitions
    return FactsView(size)


class FactsView(Accessors):
    """A struct whose body was not kept: those fields of ``made`` that ``values`` has, by name. Arrays are callables."""

    __slots__ = ("_layout", "_size", "_values")

    _size: int
    _layout: Layout | None
    _values: Mapping[str, Any]

    def __init__(self, size: int, made: Layout | None = None, values: Mapping[str, Any] | None = None) -> None:
        put(self, "_size", size)
        put(self, "_layout", made)
        put(self, "_values", values or {})

    def size_of(self) -> int:
        """Bytes: of a message the whole frame, size prefix included; of a part of one, the record sets in it."""
        return self._size

    def field_names(self) -> tuple[str, ...]:
        """Names of the fields that are known, as in the message definitions."""
        fields = () if self._layout is None else self._layout.ordered
        return tuple(field.name for field in fields if field.name in self._values)

    def __repr__(self) -> str:
        return f"<FactsView of {', '.join(self.field_names())}>"

    def _find(self, name: str) -> Field | None:
        field = None if self._layout is None else self._layout.named.get(plain(name))
        return field if field is not None and _key(field) in self._values else None

    def _is_withheld(self, field: Field) -> bool:
        return False

    def _value(self, field: Field) -> Any:
        value = self._values[_key(field)]
        return value() if field.array else value


def _key(field: Field) -> str:
    """Return the key of ``field`` in ``values``. A topic's name that is not on the wire has one key in all messages."""
    return field.name if field.index >= 0 or field.tag is not None else TOPIC


def _facts_view(made: Layout, facts: Any, size: int, name_of: NameOf) -> FactsView:
    topics = next(field.layout for field in made.ordered if field.name in TOPIC_ARRAYS)
    assert topics is not None
    values = _values(facts)
    values |= dict.fromkeys(TOPIC_ARRAYS, partial(_topic_views, topics, facts, name_of))
    return FactsView(size, made, values)


def _topic_views(made: Layout, facts: Any, name_of: NameOf) -> tuple[FactsView, ...]:
    """Group the flat partitions of ``facts`` into topics again, in the order of the wire."""
    found = []
    values: dict[str, Any]
    partitions = next(field.layout for field in made.ordered if field.name in PARTITION_ARRAYS)
    assert partitions is not None
    for topic, group in groupby(facts.partitions, key=lambda one: one.topic):
        topic_partitions = tuple(group)
        if facts.topics_are_ids:
            printed = printed_id(topic)
            values = {TOPIC_ID: printed, TOPIC: name_of(topic) or f"id:{printed}"}
        else:
            values = dict.fromkeys((TOPIC, *((made.topic.name,) if made.topic else ())), _text(topic))
        values |= dict.fromkeys(PARTITION_ARRAYS, partial(_partition_views, partitions, topic_partitions))
        found.append(FactsView(sum(map(_size, topic_partitions)), made, values))
    return tuple(found)


def _partition_views(made: Layout, partitions: Sequence[Any]) -> tuple[FactsView, ...]:
    found = []
    for one in partitions:
        values = _values(one)
        if hasattr(one, "records"):
            values["Records"] = Records(None, one.records, "client")
        found.append(FactsView(_size(one), made, values))
    return tuple(found)


def _size(partition: Any) -> int:
    return partition.records.size if hasattr(partition, "records") else 0


def _values(facts: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute, names in FACT_FIELDS.items():
        value = getattr(facts, attribute, facts)
        if value is not facts:
            found |= dict.fromkeys(names, _text(value) if isinstance(value, bytes) else value)
    return found


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
