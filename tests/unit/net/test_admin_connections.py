"""``/connections`` and ``/connections/close`` over HTTP, without connections to Kafka."""

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.net.admin import ENCODED_AT_ONCE, AdminEndpoint
from proxy.net.open_connections import ConnectionList, KafkaConnection
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
