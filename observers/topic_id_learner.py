"""Learns names of topic ids from the broker's responses that carry both. The first observer's thread reads them."""

from __future__ import annotations

import threading
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from observers.api import ObservedExchange
from observers.topic_names import RecentCache, TopicNames
from proxy.core.accessors import printed_id
from proxy.core.struct import ObservableStructImpl, SchemaError, UnknownMessage, view

MAX_READ_BODIES = 1_000
"""Bodies that are remembered as read, since clients of one kind get the same Metadata again and again."""

NULL_TOPIC_ID = printed_id(bytes(16))


class TopicIdPath(Struct, frozen=True):
    """Where a response holds topic ids and names.

    ``since``: first version; ``path``: arrays and structs on the way to them; ``name``: the field of the name.
    """

    since: int
    path: tuple[tuple[str, ...], ...]
    name: str


TOPIC_ID_PATHS: Mapping[int, TopicIdPath] = {
    3: TopicIdPath(10, (("Topics",),), "Name"),  # Metadata
    19: TopicIdPath(7, (("Topics",),), "Name"),  # CreateTopics
    20: TopicIdPath(6, (("Responses",),), "Name"),  # DeleteTopics
    69: TopicIdPath(  # ConsumerGroupDescribe
        0, (("Groups",), ("Members",), ("Assignment", "TargetAssignment"), ("TopicPartitions",)), "TopicName"
    ),
    75: TopicIdPath(0, (("Topics",),), "Name"),  # DescribeTopicPartitions
    77: TopicIdPath(
        0, (("Groups",), ("Members",), ("Assignment",), ("TopicPartitions",)), "TopicName"
    ),  # ShareGroupDescribe
    90: TopicIdPath(0, (("Groups",), ("Topics",)), "TopicName"),  # DescribeShareGroupOffsets
    91: TopicIdPath(0, (("Responses",),), "TopicName"),  # AlterShareGroupOffsets
    92: TopicIdPath(0, (("Responses",),), "TopicName"),  # DeleteShareGroupOffsets
}
"""By api key."""


def carries_topic_ids(api_key: int, api_version: int) -> bool:
    """Whether responses of this api key and version have topic ids beside names."""
    place = TOPIC_ID_PATHS.get(api_key)
    return place is not None and api_version >= place.since


def read_topic_ids(api_key: int, api_version: int, body: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield the pairs of topic id and name in the body of a response that carries them.

    Raises SchemaError once it comes to bytes that are malformed; UnknownMessage for a version without a definition.
    """
    place = TOPIC_ID_PATHS[api_key]
    for topic in _follow_path([view(api_key, api_version, body, response=True)], place.path):
        name, printed = topic.get(place.name), topic.get("TopicId")
        if name and printed != NULL_TOPIC_ID:
            yield urlsafe_b64decode(printed + "=="), name


def _follow_path(
    structs: Iterable[ObservableStructImpl], path: tuple[tuple[str, ...], ...]
) -> Iterator[ObservableStructImpl]:
    """Yield the structs at the end of ``path``, from each of ``structs``."""
    if not path:
        yield from structs
        return
    for struct in structs:
        for name in path[0]:
            found = struct.get(name)
            yield from _follow_path(found if isinstance(found, tuple) else (found,), path[1:])


class TopicIdBatch:
    """The responses of one batch that carry topic ids beside names.

    Every observer's thread waits in ``learn`` until they were read, before it passes the batch to its observer.
    """

    def __init__(self, learner: TopicIdLearner, responses: Sequence[ObservedExchange]) -> None:
        self._learner = learner
        self._responses = responses
        self._lock = threading.Lock()

    def learn(self) -> None:
        """Read the responses, unless another thread has. Never raises."""
        with self._lock:
            responses, self._responses = self._responses, ()
            for exchange in responses:
                self._learner.learn_response(exchange.api_key, exchange.api_version, exchange.response_raw or b"")


class TopicIdLearner:
    """Reads topic ids and names from responses and adds them to ``TopicNames``.

    All observers share one. It remembers which bodies it has read.
    """

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self._read: RecentCache[tuple[int, int, int], bool] = RecentCache(MAX_READ_BODIES)

    def select_responses(self, exchanges: Sequence[ObservedExchange]) -> TopicIdBatch | None:
        """Return the responses among ``exchanges`` that carry topic ids beside names, or None if there is none."""
        responses = [one for one in exchanges if one.response_raw and carries_topic_ids(one.api_key, one.api_version)]
        return TopicIdBatch(self, responses) if responses else None

    def learn_response(self, api_key: int, api_version: int, body: bytes) -> None:
        """Add the pairs of one response. Of a malformed response, add those in front of the fault."""
        key = (api_key, api_version, hash(body))
        if self._read.get(key):
            return
        self._read.put(key, True)
        with suppress(SchemaError, UnknownMessage):
            self._names.add_names(read_topic_ids(api_key, api_version, body))
