"""The thread of the fleet's registry: a compacted topic to which each sidecar writes its record every few seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from proxy.core.authentication import Authenticator
from proxy.errors import BrokersideError
from proxy.fleet.membership import HEARTBEAT_INTERVAL, Membership, RegistryContent
from proxy.fleet.sidecar_record import node_id_of_key, record_key
from proxy.fleet.topic_spec import REGISTRY_TOPIC, TopicRecord
from proxy.fleet.topic_thread import TURN_SECONDS, TopicThread

if TYPE_CHECKING:
    from proxy.fleet.compacted_topic import CompactedTopic

REOPEN_AFTER = 30.0
"""Seconds without an acknowledged record after which the topic is opened again, and created if it does not exist.
librdkafka does not always report that a topic was deleted."""

DROPPED_LOG_INTERVAL = 10.0
"""Seconds between two log lines about records that were dropped."""

OnContent = Callable[[RegistryContent, bool], None]
"""Called on the loop with what the registry has, and whether the end of the topic was reached."""

log = structlog.get_logger(__name__)


class RegistryThread(TopicThread):
    """Reads the topic and writes this sidecar's record to it, from ``start`` to ``close``."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        client_id: str,
        on_content: OnContent,
        authenticator: Authenticator | None = None,
    ) -> None:
        """``on_content``: called on the loop with each change."""
        super().__init__(REGISTRY_TOPIC, settings, client_id, authenticator)
        self._on_content = on_content
        self._own: tuple[bytes, bytes] | None = None
        self._last_words: bytes | None = None
        self._written: tuple[bytes, bytes] | None = None
        self._due = 0.0
        self._membership = Membership(signed=authenticator is not None)
        self._failure: str | None = None
        self._failing_since: float | None = None
        self._clock_logged = False
        self._dropped: Counter[str] = Counter()
        self._dropped_at = 0.0

    def register(self, node_id: int, value: bytes) -> None:
        """Write ``value`` from now on. A new value is written at once."""
        before, self._own = self._own, (record_key(node_id), value)
        if self._own != before:
            self._wake()

    def restrict_to(self, ids: Collection[int]) -> None:
        """Drop the records of sidecars of all other brokers from now on."""
        self._membership.brokers = frozenset(ids)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Numbers of records that were dropped, by reason."""
        return self._membership.dropped

    def withdraw(self) -> None:
        """Write nothing until ``register`` is called again."""
        self._own = None

    def sign_off(self, value: bytes) -> None:
        """Write ``value`` as the last record when the thread ends, if one was written before.

        Without it the other sidecars find this one gone when its last record is too old.
        """
        self._last_words = value

    def _on_open(self) -> None:
        self._written, self._due, self._failing_since = None, 0.0, None

    def _on_read(self, topic: CompactedTopic, records: Sequence[TopicRecord], end: bool) -> None:
        self._check_clock(records)
        self._membership.apply(records)
        self._membership.dropped += topic.dropped
        topic.dropped.clear()
        self._call(self._on_content, self._membership.content(), end)

    def _on_turn(self, topic: CompactedTopic) -> None:
        topic.report_delivered()
        self._report_dropped()
        own, now = self._own, time.monotonic()
        if own is not None and (own != self._written or now >= self._due):
            topic.write(*own, self._report)
            self._written, self._due = own, now + HEARTBEAT_INTERVAL
        if self._failing_since is not None and now - self._failing_since > REOPEN_AFTER:
            raise BrokersideError(f"no record was acknowledged for {REOPEN_AFTER:.0f} s")

    def _seconds_to_turn(self) -> float:
        until_due = TURN_SECONDS if self._own is None else self._due - time.monotonic()
        return min(TURN_SECONDS, until_due)

    def _on_last_turn(self, topic: CompactedTopic) -> None:
        if self._written is not None and self._own is not None and self._last_words is not None:
            topic.write(self._written[0], self._last_words, self._report)

    def _on_failure(self, failure: str) -> None:
        self._report(failure)

    def _report_dropped(self) -> None:
        """Log what was dropped, now and then: whoever may write the topic may write anything."""
        now, dropped = time.monotonic(), self._membership.dropped
        if dropped != self._dropped and now >= self._dropped_at:
            log.warning("registry_records_dropped", **(dropped - self._dropped))
            self._dropped, self._dropped_at = dropped.copy(), now + DROPPED_LOG_INTERVAL

    def _check_clock(self, records: Sequence[TopicRecord]) -> None:
        """Log once that the topic's timestamps are the writers', so that no sidecar can be found gone."""
        if not self._clock_logged and any(one.at is None and node_id_of_key(one.key) is not None for one in records):
            self._clock_logged = True
            log.warning("registry_clock", advice="set message.timestamp.type=LogAppendTime on the registry's topic")

    def _report(self, failure: str | None) -> None:
        """Log that the topic cannot be reached, or that it can again. What a shutdown interrupts is no failure."""
        if self._stop.is_set():
            return
        if failure is not None and self._failure is None:
            log.warning("registry_unreachable", error=failure)
        elif failure is None and self._failure is not None:
            log.info("registry_back")
        self._failure = failure
        if failure is None:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = time.monotonic()
