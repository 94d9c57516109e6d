"""The successor's half of a takeover: gets the sockets and the state of the limits of a running sidecar.

Until the successor accepts, it can fail at any time: the running sidecar continues as if nothing had happened. If the
running sidecar dies meanwhile, the successor continues with what it has got; if it is stopped, the successor fails.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Self

import structlog

from proxy.errors import LocalError
from proxy.net.listener_manager import ListenerManager, PassedConnection
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
    ToSuccessor,
    is_trusted,
)
from proxy.net.worker_ipc import IpcChannel

ANSWER_TIMEOUT = 10.0
"""Seconds that the predecessor may take for each step."""

NO_PREDECESSOR_ERRORS = {errno.ENOENT, errno.ECONNREFUSED}
"""Errors of connecting that mean that no sidecar runs."""

log = structlog.get_logger(__name__)


class Takeover:
    """A takeover from the sidecar that listens on a Unix socket. Belongs to the event loop's thread."""

    def __init__(self, sock: socket.socket) -> None:
        self.sockets: list[PassedSocket] = []
        """The listening sockets of the predecessor."""
        self.on_applied: Callable[[int, int], None] = lambda epoch, undelivered_above: None
        """Called with each ``PredecessorApplies``."""
        self.on_ended: Callable[[], None] = lambda: None
        """Called when the predecessor ends, unless it has refused; see also ``has_ended``."""
        self._listeners: ListenerManager | None = None
        self._predecessor = ListeningSocketsPassed(0, "")
        self._error = ""
        self._gone = False
        self._changed = asyncio.Event()
        self._seen: set[type[ToSuccessor]] = set()
        self._channel: IpcChannel[ToSuccessor] = IpcChannel(
            sock, ToSuccessor, self._on_message, on_peer_gone=self._on_peer_gone
        )

    @classmethod
    async def begin(cls, path: str, broker_id: int, *, required: bool = False) -> Self | None:
        """Return a takeover that has got the sockets of the sidecar at ``path``, or None if none runs there.

        Raises LocalError if that sidecar refuses, if this process may not ask it, or if none runs and one is
        ``required``.
        """
        try:
            sock = await asyncio.to_thread(_connect, path)
        except OSError as error:
            if error.errno in NO_PREDECESSOR_ERRORS:
                if required:
                    raise LocalError(f"the sidecar at {path}, which started this process, has ended") from None
                log.info("no_predecessor", path=path)
                return None
            raise LocalError(f"takeover.socket.path: cannot connect to {path}: {error.strerror or error}") from None
        if not is_trusted(sock):
            sock.close()
            raise LocalError(f"takeover.socket.path: the process at {path} runs as another user")
        takeover = cls(sock)
        takeover._channel.send(RequestSockets(PROTOCOL, broker_id, os.getpid()))
        await takeover._wait_for(ListeningSocketsPassed)
        if takeover._gone and ListeningSocketsPassed not in takeover._seen:
            raise LocalError("the running sidecar has ended, or is not of a version that can be taken over")
        return takeover

    @property
    def has_ended(self) -> bool:
        """Whether the predecessor has ended."""
        return self._gone

    async def complete(self, listeners: ListenerManager, start_accepting: Callable[[], None]) -> None:
        """Let the predecessor stop accepting, continue with the state of its limits, and accept.

        ``listeners`` are open. Raises LocalError if the predecessor has not stopped, or has gone on meanwhile.
        """
        self._listeners = listeners
        listeners.admission.pause()  # until ``start_accepting``
        if not self._gone:
            self._channel.send(SuccessorReady())
        await self._wait_for(LimitsPassed)
        start_accepting()
        if not self._gone:
            self._channel.send(SuccessorAccepting())
        await self._wait_for(TakeoverCompleted)
        names = [passed.name for passed in self.sockets]
        if TakeoverCompleted in self._seen:
            log.info(
                "took_over",
                predecessor_pid=self._predecessor.pid,
                predecessor_version=self._predecessor.version,
                sockets=names,
                connections=listeners.admission.inherited_connections,
            )
        else:
            log.warning("predecessor_gone", predecessor_pid=self._predecessor.pid, sockets=names)

    def finish(self) -> None:
        """Close the channel, for a process that exits. A predecessor that still accepts continues."""
        if not self._gone:
            self._gone = True
            self._channel.abandon()

    async def _wait_for(self, wanted: type[ToSuccessor]) -> None:
        """Wait for a message, or for the end of the predecessor. Raises LocalError if it refuses or is late."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                while wanted not in self._seen and not self._gone and not self._error:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._error = f"no answer within {ANSWER_TIMEOUT:.0f} s"
        self.raise_if_refused()

    def raise_if_refused(self) -> None:
        """Raise LocalError if the predecessor has refused or cancelled the takeover, also before it ended."""
        if self._error:
            self.finish()
            raise LocalError(f"cannot take over from the running sidecar: {self._error}")

    def _on_message(self, message: ToSuccessor, descriptor: int | None) -> None:
        match message:
            case PassListeningSocket() if descriptor is not None:
                self.sockets.append(PassedSocket(message.name, socket.socket(fileno=descriptor)))
            case ListeningSocketsPassed():
                self._predecessor = message
            case PassConnections() if self._listeners is not None:
                self._listeners.admission.inherit_connections(message.connections)
            case PassRates() if self._listeners is not None:
                limits = self._listeners.admission.limits
                if (message.samples, message.window_ms) == (limits.samples, limits.window_ms):
                    self._listeners.admission.inherit_rates(message.rates)
            case LimitsPassed() if self._listeners is not None:
                self._listeners.admission.last_number = message.last_number
            case PassPendingConnection() if descriptor is not None and self._listeners is not None:
                client = (message.host, message.port)
                passed = PassedConnection(
                    message.listener, AcceptedSocket(descriptor), client, message.header, message.state
                )
                self._listeners.inherit_pending(passed)
            case PredecessorConnectionsEnded() if self._listeners is not None:
                self._listeners.admission.release_inherited(message.numbers)
            case PredecessorApplies():
                self.on_applied(message.epoch, message.undelivered_above)
            case TakeoverRefused():
                self._error = self._error or message.reason
            case TakeoverCancelled():
                self._error = "it accepts again, since this process was too slow"
            case _:
                pass
        self._seen.add(type(message))
        self._changed.set()

    def _on_peer_gone(self) -> None:
        """The predecessor has exited: none of its connections is open any more."""
        if self._gone:
            return
        self._gone = True
        self._channel.abandon()
        self._changed.set()
        if self._listeners is not None:
            log.info("predecessor_ended", connections=self._listeners.admission.inherited_connections)
            self._listeners.admission.release_inherited()
        if not self._error:
            self.on_ended()


def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(ANSWER_TIMEOUT)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock
