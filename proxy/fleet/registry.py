"""The thread of the fleet's registry: a compacted topic to which each sidecar writes its record every few seconds.

It uses librdkafka, and with it any of its ways to authenticate. Neither the event loop nor the sidecar's start
waits for it. While the cluster cannot be reached, the thread alone tries again.
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
from proxy.fleet.membership import HEARTBEAT_INTERVAL, Member, Membership, RegistryRecord
from proxy.fleet.sidecar_record import node_id_of_key, record_key

if TYPE_CHECKING:
    from proxy.fleet.registry_topic import RegistryTopic

FIRST_RETRY, LAST_RETRY = 1.0, 10.0
"""Seconds until the topic is opened again: from the first number to the second, doubled with each failure."""

REOPEN_AFTER = 30.0
"""Seconds without an acknowledged record after which the topic is opened again, and created if it does not exist.
librdkafka does not always report that a topic was deleted."""

READ_SECONDS = 0.5
"""Seconds that one read of the topic takes at most; ``close`` may wait as long."""

DROPPED_LOG_INTERVAL = 10.0
"""Seconds between two log lines about records that were dropped."""

THREAD_CLOSE_TIMEOUT = 1.0
"""Seconds that ``close`` waits for the thread, which is a daemon thread."""

OnMembers = Callable[[Mapping[int, Member], bool], None]
"""Called on the loop with the known sidecars by node id, and whether the end of the topic was reached."""

log = structlog.get_logger(__name__)


class RegistryThread:
    """Reads the topic and writes this sidecar's record to it, from ``start`` to ``close``."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        client_id: str,
        on_members: OnMembers,
        authenticator: Authenticator | None = None,
    ) -> None:
        """``settings``: librdkafka's, for the INTERNAL listeners.

        ``on_members``: called on the loop with each change. ``authenticator``: signs and verifies records.
        """
        self._settings = {**settings, "client.id": client_id}
        self._on_members = on_members
        self._own: tuple[bytes, bytes] | None = None
        self._authenticator = authenticator
        self._membership = Membership(signed=authenticator is not None)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self._failing_since: float | None = None
        self._clock_logged = False
        self._dropped: Counter[str] = Counter()
        self._dropped_at = 0.0

    def start(self) -> None:
        """Start the thread; calls come on the running loop."""
        loop = asyncio.get_running_loop()

        def report(seen: Mapping[int, Member], end: bool) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._on_members, seen, end)

        self._thread = threading.Thread(target=self._run, args=[report], name="registry", daemon=True)
        self._thread.start()

    def register(self, node_id: int, value: bytes) -> None:
        """Write ``value`` from now on. A new value is written within ``READ_SECONDS``."""
        self._own = record_key(node_id), value

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

    async def close(self) -> None:
        """Stop the thread. The other sidecars find this one gone when its last record is too old."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, THREAD_CLOSE_TIMEOUT)

    def _run(self, report: OnMembers) -> None:
        from proxy.fleet.registry_topic import RegistryTopic

        retry = FIRST_RETRY
        while not self._stop.is_set():
            try:
                topic = RegistryTopic(self._settings, self._authenticator)
                retry = FIRST_RETRY
                try:
                    self._serve(topic, report)
                finally:
                    topic.close()
            except BrokersideError as error:
                self._report(str(error))
            except Exception:
                log.exception("registry_failed")  # a mistake of ours must not end it
            self._stop.wait(retry)
            retry = min(2 * retry, LAST_RETRY)

    def _serve(self, topic: RegistryTopic, report: OnMembers) -> None:
        written, due = None, 0.0
        self._failing_since = None
        while not self._stop.is_set():
            records, end = topic.read(READ_SECONDS)
            self._membership.dropped += topic.dropped
            topic.dropped.clear()
            if records or end:
                self._check_clock(records)
                self._membership.apply(records)
                report(self._membership.members(), end)
            self._report_dropped()
            own, now = self._own, time.monotonic()
            if own is not None and (own != written or now >= due):
                topic.write(*own, self._report)
                written, due = own, now + HEARTBEAT_INTERVAL
            if self._must_reopen():
                raise BrokersideError(f"no record was acknowledged for {REOPEN_AFTER:.0f} s")

    def _must_reopen(self) -> bool:
        return self._failing_since is not None and time.monotonic() - self._failing_since > REOPEN_AFTER

    def _report_dropped(self) -> None:
        """Log what was dropped, now and then: whoever may write the topic may write anything."""
        now, dropped = time.monotonic(), self._membership.dropped
        if dropped != self._dropped and now >= self._dropped_at:
            log.warning("registry_records_dropped", **(dropped - self._dropped))
            self._dropped, self._dropped_at = dropped.copy(), now + DROPPED_LOG_INTERVAL

    def _check_clock(self, records: Sequence[RegistryRecord]) -> None:
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
