"""Evicts the longest idle connections of all workers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from proxy.net.worker_ipc import CloseConnection, IdlestConnection
from proxy.net.worker_process import REPLY_TIMEOUT, WorkerProcess


class WorkerEvictions:
    """Evicts one connection after the other. The next one is searched when the last one is being closed.

    ``workers``: by their numbers, changed from outside. ``next_request_id()`` returns a number that no other request
    has.
    """

    def __init__(self, workers: Mapping[int, WorkerProcess], next_request_id: Callable[[], int]) -> None:
        self._workers = workers
        self._next_request_id = next_request_id
        self._waiting: deque[list[str]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, listeners: list[str]) -> None:
        """Schedule closing the connection of ``listeners`` that has been idle for longest, if any is open."""
        self._waiting.append(listeners)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Evict nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._waiting:
            listeners = self._waiting.popleft()
            request_id = self._next_request_id()
            requested = {
                reply: worker
                for worker in self._workers.values()
                if (reply := worker.find_idlest(request_id, listeners)) is not None
            }
            replied = (await asyncio.wait(requested, timeout=REPLY_TIMEOUT))[0] if requested else set()
            found = [
                (idlest.since, idlest.number, requested[reply])
                for reply in replied
                if isinstance(idlest := reply.result(), IdlestConnection) and idlest.number is not None
            ]
            if found:
                _, connection, worker = min(found, key=lambda each: each[:2])
                worker.channel.send(CloseConnection(connection, "evicted"))
