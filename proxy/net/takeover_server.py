"""The running sidecar's half of a takeover: hands its sockets and the state of its limits to a successor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import structlog
from msgspec import Struct

from proxy import __version__
from proxy.errors import LocalError
from proxy.net.listener_manager import ListenerManager
from proxy.net.listening_sockets import PassedSocket
from proxy.net.sockets import AcceptedSocket
from proxy.net.takeover_ipc import (
    PROTOCOL,
    LimitsPassed,
    ListeningSocketsPassed,
    PassConnections,
    PassListeningSocket,
    PassPendingConnection,
    PassRates,
    PredecessorApplies,
    PredecessorConnectionsEnded,
    RequestSockets,
    SuccessorAccepting,
    SuccessorReady,
    TakeoverCancelled,
    TakeoverCompleted,
    TakeoverRefused,
    ToPredecessor,
    is_trusted,
    peer_pid,
)
from proxy.net.worker_ipc import IpcChannel

ACCEPT_TIMEOUT = 5.0
"""Seconds that a successor may take to accept once this process has stopped to. Then this process accepts again."""

CONNECT_BACKLOG = 8
"""Successors that wait in the kernel until they are accepted."""

PASSED_AT_ONCE = 500
"""Rates or connections in one message. More would delay traffic."""

FULL_PAUSE = 0.001
"""Seconds between two checks whether the successor has received what was sent."""

DRAINS = "the sidecar drains"
IS_PID_1 = "the sidecar is PID 1: when it ends, so does its whole container; use a rolling update"
"""Reasons to refuse a successor."""

log = structlog.get_logger(__name__)


class TakeoverServer:
    """Waits for a successor, and serves one at a time. Belongs to the event loop's thread.

    ``sockets()`` returns all listening sockets with their names. ``on_taken_over(pid)`` is called once the successor
    ``pid`` accepts: this process then has no listening socket any more, and has to drain and to exit.
    """

    def __init__(
        self,
        path: Path,
        broker_id: int,
        listeners: ListenerManager,
        sockets: Callable[[], list[PassedSocket]],
        on_taken_over: Callable[[int], None],
    ) -> None:
        self._path = path
        self._broker_id = broker_id
        self._listeners = listeners
        self._sockets = sockets
        self._on_taken_over = on_taken_over
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._inode = 0
        self._channel: IpcChannel[ToPredecessor] | None = None
        self._successor_pid = 0
        self._passing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._taken_over = False
        self._ended: list[int] = []  # not reported to the successor yet

    @property
    def is_busy(self) -> bool:
        """Whether a successor is taking over."""
        return self._channel is not None

    async def bind(self) -> None:
        """Bind a socket beside the path, so that a path that cannot be used is found before anything is taken over.

        Raises LocalError, also for a folder in which others may put a socket of their own in its place.
        """
        try:
            if self._socket is None:
                await asyncio.to_thread(self._bind)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise LocalError(f"takeover.socket.path: cannot create {self._path}: {reason}") from None

    async def start(self) -> None:
        """Give the socket its path, in place of that of a predecessor, and wait for successors."""
        assert self._socket is not None
        try:
            await asyncio.to_thread(os.rename, self._new_path, self._path)
        except OSError as error:  # the sidecar runs; only the next one cannot take over from it
            log.error("takeover_unavailable", path=str(self._path), error=str(error))
            return
        self._loop.add_reader(self._socket, self._on_connect)

    async def close(self) -> None:
        """Wait for no successor any more, and hand nothing over: one that takes over has to exit. A takeover that is
        complete continues."""
        if not self._taken_over and self._channel is not None:
            log.warning("takeover_refused", pid=self._successor_pid, reason=DRAINS)
            self._dismiss(TakeoverRefused(DRAINS))
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            await asyncio.to_thread(self._remove_paths)
        if not self._taken_over:
            self._end()

    def report_applied(self, epoch: int, undelivered_above: int) -> None:
        """Report to the successor that this process does not write to the registry any more, and what it applies."""
        if self._taken_over and self._channel is not None:
            self._channel.send(PredecessorApplies(epoch, undelivered_above))

    def finish(self) -> None:
        """Close the channel, by which the successor knows that no connection is open any more. Call it at the exit."""
        self._end()

    @property
    def _new_path(self) -> Path:
        return self._path.with_name(f"{self._path.name}.{os.getpid()}")

    def _bind(self) -> None:
        folder = self._path.parent
        mode = folder.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise LocalError(
                f"takeover.socket.path: {folder} has mode {stat.S_IMODE(mode):04o}, and every user may write there; "
                "allowed is a folder that only its owner and group may write, such as 0700"
            )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._new_path.unlink(missing_ok=True)
            self._socket.bind(str(self._new_path))
            self._new_path.chmod(0o600)  # before ``listen``: nobody can have connected by then
            self._inode = self._new_path.stat().st_ino
            self._socket.listen(CONNECT_BACKLOG)
        except BaseException:
            self._socket.close()
            self._socket = None
            raise

    def _remove_paths(self) -> None:
        """Remove what this process has created. After a takeover the path is the successor's: it may replace it at any
        moment, also between the two calls here."""
        for path in (self._new_path,) if self._taken_over else (self._path, self._new_path):
            with contextlib.suppress(OSError):
                if path.stat().st_ino == self._inode:
                    path.unlink()

    def _on_connect(self) -> None:
        assert self._socket is not None
        try:
            sock, _ = self._socket.accept()
        except OSError:
            return
        if not is_trusted(sock):
            log.warning("takeover_refused", reason="the peer runs as another user")
            sock.close()
            return
        peer = peer_pid(sock)
        channel: IpcChannel[ToPredecessor] = IpcChannel(
            sock,
            ToPredecessor,
            lambda message, _: self._on_message(channel, message, peer),
            on_peer_gone=lambda: self._on_peer_gone(channel),
        )

    def _on_message(self, channel: IpcChannel[ToPredecessor], message: ToPredecessor, peer: int) -> None:
        match message:
            case RequestSockets():
                reason = self._reason_to_refuse(message, peer)
                if reason is None:
                    self._pass_sockets(channel, message.pid)
                else:
                    log.warning("takeover_refused", pid=message.pid, reason=reason)
                    channel.send(TakeoverRefused(reason))
            case SuccessorReady() if channel is self._channel and self._passing is None:
                self._passing = self._loop.create_task(self._pass_limits(channel))
            case SuccessorAccepting() if channel is self._channel and self._paused:
                self._complete(channel)
            case _:
                channel.send(TakeoverRefused("this message was not expected now"))

    def _reason_to_refuse(self, request: RequestSockets, peer: int) -> str | None:
        if request.protocol != PROTOCOL:
            return f"the versions do not fit: takeover protocol {PROTOCOL} here, {request.protocol} in the successor"
        if request.broker_id != self._broker_id:
            return f"broker.id is {self._broker_id} here, and {request.broker_id} in the successor"
        if self._channel is not None:
            return "another successor takes over already"
        if os.getpid() == 1 and peer:  # the kernel kills all processes of a PID namespace with its first one
            return IS_PID_1
        return DRAINS if self._socket is None or self._listeners.draining else None

    def _pass_sockets(self, channel: IpcChannel[ToPredecessor], pid: int) -> None:
        log.info("takeover_requested", successor_pid=pid)
        self._channel, self._successor_pid = channel, pid
        for name, sock in self._sockets():
            channel.send(PassListeningSocket(name), sock.dup())
        channel.send(ListeningSocketsPassed(os.getpid(), __version__))

    async def _pass_limits(self, channel: IpcChannel[ToPredecessor]) -> None:
        """Stop accepting, and pass what the limits have measured and counted."""
        self._paused = True
        self._listeners.pause()
        self._listeners.admission.report_ended(self._on_ended)
        self._timer = self._loop.call_later(ACCEPT_TIMEOUT, self._cancel, "the successor did not accept in time")
        try:
            for message, sock in self._state():
                channel.send(message, sock)
                await asyncio.sleep(0)
                while channel.is_full:  # noqa: ASYNC110 - its callback is for one that sends all the time
                    await asyncio.sleep(FULL_PAUSE)
        except OSError as error:  # no descriptor is left
            self._cancel(os.strerror(error.errno or 0))

    def _state(self) -> Iterator[tuple[Struct, AcceptedSocket | None]]:
        """Yield the messages with the state of the limits, and the sockets to send with them."""
        admission = self._listeners.admission
        numbers = admission.open_numbers()
        for at in range(0, len(numbers), PASSED_AT_ONCE):
            yield PassConnections(admission.counted_connections(numbers[at : at + PASSED_AT_ONCE])), None
        limits, rates = admission.limits, admission.measured_rates()
        while some := list(islice(rates, PASSED_AT_ONCE)):
            yield PassRates(limits.samples, limits.window_ms, some), None
        for one in self._listeners.pending():
            yield PassPendingConnection(one.listener, *one.address, one.header, one.state), one.sock.dup()
        yield LimitsPassed(admission.last_number), None

    def _complete(self, channel: IpcChannel[ToPredecessor]) -> None:
        self._stop_timer()
        self._taken_over = True
        self._listeners.release()
        log.info("taken_over", successor_pid=self._successor_pid)
        self._on_taken_over(self._successor_pid)  # first: the service manager must know it before it says anything
        channel.send(TakeoverCompleted())

    def _on_ended(self, number: int) -> None:
        if not self._ended:
            self._loop.call_soon(self._send_ended)  # one message per iteration
        self._ended.append(number)

    def _send_ended(self) -> None:
        ended, self._ended = self._ended, []
        if self._channel is not None:
            self._channel.send(PredecessorConnectionsEnded(ended))

    def _on_peer_gone(self, channel: IpcChannel[ToPredecessor]) -> None:
        if channel is not self._channel:  # one that was refused or has not accepted in time
            channel.abandon()
            return
        log.warning("successor_gone", taken_over=self._taken_over)
        self._end()

    def _cancel(self, reason: str) -> None:
        """Accept again. The successor reads the message now or later, and exits."""
        log.error("takeover_cancelled", reason=reason)
        self._dismiss(TakeoverCancelled())
        self._end()

    def _dismiss(self, message: TakeoverCancelled | TakeoverRefused) -> None:
        """Send the successor its last message. The channel stays open until it has read that."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.send(message)

    def _end(self) -> None:
        """Close the channel, and accept again if this process has stopped to and nobody has taken over."""
        self._stop_timer()
        if self._passing is not None:
            self._passing.cancel()
            self._passing = None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.abandon()
        if self._paused:
            self._listeners.admission.report_ended(lambda number: None)
            if not self._taken_over and not self._listeners.draining:
                self._listeners.resume()
        self._paused = False

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
