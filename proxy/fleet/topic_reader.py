"""Reads one of the sidecars' topics on a thread of its own, so that only this thread waits for records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from proxy.fleet.topic_spec import TopicRecord

if TYPE_CHECKING:
    from proxy.fleet.compacted_topic import CompactedTopic

READ_SECONDS = 1.0
"""Seconds that one read waits for records: after ``stop``, the consumer is closed within this time."""


class TopicRead(NamedTuple):
    """What one read gave. ``end``: the end was reached. ``position``: the next offset. ``error``: why it failed."""

    reader: TopicReader
    records: Sequence[TopicRecord] = ()
    end: bool = False
    position: int = 0
    error: Exception | None = None


class TopicReader:
    """Reads ``topic`` until ``stop``, and closes its consumer then.

    It reads once, and again after each call of ``go_on``: so at most one read waits in memory, and ``dropped`` of the
    topic does not change before that call.
    """

    def __init__(self, topic: CompactedTopic, report: Callable[[TopicRead], None]) -> None:
        """``report``: called on the thread with each read that gave something."""
        self._topic = topic
        self._report = report
        self._may_read = threading.Semaphore(1)
        self._stopped = False
        threading.Thread(target=self._run, name="topic-reader", daemon=True).start()

    def go_on(self) -> None:
        """Read again: what was reported is processed."""
        self._may_read.release()

    def stop(self) -> None:
        """Stop, and wait for nothing."""
        self._stopped = True
        self._may_read.release()

    def _run(self) -> None:
        try:
            while self._may_read.acquire() and (read := self._read()) is not None:
                self._report(read)
        except Exception as error:
            self._report(TopicRead(self, error=error))
        finally:
            self._topic.close_consumer()

    def _read(self) -> TopicRead | None:
        """Return the next read that gives something; None after ``stop``."""
        while not self._stopped:
            records, end = self._topic.read(READ_SECONDS)
            if records or end:
                return TopicRead(self, records, end, self._topic.position)
        return None
