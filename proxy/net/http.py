"""The HTTP/1.1 server of the admin endpoint: GET, HEAD and POST, one request per connection, everything bounded.

There is no authentication, so a web page in a browser on this host must neither change nor read anything.

* Browsers send ``Origin`` with every POST, even to the origin of the page; tools do not. So a POST with ``Origin`` is
  refused.
* A page can read responses from its own host name, and that name may resolve to this address (DNS rebinding). Such
  requests have the name in ``Host``. So every host name except ``localhost`` and the configured ones is refused with
  421. IP addresses are allowed.

Listeners leave more descriptors free (``descriptors.RESERVED_DESCRIPTORS``) than ``MAX_CONNECTIONS`` needs.

h11 parses and writes the protocol. A web framework would take half of the sidecar's start time and a fifth of its
memory.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import parse_qsl

import h11
import structlog

from proxy.core.counters import ListenerCounters
from proxy.net.acceptor import Acceptor
from proxy.net.sockets import AcceptedSocket
from proxy.telemetry import RateLimitedLogger

log = structlog.get_logger(__name__)

MAX_HEADER_SIZE = 16_384
"""Bytes of a request line and its headers."""

MAX_BODY_SIZE = 16_384
"""Bytes of a request body. It is read and discarded: no handler needs one."""

MAX_REQUEST_SIZE = MAX_HEADER_SIZE + 2 * MAX_BODY_SIZE
"""Bytes of all that a peer may send. A chunked body has the sizes of its chunks in addition."""

MAX_CONNECTIONS = 16
"""Open connections. One more closes the oldest connection that has not sent its whole request yet.

Two iterations of the event loop accept no more connections than this (``acceptor.ACCEPT_BATCH``), so a request that a
peer sends at once is read before its connection could be closed for another one.
"""

ACCEPT_BACKLOG = 128
"""Connections that wait in the kernel until they are accepted."""

HTTP_REQUEST_TIMEOUT = 2.0
"""Seconds within which a peer has to send its request."""

RESPONSE_TIMEOUT = 10.0
"""Seconds within which a peer has to receive the response."""


class Response(NamedTuple):
    """The response of a handler."""

    body: bytes
    status: int = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    allow: str = ""
    """The allowed methods, if another one was requested; otherwise empty."""


class AdminRequest(NamedTuple):
    """What a handler needs of a request. ``accept``: its ``Accept`` header, empty if there is none."""

    query: Mapping[str, str]
    """Parameters by name, decoded; of one that is given twice the last."""
    accept: str = ""


Handler = Callable[[AdminRequest], Awaitable[Response]]


class HttpServer:
    """Serves paths: ``gets`` by GET and HEAD, ``posts``, which change something, by POST.

    ``hosts``: host names, in lower case, that are allowed besides ``localhost`` and IP addresses.
    """

    def __init__(self, gets: Mapping[str, Handler], posts: Mapping[str, Handler], hosts: Collection[str] = ()) -> None:
        self._gets = gets
        self._posts = posts
        self._hosts = {"localhost", *hosts}
        self._acceptor: Acceptor | None = None
        self._open: dict[asyncio.Task[None], socket.socket] = {}
        self._without_request: dict[asyncio.Task[None], None] = {}  # whose request is incomplete, oldest first
        self._rate_limited = RateLimitedLogger(log)

    def allow_hosts(self, hosts: Collection[str]) -> None:
        """Replace the host names that are allowed besides ``localhost`` and IP addresses."""
        self._hosts = {"localhost", *hosts}

    def start(self, sock: socket.socket) -> None:
        """Accept connections of the listening socket ``sock``, which belongs to the server from now on."""
        self._acceptor = Acceptor(sock, ListenerCounters(), self._on_accept, self._on_out_of_capacity)
        self._acceptor.start_accepting()

    @property
    def listening_socket(self) -> socket.socket:
        """The listening socket. Needs ``start``."""
        assert self._acceptor is not None
        return self._acceptor.socket

    def stop_accepting(self) -> None:
        """Stop listening. Requests that have begun are answered."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    async def close(self) -> None:
        """Stop listening and cancel requests that are being answered."""
        self.stop_accepting()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _on_accept(self, accepted: AcceptedSocket, address: tuple[str, int]) -> bool:
        if len(self._open) >= MAX_CONNECTIONS:
            if not self._without_request:  # all requests are being answered
                accepted.close()
                return True
            oldest = next(iter(self._without_request))
            del self._without_request[oldest]
            oldest.cancel()
        sock = socket.socket(fileno=accepted.detach())
        sock.setblocking(False)  # as the loop's own methods want it of the object, too
        task = asyncio.get_running_loop().create_task(self._serve(sock))
        self._open[task] = sock
        self._without_request[task] = None
        task.add_done_callback(self._on_done)
        return True

    def _on_out_of_capacity(self, error: str) -> None:
        self._rate_limited.warning("admin_out_of_capacity", error=error)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task).close()  # the task may have been cancelled before it started
        self._without_request.pop(task, None)

    async def _serve(self, sock: socket.socket) -> None:
        # No transport is used. Creating one takes several iterations of the event loop, and in that time silent
        # connections could replace one that has sent its request.
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_SIZE)
        try:
            async with asyncio.timeout(HTTP_REQUEST_TIMEOUT):
                request = await _read_request(connection, sock)
            task = asyncio.current_task()
            if request is None or task is None:
                return
            self._without_request.pop(task, None)
            response = await self._respond(request)
            async with asyncio.timeout(RESPONSE_TIMEOUT):
                await asyncio.get_running_loop().sock_sendall(sock, _encode(connection, request, response))
        except OSError:  # the peer has closed the connection or was too slow
            pass

    async def _respond(self, request: h11.Request | HTTPStatus) -> Response:
        if isinstance(request, HTTPStatus):
            return _error_response(request)
        if not self._is_allowed_host(request):
            return _error_response(HTTPStatus.MISDIRECTED_REQUEST)
        path, _, query = request.target.decode("ascii", "replace").partition("?")
        changes = path in self._posts
        handler = self._posts[path] if changes else self._gets.get(path)
        if handler is None:
            return _error_response(HTTPStatus.NOT_FOUND)
        if request.method not in ((b"POST",) if changes else (b"GET", b"HEAD")):
            return _error_response(HTTPStatus.METHOD_NOT_ALLOWED)._replace(allow="POST" if changes else "GET, HEAD")
        if changes and any(name == b"origin" for name, _ in request.headers):
            return _error_response(HTTPStatus.FORBIDDEN)
        try:
            accept = b",".join(value for name, value in request.headers if name == b"accept")
            return await handler(AdminRequest(dict(parse_qsl(query, keep_blank_values=True)), accept.decode("latin-1")))
        except Exception:
            log.exception("admin_request_failed", path=request.target)
            return _error_response(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _is_allowed_host(self, request: h11.Request) -> bool:
        """Return whether the request's host is this server. A request of HTTP/1.0 may have no host."""
        for name, value in request.headers:
            if name == b"host":
                host = _host(value.decode("ascii", "replace"))
                return host in self._hosts or _is_address(host)
        return True


def _host(value: str) -> str:
    """Return the host of a ``Host`` header in lower case, without port, brackets and final dot; else the header."""
    if value.startswith("["):
        address, _, port = value[1:].partition("]")
        return address.lower() if not port or port.startswith(":") else value
    return value.partition(":")[0].lower().removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def _read_request(connection: h11.Connection, sock: socket.socket) -> h11.Request | HTTPStatus | None:
    """Return the request, the status if it is invalid, or None if the peer closes the connection before it is
    complete."""
    loop = asyncio.get_running_loop()
    request: h11.Request | None = None
    received = body = 0
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            return HTTPStatus(error.error_status_hint)
        if isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += len(event.data)
            if body > MAX_BODY_SIZE:
                return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.ConnectionClosed):
            return None
        elif received > MAX_REQUEST_SIZE:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        else:
            # The first read does not wait; later ones go through the event loop, which serves others in between.
            data = _recv_available(sock) if not received else None
            data = await loop.sock_recv(sock, MAX_HEADER_SIZE) if data is None else data
            received += len(data)
            connection.receive_data(data)


def _recv_available(sock: socket.socket) -> bytes | None:
    """Return the bytes that have arrived, ``b""`` at the end of the stream, or None if there are none yet."""
    try:
        return sock.recv(MAX_HEADER_SIZE)
    except BlockingIOError:
        return None


def _error_response(status: HTTPStatus) -> Response:
    return Response(f"{status.phrase}\n".encode(), status)


def _encode(connection: h11.Connection, request: h11.Request | HTTPStatus, response: Response) -> bytes:
    status = HTTPStatus(response.status)
    headers = [
        ("Content-Type", response.content_type),
        ("Content-Length", str(len(response.body))),
        ("Connection", "close"),
    ]
    if response.allow:
        headers.append(("Allow", response.allow))
    head = connection.send(h11.Response(status_code=status, headers=headers, reason=status.phrase))
    bodiless = isinstance(request, h11.Request) and request.method == b"HEAD"
    body = b"" if bodiless else connection.send(h11.Data(data=response.body))
    return (head or b"") + (body or b"")
