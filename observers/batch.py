"""Sequence numbers and blocks of events: pure, with the time passed in.

A number is given to every event, and to every event that is lost before it exists. A block holds consecutive numbers,
so a loss ends the block before it and shows as a gap between two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from observers.event import EVENTS_PER_RECORD, SCHEMA_LEVEL, Envelope, RequestEvent, encoder

FLUSH = 0.5
"""Seconds an event waits at most for others to share its record."""

MAX_RECORD = 900_000
"""Bytes of a record before compression above which its events are spread over several: Kafka's default bound on a
record batch is 1,048,588, and audit JSON becomes about ten times smaller."""


Block = list[RequestEvent]
"""Events with consecutive numbers, in order; never empty."""


class Batcher:
    """Gives numbers and gathers events into blocks. Each method returns the blocks that it completes."""

    def __init__(self) -> None:
        self.seq = 0
        """Numbers given so far, lost ones included."""
        self._open: Block = []
        self._open_since = 0.0

    @property
    def waiting(self) -> int:
        """Events in the block that is not complete yet."""
        return len(self._open)

    def add(self, events: Iterable[RequestEvent | None], now: float) -> list[Block]:
        """Number ``events``; None stands for one that is lost."""
        complete: list[Block] = []
        for event in events:
            if event is None:
                complete += self.lose(1)
                continue
            self.seq += 1
            event.seq = self.seq
            if not self._open:
                self._open_since = now
            self._open.append(event)
            if len(self._open) >= EVENTS_PER_RECORD:
                complete += self.take()
        return complete

    def lose(self, count: int) -> list[Block]:
        """Pass over ``count`` numbers."""
        if not count:
            return []
        self.seq += count
        return self.take()

    def take_due(self, now: float) -> list[Block]:
        """Complete the open block if its first event has waited for ``FLUSH`` seconds."""
        return self.take() if now - self._open_since >= FLUSH else []

    def take(self) -> list[Block]:
        """Complete the open block."""
        block, self._open = self._open, []
        return [block] if block else []


class Writer(Struct, frozen=True, gc=False):
    """Who writes: the part of every envelope that stays the same for one run of a sidecar."""

    cluster_id: str
    broker_id: int
    boot_id: str
    sidecar_version: str


def records(block: Block, writer: Writer, *, dropped: int, sent_at: int) -> Iterator[tuple[bytes | None, int]]:
    """Encode ``block`` as ``(value of a Kafka record, events in it)``, several where one would be over ``MAX_RECORD``.

    The value is None for an event that cannot be encoded (a string that is no Unicode text): it alone is lost.
    """
    envelope = Envelope(
        schema_level=SCHEMA_LEVEL,
        cluster_id=writer.cluster_id,
        broker_id=writer.broker_id,
        boot_id=writer.boot_id,
        sidecar_version=writer.sidecar_version,
        first_seq=block[0].seq,
        last_seq=block[-1].seq,
        dropped=dropped,
        sent_at=sent_at,
        events=block,
    )
    value: bytes | None
    try:
        value = encoder.encode(envelope)
    except UnicodeError:
        value = None
    if len(block) > 1 and (value is None or len(value) > MAX_RECORD):
        half = len(block) // 2
        for part in (block[:half], block[half:]):
            yield from records(part, writer, dropped=dropped, sent_at=sent_at)
    else:
        yield value, len(block)
