"""Topic ids to names: newer clients send ids alone, people and tables want names.

Most names are learned from what passes (``observers.topic_id_learner``). A miss fetches the names of all topics from the cluster,
on the thread that asks: a client learns an id from the cluster itself, so the first look-up normally finds it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from observers.event import MAX_STRING, clip
from proxy.core.accessors import printed_id

MAX_TOPIC_NAMES = 200_000
"""Topics kept, about 300 bytes each; the longest unused are forgotten, so an id of a deleted topic stays a while."""

MAX_LOOKUP_ATTEMPTS = 3
"""Look-ups for one miss: the broker asked may learn of a new topic some milliseconds after the one that took it."""

LOOKUP_ATTEMPT_DELAY = 0.05
"""Seconds between those attempts."""

MISS_RETRY_DELAY = 1.0
"""Seconds without look-ups after one that did not help; until then the id itself is the label."""

MAX_MISS_TIME_SHARE = 0.05
"""Part of the time that such look-ups may take, however long one is: anybody may send ids that no topic has."""

FAILURE_RETRY_DELAY = 10.0
"""Seconds without look-ups after one that failed: each one may hold its caller up for as long as its timeout."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
TopicLabel = tuple[str, str | None]


class RecentCache(Generic[Key, Value]):
    """Keeps up to ``size`` values, at least the half of it that was used last. Thread-safe; a hit takes no lock."""

    def __init__(self, size: int) -> None:
        self._max_young = size // 2
        self._lock = threading.Lock()
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """The value of ``key``, or None."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Keep ``value``, which is not None."""
        with self._lock:
            if len(self._young) >= self._max_young and key not in self._young:
                self._old, self._young = self._young, {}
            self._young[key] = value


class TopicNames:
    """Names of topic ids, and labels of topics as an event carries them. Thread-safe, one for all observers.

    Never ask on the event loop: who asks for an id that is not known yet waits for a look-up.
    """

    def __init__(
        self,
        fetch_names: Callable[[], Mapping[bytes, str]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``fetch_names`` returns the names of all topics by id and may raise anything where the cluster is away.

        It is called by one thread at a time.
        """
        self._fetch_names = fetch_names
        self._clock = clock
        self._sleep = sleep
        self._ids: RecentCache[bytes, TopicLabel] = RecentCache(MAX_TOPIC_NAMES)
        self._names: RecentCache[bytes, TopicLabel] = RecentCache(MAX_TOPIC_NAMES)
        self._fetch_lock = threading.Lock()  # guards what follows
        self._retry_at = float("-inf")
        self.look_ups = 0

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of ``topic_id`` (16 raw bytes), or None where the cluster does not know it or is away."""
        label = self._ids.get(topic_id) or self._fetch_label(topic_id)
        return None if label is None else label[0]

    def label_of(self, topic: bytes, is_id: bool) -> TopicLabel:
        """Return ``(name, topic id as printed or None)``; the name is ``id:<printed id>`` while it is unknown."""
        if is_id:
            known = self._ids.get(topic) or self._fetch_label(topic)
            return known or (f"id:{printed_id(topic)}", printed_id(topic))
        known = self._names.get(topic)
        if known is None:
            known = (clip(topic.decode("utf-8", "replace")), None)
            if len(topic) <= MAX_STRING:  # longer ones exist on no broker: hostile clients would fill the memory
                self._names.put(topic, known)
        return known

    def add_names(self, pairs: Iterable[tuple[bytes, str]]) -> None:
        """Keep pairs of topic id and name that the cluster told."""
        for topic_id, name in pairs:
            if self._ids.get(topic_id) is None:
                self._ids.put(topic_id, (clip(name), printed_id(topic_id)))

    def _fetch_label(self, topic_id: bytes) -> TopicLabel | None:
        with self._fetch_lock:  # who waits here has a miss, too: mostly it is answered by then
            if self._ids.get(topic_id) is None and self._clock() >= self._retry_at:
                self._fetch_all_names(topic_id)
            return self._ids.get(topic_id)

    def _fetch_all_names(self, wanted: bytes) -> None:
        """Fetch all names; stop early once ``wanted`` is among them. Sets when the next look-up may happen."""
        began = self._clock()
        for attempt in range(MAX_LOOKUP_ATTEMPTS):
            if attempt:
                self._sleep(LOOKUP_ATTEMPT_DELAY)
            self.look_ups += 1
            try:
                listed = self._fetch_names()
            except Exception:
                self._retry_at = self._clock() + FAILURE_RETRY_DELAY
                return
            self.add_names(listed.items())
            if wanted in listed:
                self.add_names([(wanted, listed[wanted])])  # once more: there may be more topics than are kept
                return
        now = self._clock()
        self._retry_at = now + max(MISS_RETRY_DELAY, (now - began) / MAX_MISS_TIME_SHARE)
