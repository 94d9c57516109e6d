"""The thread of one of the sidecars' topics: it handles all records, and writes some.

It uses librdkafka, and with it any of its ways to authenticate. Neither the event loop nor the sidecar's start
waits for it. While the cluster cannot be reached, the thread alone tries again. It sleeps until its reader has records,
or the loop wants something written: so it answers at once, and costs next to nothing while nothing happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from proxy.core.authentication import Authenticator
from proxy.errors import BrokersideError
from proxy.fleet.topic_reader import TopicRead, TopicReader
from proxy.fleet.topic_spec import TopicRecord, TopicSpec

if TYPE_CHECKING:
    from proxy.fleet.compacted_topic import CompactedTopic

FIRST_RETRY, LAST_RETRY = 1.0, 10.0
"""Seconds until the topic is opened again: from the first number to the second, doubled with each failure."""

TURN_SECONDS = 1.0
"""Seconds between two turns of the thread at most, while nothing is read and nobody wakes it."""

CHECK_INTERVAL = 10.0
"""Seconds between two checks that the topic is still there, and read. librdkafka does not always report that one was
deleted."""

MAX_STALLED_CHECKS = 2
"""After so many checks in a row the topic is opened again, if it ends elsewhere than where nothing more is read. One
that was deleted and made again may be read no further, without an error."""

THREAD_CLOSE_TIMEOUT = 1.0
"""Seconds that ``close`` waits for the thread, which is a daemon thread."""

FLUSH_TIMEOUT = 0.5
"""Seconds that the topic has for the last record when the thread ends."""

log = structlog.get_logger(__name__)


class TopicThread:
    """Reads and writes a topic from ``start`` to ``close``. Methods with ``_on`` run on the thread."""

    def __init__(
        self,
        spec: TopicSpec,
        settings: Mapping[str, Any],
        client_id: str,
        authenticator: Authenticator | None = None,
    ) -> None:
        """``settings``: librdkafka's, for the INTERNAL listeners. ``authenticator``: signs and verifies records."""
        self._spec = spec
        self._settings = {**settings, "client.id": client_id}
        self._authenticator = authenticator
        self._stop = threading.Event()
        self._inbox: queue.SimpleQueue[TopicRead | None] = queue.SimpleQueue()  # None: see ``_wake``
        self._is_woken = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._to_read: deque[Callable[[], None]] = deque()  # who waits for the topic's end
        self._ends: list[tuple[int, Callable[[], None]]] = []  # the same, with the end that was measured
        self._retry = FIRST_RETRY

    def start(self) -> None:
        """Start the thread; calls come on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=self._spec.name, daemon=True)
        self._thread.start()

    def read_to_end(self, done: Callable[[], None]) -> None:
        """Call ``done`` on the loop when all is read, and was reported, that the topic has after this call.

        While the topic cannot be read, it waits.
        """
        self._to_read.append(done)
        self._wake()

    async def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._wake()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, THREAD_CLOSE_TIMEOUT)

    def _on_open(self) -> None:
        """The topic was opened; it is read from its beginning, also if it had been before."""

    def _on_read(self, topic: CompactedTopic, records: Sequence[TopicRecord], end: bool) -> None:
        """Some records were read; ``end``: all there are."""
        raise NotImplementedError

    def _on_turn(self, topic: CompactedTopic) -> None:
        """It is the thread's turn to do something else: after each read, soon after ``_wake``, and when
        ``_seconds_to_turn`` have passed. May raise BrokersideError."""

    def _seconds_to_turn(self) -> float:
        """Return the seconds until the next turn at the latest."""
        return TURN_SECONDS

    def _on_last_turn(self, topic: CompactedTopic) -> None:
        """The thread ends; what is written now is still sent."""

    def _on_failure(self, failure: str) -> None:
        """The topic cannot be opened, or cannot be used any more. It is opened again."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Let the thread have its turn now. Called on the loop, after what it is woken for was noted."""
        if not self._is_woken:
            self._is_woken = True
            self._inbox.put(None)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        """Call ``callback`` on the loop, after all that were called before."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(callback, *args)

    def _run(self) -> None:
        from proxy.fleet.compacted_topic import CompactedTopic

        while not self._stop.is_set():
            try:
                topic = CompactedTopic(self._spec, self._settings, self._authenticator)
                self._to_read.extendleft(done for _, done in reversed(self._ends))
                self._ends.clear()
                reader = TopicReader(topic, self._inbox.put)
                try:
                    self._on_open()
                    self._serve(topic, reader)
                    self._on_last_turn(topic)
                finally:
                    reader.stop()
                    topic.close_producer(FLUSH_TIMEOUT)
            except BrokersideError as error:
                if not self._stop.is_set():  # what a shutdown interrupts is no failure
                    self._on_failure(str(error))
            except Exception:
                log.exception("topic_thread_failed", topic=self._spec.name)  # a mistake of ours must not end it
            self._stop.wait(self._retry)
            self._retry = min(2 * self._retry, LAST_RETRY)

    def _serve(self, topic: CompactedTopic, reader: TopicReader) -> None:
        checked = time.monotonic()
        position, checked_position, stalled = 0, -1, 0
        while not self._stop.is_set():
            read = self._next()
            if read is not None and read.reader is reader:
                if read.error is not None:
                    raise read.error
                self._retry = FIRST_RETRY
                self._on_read(topic, read.records, read.end)
                position = read.position
                reader.go_on()
            self._report_ends(position)
            self._on_turn(topic)
            is_due = time.monotonic() > checked + CHECK_INTERVAL
            if self._to_read or is_due:
                waiting = len(self._to_read)
                end_offset = topic.end()
                self._ends += [(end_offset, self._to_read.popleft()) for _ in range(waiting)]
                self._report_ends(position)
                if is_due:
                    stalled = stalled + 1 if end_offset != position == checked_position else 0
                    if stalled == MAX_STALLED_CHECKS:
                        raise BrokersideError(f"it ends at offset {end_offset}, and nothing more is read at {position}")
                    checked, checked_position = time.monotonic(), position

    def _next(self) -> TopicRead | None:
        """Return what was read; None when it is the thread's turn without that."""
        try:
            read = self._inbox.get(timeout=max(0.0, self._seconds_to_turn()))
        except queue.Empty:
            return None
        if read is None:
            self._is_woken = False
        return read

    def _report_ends(self, position: int) -> None:
        for end, done in self._ends:
            if position >= end:
                self._call(done)
        self._ends = [one for one in self._ends if one[0] > position]
