"""Denies clients all changes of the topics in which the sidecars keep their state, and the sidecars' transactions.

A client that writes to these topics, or truncates, alters or deletes them, could forge what all sidecars believe and
what the audit records. One that uses the transactional id of a sidecar fences it. Such a request is denied as a whole,
with the error that a broker's ACLs would give. Reading is allowed. The sidecars use the INTERNAL listeners, which have
no sidecar in front.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from proxy.core.accessors import Accessors
from proxy.core.apis import (
    ALTER_CONFIGS,
    APIS,
    INCREMENTAL_ALTER_CONFIGS,
    is_known,
    response_header_is_flexible,
)
from proxy.core.encode import encode
from proxy.core.interceptor import (
    ON_BODY,
    ON_HEADER,
    ON_TOPICS,
    UNKNOWN_VERSION,
    Denied,
    Disposition,
    Interceptor,
    Request,
    Verdict,
)
from proxy.core.observation_interest import VERSIONS
from proxy.core.protected_topics import PREFIXES, TOPIC_AUTHORIZATION_FAILED, Partitions, ProtectedTopics
from proxy.core.schema import Field, Layout, layout
from proxy.core.struct import view
from proxy.core.wire import compact_length, int16_length

PRODUCE, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 0, 19, 20, 21
INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, WRITE_TXN_MARKERS = 22, 24, 25, 26, 27
TXN_OFFSET_COMMIT, CREATE_PARTITIONS, ALTER_PARTITION_REASSIGNMENTS = 28, 37, 45

CHANGED_ARRAYS: Mapping[int, Mapping[str, str]] = MappingProxyType(
    {
        CREATE_TOPICS: {"Topics": "Topics"},
        DELETE_TOPICS: {"Topics": "Responses", "TopicNames": "Responses"},
        DELETE_RECORDS: {"Topics": "Topics"},
        ADD_PARTITIONS_TO_TXN: {"Transactions": "ResultsByTransaction", "V3AndBelowTopics": "ResultsByTopicV3AndBelow"},
        ALTER_CONFIGS: {"Resources": "Responses"},
        CREATE_PARTITIONS: {"Topics": "Results"},
        INCREMENTAL_ALTER_CONFIGS: {"Resources": "Responses"},
        ALTER_PARTITION_REASSIGNMENTS: {"Topics": "Responses"},
    }
)
"""The apis besides Produce that change records, the configuration or the replicas of a topic. For each: the array of
the request with the items to change, and the array of the response with an answer for each item."""

TRANSACTION_ARRAYS: Mapping[int, Mapping[str, str]] = MappingProxyType(
    {
        INIT_PRODUCER_ID: {},
        ADD_PARTITIONS_TO_TXN: CHANGED_ARRAYS[ADD_PARTITIONS_TO_TXN],
        ADD_OFFSETS_TO_TXN: {},
        END_TXN: {},
        TXN_OFFSET_COMMIT: {"Topics": "Topics"},
    }
)
"""The same of the apis whose request begins with a transactional id. AddPartitionsToTxn has it further in since version
4, which brokers send."""

READ = (*CHANGED_ARRAYS, *TRANSACTION_ARRAYS)
"""The apis whose requests are read as a whole."""

NESTED_ARRAYS = MappingProxyType(
    {"TopicResults": "Topics", "ResultsByPartition": "Partitions", "Partitions": "Partitions"}
)
"""Arrays in the items of a response, with the arrays of the request that they answer."""

TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
"""Kafka's error code of a transactional id that the client may not use."""

TOPIC_RESOURCE = 2
"""Kafka's resource type of a topic."""

MAX_HELD_ADMIN_REQUEST = 1_048_576
"""Bytes of the longest such request that is buffered: about 30,000 topics with usual names; Kafka allows 10,000 changes
at once. A longer request closes the connection, since forwarding it would bypass the check."""

MAX_PARSED_REQUEST = 512
"""Bytes of the longest request that is parsed to find out whether it really changes a protected topic. Parsing takes up
to 1 µs of the event loop for each byte. A longer request closes the connection if it has the name of one in it."""

MAX_ANSWERED_ITEMS = 50
"""Topics, resources, partitions of a denied request that are answered, up to 8 µs each. More close the connection."""

DENIED_MESSAGE = "A topic of the sidecars: no client may change it."
"""The error message, if the response has one."""

ERROR_FIELDS: Mapping[str, Any] = MappingProxyType(
    {
        "ErrorCode": TOPIC_AUTHORIZATION_FAILED,
        "PartitionErrorCode": TOPIC_AUTHORIZATION_FAILED,
        "ErrorMessage": DENIED_MESSAGE,
        "BaseOffset": -1,
        "LogAppendTimeMs": -1,
        "ProducerId": -1,
        "ProducerEpoch": -1,
        "OngoingTxnProducerId": -1,
        "OngoingTxnProducerEpoch": -1,
        "LogStartOffset": -1,
        "LowWatermark": -1,
        "NumPartitions": -1,
        "ReplicationFactor": -1,
        "RecordErrors": (),
        "Configs": (),
    }
)
"""The fields of a failed item, as Kafka's brokers send them."""

TRANSACTIONAL_ID_DENIED: Mapping[str, Any] = MappingProxyType(
    {
        **ERROR_FIELDS,
        "ErrorCode": TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "PartitionErrorCode": TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""The same of a request with a transactional id of the sidecars, and its items."""


def max_version(api_key: int) -> int | None:
    """Return the last version of this api that may pass if topics are protected; None for any."""
    return APIS[api_key].max_version if api_key in READ or api_key == PRODUCE else None


class TopicProtection(Interceptor):
    """Denies changes of protected topics on one listener. ``on_denied`` is called for each request that is denied.

    After ``enabled`` or ``inter_broker`` has changed, the rules have to be updated.
    """

    max_held_request = MAX_HELD_ADMIN_REQUEST
    on_error = Disposition.CLOSE
    topics: ProtectedTopics

    def __init__(
        self,
        topics: ProtectedTopics,
        on_denied: Callable[[Request], None],
        *,
        enabled: bool = True,
        inter_broker: bool = False,
    ) -> None:
        """``inter_broker``: whether brokers talk to each other here, who end each other's transactions."""
        self.topics = topics
        self.enabled = enabled
        self.inter_broker = inter_broker
        self._on_denied = on_denied

    def flags(self, api_key: int, api_version: int) -> int:
        """Requests that can change a topic. Unknown versions cannot be parsed, so they do not pass."""
        if self.enabled and api_key == WRITE_TXN_MARKERS and not self.inter_broker:
            return ON_HEADER
        if not self.enabled or max_version(api_key) is None:
            return 0
        if not is_known(api_key, api_version):
            # The token of a login cannot look like this: after a zero byte it has a name or ends.
            return ON_HEADER | UNKNOWN_VERSION if 0 <= api_version < VERSIONS else ON_HEADER
        return ON_TOPICS if api_key == PRODUCE else ON_BODY

    def on_header(self, request: Request) -> Verdict:
        """Refuse it: its topics could not be found, or it is nothing that a client asks for."""
        self._on_denied(request)
        return Disposition.CLOSE

    def on_protected_topic(self, request: Request, partitions: Partitions | None) -> Verdict:
        """Answer a Produce for all its partitions; end the connection where that is not possible."""
        self._on_denied(request)
        if partitions is None:
            return Denied(None)
        topics = [
            {
                "Name": topic,
                "TopicId": topic,
                "PartitionResponses": [{**ERROR_FIELDS, "Index": index} for index in indexes],
            }
            for topic, indexes in partitions
        ]
        return Denied(_encode_response(request, {"Responses": topics}))

    def on_body(self, request: Request, body: bytes) -> Verdict:
        """Refuse a change of several items as a whole where one of them is a protected topic.

        A body that mentions none, as nearly every one, is not read. It is refused before a login, too: what a client
        sends right after its login may come while the sidecar does not know of that yet. Raises MalformedBody.
        """
        if not self.topics.mentioned(body):
            return Disposition.FORWARD
        if request.api_key in TRANSACTION_ARRAYS and _begins_with_own_id(request, body):
            self._on_denied(request)
            if len(body) > MAX_PARSED_REQUEST:
                return Denied(None)
            message = view(request.api_key, request.api_version, body, response=False)
            return _answer(request, _answered(TRANSACTION_ARRAYS, request, message), TRANSACTIONAL_ID_DENIED)
        if request.api_key not in CHANGED_ARRAYS:
            return Disposition.FORWARD
        if len(body) > MAX_PARSED_REQUEST:
            flexible = layout(request.api_key, request.api_version, response=False).flexible
            if not self.topics.named(body, flexible=flexible):
                return Disposition.FORWARD
            self._on_denied(request)
            return Denied(None)
        message = view(request.api_key, request.api_version, body, response=False)
        answered = _answered(CHANGED_ARRAYS, request, message)
        if not any(self._names_protected_topic(item) for items in answered.values() for item in items):
            return Disposition.FORWARD
        self._on_denied(request)
        return _answer(request, answered, ERROR_FIELDS)

    def _names_protected_topic(self, item: Any) -> bool:
        if isinstance(item, str):
            return self.topics.has(item.encode())
        if item.has_field("ResourceType"):
            return item.get("ResourceType") == TOPIC_RESOURCE and self._names_protected_topic(item.get("ResourceName"))
        if item.has_field("TransactionalId"):
            own = _is_own_transactional_id(item.get("TransactionalId").encode())
            return own or any(map(self._names_protected_topic, item.get("Topics")))
        if item.has_field("TopicId") and _decode_topic_id(item.get("TopicId")) in self.topics.ids:
            return True
        name = item.get("Name")
        return name is not None and self._names_protected_topic(name)


def _is_own_transactional_id(name: bytes) -> bool:
    return name.startswith(PREFIXES)


def _begins_with_own_id(request: Request, body: bytes) -> bool:
    """Return whether the first field, a transactional id, is one of the sidecars'."""
    flexible = layout(request.api_key, request.api_version, response=False).flexible
    length, at = compact_length(body, 0) if flexible else int16_length(body, 0)
    return length > 0 and _is_own_transactional_id(body[at : at + length])


def _answered(arrays: Mapping[int, Mapping[str, str]], request: Request, message: Any) -> dict[str, Any]:
    """Return the items of the request by the array of the response that answers them."""
    found = arrays[request.api_key].items()
    return {answer: message.get(array) or () for array, answer in found if message.has_field(array)}


def _answer(request: Request, answered: Mapping[str, Any], error: Mapping[str, Any]) -> Denied:
    """Return the answer with ``error`` for the request and each item; none where that would take too long."""
    if sum(map(_count_items, answered.values())) > MAX_ANSWERED_ITEMS:
        return Denied(None)
    fields = layout(request.api_key, request.api_version, response=True).ordered
    values = {
        field.name: [_error_item(field, item, error) for item in answered[field.name]]
        for field in fields
        if field.name in answered
    }
    try:
        return Denied(_encode_response(request, {**error, **values} if error is TRANSACTIONAL_ID_DENIED else values))
    except ValueError:  # a name that became too long when it was decoded
        return Denied(None)


def _encode_response(request: Request, values: Mapping[str, Any]) -> bytes:
    message = layout(request.api_key, request.api_version, response=True)
    tags = b"\0" if response_header_is_flexible(request.api_key, request.api_version) else b""
    return tags + encode(message, values)


def _count_items(items: Iterable[Any]) -> int:
    """Return the number of items of the response, including nested ones."""
    found = 0
    for item in items:
        within = () if not isinstance(item, Accessors) else {*NESTED_ARRAYS.values()} & {*item.field_names()}
        found += 1 + sum(_count_items(item.get(name)) for name in within)
    return found


def _error_item(field: Field, item: Any, error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to one item of a request: the fields that identify it, and the error."""
    assert field.layout is not None
    if not isinstance(item, Accessors):
        return {**error, "Name": item, "PartitionIndex": item}
    return {**error, **{one.name: _echoed_value(one, item, error) for one in _echoed_fields(field.layout, item)}}


def _echoed_fields(message: Layout, item: Accessors) -> list[Field]:
    """Return the fields of a response's item that repeat fields of the request's item or answer them."""
    return [
        one
        for one in message.ordered
        if item.has_field(NESTED_ARRAYS.get(one.name, one.name)) and one.name not in ERROR_FIELDS
    ]


def _echoed_value(field: Field, item: Accessors, error: Mapping[str, Any]) -> Any:
    value = item.get(NESTED_ARRAYS.get(field.name, field.name))
    if field.array:
        return [_error_item(field, one, error) for one in value]
    return _decode_topic_id(value) if field.type == "uuid" else value


def _decode_topic_id(topic_id: str) -> bytes:
    """Return the 16 bytes of a printed topic id."""
    return urlsafe_b64decode(topic_id + "==")
