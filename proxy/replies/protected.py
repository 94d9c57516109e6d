"""Clients change nothing of the topics in which the sidecars keep their state.

Who writes there, or empties, alters or deletes them, decides what all sidecars believe and what the audit says. Such a
request is refused as a whole, with the error that a broker's ACLs would give: nothing of it is applied. Reading stays
allowed. The sidecars themselves use the INTERNAL listeners, where no sidecar stands.
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
from proxy.core.intercept import ASKED, CHECKED, DECIDED, UNREAD, Denied, Interceptor, Request, Verdict, Way
from proxy.core.protected import MAX_ITEMS, TOPIC_AUTHORIZATION_FAILED, Partitions, ProtectedTopics
from proxy.core.schema import Field, Layout, layout
from proxy.core.struct import view
from proxy.core.watch import VERSIONS

PRODUCE, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 0, 19, 20, 21
ADD_PARTITIONS_TO_TXN, CREATE_PARTITIONS = 24, 37

CHANGES: Mapping[int, Mapping[str, str]] = MappingProxyType(
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
"""Besides Produce, the apis that change a topic's records or its configuration: the array of a request that holds what
is to be changed, and the array of the response that answers each item of it."""

WITHIN = MappingProxyType({"TopicResults": "Topics", "ResultsByPartition": "Partitions", "Partitions": "Partitions"})
"""Arrays in the items of a response, and the arrays of the request that they answer."""

TOPIC = 2
"""Kafka's resource type of a topic's configuration."""

MAX_CHANGE = 1_048_576
"""Bytes of the longest such request that is held back: some 30,000 topics of usual names, where Kafka changes 10,000 at
most at once. A longer one closes the connection: forwarded it would pass by the check."""

MAX_READ = 16_384
"""Bytes of the longest body that is read to see whether it names a protected topic or only seems to: up to 30 ms of the
loop's time where a client makes the most of them. A longer one closes the connection."""

MESSAGE = "A topic of the sidecars: no client may change it."
"""The error's text, where a response has one."""

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "ErrorCode": TOPIC_AUTHORIZATION_FAILED,
        "PartitionErrorCode": TOPIC_AUTHORIZATION_FAILED,
        "ErrorMessage": MESSAGE,
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
"""Of an item that failed, as Kafka's brokers answer it."""


def newest(api_key: int) -> int | None:
    """The last version of this api that may pass where topics are protected; None where any may."""
    return APIS[api_key].max_version if api_key in CHANGES or api_key == PRODUCE else None


class Protected(Interceptor):
    """Of one listener. ``refused`` is called for each request that is not forwarded.

    After a change of ``enabled`` the rules want to be updated.
    """

    max_asked = MAX_CHANGE
    on_error = Way.CLOSE
    topics: ProtectedTopics

    def __init__(self, topics: ProtectedTopics, refused: Callable[[Request], None], *, enabled: bool = True) -> None:
        self.topics = topics
        self.enabled = enabled
        self._refused = refused

    def wants(self, api_key: int, api_version: int) -> int:
        """What can change a topic. A version that is not known is not read, so it does not pass."""
        if not self.enabled or newest(api_key) is None:
            return 0
        if not is_known(api_key, api_version):
            # No token of a login that begins so has a low version there: after a zero byte comes a name, or its end.
            return DECIDED | UNREAD if 0 <= api_version < VERSIONS else DECIDED
        return CHECKED if api_key == PRODUCE else ASKED

    def decide(self, request: Request) -> Verdict:
        """Refuse it: its topics could not be found."""
        self._refused(request)
        return Way.CLOSE

    def deny(self, request: Request, partitions: Partitions | None) -> Verdict:
        """Answer a Produce for all its partitions; end the connection where that is not possible."""
        self._refused(request)
        if partitions is None:
            return Denied(None)
        topics = [
            {"Name": topic, "TopicId": topic, "PartitionResponses": [{**DEFAULTS, "Index": index} for index in indexes]}
            for topic, indexes in partitions
        ]
        return Denied(_body(request, {"Responses": topics}))

    def ask(self, request: Request, body: bytes) -> Verdict:
        """Refuse a change of several items as a whole where one of them is a protected topic.

        A body that mentions none, as nearly every one, is not read. Raises MalformedBody.
        """
        if not self.topics.mentioned(body):
            return Way.FORWARD
        if len(body) > MAX_READ:
            self._refused(request)
            return Denied(None)
        message = view(request.api_key, request.api_version, body, response=False)
        answered = {
            answer: message.get(array) or ()
            for array, answer in CHANGES[request.api_key].items()
            if message.has_field(array)
        }
        if not any(self._names_one(item) for items in answered.values() for item in items):
            return Way.FORWARD
        self._refused(request)
        if sum(map(_count, answered.values())) > MAX_ITEMS:
            return Denied(None)
        made = layout(request.api_key, request.api_version, response=True)
        values = {
            field.name: [_failed(field, item) for item in answered[field.name]]
            for field in made.ordered
            if field.name in answered
        }
        try:
            return Denied(_body(request, values))
        except ValueError:  # a name that grew by being read as text
            return Denied(None)

    def _names_one(self, item: Any) -> bool:
        if isinstance(item, str):
            return self.topics.has(item.encode())
        if item.has_field("ResourceType"):
            return item.get("ResourceType") == TOPIC and self._names_one(item.get("ResourceName"))
        if item.has_field("TransactionalId"):
            return any(map(self._names_one, item.get("Topics")))
        if item.has_field("TopicId") and _raw(item.get("TopicId")) in self.topics.ids:
            return True
        name = item.get("Name")
        return name is not None and self._names_one(name)


def _body(request: Request, values: Mapping[str, Any]) -> bytes:
    made = layout(request.api_key, request.api_version, response=True)
    tags = b"\0" if response_header_is_flexible(request.api_key, request.api_version) else b""
    return tags + encode(made, values)


def _count(items: Iterable[Any]) -> int:
    """How many items the answer has, those within others included."""
    found = 0
    for item in items:
        within = () if not isinstance(item, Accessors) else {*WITHIN.values()} & {*item.field_names()}
        found += 1 + sum(_count(item.get(name)) for name in within)
    return found


def _failed(field: Field, item: Any) -> dict[str, Any]:
    """The answer to one item of a request: what names it, and the error."""
    assert field.layout is not None
    if not isinstance(item, Accessors):
        return {**DEFAULTS, "Name": item, "PartitionIndex": item}
    return {**DEFAULTS, **{one.name: _value(one, item) for one in _named(field.layout, item)}}


def _named(made: Layout, item: Accessors) -> list[Field]:
    """The fields of a response's item that the request's item has too, or answers to."""
    return [one for one in made.ordered if item.has_field(WITHIN.get(one.name, one.name)) and one.name not in DEFAULTS]


def _value(field: Field, item: Accessors) -> Any:
    value = item.get(WITHIN.get(field.name, field.name))
    if field.array:
        return list(map(partial(_failed, field), value))
    return _raw(value) if field.type == "uuid" else value


def _raw(topic_id: str) -> bytes:
    """The 16 bytes of a topic id as it is printed."""
    return urlsafe_b64decode(topic_id + "==")
