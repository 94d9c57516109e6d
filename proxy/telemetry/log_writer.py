"""Writes log lines to a descriptor in a separate thread, since the reader of the log may stop reading.

The queue is bounded. A line that does not fit is dropped and counted. So neither the event loop nor any other thread
ever waits for the log: a full pipe, a paused log collector, or a frozen disk.
"""

from __future__ import annotations

import io
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from queue import SimpleQueue

MAX_QUEUED_LINE_BYTES = 1_048_576
"""Bytes of queued lines, about 3,000 lines. Lines beyond it are dropped and counted."""

MAX_PARTIAL_LINE = 65_536
"""Characters of a line without its end that ``LogStream`` keeps. A longer one is written as a whole line."""


class LogWriter:
    """Writes lines that any thread enqueues.

    ``on_resumed(dropped)`` is called in the writer's thread when lines are written again after some were dropped.
    ``dropped``: their number by level.
    """

    def __init__(
        self, descriptor: int, on_resumed: Callable[[Mapping[str, int]], None], max_queued: int = MAX_QUEUED_LINE_BYTES
    ) -> None:
        self._descriptor = descriptor
        self._on_resumed = on_resumed
        self._max_queued = max_queued
        self._queue: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
        self._lock = threading.RLock()  # reentrant: a finalizer may log while its thread is in ``enqueue``
        self._queued = 0
        self._dropped: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()
        threading.Thread(target=self._run, name="log writer", daemon=True).start()

    def enqueue(self, level: str, line: str) -> None:
        """Queue one line, given without its line end, or drop and count it. Never blocks."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._lock:
            if self._queued + len(data) > self._max_queued:
                self._drop(level)
                return
            self._queued += len(data)
            self._queue.put((level, data))

    def dropped(self) -> dict[str, int]:
        """Return the lines dropped since the start, by level."""
        with self._lock:
            return dict(self._dropped)

    def flush(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until the queue is written. Returns whether it is."""
        deadline = time.monotonic() + timeout
        while self._queued and time.monotonic() < deadline:
            time.sleep(0.005)
        return not self._queued

    def _drop(self, level: str) -> None:
        self._dropped[level] += 1
        self._unreported[level] += 1

    def _run(self) -> None:
        while True:
            level, data = self._queue.get()
            written = self._write(data)
            with self._lock:
                self._queued -= len(data)
                if not written:
                    self._drop(level)
                resumed = written and self._unreported and self._queued <= self._max_queued // 2
                dropped, self._unreported = (self._unreported, Counter()) if resumed else (Counter(), self._unreported)
            if dropped:
                self._on_resumed(dropped)

    def _write(self, data: bytes) -> bool:
        """Write ``data``, however long it takes. Returns whether it succeeded."""
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another process made the shared file description non-blocking
                select.select([], [self._descriptor], [])
            except OSError:
                return False
        return True


class LogStream(io.TextIOBase):
    """A text stream whose lines go to a ``LogWriter``. It replaces ``sys.stdout`` and ``sys.stderr``."""

    def __init__(self, writer: LogWriter, level: str) -> None:
        self._writer = writer
        self._level = level
        self._lock = threading.RLock()
        self._partial_line = ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Queue the lines that are complete with ``text``."""
        with self._lock:
            *lines, self._partial_line = (self._partial_line + text).split("\n")
            if len(self._partial_line) > MAX_PARTIAL_LINE:
                lines.append(self._partial_line)
                self._partial_line = ""
            for line in lines:
                self._writer.enqueue(self._level, line)
        return len(text)

    def flush_partial_line(self) -> None:
        """Queue the text after the last line end, if there is any."""
        if self._partial_line:
            self.write("\n")
