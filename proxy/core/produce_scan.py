# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""Where a ProduceRequest names a protected topic.

A Produce may have 100 MiB and is never held back, so its topics are read in place, piece by piece; records are passed
over. Source: ProduceRequest.json, versions 0-13.
"""

from __future__ import annotations

import cython

from proxy.core.protected_topics import MAX_CHECKED_ITEMS, MAX_TOPIC_NAME, PREFIXES, ProtectedTopics
from proxy.core.wire import MAX_STRING, Buffer
from proxy.errors import PeerError

if not cython.compiled:
    from proxy.core.header import BAD, MORE, skip_uvarint, uvarint_at
    from proxy.core.memory import int16_at, int32_at, sliced

    HEAD, TOPIC, COUNT, PARTITION, PARTITION_TAGS, TOPIC_TAGS, TAG, END = range(8)
    ROOM = 272

FLEXIBLE_SINCE = 9
"""First version of Produce with compact lengths and tagged fields (KIP-482)."""

WITH_IDS = 13
"""First version of Produce that carries topic ids in place of names (KIP-516)."""

FIRST_TOPIC = 16 + MAX_TOPIC_NAME
"""Bytes of a Produce from its ``acks`` on within which its first topic's name ends: before it stand two numbers of six
bytes together, and two lengths of five at most. A Produce cut before that is read again when they are there."""

INT32_MAX = 2**31 - 1

max_name = MAX_TOPIC_NAME
max_string = MAX_STRING
max_items = MAX_CHECKED_ITEMS
with_ids = WITH_IDS
flexible_since = FLEXIBLE_SINCE
int32_max = INT32_MAX


@cython.cclass
class ProduceScan:
    """Reads the topics of one ProduceRequest as it comes, from ``acks`` on.

    ``found``: it names a protected one. ``named``: its first topic was read, or it has none. ``partitions``: with
    ``collect`` the partitions by topic (a name, or the 16 bytes of an id); None once they are more than
    ``MAX_CHECKED_ITEMS``.
    """

    def __init__(self, version: int, topics: ProtectedTopics, collect: bool = False) -> None:
        self.version = version
        self.topics = topics
        self.names = topics.names
        self.ids = topics.ids
        self.collect = collect
        self.partitions: list[tuple[bytes, list[int]]] | None = [] if collect else None
        self.collected = 0
        self.found = self.named = False
        self.step = HEAD
        self.after = END  # the step after a section of tagged fields
        self.topics_left = self.partitions_left = self.tags_left = 0
        self.carry = bytearray()  # an element that is not complete; never together with a skip
        self.skip = 0  # bytes to come that are passed over
        self.value = 0  # the number that was read last

    def feed(self, data: Buffer, start: int, stop: int) -> None:
        """Take ``data[start:stop]`` as the next bytes; nothing is read after a protected topic unless it collects.

        Raises PeerError for bytes that a broker refuses too.
        """
        self.read(data, start, stop)

    def read(self, data: Buffer, start: int, stop: int) -> int:
        """Take ``data[start:stop]``."""
        if stop <= start or (self.found and not self.collect):
            return 0
        if stop - start <= self.skip:
            self.skip -= stop - start
            return 0
        at = start + self.skip
        self.skip = 0
        while len(self.carry) and self.reads_on():
            had = len(self.carry)
            taken = min(ROOM - had, stop - at)
            self.carry += sliced(data, at, at + taken)
            done = self.element(self.carry, 0, had + taken)
            if done == MORE:
                if had + taken == ROOM:
                    raise PeerError("client", "invalid_request", "an element of a Produce that has no end")
                return 0
            self.carry.clear()
            at += done - had  # an element ends in what is new: it was not complete before
        while at < stop and self.reads_on():
            done = self.element(data, at, stop)
            if done == MORE:
                self.carry += sliced(data, at, stop)
                return 0
            at = done
        if at > stop:
            self.skip = at - stop
        return 0

    def reads_on(self) -> bool:
        """Whether more elements are of interest."""
        return self.step != END and (self.collect or not self.found)

    def element(self, data: Buffer, at: int, limit: int) -> int:
        """Read the element at ``at``; return the offset after it, or ``MORE``, and then nothing has changed."""
        if self.step == PARTITION:
            after = self.length(data, at + 4, limit, -1)
            if after == MORE:
                return MORE
            self.add_partition(int32_at(data, at))
            self.step = PARTITION_TAGS if self.version >= flexible_since else self.next_partition()
            return after + (self.value if self.value > 0 else 0)
        if self.step == PARTITION_TAGS or self.step == TOPIC_TAGS:
            after = self.number(data, at, limit)
            if after == MORE:
                return MORE
            self.tags_left = self.value
            self.after = self.step
            self.step = TAG if self.tags_left else self.after_tags()
            return after
        if self.step == TAG:
            after = self.number(data, at, limit)
            if after != MORE:
                after = self.number(data, after, limit)
            if after == MORE:
                return MORE
            self.tags_left -= 1
            if not self.tags_left:
                self.step = self.after_tags()
            return after + self.value
        if self.step == COUNT:
            after = self.length(data, at, limit, 0)
            if after == MORE:
                return MORE
            self.partitions_left = self.value + 1
            self.step = self.next_partition()
            return after
        if self.step == HEAD:
            after = self.length(data, at + 6, limit, 0)
            if after == MORE:
                return MORE
            self.topics_left = self.value + 1
            self.step = self.next_topic()
            return after
        return self.topic(data, at, limit)

    def topic(self, data: Buffer, at: int, limit: int) -> int:
        """Read a topic's name, or its id."""
        name = None
        if self.version >= with_ids:
            if at + 16 > limit:
                return MORE
            name = sliced(data, at, at + 16)
            at += 16
            self.found = self.found or name in self.ids
        else:
            if self.version >= flexible_since:
                at = self.length(data, at, limit, 0)
                if at == MORE:
                    return MORE
            elif at + 2 > limit:
                return MORE
            else:
                self.value = int16_at(data, at) & 0xFFFF
                at += 2
            if self.value > max_string:
                raise PeerError("client", "invalid_request", f"a topic's name of {self.value} bytes")
            if self.value <= max_name:
                if at + self.value > limit:
                    return MORE
                name = sliced(data, at, at + self.value)
                self.found = self.found or name.startswith(PREFIXES) or name in self.names
            at += self.value
        self.named = True
        if self.partitions is not None:
            if name is None:
                self.partitions = None
            else:
                self.partitions.append((name, []))
        self.step = COUNT
        return at

    def add_partition(self, index: int) -> int:
        """Collect a partition of the last topic."""
        if self.partitions is None:
            return 0
        self.collected += 1
        if self.collected > max_items or len(self.partitions) > max_items:
            self.partitions = None
        else:
            self.partitions[len(self.partitions) - 1][1].append(index)
        return 0

    def next_partition(self) -> int:
        """Return the step after a partition."""
        self.partitions_left -= 1
        if self.partitions_left:
            return PARTITION
        return TOPIC_TAGS if self.version >= flexible_since else self.next_topic()

    def next_topic(self) -> int:
        """Return the step after a topic."""
        self.topics_left -= 1
        if self.topics_left:
            return TOPIC
        self.named = True
        return END

    def after_tags(self) -> int:
        """Return the step after a section of tagged fields."""
        return self.next_partition() if self.after == PARTITION_TAGS else self.next_topic()

    def number(self, data: Buffer, at: int, limit: int) -> int:
        """Read an unsigned varint into ``value``; return the offset after it, or MORE. Raises PeerError: brokers take a
        larger one modulo 2^32, so that it would be another number there."""
        if at < limit and data[at] < 128:
            self.value = data[at]
            return at + 1
        after = skip_uvarint(data, at, limit)
        if after == BAD:
            raise PeerError("client", "invalid_request", "a varint of more than five bytes")
        if after != MORE:
            self.value = uvarint_at(data, at, limit)
            if self.value > int32_max:
                raise PeerError("client", "invalid_request", f"a number of {self.value}")
        return after

    def length(self, data: Buffer, at: int, limit: int, least: int) -> int:
        """Read a length of this version into ``value``; return the offset after it, or MORE. Raises PeerError for one
        below ``least``."""
        if self.version >= flexible_since:
            at = self.number(data, at, limit)
            self.value -= 1
        elif at + 4 > limit:
            return MORE
        else:
            self.value = int32_at(data, at)
            at += 4
        if at != MORE and self.value < least:
            raise PeerError("client", "invalid_request", f"a length of {self.value} in a Produce")
        return at
