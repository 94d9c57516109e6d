"""Questions to one broker: many of a kind in one request, and one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from proxy.daemon_executor import DaemonExecutor
from proxy.errors import MalformedBody
from proxy.rpc.messages import RpcRequest

MAX_BATCH = 100
"""Questions in one request; more wait for the next one."""

IDLE_TIMEOUT = 30.0
"""Seconds without a question after which the connection is closed."""

MAX_DECODED_HERE = 262_144
"""Bytes of the largest response that is decoded on the loop's thread."""

Key = TypeVar("Key", str, int)
Found = TypeVar("Found")

Answer = tuple[int, Found]
"""Kafka's error code, and what there is without an error."""


class Query(NamedTuple, Generic[Key, Found]):
    """What is asked of a broker, about groups or partitions. ``decode``: gets what was asked for, too."""

    request: Callable[[Sequence[Key]], RpcRequest]
    decode: Callable[[bytes, Sequence[Key]], Mapping[Key, Answer[Found]]]


class QueryCaller(Protocol):
    """A connection, as ``BrokerConnection`` or ``ClusterClient``."""

    async def call(self, request: RpcRequest) -> bytes:
        """Return what follows the response's correlation id. Raises BrokersideError."""

    def close(self) -> None:
        """Close it at once."""


class _Asked(NamedTuple):
    key: Any
    answer: asyncio.Future[Any]


class BrokerQueries:
    """Connects when something is asked. An error of the connection is one of all questions that wait, so that none
    waits for one timeout after another."""

    def __init__(self, connect: Callable[[], Awaitable[QueryCaller]]) -> None:
        """``connect``: raises BrokersideError."""
        self._connect = connect
        self._connection: QueryCaller | None = None
        self._waiting: dict[Query[Any, Any], list[_Asked]] = {}
        self._asked = asyncio.Event()
        self._decoding = DaemonExecutor("broker-queries")
        self._task: asyncio.Task[None] | None = None

    async def ask(self, query: Query[Key, Found], key: Key) -> Answer[Found]:
        """Return the answer. Raises BrokersideError."""
        asked = _Asked(key, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(query, []).append(asked)
        self._asked.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        answer: Answer[Found] = await asked.answer
        return answer

    async def close(self) -> None:
        """Stop; whoever still asks is to be cancelled before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while await self._is_asked():
                query, batch = self._next_batch()
                try:
                    await self._answer(query, batch)
                except Exception as error:
                    fail(batch, error)
        finally:
            self._task = None
            self._disconnect()

    async def _is_asked(self) -> bool:
        """Wait for a question; False if there is none for so long that the connection is to be closed."""
        if not self._waiting:
            self._asked.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_TIMEOUT):
                    await self._asked.wait()
        return bool(self._waiting)

    def _next_batch(self) -> tuple[Query[Any, Any], list[_Asked]]:
        query = next(iter(self._waiting))
        asked = self._waiting.pop(query)
        if len(asked) > MAX_BATCH:
            self._waiting[query] = asked[MAX_BATCH:]  # last: other queries have their turn
        return query, asked[:MAX_BATCH]

    async def _answer(self, query: Query[Any, Any], batch: list[_Asked]) -> None:
        keys = list(dict.fromkeys(one.key for one in batch))
        response = await self._call(query.request(keys))
        if len(response) > MAX_DECODED_HERE:
            found = await self._decoding.run(lambda: query.decode(response, keys), None)
        else:
            found = query.decode(response, keys)
        for one in batch:
            if one.key not in found:
                fail([one], MalformedBody("broker", "an answer without what was asked for"))
            elif not one.answer.done():
                one.answer.set_result(found[one.key])

    async def _call(self, request: RpcRequest) -> bytes:
        try:
            if self._connection is None:
                self._connection = await self._connect()
            return await self._connection.call(request)
        except Exception as error:
            self._disconnect()
            waiting, self._waiting = self._waiting, {}
            for asked in waiting.values():
                fail(asked, error)
            raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def fail(asked: Iterable[_Asked], error: Exception) -> None:
    """Raise an error where an answer is still waited for."""
    for one in asked:
        if not one.answer.done():
            one.answer.set_exception(error)
