"""``/metrics`` for any number of scrapers: one page at a time, in a thread, for all that wait for it.

A page is never older than the request for it. Requests share the page that is rendered next, and after each round of
pages there is a pause of ``PAUSE_SHARE`` times its duration. So they take a fifth of a core, however many scrapers
there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from proxy.telemetry.metrics import PageFormat, render
from proxy.telemetry.snapshot import Snapshot

PAUSE_SHARE = 4
"""Pause after a round of pages, in times of its duration."""

MAX_PAUSE = 0.5
"""Seconds that it is at most: a round may last as long as a worker that does not answer."""


class MetricsPage:
    """Renders what ``take_snapshot`` returns. Belongs to the event loop's thread."""

    def __init__(self, take_snapshot: Callable[[], Awaitable[Snapshot]]) -> None:
        self._take_snapshot = take_snapshot
        self._requested: dict[PageFormat, asyncio.Future[bytes]] = {}
        self._rounds: asyncio.Task[None] | None = None
        self._next_round_at = 0.0

    async def get(self, wanted: PageFormat) -> bytes:
        """Return the page. Raises what the snapshot or the rendering raised."""
        loop = asyncio.get_running_loop()
        if wanted not in self._requested:
            self._requested[wanted] = loop.create_future()
        if self._rounds is None:
            self._rounds = loop.create_task(self._run())
        return await asyncio.shield(self._requested[wanted])

    def close(self) -> None:
        """Render no more pages. Requests for them wait until they are cancelled."""
        if self._rounds is not None:
            self._rounds.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._requested:
            await asyncio.sleep(self._next_round_at - loop.time())
            requested, self._requested = self._requested, {}
            began = loop.time()
            try:
                snapshot = await self._take_snapshot()
                for wanted, page in requested.items():
                    page.set_result(await asyncio.to_thread(render, snapshot, wanted))
            except Exception as error:
                for page in requested.values():
                    if not page.done():
                        page.set_exception(error)
                        page.exception()  # nobody may wait any more
            self._next_round_at = loop.time() + min(MAX_PAUSE, PAUSE_SHARE * (loop.time() - began))
        self._rounds = None
