"""The wall clock jumps by hours and days under a running sidecar, and no limit takes notice."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.faults.site import PATIENCE, Site
from tests.integration.sidecars import preloaded
from tests.tools.conformance.crowd import Plan

HOUR, DAY = 3_600, 86_400
STEPS = (HOUR, -HOUR, DAY, -DAY, 1, 0)
"""Seconds that the wall clock is ahead, one after the other."""

EVERY = 0.1
"""Seconds between two steps."""

SLOW = 60.0
"""Seconds that this machine may be late; a step that was noticed would make hours, or nothing, of a wait."""


class WallClock:
    """Moves the wall clock of the processes that are started with it."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._offset = folder / "offset"
        self._offset.write_bytes(bytes(8))
        self._library = library

    @asynccontextmanager
    async def started(self, site: Site, quotas: Mapping[str, Any]) -> AsyncIterator[None]:
        """Run the sidecar with this clock, which jumps all the time."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CLOCK_OFFSET", str(self._offset))
            patch.setenv("LD_PRELOAD", str(self._library))
            await site.start(quotas)
        jumping = asyncio.create_task(self._jump())
        try:
            yield
        finally:
            jumping.cancel()
            await asyncio.wait([jumping])

    def set(self, ahead: int) -> None:
        # In place: the sidecar has mapped it.
        with self._offset.open("r+b") as file:
            file.write(struct.pack("@q", ahead))

    async def _jump(self) -> None:
        for step in itertools.cycle(STEPS):
            self.set(step)
            await asyncio.sleep(EVERY)


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path, preloaded(Path(__file__).with_name("clock.c"), tmp_path))


@pytest.mark.slow
@pytest.mark.promise("limits.md", "Limits take no notice of a wall clock that jumps by hours and days.")
async def test_a_listener_accepts_at_its_rate_whatever_the_wall_clock_says(site: Site, clock: WallClock) -> None:
    limit, count = 10, 30
    quotas = {"quota.window.num": 2, "listener.name.client.max.connection.creation.rate": limit}
    async with clock.started(site, quotas):
        visits = await site.crowd(Plan(site.port, count, watch=2 * SLOW))
    accepted = visits.accepted()
    assert len(accepted) == count
    for number, when in enumerate(accepted, 1):  # since the first connect: its answer may be read late
        assert number <= limit * (when - visits.dialled[0] + 1) + 1
    assert accepted[-1] <= count / limit + SLOW
    clock.set(DAY)  # it does jump; otherwise this would show nothing
    os.kill(site.pid, signal.SIGHUP)
    assert site.sidecar is not None
    async with asyncio.timeout(PATIENCE):
        while "config_unchanged" not in site.sidecar.log.read_text():  # noqa: ASYNC110  # a log has no event
            await asyncio.sleep(0.02)
    lines = [json.loads(line) for line in site.sidecar.log.read_text().splitlines()]
    (said,) = (line["timestamp"] for line in lines if line["event"] == "config_unchanged")
    assert datetime.fromisoformat(said) > datetime.now(UTC) + timedelta(hours=23)
