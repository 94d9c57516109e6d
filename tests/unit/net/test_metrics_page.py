"""How pages of /metrics are shared by those that ask for them."""

import asyncio

import pytest

from proxy.core.counters import ListenerCounters
from proxy.net.metrics_page import MetricsPage
from proxy.telemetry.metrics import PageFormat
from proxy.telemetry.snapshot import Snapshot


class Snapshots:
    """Takes a snapshot when it is let. ``taken``: as many until now, which is also what the snapshot has."""

    def __init__(self) -> None:
        self.taken = 0
        self.asked = asyncio.Semaphore(0)
        self.let = asyncio.Semaphore(0)

    async def take(self) -> Snapshot:
        self.taken += 1
        taken = self.taken
        self.asked.release()
        await self.let.acquire()
        return Snapshot({"CLIENT": ListenerCounters(accepted=taken)})


def number(page: bytes) -> int:
    """The number of the snapshot of a page."""
    name = b'brokerside_connections_accepted_total{listener="CLIENT"} '
    (found,) = (line.removeprefix(name) for line in page.splitlines() if line.startswith(name))
    return int(found)


@pytest.mark.promise("metrics.md", "Scrapes at the same time share one page, which is newer than their request.")
async def test_those_that_ask_at_the_same_time_share_a_page_that_is_newer_than_their_request() -> None:
    snapshots = Snapshots()
    page = MetricsPage(snapshots.take)
    first = asyncio.ensure_future(page.get(PageFormat.TEXT))
    await snapshots.asked.acquire()
    later = [asyncio.ensure_future(page.get(PageFormat.TEXT)) for _ in range(5)]
    other = asyncio.ensure_future(page.get(PageFormat.OPENMETRICS))
    await asyncio.sleep(0)
    assert snapshots.taken == 1
    snapshots.let.release()
    assert number(await first) == 1
    snapshots.let.release()
    assert {number(one) for one in await asyncio.gather(*later)} == {2}
    assert number(await other) == 2
    assert (await other).endswith(b"# EOF\n")
    assert snapshots.taken == 2


async def test_after_an_error_the_next_one_gets_a_page() -> None:
    snapshots = Snapshots()
    failing = True

    async def take() -> Snapshot:
        if failing:
            raise OSError("no descriptor")
        return await snapshots.take()

    page = MetricsPage(take)
    with pytest.raises(OSError, match="no descriptor"):
        await page.get(PageFormat.TEXT)
    failing = False
    snapshots.let.release()
    assert number(await page.get(PageFormat.TEXT)) == 1
