"""The admin endpoint's HTTP/1.1: GET, HEAD and POST, one request a connection, everything bounded.

There is no authentication, so a web page that somebody here looks at must not be able to change anything. Browsers send
``Origin`` with every POST, also to the address a page came from; tools send none. So a POST with one is refused.

h11 reads and writes the protocol; a web framework would be half of the sidecar's start and a fifth of its memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

import h11
import structlog

log = structlog.get_logger(__name__)

MAX_HEAD = 16_384
"""Bytes of a request: its line and its headers."""

MAX_BODY = 16_384
"""Bytes of a request's body, which is read past: nothing here takes one."""

MAX_CONNECTIONS = 64
"""Connections at a time; one more is closed unheard."""

PATIENCE = 10.0
"""Seconds a peer has to send its request, and again to take the answer."""


class Response(NamedTuple):
    """What a handler answers."""

    body: bytes
    status: int = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    allow: str = ""
    """Methods that are allowed, where another one was asked for."""


Handler = Callable[[], Awaitable[Response]]


class HttpServer:
    """Serves paths: ``gets`` are answered to GET and HEAD, ``posts``, which change something, to POST."""

    def __init__(self, gets: Mapping[str, Handler], posts: Mapping[str, Handler]) -> None:
        self._gets = gets
        self._posts = posts
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError where the address cannot be had."""
        self._server = await asyncio.start_server(self._connected, host, port)

    async def close(self) -> None:
        """Stop listening, and end what is being answered."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        try:
            async with asyncio.timeout(PATIENCE):
                request = await _read(connection, reader)
            if request is None:
                return
            response = await self._answer(request)
            writer.write(_encoded(connection, request, response))
            async with asyncio.timeout(PATIENCE):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except OSError:  # the peer is gone, or took too long
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, request: h11.Request | HTTPStatus) -> Response:
        if isinstance(request, HTTPStatus):
            return _failure(request)
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        changes = path in self._posts
        handler = self._posts[path] if changes else self._gets.get(path)
        if handler is None:
            return _failure(HTTPStatus.NOT_FOUND)
        if request.method not in ((b"POST",) if changes else (b"GET", b"HEAD")):
            return _failure(HTTPStatus.METHOD_NOT_ALLOWED)._replace(allow="POST" if changes else "GET, HEAD")
        if changes and any(name == b"origin" for name, _ in request.headers):
            return _failure(HTTPStatus.FORBIDDEN)
        try:
            return await handler()
        except Exception:
            log.exception("admin_request_failed", path=request.target)
            return _failure(HTTPStatus.INTERNAL_SERVER_ERROR)


async def _read(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | HTTPStatus | None:
    """Return a request, what is wrong with it, or None where the peer ends the connection before it."""
    request: h11.Request | None = None
    body = 0
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            return HTTPStatus(error.error_status_hint)
        if isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += len(event.data)
            if body > MAX_BODY:
                return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.ConnectionClosed):
            return None
        else:
            connection.receive_data(await reader.read(MAX_HEAD))


def _failure(status: HTTPStatus) -> Response:
    return Response(f"{status.phrase}\n".encode(), status)


def _encoded(connection: h11.Connection, request: h11.Request | HTTPStatus, response: Response) -> bytes:
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
