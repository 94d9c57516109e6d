"""The thread of the topic with the finalized levels of features: it reads all records, and writes proposals."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from proxy.core.authentication import Authenticator
from proxy.fleet.topic_spec import FEATURES_TOPIC, TopicRecord
from proxy.fleet.topic_thread import TopicThread

if TYPE_CHECKING:
    from proxy.fleet.compacted_topic import CompactedTopic

MAX_PROPOSED = 64
"""Records that wait until the topic is open; a further one takes the place of the oldest. Few are waited for."""

UNAVAILABLE_AFTER = 5.0
"""Seconds that the topic cannot be used until it is logged: a topic that is just created, or whose leader moves, cannot
be read for a moment."""

OnRecords = Callable[[Sequence[TopicRecord]], None]
"""Called on the loop with the records of one read, in their order."""

log = structlog.get_logger(__name__)


class Proposed(NamedTuple):
    """A record to be written. ``until``: the monotonic time after which it is not. ``done``: see ``propose``."""

    key: bytes
    value: bytes
    until: float
    done: Callable[[str | None], None]


class FeaturesThread(TopicThread):
    """Reads the topic from ``start`` to ``close``."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        client_id: str,
        authenticator: Authenticator | None,
        on_records: OnRecords,
        on_restart: Callable[[], None],
    ) -> None:
        """``on_restart``: called on the loop before records come from the topic's beginning again."""
        super().__init__(FEATURES_TOPIC, settings, client_id, authenticator)
        self._on_records = on_records
        self._on_restart = on_restart
        self._opened = False
        self._failing_since: float | None = time.monotonic()
        self._failure_logged = False
        self._proposed = deque[Proposed](maxlen=MAX_PROPOSED)
        self._dropped = set[str]()  # what is wrong with signatures, as far as it was logged

    def propose(self, key: bytes, value: bytes, seconds: float, done: Callable[[str | None], None]) -> None:
        """Write a record. ``done`` is called on the loop with None if the topic has it, else with why not.

        While the topic cannot be opened, it waits for ``seconds`` at most. Then it is dropped, since nobody waits for
        it any more, and ``done`` is not called.
        """
        self._proposed.append(Proposed(key, value, time.monotonic() + seconds, done))
        self._wake()

    def _on_open(self) -> None:
        if self._opened:
            self._call(self._on_restart)
        self._opened = True

    def _on_read(self, topic: CompactedTopic, records: Sequence[TopicRecord], end: bool) -> None:
        self._report(None)
        for verdict in topic.dropped.keys() - self._dropped:
            self._dropped.add(verdict)
            log.warning("features_record_ignored", reason=verdict)
        if records:
            self._call(self._on_records, records)

    def _on_turn(self, topic: CompactedTopic) -> None:
        topic.report_delivered()
        while self._proposed:
            key, value, until, done = self._proposed.popleft()
            if time.monotonic() < until:
                topic.write(key, value, lambda error, done=done: self._call(done, error))  # type: ignore[misc]

    def _on_failure(self, failure: str) -> None:
        self._report(failure)

    def _report(self, failure: str | None) -> None:
        """Log a failure that has lasted, and its end."""
        if failure is None:
            if self._failure_logged:
                log.info("features_back")
            self._failing_since, self._failure_logged = None, False
            return
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if not self._failure_logged and now - self._failing_since >= UNAVAILABLE_AFTER:
            self._failure_logged = True
            log.warning("features_unavailable", error=failure)
