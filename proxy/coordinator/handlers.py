"""The rebalance handlers (seed 001, section 9): each works at one attempt of one group at a time."""

from __future__ import annotations

from zlib import crc32

from proxy.coordinator.timers import Timers


class Handlers:
    """Queues of groups. A group always goes to the same handler, so that its attempts come one after another."""

    def __init__(self, size: int) -> None:
        """``size``: ``rebalance.threadpool.size``."""
        self.size = size
        self._queues: dict[int, Timers[str]] = {}
        """By the handler, only those that are not empty."""
        self._working: dict[int, str] = {}
        """The group that a handler works at, by the handler."""

    def queued(self) -> int:
        """How many groups wait for their attempt."""
        return sum(len(queue) for queue in self._queues.values())

    def working(self) -> int:
        """How many attempts are under way."""
        return len(self._working)

    def is_queued(self, group_id: str) -> bool:
        """Whether an attempt of the group is to be made."""
        queue = self._queues.get(self._handler(group_id))
        return queue is not None and group_id in queue

    def queue(self, group_id: str, at: int) -> None:
        """Begin an attempt of the group at ``at``, or as soon after as its handler is free."""
        self._queues.setdefault(self._handler(group_id), Timers()).set(group_id, at)

    def forget(self, group_id: str) -> None:
        """The group is not worked at any more, nor queued."""
        handler = self._handler(group_id)
        if (queue := self._queues.get(handler)) is not None:
            queue.cancel(group_id)
            self._drop_if_empty(handler, queue)
        self.done(group_id)

    def begin(self, now: int) -> str | None:
        """Return a group whose attempt begins now. Its handler works at it until ``done``."""
        for handler, queue in self._queues.items():
            if handler not in self._working and (group_id := queue.pop(now)) is not None:
                self._working[handler] = group_id
                self._drop_if_empty(handler, queue)
                return group_id
        return None

    def done(self, group_id: str) -> None:
        """The attempt of the group is over; nothing happens if there is none."""
        handler = self._handler(group_id)
        if self._working.get(handler) == group_id:
            del self._working[handler]

    def due(self) -> int | None:
        """When the next attempt can begin."""
        times = (queue.next() for handler, queue in self._queues.items() if handler not in self._working)
        return min((at for at in times if at is not None), default=None)

    def _handler(self, group_id: str) -> int:
        return crc32(group_id.encode()) % self.size

    def _drop_if_empty(self, handler: int, queue: Timers[str]) -> None:
        if not len(queue):
            del self._queues[handler]
