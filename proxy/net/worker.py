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
from proxy.net.data_plane import Station
from proxy.net.forced_exit import MARGIN, end_within
from proxy.net.ticker import Beat
from proxy.net.worker_ipc import (
    Ask,
    Carry,
    Change,
    Channel,
    Closed,
    Cut,
    Drain,
    Evict,
    Failed,
    FindIdlest,
    Idlest,
    Ready,
    Report,
    Start,
    Tell,
    Throttled,
    ToWorker,
)
from proxy.telemetry import Repeated, configure_logging

log = structlog.get_logger(__name__)


def work(descriptor: int) -> int:
    """Serve the main process at the other end of ``descriptor``, a Unix socket, to its end; returns the exit code."""
    # A terminal or a supervisor may tell the whole group; the main process then says what it means.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_work(socket.socket(fileno=descriptor)))


async def _work(sock: socket.socket) -> int:
    return await Worker(sock).run()


class Worker:
    """Does what it is told over ``sock``. Where nobody is left to tell it, it drains and ends."""

    def __init__(self, sock: socket.socket) -> None:
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._started: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._channel: Channel[ToWorker] = Channel(
            sock, ToWorker, self._received, ended=self._alone, has_room=self._tell_ended
        )
        self._answers: set[asyncio.Task[None]] = set()
        self._repeated = Repeated(log)
        self._number = 0
        self._config: Config
        self._ended: list[int] = []  # connections that the main process has not been told of yet

    async def run(self) -> int:
        """Wait for the configuration, carry, and at the end drain. Returns the exit code."""
        if not await self._started:
            return 1
        beat = Beat()
        try:
            self._station = Station(self._config, beat, self._number)
        except LocalError as error:
            self._channel.send(Failed(str(error)))
            self._channel.finish()
            return 1
        self._station.on_end(self._note_end)
        beat.calls.append(self._repeated.flush)
        beat.start()
        self._channel.send(Ready(await self._station.snapshot()))
        await self._stop.wait()
        end_within((self._config.drain_timeout_ms + self._config.observer_shutdown_timeout_ms) / 1000 + MARGIN)
        await self._station.stop(self._now)
        await self._answer(0)
        self._channel.finish()
        return 0

    def _received(self, message: ToWorker, descriptor: int | None) -> None:
        match message:
            case Carry():
                self._carry(message, descriptor)
            case Ask():
                self._send_ended()  # be it none: the loop turns, even if the answer waits
                task = asyncio.get_running_loop().create_task(self._answer(message.number))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)
            case FindIdlest():
                found = self._station.idlest(message.listeners)
                self._channel.send(Idlest(message.number, *(found or (None, 0.0))))
            case Evict():
                self._station.evict(message.connection)
            case Throttled():
                self._station.report(message.reports)
            case Change():
                config = unpack(message.config)
                configure_logging(config.log_level, worker=self._number)
                self._station.change(config)
            case Tell():
                self._station.tell(message.view)
            case Start():
                self._number, self._config = message.number, unpack(message.config)
                self._listeners = {listener.name: listener for listener in self._config.listeners}
                configure_logging(self._config.log_level, worker=self._number)
                self._started.set_result(True)
            case Drain():
                self._stop.set()
            case Cut():
                self._now.set()
                self._stop.set()

    def _alone(self) -> None:
        if not self._started.done():
            self._started.set_result(False)
        self._stop.set()

    def _carry(self, given: Carry, descriptor: int | None) -> None:
        listener = self._listeners[given.listener]
        if descriptor is None:  # the kernel had no room for it here, and has closed it
            self._station.tallies[listener.name].closed["worker_lost"] += 1
            self._repeated.warning("connection_lost", listener=listener.name, error="EMFILE")
            self._note_end(given.index)
            return
        family = socket.AF_INET6 if ":" in listener.bind.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM, fileno=descriptor)
        sock.setblocking(False)
        self._station.carry(listener, sock, (given.host, given.port), given.index)

    def _note_end(self, number: int) -> None:
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._tell_ended)  # of all that end in this turn of the loop
        self._ended.append(number)

    def _tell_ended(self) -> None:
        if self._ended and not self._channel.full:  # else when there is room again
            self._send_ended()

    def _send_ended(self) -> None:
        ended, self._ended = self._ended, []
        self._channel.send(Closed(ended))

    async def _answer(self, number: int) -> None:
        self._channel.send(Report(number, await self._station.snapshot()))
