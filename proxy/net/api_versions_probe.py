"""Asks the broker behind a listener which api versions it supports, before any client has asked.

Kafka answers ApiVersions requests before authentication. Nothing waits for the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from math import inf
from time import monotonic

import structlog

from proxy.core.wire import TRUNCATED
from proxy.errors import PeerError, describe_os_error
from proxy.interceptors.api_versions import decode_api_versions
from proxy.interceptors.supported_versions import VersionRange
from proxy.net.upstream import Upstream
from proxy.net.upstream_call import call_upstream
from proxy.rpc import messages

PROBE_TIMEOUT = 5.0
"""Seconds within which the broker has to answer."""

MAX_RESPONSE_SIZE = 1_048_576
"""Bytes of a response. An api takes six bytes, and there are 65,536 api keys."""

MIN_RETRY_DELAY, MAX_RETRY_DELAY = 0.5, 10.0
"""Seconds before the next attempt; doubled after each failure, from the minimum up to the maximum."""

MIN_PROBE_INTERVAL = 10.0
"""Seconds after an answer in which the broker is not asked again."""

MAX_ANSWER_AGE = 30.0
"""Seconds after which an answer is too old for a new connection. The broker may have been upgraded while this process
had no connection to it."""

log = structlog.get_logger(__name__)


class ApiVersionsProbe:
    """Probes the broker of one listener and calls ``on_versions`` with each answer. Belongs to the event loop's
    thread."""

    def __init__(self, upstream: Upstream, on_versions: Callable[[Mapping[int, VersionRange]], None]) -> None:
        self.upstream = upstream
        """Of the next request. A reload may set another one."""
        self._on_versions = on_versions
        self._next_at = 0.0
        self._answered_at = -inf
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Send requests until the broker answers, unless the probe is running already, or was stopped."""
        if not self._stopped and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    def start_if_stale(self, now: float) -> None:
        """Start the probe if the last answer is too old. ``now``: monotonic seconds."""
        if now - self._answered_at > MAX_ANSWER_AGE:
            self.start()

    def mark_answered(self) -> None:
        """Note that the broker has answered now, to this probe or to a client."""
        self._answered_at = monotonic()

    def stop(self) -> None:
        """Cancel the probe, for good."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        await asyncio.sleep(max(0.0, self._next_at - monotonic()))
        retry = MIN_RETRY_DELAY
        while True:
            try:
                async with asyncio.timeout(PROBE_TIMEOUT):
                    ranges = decode_api_versions(await self._send_request())
            except (OSError, EOFError, ValueError, PeerError, *TRUNCATED) as error:
                if retry == MIN_RETRY_DELAY:
                    reason = describe_os_error(error) or type(error).__name__
                    log.warning("upstream_versions_unknown", upstream=str(self.upstream), error=reason)
                await asyncio.sleep(retry)
                retry = min(2 * retry, MAX_RETRY_DELAY)
            else:
                self._next_at = monotonic() + MIN_PROBE_INTERVAL
                self._on_versions(ranges)
                return

    async def _send_request(self) -> bytes:
        """Send one ApiVersions request on a new connection and return the body of the response."""
        return await call_upstream(self.upstream, messages.api_versions_request(), MAX_RESPONSE_SIZE)
