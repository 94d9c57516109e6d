import asyncio
import socket
from collections.abc import Callable
from typing import Any

from proxy.core.causes import Cause
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection
from proxy.core.interceptor import Served
from proxy.core.session import Session
from proxy.errors import Side
from proxy.net.sockets import AcceptedSocket
from proxy.net.tls_stream import TlsStream
from proxy.telemetry import RateLimitedLogger

rate_limited: RateLimitedLogger

OnGivenUp = Callable[[Relay, Any, int, socket.socket, socket.socket, bytes], None]
"""See ``Relay.answer_deferred``."""

class Relay:
    """Both sides of one connection: the client and the broker.

    The first call of ``close`` ends the connection and calls ``on_closed(relay, cause, detail)``. Later, once all bytes
    are sent or discarded and both sockets are closed, ``on_finished(relay)`` is called.

    ``first_eof``: the close cause of the side that shut down sending first; None before. ``received_bytes`` and
    ``sent_bytes``: bytes from and to the client. ``last_byte_at``: when the last byte of either side arrived, or before
    that the time of construction, in seconds of the monotonic clock. The response to a deferred request counts, too.
    """

    on_finished: Callable[[Relay], None] | None

    def __init__(
        self,
        connection: Connection,
        session: Session | None,
        counters: ListenerCounters,
        on_closed: Callable[[Relay, Cause, str], None],
        on_finished: Callable[[Relay], None],
        on_given_up: OnGivenUp,
        deferred_slots: asyncio.Semaphore,
    ) -> None:
        """``deferred_slots``: see ``deferred_requests.create_slots``."""

    @property
    def counters(self) -> ListenerCounters: ...
    @property
    def session(self) -> Session | None: ...
    @property
    def first_eof(self) -> Cause | None: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def last_byte_at(self) -> float: ...
    @property
    def id(self) -> str:
        """The id of the connection."""

    @property
    def connection(self) -> Connection:
        """The connection with what is known about its client now."""

    @property
    def requests(self) -> int:
        """Requests that have begun; 0 without a session."""

    @property
    def client_id(self) -> str | None:
        """The client id of the last request; None without a session."""

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""

    @property
    def is_drained(self) -> bool:
        """Whether no request is open and no bytes are unsent, so that closing now loses nothing.

        Without a session: whether there was no byte for a second.
        """

    @property
    def is_finished(self) -> bool:
        """Whether the sockets of both sides are closed."""

    def unsent(self, side: Side) -> int:
        """Bytes for ``side`` that the kernel has not accepted yet."""

    def descriptor(self, side: Side) -> int:
        """The file descriptor of ``side``; -1 before the socket is attached and after it is closed."""

    def identify(self, connection: Connection, session: Session | None) -> None:
        """Set what is known of the client after its TLS handshake, and its session; before ``attach``."""

    def attach(
        self,
        client: socket.socket | AcceptedSocket,
        broker: int,
        client_tls: TlsStream | None = None,
        broker_tls: TlsStream | None = None,
    ) -> None:
        """Take ownership of both sockets and start relaying. Raises OSError after closing both of them.

        What the client has sent behind its handshake may be relayed at once, which may end the connection.

        ``broker``: the descriptor of a connected, non-blocking socket. ``client_tls``, ``broker_tls``: the established
        TLS of a side; None where bytes pass as they are.
        """

    def stop_reading_requests(self) -> None:
        """Finish reading a request that has begun, and read no further one. Used to drain.

        Without a session there are no known requests, so reading continues.
        """

    def hold_client(self, seconds: float) -> None:
        """Do not read the client for ``seconds``. Its connection to the broker is there already."""

    def call_broker(self, frame: bytes) -> None:
        """Send the broker a request for the deferred request, which gets what the broker sends (``feed``)."""

    def answer_deferred(self, answer: Served | Exception) -> None:
        """End the deferred request, see ``Session.answer_deferred``. A closed relay does nothing.

        With ``GivenUp``, ``on_given_up`` is called instead of ``on_closed`` and ``on_finished``, with the registration,
        the correlation id of the request, the sockets of client and broker, which it owns then, and what the client has
        sent behind the request. The relay counts as closed and finished.
        """

    def abort(self) -> None:
        """Close both sockets at once and discard unsent bytes."""

    def close(self, cause: Cause, detail: str = "", *, abort: bool = False) -> None:
        """Close both sides for ``cause``. Unsent bytes are still sent, unless ``abort``. Later calls do nothing."""
