"""Topic ids to names: newer clients send ids alone, people and tables want names.

A name is looked up once and kept. A miss fetches the names of all topics from the cluster, on the thread that asks:
a client learns an id from the cluster itself, so the first look-up normally finds it.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping

from observers.event import MAX_STRING, clip

MAX_NAMES = 200_000
"""Topic ids kept, about 200 bytes each. Above it only what the cluster lists now is kept, and no more than this."""

ATTEMPTS = 3
"""Look-ups for one miss: the broker asked may learn of a new topic some milliseconds after the one that took it."""

ATTEMPT_PAUSE = 0.05
"""Seconds between those attempts."""

MISS_PAUSE = 1.0
"""Seconds without look-ups after one that did not help; until then the id itself is the label."""

FAILURE_PAUSE = 10.0
"""Seconds without look-ups after one that failed: each one may hold its caller up for as long as its timeout."""


def printed_id(topic_id: bytes) -> str:
    """Return 16 raw bytes as Kafka prints a topic id: URL-safe base64 without padding, 22 characters."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")


class TopicNames:
    """Names of topic ids, and labels of topics as an event carries them. Not thread-safe: one user, one thread."""

    def __init__(
        self,
        look_up: Callable[[], Mapping[bytes, str]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``look_up`` returns the names of all topics by id and may raise anything where the cluster is away."""
        self._look_up = look_up
        self._clock = clock
        self._sleep = sleep
        self._names: dict[bytes, str] = {}
        self._id_labels: dict[bytes, tuple[str, str | None]] = {}
        self._name_labels: dict[bytes, tuple[str, str | None]] = {}
        self._retry_at = float("-inf")
        self.look_ups = 0

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of ``topic_id`` (16 raw bytes), or None where the cluster does not know it or is away."""
        name = self._names.get(topic_id)
        if name is None and self._clock() >= self._retry_at:
            self._refresh(topic_id)
            name = self._names.get(topic_id)
        return name

    def label(self, topic: bytes, is_id: bool) -> tuple[str, str | None]:
        """Return ``(name, topic id as printed or None)``; the name is ``id:<printed id>`` while it is unknown."""
        labels = self._id_labels if is_id else self._name_labels
        known = labels.get(topic)
        if known is not None:
            return known
        if is_id:
            name = self.name_of(topic)
            printed = printed_id(topic)
            if name is None:
                return f"id:{printed}", printed
            label: tuple[str, str | None] = (clip(name), printed)
        else:
            label = (clip(topic.decode("utf-8", "replace")), None)
        if len(topic) <= MAX_STRING:  # longer ones exist on no broker: a hostile client would fill the memory with them
            if len(labels) >= MAX_NAMES:
                labels.clear()
            labels[topic] = label
        return label

    def _refresh(self, wanted: bytes) -> None:
        """Fetch all names; stop early once ``wanted`` is among them. Sets when the next look-up may happen."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(ATTEMPT_PAUSE)
            self.look_ups += 1
            try:
                listed = self._look_up()
            except Exception:
                self._retry_at = self._clock() + FAILURE_PAUSE
                return
            self._keep(listed)
            if wanted in self._names:
                return
        self._retry_at = self._clock() + MISS_PAUSE

    def _keep(self, listed: Mapping[bytes, str]) -> None:
        """Add ``listed``; names of deleted topics stay too, since exchanges about them may still be queued."""
        merged = {**self._names, **listed}
        self._names = merged if len(merged) <= MAX_NAMES else dict(list(listed.items())[:MAX_NAMES])
