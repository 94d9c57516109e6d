"""The thread of one of the sidecars' topics: it reads all records, and writes some.

It uses librdkafka, and with it any of its ways to authenticate. Neither the event loop nor the sidecar's start
waits for it. While the cluster cannot be reached, the thread alone tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from proxy.core.authentication import Authenticator
from proxy.errors import BrokersideError
from proxy.fleet.topic_spec import TopicRecord, TopicSpec

if TYPE_CHECKING:
    from proxy.fleet.compacted_topic import CompactedTopic

FIRST_RETRY, LAST_RETRY = 1.0, 10.0
"""Seconds until the topic is opened again: from the first number to the second, doubled with each failure."""

READ_SECONDS = 0.1
"""Seconds that one read of the topic takes at most. Whatever else the thread has to do waits as long, and ``close``."""

CHECK_INTERVAL = 10.0
"""Seconds between two checks that the topic is still there. librdkafka does not always report that one was deleted."""

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

    async def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, THREAD_CLOSE_TIMEOUT)

    def _on_open(self) -> None:
        """The topic was opened; it is read from its beginning, also if it had been before."""

    def _on_read(self, topic: CompactedTopic, records: Sequence[TopicRecord], end: bool) -> None:
        """Some records were read; ``end``: all there are."""
        raise NotImplementedError

    def _on_turn(self, topic: CompactedTopic) -> None:
        """It is the thread's turn to do something else, at least every ``READ_SECONDS``. May raise BrokersideError."""

    def _on_last_turn(self, topic: CompactedTopic) -> None:
        """The thread ends; what is written now is still sent."""

    def _on_failure(self, failure: str) -> None:
        """The topic cannot be opened, or cannot be used any more. It is opened again."""
        raise NotImplementedError

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
                try:
                    self._on_open()
                    self._serve(topic)
                    self._on_last_turn(topic)
                finally:
                    topic.close(FLUSH_TIMEOUT)
            except BrokersideError as error:
                if not self._stop.is_set():  # what a shutdown interrupts is no failure
                    self._on_failure(str(error))
            except Exception:
                log.exception("topic_thread_failed", topic=self._spec.name)  # a mistake of ours must not end it
            self._stop.wait(self._retry)
            self._retry = min(2 * self._retry, LAST_RETRY)

    def _serve(self, topic: CompactedTopic) -> None:
        checked = time.monotonic()
        while not self._stop.is_set():
            records, end = topic.read(READ_SECONDS)
            if records or end:
                self._retry = FIRST_RETRY
                self._on_read(topic, records, end)
            self._report_ends(topic)
            self._on_turn(topic)
            if self._to_read or time.monotonic() > checked + CHECK_INTERVAL:
                waiting = len(self._to_read)
                end_offset = topic.end()
                self._ends += [(end_offset, self._to_read.popleft()) for _ in range(waiting)]
                self._report_ends(topic)
                checked = time.monotonic()

    def _report_ends(self, topic: CompactedTopic) -> None:
        for end, done in self._ends:
            if topic.position >= end:
                self._call(done)
        self._ends = [one for one in self._ends if one[0] > topic.position]
