"""Watches the topics that coordinated groups subscribe to: their partitions, ids and leaders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from proxy.core.wire import TRUNCATED
from proxy.daemon_executor import DaemonExecutor
from proxy.errors import BrokersideError, describe_os_error
from proxy.fleet.client import Caller
from proxy.fleet.schedule import Schedule
from proxy.rpc.topic_messages import DescribedTopic, decode_described_topics, describe_topics_request

ALL_TOPICS_INTERVAL = 2.0
"""Least seconds between two polls of all topics of the cluster."""

MAX_DECODED_HERE = 4096
"""Bytes of the largest answer that is decoded on the loop's thread; about 150 partitions, two milliseconds."""

OnTopics = Callable[[Mapping[str, DescribedTopic], int], None]
"""Gets all watched topics that exist, and the number of the watch."""

log = structlog.get_logger(__name__)


class TopicWatch:
    """Polls from ``start`` to ``close``, while there is something to watch."""

    def __init__(self, caller: Caller, on_topics: OnTopics, interval: float) -> None:
        """``on_topics``: called on the loop once for each watch, and after each change of the topics. ``interval``:
        seconds between two polls."""
        self._caller = caller
        self._on_topics = on_topics
        self._interval = interval
        self._names: frozenset[str] = frozenset()
        self._all = False
        self._number = 0
        self._answer: bytes | None = None  # the last one
        self._reported: Mapping[str, DescribedTopic] | None = {}
        self._failing = False
        self._changed = asyncio.Event()
        self._decoding = DaemonExecutor("topic-watch")
        self._schedule = Schedule(asyncio.get_running_loop().time(), interval)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to poll, on the running loop."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._caller.close()

    def watch(self, number: int, names: frozenset[str], *, all_topics: bool) -> None:
        """Watch these topics from now on, or all of the cluster. ``number``: of this watch."""
        self._number, self._names, self._all = number, names, all_topics
        self._answer = self._reported = None
        self.refresh()

    def refresh(self) -> None:
        """Poll now, and some more times soon: topics may just have been altered."""
        self._schedule.refresh(asyncio.get_running_loop().time())
        self._changed.set()

    def update_interval(self, seconds: float) -> None:
        """Poll that often from now on."""
        self._interval = seconds
        self._changed.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._schedule.interval = max(self._interval, ALL_TOPICS_INTERVAL) if self._all else self._interval
            wait = self._schedule.next_at() - loop.time()
            is_watching = bool(self._names) or self._all
            if not is_watching and self._reported is None:
                self._reported = {}
                self._on_topics({}, self._number)
            if wait > 0 or not is_watching:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait if is_watching else None):
                        await self._changed.wait()
                self._changed.clear()
                continue
            began = loop.time()
            done = await self._attempt()
            (self._schedule.succeeded if done else self._schedule.failed)(began, loop.time())

    async def _attempt(self) -> bool:
        """Poll; return whether it succeeded. The first of several failures is logged, and the next success."""
        try:
            await self._poll()
        except (BrokersideError, OSError, ValueError, *TRUNCATED) as error:
            if not self._failing:
                log.warning("topics_unknown", error=describe_os_error(error))
            self._failing = True
            return False
        except Exception:
            log.exception("topic_watch_failed")  # a mistake of ours must not end the task
            return False
        if self._failing:
            log.info("topics_known")
        self._failing = False
        return True

    async def _poll(self) -> None:
        number, names = self._number, self._names
        answer = await self._caller.call(describe_topics_request(None if self._all else sorted(names)))
        if answer == self._answer:
            return
        if len(answer) > MAX_DECODED_HERE:
            found = await self._decoding.run(lambda: decode_described_topics(answer), None)
        else:
            found = decode_described_topics(answer)
        if number != self._number:
            return  # what is watched has changed meanwhile, and is polled next
        self._answer = answer
        topics = found if self._all else {name: one for name, one in found.items() if name in names}
        if topics != self._reported:
            self._reported = topics
            self._on_topics(topics, number)
