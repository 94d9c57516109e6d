"""Resolves topic ids to names, since newer clients send ids alone.

Most names are learned from responses that pass (``observers.topic_id_learner``). A miss fetches the names of all topics
from the cluster, on the calling thread. The first fetch normally finds the id, since clients get ids from the cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from proxy.core.accessors import printed_id
from proxy.core.names import MAX_NAME, clip

MAX_TOPIC_NAMES = 200_000
"""Topics kept, about 300 bytes each. Those not used for the longest time are forgotten."""

MAX_LOOKUP_ATTEMPTS = 3
"""Fetches for one miss. A broker may learn of a new topic some milliseconds after the one that created it."""

LOOKUP_ATTEMPT_DELAY = 0.05
"""Seconds between those attempts."""

MISS_RETRY_DELAY = 1.0
"""Seconds without fetches after one that did not find the id. Until then the id itself is the label."""

MAX_MISS_TIME_SHARE = 0.05
"""Part of the time that fetches after misses may take, since any client may send ids that no topic has."""

FAILURE_RETRY_DELAY = 10.0
"""Seconds without fetches after one that failed. Each may block its caller for as long as its timeout."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
TopicLabel = tuple[str, str | None]


class RecentCache(Generic[Key, Value]):
    """A cache of up to ``size`` values that keeps at least the last half used. Thread-safe; a hit takes no lock."""

    def __init__(self, size: int) -> None:
        self._max_young = size // 2
        self._lock = threading.Lock()
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """Return the value of ``key``, or None."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Store ``value``, which must not be None."""
        with self._lock:
            if len(self._young) >= self._max_young and key not in self._young:
                self._old, self._young = self._young, {}
            self._young[key] = value


class TopicNames:
    """Names of topic ids, and labels of topics as events have them. Thread-safe; all observers share one.

    Do not call it on the event loop: a call for an unknown id waits for a fetch.
    """

    def __init__(
        self,
        fetch_names: Callable[[], Mapping[bytes, str]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``fetch_names`` returns the names of all topics by id, and raises if the cluster cannot be reached.

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
        """Return the name of ``topic_id`` (16 raw bytes), or None if it is unknown or the cluster is away."""
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
            if len(topic) <= MAX_NAME:  # no broker has longer names, and hostile clients could fill the memory
                self._names.put(topic, known)
        return known

    def add_names(self, pairs: Iterable[tuple[bytes, str]]) -> None:
        """Store pairs of topic id and name that come from the cluster."""
        for topic_id, name in pairs:
            if self._ids.get(topic_id) is None:
                self._ids.put(topic_id, (clip(name), printed_id(topic_id)))

    def _fetch_label(self, topic_id: bytes) -> TopicLabel | None:
        with self._fetch_lock:  # a thread that waits here mostly finds its id afterwards
            if self._ids.get(topic_id) is None and self._clock() >= self._retry_at:
                self._fetch_all_names(topic_id)
            return self._ids.get(topic_id)

    def _fetch_all_names(self, wanted: bytes) -> None:
        """Fetch all names, again until ``wanted`` is among them. Set when the next fetch may happen."""
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
