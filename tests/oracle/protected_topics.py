"""Where a ProduceRequest names a protected topic, and which partitions it has."""

from __future__ import annotations

import struct

from proxy.core.produce_scan import INT32_MAX, WITH_IDS
from proxy.core.protected_topics import MAX_CHECKED_ITEMS, MAX_TOPIC_NAME, ProtectedTopics
from proxy.core.wire import MAX_STRING, TRUNCATED, DecodeError, uvarint
from proxy.errors import PeerError

HEAD, TOPIC, COUNT, PARTITION, PARTITION_TAGS, TOPIC_TAGS, TAG, END = range(8)

_int32 = struct.Struct(">i").unpack_from


class ProduceScan:
    """Reads the topics and partitions of one ProduceRequest as it comes, from ``acks`` on.

    ``partitions``: what was read, by topic (a name, or the 16 bytes of an id); None once they are more than
    ``MAX_CHECKED_ITEMS``, or a name is longer than any topic's.
    """

    __slots__ = (
        "_after", "_carry", "_counted", "_flexible", "_in_topic", "_left", "_skip", "_step", "_tags", "_version",
        "partitions",
    )  # fmt: skip

    def __init__(self, version: int) -> None:
        self.partitions: list[tuple[bytes, list[int]]] | None = []
        self._counted = 0
        self._version = version
        self._flexible = version >= 9
        self._step = HEAD
        self._after = END  # the step after a section of tagged fields
        self._left = self._in_topic = self._tags = 0  # topics, partitions, tagged fields still to come
        self._carry = b""  # an element that is not complete; never together with a skip
        self._skip = 0  # bytes to come that are passed over

    def feed(self, data: bytes | bytearray, start: int, stop: int) -> None:
        """Take ``data[start:stop]`` as the next bytes. Raises PeerError for bytes that a broker refuses too."""
        if stop - start <= self._skip:
            self._skip -= stop - start
            return
        buf = self._carry + bytes(data[start + self._skip : stop])
        self._skip, self._carry = 0, b""
        pos, end = 0, len(buf)
        try:
            while self._step != END:
                pos = self._next(buf, pos)
                if pos > end:
                    self._skip = pos - end
                    return
        except TRUNCATED:
            self._carry = buf[pos:]
        except DecodeError as nonsense:
            raise PeerError("client", "invalid_request", nonsense.detail) from None

    def _next(self, buf: bytes, pos: int) -> int:
        """Read the next element; return the offset after it. Changes nothing where it raises one of TRUNCATED."""
        step = self._step
        if step == PARTITION:
            index = _int32(buf, pos)[0]
            size, pos = self._length_at(buf, pos + 4, -1)
            self._partition(index)
            self._step = PARTITION_TAGS if self._flexible else self._next_partition()
            return pos + max(size, 0)
        if step in (PARTITION_TAGS, TOPIC_TAGS):
            self._tags, pos = self._unsigned(buf, pos)
            self._after = step
            self._step = TAG if self._tags else self._tagged()
            return pos
        if step == TAG:
            _, pos = self._unsigned(buf, pos)
            size, pos = self._unsigned(buf, pos)
            self._tags -= 1
            if not self._tags:
                self._step = self._tagged()
            return pos + size
        if step == TOPIC:
            return self._topic(buf, pos)
        if step == COUNT:
            self._in_topic, pos = self._length_at(buf, pos, 0)
            self._in_topic += 1
            self._step = self._next_partition()
            return pos
        self._left, pos = self._length_at(buf, pos + 6, 0)
        self._left += 1
        self._step = self._next_topic()
        return pos

    def _topic(self, buf: bytes, pos: int) -> int:
        name: bytes | None
        if self._version >= WITH_IDS:
            name, pos = buf[pos : pos + 16], pos + 16
            if len(name) < 16:
                raise IndexError
        else:
            if self._flexible:
                size, pos = self._length_at(buf, pos, 0)
            else:
                size, pos = (buf[pos] << 8) + buf[pos + 1], pos + 2
            if size > MAX_STRING:
                raise PeerError("client", "invalid_request", f"a topic's name of {size} bytes")
            if size > MAX_TOPIC_NAME:
                name = None
            else:
                name = buf[pos : pos + size]
                if len(name) < size:
                    raise IndexError
            pos += size
        self._step = COUNT
        self._take(name)
        return pos

    def _take(self, topic: bytes | None) -> None:
        """A topic begins; None: its name is longer than any topic's."""
        if topic is None:
            self.partitions = None
        elif self.partitions is not None:
            self.partitions.append((topic, []))

    def _partition(self, index: int) -> None:
        if self.partitions is None:
            return
        self._counted += 1
        if self._counted > MAX_CHECKED_ITEMS or len(self.partitions) > MAX_CHECKED_ITEMS:
            self.partitions = None
        else:
            self.partitions[-1][1].append(index)

    def _next_partition(self) -> int:
        self._in_topic -= 1
        if self._in_topic:
            return PARTITION
        return TOPIC_TAGS if self._flexible else self._next_topic()

    def _next_topic(self) -> int:
        self._left -= 1
        return TOPIC if self._left else END

    def _tagged(self) -> int:
        """The step after a section of tagged fields."""
        return self._next_partition() if self._after == PARTITION_TAGS else self._next_topic()

    def _unsigned(self, buf: bytes, pos: int) -> tuple[int, int]:
        """A varint; brokers take a larger one modulo 2^32, so that it would be another number there."""
        value, pos = uvarint(buf, pos)
        if value > INT32_MAX:
            raise PeerError("client", "invalid_request", f"a number of {value}")
        return value, pos

    def _length_at(self, buf: bytes, pos: int, least: int) -> tuple[int, int]:
        if self._flexible:
            length, pos = self._unsigned(buf, pos)
            length -= 1
        else:
            length, pos = _int32(buf, pos)[0], pos + 4
        if length < least:
            raise PeerError("client", "invalid_request", f"a length of {length} in a Produce")
        return length, pos


class Check(ProduceScan):
    """Reads up to the first protected topic. ``found``: there is one. ``named``: the first topic was read, or there is
    none."""

    __slots__ = ("_topics", "found", "named")

    def __init__(self, version: int, topics: ProtectedTopics) -> None:
        super().__init__(version)
        self.partitions = None
        self._topics = topics
        self.found = self.named = False

    def _take(self, topic: bytes | None) -> None:
        if topic is not None:
            self.found = topic in self._topics.ids if self._version >= WITH_IDS else self._topics.has(topic)
        self.named = True
        if self.found:
            self._step = END

    def _next_topic(self) -> int:
        step = super()._next_topic()
        self.named = self.named or step == END
        return step
