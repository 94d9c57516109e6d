"""Blocks of encoded events, and the Kafka records made of them. Pure: the time is an argument.

A number is given to every event, and to every event that is lost before it is encoded. A block holds consecutive
numbers, so a loss ends the block before it and shows as a gap between two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from observers.event import EVENTS_PER_RECORD, SCHEMA_LEVEL, Envelope, encoder

BLOCK_LINGER = 0.3
"""Longest time in seconds that an event waits for others to share its record. A killed process loses these events."""

MAX_BLOCK_BYTES = 900_000
"""Bytes of events in one record, before compression; a single larger event stays whole. Kafka's default bound on a
record batch is 1,048,588, and audit JSON becomes about ten times smaller."""


class Chunk(Struct, frozen=True, gc=False):
    """Encoded events with consecutive numbers from ``first`` on: JSON objects with commas between them."""

    first: int
    count: int
    json: bytes


class EncodedEvents(Struct):
    """Encoded events. A number that no chunk holds is that of a lost event."""

    last: int
    """The last number given."""
    chunks: list[Chunk] = []
    """By number."""
    hidden: int = 0
    """Exchanges that give no event, and took no number."""
    failed: int = 0
    """Lost: no event could be built."""
    not_encodable: int = 0
    """Lost: a string is no Unicode text."""
    too_large: int = 0
    """Lost: more partitions than an event may hold."""


class Block(Struct, gc=False):
    """The events ``first`` to ``last`` of one record; ``size``: their bytes; ``level``: their schema level."""

    first: int
    last: int
    level: int
    size: int
    chunks: list[bytes]

    def __len__(self) -> int:
        return self.last - self.first + 1

    def has_room_for(self, chunk: Chunk, max_size: int) -> bool:
        """Whether ``chunk`` continues this block and fits in it."""
        return (
            chunk.first == self.last + 1
            and len(self) + chunk.count <= EVENTS_PER_RECORD
            and self.size + len(chunk.json) <= max_size
        )

    def json(self) -> bytes:
        """The events with commas between them."""
        return b",".join(self.chunks)


class BlockBuilder:
    """Builds blocks of chunks. ``add_chunks``, ``complete`` and ``complete_expired`` return the completed blocks."""

    def __init__(self, max_size: int = MAX_BLOCK_BYTES, level: int = SCHEMA_LEVEL) -> None:
        """``max_size``: bytes of the events of one block."""
        self.max_size = max_size
        self.level = level
        """The schema level of new blocks. ``complete`` the open one before it is changed."""
        self.seq = 0
        """Numbers given so far, those of lost events included."""
        self._open: Block | None = None
        self._open_since = 0.0

    @property
    def open_events(self) -> int:
        """Events in the block that is not complete yet."""
        return 0 if self._open is None else len(self._open)

    def add_chunks(self, chunks: Iterable[Chunk], last: int, now: float) -> list[Block]:
        """Add ``chunks``. ``last``: the last number given; its event is lost if no chunk ends with it."""
        complete: list[Block] = []
        for chunk in chunks:
            if self._open is not None and not self._open.has_room_for(chunk, self.max_size):
                complete += self.complete()
            if self._open is None:
                self._open = Block(chunk.first, chunk.first - 1, self.level, 0, [])
                self._open_since = now
            self._open.chunks.append(chunk.json)
            self._open.last += chunk.count
            self._open.size += len(chunk.json)
            if len(self._open) >= EVENTS_PER_RECORD:
                complete += self.complete()
        self.seq = last
        if self._open is not None and self._open.last < last:
            complete += self.complete()
        return complete

    def complete_expired(self, now: float) -> list[Block]:
        """Complete the open block if its first event has waited for ``BLOCK_LINGER`` seconds."""
        return self.complete() if now - self._open_since >= BLOCK_LINGER else []

    def complete(self) -> list[Block]:
        """Complete the open block."""
        block, self._open = self._open, None
        return [] if block is None else [block]


class _WrittenRecord(Struct):
    events: list[Raw]


def parse_record(value: bytes) -> list[bytes]:
    """Return each event's JSON of a record that ``RecordWriter`` made."""
    return [bytes(event) for event in msgspec.json.decode(value, type=_WrittenRecord).events]


def split_events(json: bytes) -> list[bytes]:
    """Split the JSON of a block into that of its events."""
    return [bytes(event) for event in msgspec.json.decode(b"[%b]" % json, type=list[Raw])]


class RecordWriter(Struct, frozen=True, gc=False):
    """Encodes envelopes. Its fields are those of every envelope of one run of a sidecar."""

    cluster_id: str
    broker_id: int
    boot_id: str
    sidecar_version: str

    def encode_record(self, first: int, last: int, json: bytes, *, level: int, dropped: int, sent_at: int) -> bytes:
        """Return the value of a Kafka record that holds the events ``json``, which have commas between them."""
        envelope = Envelope(
            schema_level=level,
            cluster_id=self.cluster_id,
            broker_id=self.broker_id,
            boot_id=self.boot_id,
            sidecar_version=self.sidecar_version,
            first_seq=first,
            last_seq=last,
            dropped=dropped,
            sent_at=sent_at,
            events=cast(Any, [Raw(json)]),
        )
        return encoder.encode(envelope)
