"""Names of topic ids as they pass: responses of the broker that carry both are read by the lane that has them first."""

from __future__ import annotations

import threading
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from observers.api import ObservedExchange
from observers.topics import Recent, TopicNames
from proxy.core.accessors import printed_id
from proxy.core.struct import ObservableStruct, SchemaError, UnknownMessage, view

MAX_BODIES = 1_000
"""Bodies of which is remembered that they were read: clients of one kind ask for the same Metadata again and again."""

NO_ID = printed_id(bytes(16))


class Place(Struct, frozen=True):
    """Where in a response pairs stand. ``path``: arrays and structs on the way to them; ``name``: the name's field."""

    since: int
    path: tuple[tuple[str, ...], ...]
    name: str


PLACES: Mapping[int, Place] = {
    3: Place(10, (("Topics",),), "Name"),  # Metadata
    19: Place(7, (("Topics",),), "Name"),  # CreateTopics
    20: Place(6, (("Responses",),), "Name"),  # DeleteTopics
    69: Place(  # ConsumerGroupDescribe
        0, (("Groups",), ("Members",), ("Assignment", "TargetAssignment"), ("TopicPartitions",)), "TopicName"
    ),
    75: Place(0, (("Topics",),), "Name"),  # DescribeTopicPartitions
    77: Place(0, (("Groups",), ("Members",), ("Assignment",), ("TopicPartitions",)), "TopicName"),  # ShareGroupDescribe
    90: Place(0, (("Groups",), ("Topics",)), "TopicName"),  # DescribeShareGroupOffsets
    91: Place(0, (("Responses",),), "TopicName"),  # AlterShareGroupOffsets
    92: Place(0, (("Responses",),), "TopicName"),  # DeleteShareGroupOffsets
}
"""By api key."""


def carries_pairs(api_key: int, api_version: int) -> bool:
    """Whether responses of this api key and version have topic ids beside names."""
    place = PLACES.get(api_key)
    return place is not None and api_version >= place.since


def pairs_of(api_key: int, api_version: int, body: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield the pairs of topic id and name in the body of a response that carries them.

    Raises SchemaError once it comes to bytes that are malformed; UnknownMessage for a version without a definition.
    """
    place = PLACES[api_key]
    for topic in _reached([view(api_key, api_version, body, response=True)], place.path):
        name, printed = topic.get(place.name), topic.get("TopicId")
        if name and printed != NO_ID:
            yield urlsafe_b64decode(printed + "=="), name


def _reached(structs: Iterable[ObservableStruct], path: tuple[tuple[str, ...], ...]) -> Iterator[ObservableStruct]:
    """What stands at the end of ``path``, from each of ``structs``."""
    if not path:
        yield from structs
        return
    for struct in structs:
        for name in path[0]:
            found = struct.get(name)
            yield from _reached(found if isinstance(found, tuple) else (found,), path[1:])


class Lesson:
    """The responses of one batch that carry pairs. Every lane waits here until they are learned, before it tells."""

    def __init__(self, school: School, told: Sequence[ObservedExchange]) -> None:
        self._school = school
        self._told = told
        self._lock = threading.Lock()

    def learn(self) -> None:
        """Learn, if nobody has. Never raises."""
        with self._lock:
            told, self._told = self._told, ()
            for exchange in told:
                self._school.learn(exchange.api_key, exchange.api_version, exchange.response_raw or b"")


class School:
    """Where lanes learn: one for all, with what it has read already."""

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self._read: Recent[tuple[int, int, int], bool] = Recent(MAX_BODIES)

    def lesson(self, exchanges: Sequence[ObservedExchange]) -> Lesson | None:
        """What there is to learn from ``exchanges``, if anything."""
        told = [one for one in exchanges if one.response_raw and carries_pairs(one.api_key, one.api_version)]
        return Lesson(self, told) if told else None

    def learn(self, api_key: int, api_version: int, body: bytes) -> None:
        """Learn the pairs of one response; of a malformed one those before the fault."""
        key = (api_key, api_version, hash(body))
        if self._read.get(key):
            return
        self._read.put(key, True)
        with suppress(SchemaError, UnknownMessage):
            self._names.learn(pairs_of(api_key, api_version, body))
