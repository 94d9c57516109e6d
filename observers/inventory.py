"""Polls which topics exist, and publishes the list as events when it changed and once an hour."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from observers.cluster_events import InventoryEvent, InventoryTopic
from observers.kafka_admin import TopicDescription
from proxy.core.accessors import printed_id

TOPICS_PER_INVENTORY_EVENT = 1_000

UNCHANGED_LIST_INTERVAL = 3600.0
"""Seconds after which an unchanged list is published again."""

log = structlog.get_logger("observers")


class Inventory:
    """Polls the topics on a thread of its own, since one call may take some seconds."""

    def __init__(
        self,
        topics: Callable[[], Mapping[str, TopicDescription]],
        hides_topic: Callable[[str], bool],
        publish: Callable[[Sequence[InventoryEvent]], None],
        *,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``topics`` returns all topics by name and may raise anything.

        ``publish`` gets the events of a list, not numbered. ``interval``: seconds between two polls.
        """
        self._topics = topics
        self._hides_topic = hides_topic
        self._publish = publish
        self._interval = interval
        self._clock = clock
        self._published: Sequence[InventoryTopic] | None = None
        self._publish_again_at = float("-inf")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit inventory", daemon=True)

    def start(self) -> None:
        """Start the thread. It polls at once, and then every ``interval``."""
        self._thread.start()

    def close(self) -> None:
        """Stop polling. A poll in progress is not waited for, and its list is not published."""
        self._closing.set()

    def poll_topics(self) -> None:
        """Poll once, and publish a list that changed or is an hour old. Raises what ``topics`` raises."""
        asked_at = time.time_ns() // 1000
        found = [
            inventory_topic(topic) for name, topic in sorted(self._topics().items()) if not self._hides_topic(name)
        ]
        now = self._clock()
        if self._closing.is_set() or (found == self._published and now < self._publish_again_at):
            return
        self._publish(inventory_events(found, asked_at))
        self._published = found
        self._publish_again_at = now + UNCHANGED_LIST_INTERVAL

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.poll_topics()
            except Exception as error:
                log.info("audit_inventory_unavailable", error=type(error).__name__, retry_in=self._interval)
            self._closing.wait(self._interval)


def inventory_events(topics: Sequence[InventoryTopic], asked_at: int) -> list[InventoryEvent]:
    """Return the events of a list, at least one. ``asked_at``: µs since 1970."""
    count = max(1, -(-len(topics) // TOPICS_PER_INVENTORY_EVENT))
    return [
        InventoryEvent(
            seq=0,
            ts=asked_at,
            part=n + 1,
            parts=count,
            inventory=tuple(topics[n * TOPICS_PER_INVENTORY_EVENT : (n + 1) * TOPICS_PER_INVENTORY_EVENT]),
        )
        for n in range(count)
    ]


def inventory_topic(topic: TopicDescription) -> InventoryTopic:
    """Return ``topic`` in the form of an event."""
    topic_id = printed_id(topic.id) if any(topic.id) else None
    return InventoryTopic(topic=topic.name, topic_id=topic_id, partitions=topic.partitions, internal=topic.internal)
