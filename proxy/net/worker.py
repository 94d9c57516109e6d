"""A worker: a process that carries connections the main process has accepted. Started by ``proxy.net.worker_pool``."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import structlog
import uvloop

from proxy.config import Config
from proxy.config.transfer import unpack
from proxy.errors import LocalError
from proxy.net.data_plane import DataPlane
from proxy.net.forced_exit import EXIT_MARGIN, force_exit_after
from proxy.net.ticker import Ticker
from proxy.net.worker_ipc import (
    Abort,
    ConnectionsClosed,
    Drain,
    EvictConnection,
    FindIdlest,
    IdlestConnection,
    IpcChannel,
    ReportThrottles,
    RequestSnapshot,
    SnapshotReply,
    StartFailed,
    StartWorker,
    TakeConnection,
    ToWorker,
    UpdateConfig,
    UpdateFleetView,
    WorkerReady,
)
from proxy.telemetry import Repeated, configure_logging

log = structlog.get_logger(__name__)


def run_worker(descriptor: int) -> int:
    """Serve the main process at the other end of ``descriptor``, a Unix socket, to its end; returns the exit code."""
    # A terminal or a supervisor may tell the whole group; the main process then says what it means.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run_worker(socket.socket(fileno=descriptor)))


async def _run_worker(sock: socket.socket) -> int:
    return await Worker(sock).run()


class Worker:
    """Does what it is told over ``sock``. Where nobody is left to tell it, it drains and ends."""

    def __init__(self, sock: socket.socket) -> None:
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()
        self._started: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._channel: IpcChannel[ToWorker] = IpcChannel(
            sock, ToWorker, self._on_message, on_peer_gone=self._on_main_gone, on_all_sent=self._send_closed_if_room
        )
        self._replies: set[asyncio.Task[None]] = set()
        self._repeated = Repeated(log)
        self._number = 0
        self._config: Config
        self._closed_connections: list[int] = []  # connections that the main process has not been told of yet

    async def run(self) -> int:
        """Wait for the configuration, carry, and at the end drain. Returns the exit code."""
        if not await self._started:
            return 1
        ticker = Ticker()
        try:
            self._data_plane = DataPlane(self._config, ticker, self._number)
        except LocalError as error:
            self._channel.send(StartFailed(str(error)))
            self._channel.flush_and_close()
            return 1
        self._data_plane.on_connection_closed(self._on_connection_closed)
        ticker.callbacks.append(self._repeated.flush)
        ticker.start()
        self._channel.send(WorkerReady(await self._data_plane.snapshot()))
        await self._stop.wait()
        force_exit_after(
            (self._config.drain_timeout_ms + self._config.observer_shutdown_timeout_ms) / 1000 + EXIT_MARGIN
        )
        await self._data_plane.stop(self._abort)
        await self._send_snapshot(0)
        self._channel.flush_and_close()
        return 0

    def _on_message(self, message: ToWorker, descriptor: int | None) -> None:
        match message:
            case TakeConnection():
                self._take_connection(message, descriptor)
            case RequestSnapshot():
                self._send_closed()  # be it none: the loop turns, even if the answer waits
                task = asyncio.get_running_loop().create_task(self._send_snapshot(message.request_id))
                self._replies.add(task)
                task.add_done_callback(self._replies.discard)
            case FindIdlest():
                found = self._data_plane.find_idlest(message.listeners)
                self._channel.send(IdlestConnection(message.request_id, *(found or (None, 0.0))))
            case EvictConnection():
                self._data_plane.evict(message.number)
            case ReportThrottles():
                self._data_plane.report_throttles(message.reports)
            case UpdateConfig():
                config = unpack(message.config)
                configure_logging(config.log_level, worker=self._number)
                self._data_plane.update_config(config)
            case UpdateFleetView():
                self._data_plane.update_fleet_view(message.view)
            case StartWorker():
                self._number, self._config = message.number, unpack(message.config)
                self._listeners = {listener.name: listener for listener in self._config.listeners}
                configure_logging(self._config.log_level, worker=self._number)
                self._started.set_result(True)
            case Drain():
                self._stop.set()
            case Abort():
                self._abort.set()
                self._stop.set()

    def _on_main_gone(self) -> None:
        if not self._started.done():
            self._started.set_result(False)
        self._stop.set()

    def _take_connection(self, given: TakeConnection, descriptor: int | None) -> None:
        listener = self._listeners[given.listener]
        if descriptor is None:  # the kernel had no room for it here, and has closed it
            self._data_plane.tallies[listener.name].closed["worker_lost"] += 1
            self._repeated.warning("connection_lost", listener=listener.name, error="EMFILE")
            self._on_connection_closed(given.number)
            return
        family = socket.AF_INET6 if ":" in listener.bind.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM, fileno=descriptor)
        sock.setblocking(False)
        self._data_plane.handle_connection(listener, sock, (given.host, given.port), given.number)

    def _on_connection_closed(self, number: int) -> None:
        if not self._closed_connections:
            asyncio.get_running_loop().call_soon(self._send_closed_if_room)  # of all that end in this turn of the loop
        self._closed_connections.append(number)

    def _send_closed_if_room(self) -> None:
        if self._closed_connections and not self._channel.is_full:  # else when there is room again
            self._send_closed()

    def _send_closed(self) -> None:
        ended, self._closed_connections = self._closed_connections, []
        self._channel.send(ConnectionsClosed(ended))

    async def _send_snapshot(self, request_id: int) -> None:
        self._channel.send(SnapshotReply(request_id, await self._data_plane.snapshot()))
