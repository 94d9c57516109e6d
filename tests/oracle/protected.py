"""Where a ProduceRequest names a protected topic."""

from __future__ import annotations

from proxy.core.protected import END, WITH_IDS, ProduceScan, ProtectedTopics


class Check(ProduceScan):
    """Reads up to the first protected topic. ``found``: there is one. ``named``: the first topic was read, or there is
    none."""

    __slots__ = ("_topics", "found", "named")

    def __init__(self, version: int, topics: ProtectedTopics) -> None:
        super().__init__(version)
        self.partitions = None
        self._topics = topics
        self.found = self.named = False

    def _take(self, topic: bytes | None) -> None:
        if topic is not None:
            self.found = topic in self._topics.ids if self._version >= WITH_IDS else self._topics.has(topic)
        self.named = True
        if self.found:
            self._step = END

    def _next_topic(self) -> int:
        step = super()._next_topic()
        self.named = self.named or step == END
        return step
