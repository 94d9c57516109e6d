"""What the application iterates over: the messages that were fetched for one of its threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from proxy.client.consumer.errors import ConsumerFailed
from proxy.client.consumer.membership import ConsumerMembership

if TYPE_CHECKING:
    from confluent_kafka import Message

MAX_STREAM_MESSAGES, MAX_STREAM_BYTES = 1000, 8 * 1024 * 1024
"""Fetched and not handed out, of one stream. A stream that has as much is full until it is half empty."""


class FetchedMessage(NamedTuple):
    """A message, and the epoch (``FetchedFrom``) that it was fetched with."""

    message: Message
    topic: str
    partition: int
    epoch: int
    offset: int
    size: int


class HandoutGate:
    """What all threads of a consumer share: its membership, and the lock without which nobody touches that.

    A message is handed out within the lock, so none is once a change of the membership has been handled.
    """

    def __init__(self, membership: ConsumerMembership, clock: Callable[[], int]) -> None:
        """``clock``: milliseconds; goes on while the machine sleeps."""
        self.lock = threading.Lock()
        self.membership = membership
        self.clock = clock
        self.has_ended = False
        self.error: str | None = None
        self.room_made: Callable[[], None] = lambda: None
        """Called when a stream is full no longer."""


class MessageStream:
    """An iterator over messages (``confluent_kafka.Message``), for one thread at a time.

    It waits while there is none, and ends when the consumer is shut down.
    """

    def __init__(self, gate: HandoutGate) -> None:
        """Streams are made by ``CoordinatedConsumer``."""
        self._gate = gate
        self._changed = threading.Condition(gate.lock)
        self._fetched: deque[FetchedMessage] = deque()
        self._bytes = 0
        self._readers = 0
        self.is_full = False
        """Whether fetching for it should stand still."""
        self._untaken_since: int | None = None

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """Raises ConsumerFailed where the consumer has ended with an error."""
        message = self.poll()
        if message is None:
            raise StopIteration
        return message

    def poll(self, timeout: float | None = None) -> Message | None:
        """Return the next message; None after ``timeout`` seconds (None: no end), and when the consumer is shut down.

        Raises ConsumerFailed where the consumer has ended with an error.
        """
        with self._gate.lock:
            self._readers += 1
            try:
                return self._take() if self._changed.wait_for(self._is_ready, timeout) else None
            finally:
                self._readers -= 1
                self._untaken_since = self._gate.clock()

    def put(self, messages: list[FetchedMessage]) -> None:
        """Add what was fetched, but for what is no longer assigned."""
        with self._gate.lock:
            if not self._fetched:
                self._untaken_since = self._gate.clock()
            has = self._gate.membership.assignment.has
            current = [one for one in messages if has(one.topic, one.partition, one.epoch)]
            self._fetched.extend(current)
            self._bytes += sum(one.size for one in current)
            self._measure()
            self._changed.notify_all()

    @property
    def is_starving(self) -> bool:
        """Whether the application waits for a message, and there is none."""
        return self._readers > 0 and not self._fetched

    def untaken_ms(self) -> int:
        """How long messages have waited, and nobody has asked for one; with the lock."""
        if not self._fetched or self._readers or self._untaken_since is None:
            return 0
        return self._gate.clock() - self._untaken_since

    def refresh(self) -> None:
        """The membership has changed: drop what is no longer assigned, and check again. With the lock."""
        has = self._gate.membership.assignment.has
        self._fetched = deque(one for one in self._fetched if has(one.topic, one.partition, one.epoch))
        self._bytes = sum(one.size for one in self._fetched)
        self._measure()
        self._changed.notify_all()

    def _is_ready(self) -> bool:
        if self._gate.has_ended:
            return True
        if not self._fetched:
            return False
        first = self._fetched[0]
        return self._gate.membership.may_hand_out(first.topic, first.partition, first.epoch, self._gate.clock())

    def _take(self) -> Message | None:
        if self._gate.has_ended:
            if self._gate.error is not None:
                raise ConsumerFailed(self._gate.error)
            return None
        first = self._fetched.popleft()
        self._bytes -= first.size
        self._measure()
        self._gate.membership.handed_out(first.topic, first.partition, first.offset + 1)
        return first.message

    def _measure(self) -> None:
        """See whether there is room."""
        if not self.is_full:
            self.is_full = len(self._fetched) >= MAX_STREAM_MESSAGES or self._bytes >= MAX_STREAM_BYTES
        elif len(self._fetched) <= MAX_STREAM_MESSAGES // 2 and self._bytes <= MAX_STREAM_BYTES // 2:
            self.is_full = False
            self._gate.room_made()
