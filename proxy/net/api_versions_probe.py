"""Asks the broker behind a listener what it supports, so that it is known before any client has asked.

Kafka answers ApiVersions to anybody, before any login. Nothing waits for the answer.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from math import inf
from time import monotonic

import structlog

from proxy import __version__
from proxy.core.apis import API_VERSIONS
from proxy.core.wire import TRUNCATED
from proxy.errors import PeerError
from proxy.net.upstream import Upstream
from proxy.replies.api_versions import REQUEST, supported_by
from proxy.replies.upstream import Versions

TIMEOUT = 5.0
"""Seconds the broker has to answer."""

MAX_ANSWER = 1_048_576
"""Bytes; an api takes six, and there are 65,536 api keys."""

FIRST_RETRY, LAST_RETRY = 0.5, 10.0
"""Seconds until the next attempt: from the first number to the second, twice as many after each that failed."""

REST = 10.0
"""Seconds in which a broker that has answered is not asked again."""

STALE = 30.0
"""Seconds from which an answer is too old to carry another connection by: the broker may have been upgraded since,
without any of this process's connections."""

log = structlog.get_logger(__name__)


class Inquiry:
    """Of one listener: ``learn`` is called with each answer. Belongs to the loop's thread."""

    def __init__(self, upstream: Upstream, learn: Callable[[Mapping[int, Versions]], None]) -> None:
        self._upstream = upstream
        self._learn = learn
        self._rests_until = 0.0
        self._heard_at = -inf
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Ask until there is an answer, unless that goes on already."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._ask())

    def refresh(self) -> None:
        """Ask where the last answer is too old."""
        if monotonic() - self._heard_at > STALE:
            self.ask()

    def heard(self) -> None:
        """The broker has answered, to this or to a client."""
        self._heard_at = monotonic()

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _ask(self) -> None:
        await asyncio.sleep(max(0.0, self._rests_until - monotonic()))
        retry = FIRST_RETRY
        while True:
            try:
                async with asyncio.timeout(TIMEOUT):
                    said = supported_by(await self._answer())
            except (OSError, EOFError, ValueError, PeerError, *TRUNCATED) as error:
                if retry == FIRST_RETRY:
                    reason = str(error) or type(error).__name__
                    log.warning("upstream_versions_unknown", upstream=str(self._upstream), error=reason)
                await asyncio.sleep(retry)
                retry = min(2 * retry, LAST_RETRY)
            else:
                self._rests_until = monotonic() + REST
                self._learn(said)
                return

    async def _answer(self) -> bytes:
        """The body of the response to one ApiVersions request, on a connection of its own."""
        client_id = f"brokerside-{__version__}".encode()
        request = struct.pack(">hhih", API_VERSIONS, REQUEST, 1, len(client_id)) + client_id
        reader, writer = await asyncio.open_connection(sock=await self._upstream.connect())
        try:
            writer.write(struct.pack(">i", len(request)) + request)
            size = int.from_bytes(await reader.readexactly(4), "big")
            if not 4 < size <= MAX_ANSWER:
                raise ValueError(f"an answer of {size} bytes")
            return (await reader.readexactly(size))[4:]
        finally:
            writer.close()
