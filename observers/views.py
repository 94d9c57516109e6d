"""Read-only struct views (KIP-388 ``ObservableStructImpl``) over the facts of Produce and Fetch bodies.

Names resolve in two spellings, in any mix of case and underscores: that of the message definitions (``TopicData``,
``Name``, ``PartitionData``, ``Records``) and that of the KIP's time (``topic_data``, ``topic``, ``data``,
``record_set``). Field by field, with the KIP's name in brackets:

=================  ==============================================================================================
Produce request    TransactionalId, Acks, TimeoutMs [timeout], TopicData -> Name [topic], TopicId,
                   PartitionData [data] -> Index [partition], Records [record_set]
Produce response   ThrottleTimeMs, Responses -> Name [topic], TopicId, PartitionResponses -> Index [partition],
                   ErrorCode, BaseOffset
Fetch request      ReplicaId, MaxWaitMs [max_wait_time], MinBytes, SessionId, SessionEpoch, Topics -> Topic, TopicId,
                   Partitions -> Partition, FetchOffset
Fetch response     ThrottleTimeMs, ErrorCode, SessionId, Responses -> Topic, TopicId, Partitions
                   [partition_responses] -> PartitionIndex [partition], ErrorCode, HighWatermark, Records [record_set]
=================  ==============================================================================================

``Records`` is itself a struct: ``size_of()`` is its size in bytes, its fields are ``Size``, ``Batches``, ``Records``,
``Magic``, ``ProducerId``, ``ProducerEpoch``, ``BaseSequence``, ``BaseOffset``. Every other request or response, and one
whose body was not read, is a struct with a size and no fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from observers.topics import printed_id

NameOf = Callable[[bytes], str | None]
"""Topic name of a topic id (16 raw bytes), or None where unknown."""

PRODUCE, FETCH = 0, 1

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _plain(name: str) -> str:
    """Return ``name`` as it is compared: ``TopicData``, ``topicData`` and ``topic_data`` are one."""
    return name.replace("_", "").lower()


class StructView(Struct, frozen=True):
    """One struct of a message; implements ``observers.api.ObservableStruct``. Keys are plain names (``_plain``)."""

    size: int
    fields: Mapping[str, Any] = _NOTHING
    arrays: Mapping[str, Callable[[], tuple[StructView, ...]]] = _NOTHING

    def size_of(self) -> int:
        """Bytes: the whole frame for a message, the record sets below it for a part of one."""
        return self.size

    def has_field(self, name: str) -> bool:
        """Whether ``get`` or ``get_observable_struct_array`` knows ``name``."""
        plain = _plain(name)
        return plain in self.fields or plain in self.arrays

    def get(self, name: str) -> Any:
        """Value of the field ``name``. Raises KeyError naming the fields there are."""
        try:
            return self.fields[_plain(name)]
        except KeyError:
            raise KeyError(f"no field {name!r} here; there are: {', '.join(sorted(self.fields)) or 'none'}") from None

    def get_observable_struct_array(self, name: str) -> Sequence[StructView]:
        """Value of the array ``name``. Raises KeyError naming the arrays there are."""
        try:
            array = self.arrays[_plain(name)]
        except KeyError:
            raise KeyError(f"no array {name!r} here; there are: {', '.join(sorted(self.arrays)) or 'none'}") from None
        return array()


def request_view(api_key: int, size: int, facts: Any, name_of: NameOf) -> StructView:
    """View of a request of ``size`` bytes whose body has ``facts`` (None: not read)."""
    if facts is None:
        return StructView(size)
    if api_key == PRODUCE:
        return _view(
            size,
            {
                "transactionalid": _text(facts.transactional_id),
                "acks": facts.acks,
                "timeoutms timeout": facts.timeout_ms,
            },
            {"topicdata": lambda: _topics(facts, name_of, "name", "partitiondata data", _produced)},
        )
    return _view(
        size,
        {
            "replicaid": facts.replica_id,
            "maxwaitms maxwaittime": facts.max_wait_ms,
            "minbytes": facts.min_bytes,
            "sessionid": facts.session_id,
            "sessionepoch": facts.session_epoch,
        },
        {"topics": lambda: _topics(facts, name_of, "topic", "partitions", _wanted)},
    )


def response_view(api_key: int, size: int, facts: Any, name_of: NameOf) -> StructView:
    """View of a response of ``size`` bytes whose body has ``facts`` (None: not read)."""
    if facts is None:
        return StructView(size)
    if api_key == PRODUCE:
        return _view(
            size,
            {"throttletimems": facts.throttle_ms},
            {"responses": lambda: _topics(facts, name_of, "name", "partitionresponses", _answered)},
        )
    return _view(
        size,
        {
            "throttletimems": facts.throttle_ms,
            "errorcode": facts.error_code,
            "sessionid": facts.session_id,
        },
        {"responses": lambda: _topics(facts, name_of, "topic", "partitions partitionresponses", _fetched)},
    )


def _view(
    size: int, fields: Mapping[str, Any], arrays: Mapping[str, Callable[[], tuple[StructView, ...]]] = _NOTHING
) -> StructView:
    """Build a view; a key of several words is one field under several names."""
    return StructView(size, _spelled(fields), _spelled(arrays))


def _spelled(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType({name: value for names, value in values.items() for name in names.split()})


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


def _topics(
    facts: Any, name_of: NameOf, name_field: str, array: str, partition: Callable[[Any], StructView]
) -> tuple[StructView, ...]:
    """Group the flat partitions of ``facts`` into topics again, in the order of the wire."""
    views = []
    for topic, group in groupby(facts.partitions, key=lambda p: p.topic):
        partitions = tuple(partition(p) for p in group)
        fields: dict[str, Any]
        if facts.topics_are_ids:
            fields = {"topicid": printed_id(topic), f"{name_field} topic": name_of(topic) or f"id:{printed_id(topic)}"}
        else:
            fields = {f"{name_field} topic": _text(topic)}
        views.append(_view(sum(p.size for p in partitions), fields, {array: partial(tuple, partitions)}))
    return tuple(views)


def _records(records: Any) -> StructView:
    return _view(
        records.size,
        {
            "size": records.size,
            "batches": records.batches,
            "records": records.records,
            "magic": records.magic,
            "producerid": records.producer_id,
            "producerepoch": records.producer_epoch,
            "basesequence": records.base_sequence,
            "baseoffset": records.base_offset,
        },
    )


def _produced(p: Any) -> StructView:
    return _view(p.records.size, {"index partition": p.partition, "records recordset": _records(p.records)})


def _answered(p: Any) -> StructView:
    return _view(0, {"index partition": p.partition, "errorcode": p.error_code, "baseoffset": p.base_offset})


def _wanted(p: Any) -> StructView:
    return _view(0, {"partition": p.partition, "fetchoffset": p.fetch_offset})


def _fetched(p: Any) -> StructView:
    return _view(
        p.records.size,
        {
            "partitionindex partition": p.partition,
            "errorcode": p.error_code,
            "highwatermark": p.high_watermark,
            "records recordset": _records(p.records),
        },
    )
