"""POST requests over one HTTP/1.1 connection that is kept open, each within a deadline and with a bounded response.

It follows no redirect, and uses no proxy of the environment. h11 reads and writes the protocol.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import h11
from msgspec import Struct

MAX_RESPONSE_BYTES = 1_048_576
"""Bytes of one response, its headers included. Usual ones have less than a hundred."""

MAX_HEADER_BYTES = 65_536
"""Bytes of the headers of a response."""

CHUNK_BYTES = 65_536
"""Bytes of one call that sends or receives."""


class Url(Struct, frozen=True):
    """Where requests go. ``target``: path and query."""

    tls: bool
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """Host and port as in the header ``host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class HttpResponse(Struct, frozen=True):
    """A response. ``headers``: by name in lower case. ``body``: None if it has more than ``MAX_RESPONSE_BYTES``."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None


class ConnectionEnded(OSError):
    """The peer closed the connection before the response was whole, or sent what is not HTTP."""


class HttpConnection:
    """Sends requests, one at a time. Only ``abort`` may be called by another thread."""

    def __init__(
        self,
        url: Url,
        headers: Sequence[tuple[str, str]],
        timeout: float,
        make_tls_context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        """``headers``: of each request, beside ``host`` and ``content-length``. ``timeout``: seconds for one request.

        ``make_tls_context`` is called for each connection, so that renewed certificates are used.
        """
        self._url = url
        self._headers = [("host", url.authority), *headers]
        self._timeout = timeout
        self._make_tls_context = make_tls_context
        self._socket: socket.socket | None = None
        self._is_aborted = False
        self._http = h11.Connection(h11.CLIENT)

    def post(self, body: bytes) -> HttpResponse:
        """Send one request and return its response. Connect if that is needed.

        A connection that the server closed while it was idle is replaced at once. Raises OSError where there is no
        whole response in time; the next request then begins with a new connection.
        """
        deadline = time.monotonic() + self._timeout
        reused = self._socket is not None
        try:
            try:
                return self._exchange(body, deadline)
            except (ConnectionEnded, ConnectionError):
                if not reused or self._is_aborted:
                    raise
                self.close()
                return self._exchange(body, deadline)
        except BaseException:
            self.close()
            raise

    def abort(self) -> None:
        """Let a request that is under way fail. There must be none after it."""
        self._is_aborted = True
        connection = self._socket
        if connection is not None:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _exchange(self, body: bytes, deadline: float) -> HttpResponse:
        connection = self._socket
        if connection is None:
            connection = self._socket = self._connect(deadline)
            self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
        http = self._http
        headers = [*self._headers, ("content-length", str(len(body)))]
        head = http.send(h11.Request(method="POST", target=self._url.target, headers=headers))
        http.send(h11.Data(data=body))  # what it returns is the body
        http.send(h11.EndOfMessage())
        unsent = [memoryview(body), memoryview(head or b"")]
        response: h11.Response | None = None
        content = bytearray()
        received = 0
        while True:
            event = self._next_event(response)
            if isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                content += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            elif event is h11.NEED_DATA:
                data = _receive(connection)
                if data is not None:
                    received += len(data)
                    if received > MAX_RESPONSE_BYTES:
                        self.close()
                        if response is None:
                            raise ConnectionEnded("the headers of the response are too large")
                        return _response(response, None)
                    http.receive_data(data)
                elif not unsent:
                    _wait(connection, select.POLLIN, deadline)
                elif blocked_on := _send(connection, unsent):
                    _wait(connection, blocked_on | select.POLLIN, deadline)
        assert response is not None
        if unsent or http.our_state is not h11.DONE or http.their_state is not h11.DONE:
            self.close()  # it was answered before it was sent, or the server ends the connection
        else:
            http.start_next_cycle()
        return _response(response, bytes(content))

    def _next_event(self, response: h11.Response | None) -> object:
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise ConnectionEnded(str(error)) from error
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise ConnectionEnded("the server closed the connection")
        return event

    def _connect(self, deadline: float) -> socket.socket:
        """Connect to the first address that answers. Raises OSError."""
        found: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self._url.host, self._url.port, type=socket.SOCK_STREAM
        ):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(_left(deadline))
                connection.connect(address)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._url.tls:
                    connection.settimeout(_left(deadline))
                    connection = self._make_tls_context().wrap_socket(connection, server_hostname=self._url.host)
                connection.setblocking(False)
                return connection
            except OSError as error:
                connection.close()
                found = error
            except BaseException:
                connection.close()
                raise
        raise found or OSError("the name has no address")


def _response(response: h11.Response, body: bytes | None) -> HttpResponse:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
    return HttpResponse(response.status_code, headers, body)


def _receive(connection: socket.socket) -> bytes | None:
    """Return what has arrived; b"" at its end; None if there is nothing now."""
    try:
        return connection.recv(CHUNK_BYTES)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None


def _send(connection: socket.socket, unsent: list[memoryview]) -> int:
    """Send a part of the last of ``unsent``. Return 0, or the event of ``select.poll`` that has to come first."""
    try:
        sent = connection.send(unsent[-1][:CHUNK_BYTES])
    except ssl.SSLWantReadError:
        return select.POLLIN
    except (BlockingIOError, ssl.SSLWantWriteError):
        return select.POLLOUT
    except OSError:  # the server takes no more; it may have answered
        unsent.clear()
        return 0
    left = unsent[-1][sent:]
    if left:
        unsent[-1] = left
    else:
        unsent.pop()
    return 0


def _wait(connection: socket.socket, events: int, deadline: float) -> None:
    """Wait for one of these events of ``select.poll``. Raises TimeoutError."""
    poll = select.poll()  # select.select takes no descriptor above 1023
    poll.register(connection, events)
    if not poll.poll(_left(deadline) * 1000):
        raise TimeoutError("no whole response in time")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no whole response in time")
    return left
