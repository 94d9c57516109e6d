"""Writes log lines to a descriptor in a thread of its own, because whoever reads them may stop reading.

The queue is bounded. A line that does not fit is dropped and counted, so neither the event loop nor any other thread
ever waits for the log: not for a full pipe, a paused log collector, or a frozen disk.
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

MAX_QUEUED = 1_048_576
"""Bytes of lines that wait to be written, some 3,000 lines; a line beyond them is dropped and counted."""

MAX_PART = 65_536
"""Characters of a line without an end that ``LogStream`` keeps; it is then taken as a whole line."""


class LogWriter:
    """Takes lines from any thread. ``on_flow(dropped)`` is called in the writer's thread when lines flow again after
    some were dropped, with how many, by level."""

    def __init__(
        self, descriptor: int, on_flow: Callable[[Mapping[str, int]], None], max_queued: int = MAX_QUEUED
    ) -> None:
        self._descriptor = descriptor
        self._on_flow = on_flow
        self._max_queued = max_queued
        self._queue: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
        self._lock = threading.RLock()  # a finalizer may log while its thread is in ``put``
        self._queued = 0
        self._dropped: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()
        threading.Thread(target=self._run, name="log writer", daemon=True).start()

    def put(self, level: str, line: str) -> None:
        """Queue one line, without its line end, or drop and count it. Never waits."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._lock:
            if self._queued + len(data) > self._max_queued:
                self._drop(level)
                return
            self._queued += len(data)
            self._queue.put((level, data))

    def dropped(self) -> dict[str, int]:
        """Lines that were dropped since the start, by level."""
        with self._lock:
            return dict(self._dropped)

    def flush(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until all that is queued is written; return whether it is."""
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
                flows = written and self._unreported and self._queued <= self._max_queued // 2
                missed, self._unreported = (self._unreported, Counter()) if flows else (Counter(), self._unreported)
            if missed:
                self._on_flow(missed)

    def _write(self, data: bytes) -> bool:
        """Write ``data``, however long that takes; return whether it was possible."""
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another process has made the shared description non-blocking
                select.select([], [self._descriptor], [])
            except OSError:
                return False
        return True


class LogStream(io.TextIOBase):
    """A text stream whose lines go to a ``LogWriter``: in the place of ``sys.stdout`` and ``sys.stderr``."""

    def __init__(self, writer: LogWriter, level: str) -> None:
        self._writer = writer
        self._level = level
        self._lock = threading.RLock()
        self._part = ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Queue the lines that ``text`` ends."""
        with self._lock:
            *lines, self._part = (self._part + text).split("\n")
            if len(self._part) > MAX_PART:
                lines.append(self._part)
                self._part = ""
            for line in lines:
                self._writer.put(self._level, line)
        return len(text)

    def end_line(self) -> None:
        """Queue what was written after the last line end, if anything was."""
        if self._part:
            self.write("\n")
