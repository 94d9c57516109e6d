"""Asks workers for their open connections, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from proxy.net.open_connections import ConnectionList, KafkaConnection
from proxy.net.worker_ipc import ConnectionsPage
from proxy.net.worker_process import REPLY_TIMEOUT, WorkerProcess


class WorkerConnections:
    """Open connections of all workers.

    ``workers``: by their numbers, changed from outside. ``next_request_id()`` returns a number that no other request
    has.
    """

    def __init__(self, workers: Mapping[int, WorkerProcess], next_request_id: Callable[[], int]) -> None:
        self._workers = workers
        self._next_request_id = next_request_id

    async def find(self, number: int) -> KafkaConnection | None:
        """Return the open connection with this number; None if there is none. Raises TimeoutError if its worker does
        not answer."""
        for worker in self._workers.values():
            if worker.has_connection(number):
                page = await self._request_page(worker, 0, number)
                if page is None:
                    raise TimeoutError(f"worker {worker.number} does not answer")
                return page[0][1] if page else None
        return None

    async def list_all(self) -> ConnectionList:
        """Return all open connections of all workers that answer in time."""
        workers = list(self._workers.values())
        lists = await asyncio.gather(*(self._list_of(worker) for worker in workers))
        found = ConnectionList([])
        for worker, connections in zip(workers, lists, strict=True):
            if connections is None:
                found.unanswered.append(worker.number)
            else:
                found.connections += connections
        return found

    async def _list_of(self, worker: WorkerProcess) -> list[KafkaConnection] | None:
        found: list[KafkaConnection] = []
        after = 0
        while True:
            page = await self._request_page(worker, after)
            if not page:
                return None if page is None else found
            found += [connection for _, connection in page]
            after = page[-1][0]

    async def _request_page(
        self, worker: WorkerProcess, after: int, number: int | None = None
    ) -> list[tuple[int, KafkaConnection]] | None:
        """Return some connections of a worker, or the one with ``number``; None if it does not answer in time."""
        reply = worker.describe_connections(self._next_request_id(), after, number)
        if reply is None or not (await asyncio.wait([reply], timeout=REPLY_TIMEOUT))[0]:
            return None
        page = reply.result()
        return page.connections if isinstance(page, ConnectionsPage) else None
