"""Messages between a running sidecar and its successor over a Unix socket, some with an open socket.

The order: ``RequestSockets``, ``PassListeningSocket`` for each, ``ListeningSocketsPassed``; the successor prepares all
that can fail, and the predecessor continues as before; ``SuccessorReady``, then ``PassConnections``, ``PassRates``,
``PassPendingConnection`` for what was accepted and is not admitted, and ``LimitsPassed``, while no process accepts;
``SuccessorAccepting``, ``TakeoverCompleted``; then ``PredecessorConnectionsEnded`` and ``PredecessorApplies`` until the
predecessor exits.
"""

from __future__ import annotations

import os
import socket
import struct

from msgspec import Struct

from proxy.limits.inheritance import CountedConnection, PendingState
from proxy.limits.rate_sensors import MeasuredRate

PROTOCOL = 2
"""Version of these messages. A predecessor refuses a successor with another one."""

_CREDENTIALS = struct.Struct("3i")
"""``struct ucred``: process id, user id, group id."""


class RequestSockets(Struct, tag=True, array_like=True):
    """The successor's first message. ``pid``: its process id."""

    protocol: int
    broker_id: int
    pid: int


class TakeoverRefused(Struct, tag=True, array_like=True):
    """The predecessor hands nothing over: its answer, or its last message if it is stopped. The successor has to exit.

    ``reason``: one sentence for a person.
    """

    reason: str


class PassListeningSocket(Struct, tag=True, array_like=True):
    """A listening socket that comes with this message. ``name``: that of its listener, or ``admin``."""

    name: str


class ListeningSocketsPassed(Struct, tag=True, array_like=True):
    """Sent after the last listening socket. ``pid`` and ``version``: of the predecessor."""

    pid: int
    version: str


class SuccessorReady(Struct, tag=True, array_like=True):
    """The successor has everything it needs, and asks the predecessor to stop accepting."""


class PassRates(Struct, tag=True, array_like=True):
    """Some of the measured rates. ``samples`` and ``window_ms``: of their windows."""

    samples: int
    window_ms: int
    rates: list[MeasuredRate]


class PassConnections(Struct, tag=True, array_like=True):
    """Some of the open connections, which the predecessor continues to serve."""

    connections: list[CountedConnection]


class LimitsPassed(Struct, tag=True, array_like=True):
    """Sent after all rates and connections. ``last_number``: of the connection that was admitted last."""

    last_number: int


class SuccessorAccepting(Struct, tag=True, array_like=True):
    """The successor accepts connections."""


class TakeoverCancelled(Struct, tag=True, array_like=True):
    """The predecessor accepts again, since ``SuccessorAccepting`` did not come in time. The successor has to exit."""


class TakeoverCompleted(Struct, tag=True, array_like=True):
    """The predecessor has closed its listening sockets, and drains."""


class PassPendingConnection(Struct, tag=True, array_like=True):
    """An accepted socket that comes with this message and is not admitted yet.

    ``host`` and ``port``: of the client. ``header``: the part of its PROXY header that was read; None if it needs none
    any more. ``state``: how long it has to wait.
    """

    listener: str
    host: str
    port: int
    header: bytes | None
    state: PendingState


class PredecessorConnectionsEnded(Struct, tag=True, array_like=True):
    """These connections of ``PassConnections`` have ended."""

    numbers: list[int]


class PredecessorApplies(Struct, tag=True, array_like=True):
    """What the predecessor has applied of the levels of features, see ``proxy.fleet.applied_epoch.Applied``.

    Sent once the predecessor does not write to the registry any more, and again with each change.
    """

    epoch: int
    undelivered_above: int


ToPredecessor = RequestSockets | SuccessorReady | SuccessorAccepting
ToSuccessor = (
    TakeoverRefused
    | PassListeningSocket
    | ListeningSocketsPassed
    | PassRates
    | PassConnections
    | LimitsPassed
    | TakeoverCancelled
    | TakeoverCompleted
    | PassPendingConnection
    | PredecessorConnectionsEnded
    | PredecessorApplies
)


def is_trusted(sock: socket.socket) -> bool:
    """Return whether the peer of a connected Unix socket runs as the user of this process, or as root."""
    _, user, _ = _credentials(sock)
    return user in (os.geteuid(), 0)


def peer_pid(sock: socket.socket) -> int:
    """Return the process id of the peer of a connected Unix socket; 0 if it is outside of this PID namespace."""
    return _credentials(sock)[0]


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    pid, user, group = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user, group
