"""The fleet's registry: a compacted topic in which each sidecar writes every few seconds that it runs, and as what.

A thread of its own, with librdkafka: neither the loop nor the start ever waits for the cluster, and any way of
authentication that librdkafka knows will do. While the cluster is away the thread tries again, and nothing else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from proxy.core.authentication import Authenticator
from proxy.errors import BrokersideError
from proxy.fleet.record import key_of, node_of
from proxy.fleet.sightings import HEARTBEAT, Sighting, Sightings, Written

if TYPE_CHECKING:
    from proxy.fleet.topic import Topic

FIRST_RETRY, LAST_RETRY = 1.0, 10.0
"""Seconds until the topic is tried again: from the first number to the second, twice as many each time it fails."""

WAIT = 0.5
"""Seconds for which records are gathered; so long a stop may take."""

DROPPED_EVERY = 10.0
"""Seconds between two lines about records that were dropped."""

CLOSE_TIMEOUT = 1.0
"""Seconds that a stop waits for the thread, which would end with the process."""

Told = Callable[[Mapping[int, Sighting], bool], None]
"""Called on the loop with the sidecars so far, by node id, and whether the end of the topic was reached."""

log = structlog.get_logger(__name__)


class Registry:
    """``start`` it, tell it what to ``register``, ``close`` it."""

    def __init__(
        self, settings: Mapping[str, Any], client_id: str, told: Told, authenticator: Authenticator | None = None
    ) -> None:
        """``settings``: librdkafka's, of the INTERNAL listeners. ``authenticator``: of the topic's records."""
        self._settings = {**settings, "client.id": client_id}
        self._told = told
        self._own: tuple[bytes, bytes] | None = None
        self._authenticator = authenticator
        self._sightings = Sightings(signed=authenticator is not None)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self._clock_told = False
        self._dropped: Counter[str] = Counter()
        self._dropped_at = 0.0

    def start(self) -> None:
        """Begin, on the running loop."""
        loop = asyncio.get_running_loop()

        def tell(seen: Mapping[int, Sighting], end: bool) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._told, seen, end)

        self._thread = threading.Thread(target=self._run, args=[tell], name="registry", daemon=True)
        self._thread.start()

    def register(self, node_id: int, value: bytes) -> None:
        """Write this from now on; within ``WAIT`` seconds where it is new."""
        self._own = key_of(node_id), value

    def brokers(self, ids: Collection[int]) -> None:
        """Take from now on the records of these brokers' sidecars alone."""
        self._sightings.brokers = frozenset(ids)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Records that were not taken, by reason."""
        return self._sightings.dropped

    def withdraw(self) -> None:
        """Write nothing from now on, until something is registered again."""
        self._own = None

    async def close(self) -> None:
        """Write no more: what was written last is old soon, and then this sidecar does not run."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT)

    def _run(self, tell: Told) -> None:
        from proxy.fleet.topic import Topic

        retry = FIRST_RETRY
        while not self._stop.is_set():
            try:
                topic = Topic(self._settings, self._authenticator)
                retry = FIRST_RETRY
                try:
                    self._serve(topic, tell)
                finally:
                    topic.close()
            except BrokersideError as error:
                self._report(str(error))
            except Exception:
                log.exception("registry_failed")  # a mistake of ours must not end it
            self._stop.wait(retry)
            retry = min(2 * retry, LAST_RETRY)

    def _serve(self, topic: Topic, tell: Told) -> None:
        written, due = None, 0.0
        while not self._stop.is_set():
            records, end = topic.read(WAIT)
            self._sightings.dropped += topic.dropped
            topic.dropped.clear()
            if records or end:
                self._check_clock(records)
                self._sightings.add(records)
                tell(self._sightings.now(), end)
            self._report_dropped()
            own, now = self._own, time.monotonic()
            if own is not None and (own != written or now >= due):
                topic.write(*own, self._report)
                written, due = own, now + HEARTBEAT

    def _report_dropped(self) -> None:
        """Say now and then what was not taken: whoever may write the topic may write anything."""
        now, dropped = time.monotonic(), self._sightings.dropped
        if dropped != self._dropped and now >= self._dropped_at:
            log.warning("registry_records_dropped", **(dropped - self._dropped))
            self._dropped, self._dropped_at = dropped.copy(), now + DROPPED_EVERY

    def _check_clock(self, records: Sequence[Written]) -> None:
        """Say once that nobody can be found not to run."""
        if not self._clock_told and any(one.at is None and node_of(one.key) is not None for one in records):
            self._clock_told = True
            log.warning("registry_clock", advice="set message.timestamp.type=LogAppendTime on the registry's topic")

    def _report(self, failure: str | None) -> None:
        """Say what is new."""
        if failure is not None and self._failure is None:
            log.warning("registry_unreachable", error=failure)
        elif failure is None and self._failure is not None:
            log.info("registry_back")
        self._failure = failure
