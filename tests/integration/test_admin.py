"""The admin endpoint's HTTP: what is asked for, what is refused, and what bounds a peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest

from proxy.config import Endpoint
from proxy.net import http
from proxy.net.http import AdminRequest, HttpServer, Response
from proxy.net.listening_sockets import bind_listening_socket
from tests.integration.conftest import free_port


async def hello(request: AdminRequest) -> Response:
    return Response(b"hello\n")


async def busy(request: AdminRequest) -> Response:
    return Response(b"later\n", 503, "text/strange")


async def broken(request: AdminRequest) -> Response:
    raise ValueError("what nobody outside needs to know")


async def changed(request: AdminRequest) -> Response:
    return Response(b"changed\n")


GETS = {"/hello": hello, "/busy": busy, "/broken": broken}


@pytest.fixture(autouse=True)
def late_responses(monkeypatch: pytest.MonkeyPatch, late_requests: None) -> None:
    monkeypatch.setattr(http, "RESPONSE_TIMEOUT", 60.0)


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    server, port = HttpServer(GETS, {"/change": changed}, {"kafka-1.example"}), free_port()
    server.start(bind_listening_socket(Endpoint("127.0.0.1", port), 128))
    try:
        yield port
    finally:
        await server.close()


async def ask(port: int, request: bytes) -> tuple[str, list[str], bytes]:
    """Send ``request``; return the status line, the headers and the body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *headers = head.decode().split("\r\n")
    return status, headers, body


async def to_the_end(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is closed, or reset."""
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
    return b""


@pytest.mark.promise("operations.md", "The admin endpoint answers HTTP, and ends each connection with it.")
async def test_a_path_is_answered_and_the_connection_ends() -> None:
    async with serving() as port:
        status, headers, body = await ask(port, b"GET /hello?name=x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        assert headers == ["Content-Type: text/plain; charset=utf-8", "Content-Length: 6", "Connection: close"]
        assert body == b"hello\n"
        status, headers, body = await ask(port, b"GET /busy HTTP/1.0\r\n\r\n")
        assert (status, headers[0]) == ("HTTP/1.1 503 Service Unavailable", "Content-Type: text/strange")
        assert body == b"later\n"
        status, headers, body = await ask(port, b"HEAD /hello HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (status, headers[1], body) == ("HTTP/1.1 200 OK", "Content-Length: 6", b"")


async def test_a_post_changes_something_whatever_its_body() -> None:
    post = b"POST /change HTTP/1.1\r\nHost: localhost\r\n"
    async with serving() as port:
        for rest in (
            b"\r\n",
            b"Content-Length: 0\r\n\r\n",
            b"Content-Length: 16384\r\n\r\n" + b"x" * http.MAX_BODY_SIZE,
            b"Transfer-Encoding: chunked\r\n\r\n3\r\n{ }\r\n0\r\n\r\n",
        ):
            status, headers, body = await ask(port, post + rest)
            assert (status, headers[1], body) == ("HTTP/1.1 200 OK", "Content-Length: 8", b"changed\n"), rest[:60]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post + b"Content-Length: 2\r\n\r\n{")  # the rest is waited for
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        writer.close()


@pytest.mark.promise("security.md", "A web page changes nothing at the admin endpoint, nor reads it.")
async def test_a_web_page_changes_nothing_and_another_name_is_refused() -> None:
    """DNS rebinding: a page's own name comes to mean this endpoint's address, so the browser lets the page read it."""
    async with serving() as port:
        for origin in (b"null", b"http://127.0.0.1:9644", b"https://elsewhere.example"):
            request = b"POST /change HTTP/1.1\r\nHost: 127.0.0.1\r\norigin: " + origin + b"\r\n\r\n"
            status, _, body = await ask(port, request)
            assert (status, body) == ("HTTP/1.1 403 Forbidden", b"Forbidden\n"), origin
        for host in (
            *(b"attacker.example", b"attacker.example:9644", b"127.0.0.1.attacker.example", b"localhost.x", b""),
            b"[x]:1",
        ):
            for line in (b"GET /hello", b"POST /change"):
                status, _, body = await ask(port, line + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
                assert (status, body) == ("HTTP/1.1 421 Misdirected Request", b"Misdirected Request\n"), host
        for host in (
            *(b"localhost", b"LocalHost:9644", b"localhost.", b"127.0.0.1", b"127.0.0.1:9644", b"[::1]:9644"),
            *(b"10.1.2.3", b"kafka-1.example", b"Kafka-1.Example.:9644"),
        ):
            status, _, _ = await ask(port, b"GET /hello HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            assert status == "HTTP/1.1 200 OK", host


async def test_what_cannot_be_answered_is_refused() -> None:
    large = f"413 {HTTPStatus.REQUEST_ENTITY_TOO_LARGE.phrase}"  # a later Python has another name for it
    host = b" HTTP/1.1\r\nHost: localhost\r\n"
    body = b"Content-Length: 16385\r\n\r\n" + b"x" * (http.MAX_BODY_SIZE + 1)
    async with serving() as port:
        for request, status in (
            (b"GET /nothing" + host + b"\r\n", "404 Not Found"),
            (b"POST /change" + host + body, large),
            (b"GET /broken" + host + b"\r\n", "500 Internal Server Error"),
            (b"hello\r\n\r\n", "400 Bad Request"),
            (b"\x16\x03\x01 \xff\r\n\r\n", "400 Bad Request"),
            (b"GET /hello HTTP/1.1\r\n\r\n", "400 Bad Request"),  # without a host
            (b"GET /" + b"a" * http.MAX_HEADER_SIZE, "431 Request Header Fields Too Large"),
        ):
            first, _, answer = await ask(port, request)
            assert (first, answer) == (f"HTTP/1.1 {status}", f"{status[4:]}\n".encode()), request[:60]
        for line, allowed in (
            (b"POST /hello", "GET, HEAD"),
            (b"PUT /hello", "GET, HEAD"),
            (b"GET /change", "POST"),
            (b"HEAD /change", "POST"),
            (b"DELETE /change", "POST"),
        ):
            status, headers, _ = await ask(port, line + host + b"\r\n")
            assert (status, headers[3:]) == ("HTTP/1.1 405 Method Not Allowed", [f"Allow: {allowed}"]), line


@pytest.mark.promise("security.md", "Silent peers of the admin endpoint keep no request from its answer.")
async def test_one_connection_too_many_takes_the_place_of_the_oldest_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    async with serving() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        silent[1][1].write(b"GET /hello ")
        status, _, _ = await ask(port, b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        assert await to_the_end(silent[0][0]) == b""
        silent[1][1].write(b"HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await silent[1][0].read()).endswith(b"hello\n")
        for _, writer in silent:
            writer.close()


async def test_a_body_of_many_chunks_is_refused_and_the_loop_goes_on() -> None:
    """Each chunk has one byte, which counts, and an extension, which does not."""
    chunk = b"1;" + b"x" * 12_000 + b"\r\ny\r\n"
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /change HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                while not reader.at_eof():
                    writer.write(chunk)
                    await writer.drain()
        writer.close()


@pytest.mark.promise("architecture.md", "A request that is being answered keeps its place at the admin endpoint.")
async def test_what_is_being_answered_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: AdminRequest) -> Response:
        asked.set()
        await go_on.wait()
        return Response(b"slow\n")

    monkeypatch.setitem(GETS, "/slow", slow)
    async with serving() as port:
        answer = asyncio.create_task(ask(port, b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        await asked.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await to_the_end(reader) == b""
        writer.close()
        go_on.set()
        assert (await answer)[2] == b"slow\n"
