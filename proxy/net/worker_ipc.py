"""Messages between the main process and a worker over a Unix socket pair, some with an open socket.

The pair keeps packet boundaries (SOCK_SEQPACKET). Most messages are one packet. A longer one, such as a configuration
with keys, is several packets, and its descriptor (SCM_RIGHTS) comes with the last one. Nothing here blocks: packets
that the kernel does not accept are queued.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from proxy.coordinator.view import GroupsView
from proxy.core.causes import Cause
from proxy.core.exchange import ConnectionTransition
from proxy.features.updates import UpdateRequest, UpdateResult
from proxy.features.view import FeaturesView
from proxy.interceptors.broker_metadata import FleetView
from proxy.limits.throttle_reports import AggregatedThrottle
from proxy.net.consumer_handover import HandedConnection
from proxy.net.open_connections import KafkaConnection
from proxy.net.sockets import AcceptedSocket
from proxy.telemetry.snapshot import Snapshot

MAX_PACKET_SIZE = 4096
"""Bytes of a message in one packet. The kernel accepts that many with the smallest socket buffers."""

MORE_PACKETS, LAST_PACKET = b"\x01", b"\x00"
"""The first byte of a packet: whether the message continues in the next packet."""

PEER_GONE_ERRORS = {errno.EPIPE, errno.ECONNRESET}
"""Errors of sending that mean that the peer has closed the pair."""

SEND_RETRY_DELAY = 0.05
"""Seconds until sending is retried if no event will report that it is possible, for example without memory."""

FLUSH_TIMEOUT = 1.0
"""Seconds that an exiting process waits for its peer to receive the queued messages."""

Message = TypeVar("Message")

AnySocket = socket.socket | AcceptedSocket


class StartWorker(Struct, tag=True, array_like=True):
    """The first message to a worker, with its ``number``. ``config``: as packed by ``proxy.config.serialization``."""

    number: int
    config: bytes


class TakeConnection(Struct, tag=True, array_like=True):
    """Asks a worker to serve the accepted socket that comes with this message.

    ``listener``: name of the listener; ``host`` and ``port``: of the client; ``number``: of the connection.
    """

    listener: str
    host: str
    port: int
    number: int


class RequestSnapshot(Struct, tag=True, array_like=True):
    """Asks a worker for its counters. The worker replies with a ``SnapshotReply`` of the same ``request_id``."""

    request_id: int


class FindIdlest(Struct, tag=True, array_like=True):
    """Asks a worker for the connection of ``listeners`` that has been idle for longest.

    The worker replies with an ``IdlestConnection`` of the same ``request_id``.
    """

    request_id: int
    listeners: list[str]


class CloseConnection(Struct, tag=True, array_like=True):
    """Asks a worker to close the connection with this ``number`` of ``TakeConnection``, for ``cause``."""

    number: int
    cause: Cause


class DescribeConnections(Struct, tag=True, array_like=True):
    """Asks a worker for some of its connections, those with the lowest numbers above ``after``.

    With ``number``: for that one alone. The worker replies with a ``ConnectionsPage`` of the same ``request_id``.
    """

    request_id: int
    after: int
    number: int | None = None


class HoldConnection(Struct, tag=True, array_like=True):
    """Has a worker not read the client of the connection with this ``number`` for ``hold_ms``; 0: read it again."""

    number: int
    hold_ms: int


class ReportLogins(Struct, tag=True, array_like=True):
    """Sets whether a worker sends ``ClientsLoggedIn``. It sends none before, for without limits of principals nobody
    needs them."""

    wanted: bool


class ReportThrottles(Struct, tag=True, array_like=True):
    """Asks a worker to pass these reports to its observers."""

    reports: list[AggregatedThrottle]


class PrepareConfig(Struct, tag=True, array_like=True):
    """Asks a worker to do all of a reload that can fail. ``config``: packed as in ``StartWorker``.

    The worker replies with a ``ConfigPrepared`` of the same ``request_id``. ``UpdateConfig`` or ``DiscardConfig``
    follows.
    """

    request_id: int
    config: bytes


class DiscardConfig(Struct, tag=True, array_like=True):
    """Asks a worker to give up what it did for ``PrepareConfig``."""


class UpdateConfig(Struct, tag=True, array_like=True):
    """Asks a worker to apply another configuration, packed as in ``StartWorker``, as far as it is reloadable."""

    config: bytes


class UpdateFleetView(Struct, tag=True, array_like=True):
    """Passes a worker what is known about all brokers."""

    view: FleetView


class UpdateFeaturesView(Struct, tag=True, array_like=True):
    """Passes a worker what is known about the features of the fleet."""

    view: FeaturesView


class UpdateGroupsView(Struct, tag=True, array_like=True):
    """Passes a worker what is known about the coordinators of consumer groups."""

    view: GroupsView


class ReportTransition(Struct, tag=True, array_like=True):
    """Asks a worker to report to its observers what has happened to the connection of a consumer."""

    change: ConnectionTransition


class FeatureUpdateAnswered(Struct, tag=True, array_like=True):
    """The reply to ``FeatureUpdateAsked``."""

    request_id: int
    result: UpdateResult


class Drain(Struct, tag=True, array_like=True):
    """Asks a worker to wait for open requests and then to exit. No ``TakeConnection`` follows.

    ``spread``: see ``ConnectionManager.drain``.
    """

    spread: bool = False


class Abort(Struct, tag=True, array_like=True):
    """Asks a worker to exit at once."""


class WorkerReady(Struct, tag=True, array_like=True):
    """Sent by a worker that is ready to take connections. ``snapshot``: its counters before the first connection."""

    snapshot: Snapshot


class StartFailed(Struct, tag=True, array_like=True):
    """Sent by a worker that cannot start. ``error``: the reason, for a person."""

    error: str


class ConnectionsClosed(Struct, tag=True, array_like=True):
    """Sent by a worker when connections have ended. ``numbers``: their numbers of ``TakeConnection``."""

    numbers: list[int]


class ClientsLoggedIn(Struct, tag=True, array_like=True):
    """Sent by a worker when clients have logged in with SASL, each once. ``earlier``: before ``ReportLogins``."""

    logins: list[tuple[int, str]]
    earlier: bool


class IdlestConnection(Struct, tag=True, array_like=True):
    """The reply to ``FindIdlest``.

    ``number``: of the connection, None if none is open. ``since``: when its last byte arrived, in monotonic seconds.
    """

    request_id: int
    number: int | None
    since: float


class ConnectionsPage(Struct, tag=True, array_like=True):
    """The reply to ``DescribeConnections``: connections with their numbers, ascending; none: there are no more."""

    request_id: int
    connections: list[tuple[int, KafkaConnection]]


class ConfigPrepared(Struct, tag=True, array_like=True):
    """The reply to ``PrepareConfig``. ``error``: why it failed, for a person; empty if it did not."""

    request_id: int
    error: str


class FeatureUpdateAsked(Struct, tag=True, array_like=True):
    """Sent by a worker when a client asks for an update of features.

    The main process replies with a ``FeatureUpdateAnswered`` of the same ``request_id``.
    """

    request_id: int
    request: UpdateRequest


class HandBroker(Struct, tag=True, array_like=True):
    """Comes with the connection to the broker of the connection with this ``number``, before its ``HandConsumer``."""

    number: int


class HandConsumer(Struct, tag=True, array_like=True):
    """Sent by a worker with the socket of a client that registers as a consumer. The connection is not the worker's any
    more.
    """

    handed: HandedConnection


class SnapshotReply(Struct, tag=True, array_like=True):
    """The reply to ``RequestSnapshot``. A worker that exits sends a last one, with ``request_id`` 0."""

    request_id: int
    snapshot: Snapshot


ToWorker = (
    StartWorker
    | TakeConnection
    | RequestSnapshot
    | FindIdlest
    | CloseConnection
    | DescribeConnections
    | HoldConnection
    | ReportLogins
    | ReportThrottles
    | PrepareConfig
    | DiscardConfig
    | UpdateConfig
    | UpdateFleetView
    | UpdateFeaturesView
    | UpdateGroupsView
    | ReportTransition
    | FeatureUpdateAnswered
    | Drain
    | Abort
)
ToMain = (
    WorkerReady
    | StartFailed
    | ConnectionsClosed
    | ClientsLoggedIn
    | IdlestConnection
    | ConnectionsPage
    | ConfigPrepared
    | FeatureUpdateAsked
    | HandBroker
    | HandConsumer
    | SnapshotReply
)


class IpcChannel(Generic[Message]):
    """One end of the socket pair. Belongs to the event loop's thread.

    ``message_type``: the union of the incoming messages. ``on_message(message, descriptor)`` is called for each of
    them. The callee has to close ``descriptor``, that of the socket that came with the message. It is None if none
    came, or if this process had no descriptor left for it. ``on_peer_gone()`` is called when the peer has closed its
    end, and ``on_all_sent()`` when no message is queued any more.
    """

    def __init__(
        self,
        sock: socket.socket,
        message_type: Any,
        on_message: Callable[[Message, int | None], None],
        *,
        on_peer_gone: Callable[[], None] = lambda: None,
        on_all_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = sock
        self._on_message = on_message
        self._on_peer_gone = on_peer_gone
        self._on_all_sent = on_all_sent
        self._decoder = msgspec.msgpack.Decoder(message_type)
        self._encoder = msgspec.msgpack.Encoder()
        self._packet = bytearray(len(LAST_PACKET) + MAX_PACKET_SIZE)
        self._incoming = bytearray()  # packets of an incomplete message
        self._unsent: deque[tuple[Struct, bytes, AnySocket | None]] = deque()
        self._outgoing = b""  # the rest of the first message, once its sending has begun
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._on_readable)

    @property
    def is_full(self) -> bool:
        """Whether messages are queued because the peer does not receive them. Send only what cannot wait or go
        elsewhere."""
        return bool(self._unsent)

    def send(self, message: Struct, sock: AnySocket | None = None) -> None:
        """Send ``message``, or queue it. ``sock`` is sent with it and then closed here.

        Raises the encoder's error for a message that cannot be encoded. Nothing is queued then.
        """
        self._unsent.append((message, self._encoder.encode(message), sock))
        if len(self._unsent) == 1:
            self._send_queued()

    def close(self) -> list[tuple[Struct, AnySocket | None]]:
        """Receive what the peer has sent, close this end, and return the messages that were not sent."""
        self._on_readable()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        return [(message, sock) for message, _, sock in self._unsent]

    def abandon(self) -> None:
        """Close this end, and drop what was not sent."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, _, sock in self._unsent:
            if sock is not None:
                sock.close()
        self._unsent.clear()

    def flush_and_close(self) -> None:
        """Block for up to ``FLUSH_TIMEOUT`` seconds until all messages are sent, then close. For a process that
        exits."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.settimeout(FLUSH_TIMEOUT)
        self._send_queued()
        self._socket.close()

    def _send_queued(self) -> None:
        while self._unsent:
            _, encoded, sock = self._unsent[0]
            self._outgoing = self._outgoing or encoded
            try:
                while len(self._outgoing) > MAX_PACKET_SIZE:
                    self._socket.sendmsg([MORE_PACKETS, self._outgoing[:MAX_PACKET_SIZE]])
                    self._outgoing = self._outgoing[MAX_PACKET_SIZE:]
                ancillary = (
                    [] if sock is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [sock.fileno()]))]
                )
                self._socket.sendmsg([LAST_PACKET, self._outgoing], ancillary)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._on_writable)
                return
            except OSError as error:
                # The reader notices that the peer is gone. Unsent messages stay queued, so that others can get them.
                if error.errno not in PEER_GONE_ERRORS:
                    self._loop.call_later(SEND_RETRY_DELAY, self._on_writable)
                return
            if sock is not None:
                sock.close()
            self._unsent.popleft()
            self._outgoing = b""

    def _on_writable(self) -> None:
        if self._socket.fileno() == -1:
            return
        self._loop.remove_writer(self._socket)
        self._send_queued()
        if not self._unsent:
            self._on_all_sent()

    def _on_readable(self) -> None:
        """Receive all packets. Once the peer is gone, uvloop calls this one more time and never again."""
        while True:
            try:
                size, ancillary, _, _ = self._socket.recvmsg_into(
                    [self._packet], socket.CMSG_SPACE(array("i").itemsize), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # raised once if the peer left packets unread; its own packets can still be read
            if not size:
                self._loop.remove_reader(self._socket)
                self._on_peer_gone()
                return
            with memoryview(self._packet) as packet:
                self._incoming += packet[len(LAST_PACKET) : size]
            if self._packet.startswith(MORE_PACKETS):
                continue
            message = self._decoder.decode(self._incoming)
            self._incoming.clear()
            self._on_message(message, array("i", ancillary[0][2])[0] if ancillary else None)
