"""``/connections`` and ``/connections/close`` over HTTP, what they list, and how pages of /metrics are shared."""

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection
from proxy.net.admin import ENCODED_AT_ONCE, AdminEndpoint
from proxy.net.metrics_page import MetricsPage
from proxy.net.open_connections import PAGE, ConnectionList, KafkaConnection, OpenConnections, choose
from proxy.telemetry.metrics import PageFormat
from proxy.telemetry.snapshot import Snapshot
from tests.unit.test_top import connection

pytestmark = pytest.mark.usefixtures("late_requests")

OPEN_ID = "10.0.0.1:9092-10.0.0.7:4444-7"


class Listeners:
    def __init__(self, *connections: KafkaConnection) -> None:
        self.open = {int(one.id.rpartition("-")[2]): one for one in connections}
        self.closed: list[int] = []
        self.answers = True

    async def list_connections(self) -> ConnectionList:
        return ConnectionList(list(self.open.values()), [2])

    async def find_connection(self, number: int) -> KafkaConnection | None:
        if not self.answers:
            raise TimeoutError("worker 2 does not answer")
        return self.open.get(number)

    def close_connection(self, number: int) -> bool:
        self.closed.append(number)
        return True


Ask = Any


@asynccontextmanager
async def serving(listeners: Listeners) -> AsyncIterator[Ask]:
    bind = SimpleNamespace(host="127.0.0.1", port=0)
    config = SimpleNamespace(admin=SimpleNamespace(bind=bind, hosts=()), listeners=())
    endpoint = AdminEndpoint(cast(Any, listeners), cast(Any, SimpleNamespace(config=config)), None)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    port = sock.getsockname()[1]
    endpoint.start(sock)

    def request(method: str, path: str) -> tuple[int, dict[str, Any]]:
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
        try:
            with urllib.request.urlopen(asked, timeout=240) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    async def ask(method: str, path: str) -> tuple[int, dict[str, Any]]:
        return await asyncio.to_thread(request, method, path)

    try:
        yield ask
    finally:
        await endpoint.close()


@pytest.mark.promise(
    "limits.md", "`connections close` with a whole id closes that connection, and no other one with the same number."
)
async def test_a_connection_is_closed_by_its_id_or_its_number_and_no_other_one() -> None:
    listeners = Listeners(connection(7, id=OPEN_ID))
    async with serving(listeners) as ask:
        for given in ("10.9.9.9:9092-203.0.113.7:4444-7", "x-7", "-7", "8", OPEN_ID + "7"):
            refused = (404, {"error": f"connection {given} is not open"})
            assert await ask("POST", f"/connections/close?id={given}") == refused, given
        assert listeners.closed == []
        for given in (OPEN_ID, "7"):
            assert await ask("POST", f"/connections/close?id={given}") == (200, {"closed": OPEN_ID}), given
        assert listeners.closed == [7, 7]
        listeners.answers = False
        assert await ask("POST", "/connections/close?id=7") == (503, {"error": "worker 2 does not answer"})
        assert listeners.closed == [7, 7]


@pytest.mark.promise(
    "limits.md",
    "`GET /connections` lists connections by the values asked for, and names workers that did not answer in "
    "`unanswered`.",
)
async def test_connections_are_listed_in_pieces_and_whole() -> None:
    count = 2 * ENCODED_AT_ONCE + 1
    async with serving(Listeners(*(connection(number) for number in range(count)))) as ask:
        status, answer = await ask("GET", f"/connections?limit={count}")
        assert (status, answer["open"], answer["chosen"], answer["unanswered"]) == (200, count, count, [2])
        assert {one["id"] for one in answer["connections"]} == {f"c-{number}" for number in range(count)}
        assert len((await ask("GET", "/connections?limit=3"))[1]["connections"]) == 3
        assert (await ask("GET", "/connections?client_id=none"))[1]["connections"] == []


class Relays(dict[int, Any]):
    """Counts how often all of them are walked over."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def relay(number: int) -> Any:
    known = Connection(f"c-{number}", "CLIENT", "127.0.0.1", number, 0.0, "User:a")
    return SimpleNamespace(
        connection=known, session=None, client_id=None, first_eof=None, last_byte_at=0.0, requests=0, received_bytes=0,
        sent_bytes=0, descriptor=lambda end: 5,
    )  # fmt: skip


def opened(count: int) -> tuple[Relays, OpenConnections]:
    relays = Relays({number: relay(number) for number in range(1, count + 1)})
    return relays, OpenConnections(cast(Any, relays), 1)


def listed(found: OpenConnections, after: int = 0) -> list[int]:
    numbers: list[int] = []
    while page := found.describe_page(after):
        numbers += [number for number, _ in page]
        after = numbers[-1]
    return numbers


def test_all_are_described_and_walked_over_once_but_for_those_that_end_meanwhile() -> None:
    relays, found = opened(20 * PAGE + 3)
    assert listed(found) == list(range(1, 20 * PAGE + 4))
    assert relays.walks == 1
    assert len(found.describe_page(0)) == len(found.describe_page(PAGE)) == PAGE
    one = found.find(2)
    assert one.id == "c-2"
    del relays[2]
    assert found.find(2) is None
    # Those that end meanwhile are left out and the listing goes on.
    relays, found = opened(5 * PAGE)
    first = [number for number, _ in found.describe_page(0)]
    for number in range(PAGE + 1, 4 * PAGE + 1):
        del relays[number]
    assert [*first, *listed(found, first[-1])] == [*range(1, PAGE + 1), *range(4 * PAGE + 1, 5 * PAGE + 1)]


@pytest.mark.promise(
    "limits.md", "Of more connections than `limit` allows, those that are idle for the shortest time are listed."
)
def test_the_least_idle_are_chosen_first() -> None:
    open_ones = [connection(number, idle_duration_ms=100 - number % 10) for number in range(30)]
    open_ones[7] = connection(7, principal="User:web")
    chosen = choose(open_ones, {"principal": "User:billing"}, 4)
    assert chosen.number == 29
    assert [(one.id, one.idle_duration_ms) for one in chosen.least_idle] == [
        ("c-19", 91),
        ("c-29", 91),
        ("c-9", 91),
        ("c-18", 92),
    ]


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
