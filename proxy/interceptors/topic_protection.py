"""Denies clients all changes of the topics in which the sidecars keep their state.

A client that writes to these topics, or truncates, alters or deletes them, could forge what all sidecars believe and
what the audit records. Such a request is denied as a whole, with the error that a broker's ACLs would give. Reading is
allowed. The sidecars use the INTERNAL listeners, which have no sidecar in front.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Mapping
from functools import partial
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
from proxy.core.protected_topics import TOPIC_AUTHORIZATION_FAILED, Partitions, ProtectedTopics
from proxy.core.schema import Field, Layout, layout
from proxy.core.struct import view

PRODUCE, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 0, 19, 20, 21
ADD_PARTITIONS_TO_TXN, CREATE_PARTITIONS = 24, 37

CHANGED_ARRAYS: Mapping[int, Mapping[str, str]] = MappingProxyType(
    {
        CREATE_TOPICS: {"Topics": "Topics"},
        DELETE_TOPICS: {"Topics": "Responses", "TopicNames": "Responses"},
        DELETE_RECORDS: {"Topics": "Topics"},
        ADD_PARTITIONS_TO_TXN: {"Transactions": "ResultsByTransaction", "V3AndBelowTopics": "ResultsByTopicV3AndBelow"},
        ALTER_CONFIGS: {"Resources": "Responses"},
        CREATE_PARTITIONS: {"Topics": "Results"},
        INCREMENTAL_ALTER_CONFIGS: {"Resources": "Responses"},
    }
)
"""The apis besides Produce that change records or the configuration of a topic. For each: the array of the request with
the items to change, and the array of the response with an answer for each item."""

NESTED_ARRAYS = MappingProxyType(
    {"TopicResults": "Topics", "ResultsByPartition": "Partitions", "Partitions": "Partitions"}
)
"""Arrays in the items of a response, with the arrays of the request that they answer."""

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
        "LogStartOffset": -1,
        "LowWatermark": -1,
        "NumPartitions": -1,
        "ReplicationFactor": -1,
        "RecordErrors": (),
        "Configs": (),
    }
)
"""The fields of a failed item, as Kafka's brokers send them."""


def max_version(api_key: int) -> int | None:
    """Return the last version of this api that may pass if topics are protected; None for any."""
    return APIS[api_key].max_version if api_key in CHANGED_ARRAYS or api_key == PRODUCE else None


class TopicProtection(Interceptor):
    """Denies changes of protected topics on one listener. ``on_denied`` is called for each request that is denied.

    After ``enabled`` has changed, the rules have to be updated.
    """

    max_held_request = MAX_HELD_ADMIN_REQUEST
    on_error = Disposition.CLOSE
    topics: ProtectedTopics

    def __init__(self, topics: ProtectedTopics, on_denied: Callable[[Request], None], *, enabled: bool = True) -> None:
        self.topics = topics
        self.enabled = enabled
        self._on_denied = on_denied

    def flags(self, api_key: int, api_version: int) -> int:
        """Requests that can change a topic. Unknown versions cannot be parsed, so they do not pass."""
        if not self.enabled or max_version(api_key) is None:
            return 0
        if not is_known(api_key, api_version):
            # The token of a login cannot look like this: after a zero byte it has a name or ends.
            return ON_HEADER | UNKNOWN_VERSION if 0 <= api_version < VERSIONS else ON_HEADER
        return ON_TOPICS if api_key == PRODUCE else ON_BODY

    def on_header(self, request: Request) -> Verdict:
        """Refuse it: its topics could not be found."""
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
        if len(body) > MAX_PARSED_REQUEST:
            flexible = layout(request.api_key, request.api_version, response=False).flexible
            if not self.topics.named(body, flexible=flexible):
                return Disposition.FORWARD
            self._on_denied(request)
            return Denied(None)
        message = view(request.api_key, request.api_version, body, response=False)
        answered = {
            answer: message.get(array) or ()
            for array, answer in CHANGED_ARRAYS[request.api_key].items()
            if message.has_field(array)
        }
        if not any(self._names_protected_topic(item) for items in answered.values() for item in items):
            return Disposition.FORWARD
        self._on_denied(request)
        if sum(map(_count_items, answered.values())) > MAX_ANSWERED_ITEMS:
            return Denied(None)
        response_layout = layout(request.api_key, request.api_version, response=True)
        values = {
            field.name: [_error_item(field, item) for item in answered[field.name]]
            for field in response_layout.ordered
            if field.name in answered
        }
        try:
            return Denied(_encode_response(request, values))
        except ValueError:  # a name that became too long when it was decoded
            return Denied(None)

    def _names_protected_topic(self, item: Any) -> bool:
        if isinstance(item, str):
            return self.topics.has(item.encode())
        if item.has_field("ResourceType"):
            return item.get("ResourceType") == TOPIC_RESOURCE and self._names_protected_topic(item.get("ResourceName"))
        if item.has_field("TransactionalId"):
            return any(map(self._names_protected_topic, item.get("Topics")))
        if item.has_field("TopicId") and _decode_topic_id(item.get("TopicId")) in self.topics.ids:
            return True
        name = item.get("Name")
        return name is not None and self._names_protected_topic(name)


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


def _error_item(field: Field, item: Any) -> dict[str, Any]:
    """Return the answer to one item of a request: the fields that identify it, and the error."""
    assert field.layout is not None
    if not isinstance(item, Accessors):
        return {**ERROR_FIELDS, "Name": item, "PartitionIndex": item}
    return {**ERROR_FIELDS, **{one.name: _echoed_value(one, item) for one in _echoed_fields(field.layout, item)}}


def _echoed_fields(message: Layout, item: Accessors) -> list[Field]:
    """Return the fields of a response's item that repeat fields of the request's item or answer them."""
    return [
        one
        for one in message.ordered
        if item.has_field(NESTED_ARRAYS.get(one.name, one.name)) and one.name not in ERROR_FIELDS
    ]


def _echoed_value(field: Field, item: Accessors) -> Any:
    value = item.get(NESTED_ARRAYS.get(field.name, field.name))
    if field.array:
        return list(map(partial(_error_item, field), value))
    return _decode_topic_id(value) if field.type == "uuid" else value


def _decode_topic_id(topic_id: str) -> bytes:
    """Return the 16 bytes of a printed topic id."""
    return urlsafe_b64decode(topic_id + "==")
