"""A scripted peer in place of an OpenTelemetry collector: real sockets, and answers that a test chooses."""

import gzip
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from proxy.local.ports import free_ports
from tests.unit.observers.otlp import checked, event_of, log_records


class Request(NamedTuple):
    """A request that was read whole. ``body``: decompressed."""

    target: str
    headers: dict[str, str]
    body: bytes

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Boot id and event of each log record."""
        return [
            (resource["service.instance.id"], event_of(record)) for resource, record in log_records(checked(self.body))
        ]


Answer = Callable[[socket.socket, Request], None]
"""Answers one request. The connection is closed if it raises ``ConnectionError``."""


def response(status: int, body: bytes = b"{}", headers: Iterable[tuple[str, str]] = ()) -> Answer:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in headers)]
    answer = ("\r\n".join(lines) + "\r\n\r\n").encode() + body
    return lambda connection, _: connection.sendall(answer)


OK = response(200)


def hang_up(connection: socket.socket, _: Request) -> None:
    raise ConnectionError


def say_nothing(connection: socket.socket, _: Request) -> None:
    while connection.recv(1):
        pass
    raise ConnectionError


def byte_by_byte(connection: socket.socket, _: Request) -> None:
    """An answer that never ends, a byte at a time."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.02)


def without_end(head: bytes) -> Answer:
    """``head``, and then as many bytes as the other side takes."""

    def answer(connection: socket.socket, _: Request) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(b"x" * 65_536)

    return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that its end waits for them

    def __init__(self, collector: "Collector") -> None:
        self.collector = collector
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", collector.port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, peer = super().get_request()
        if (tls := self.collector.tls) is not None:
            connection = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self.collector.connections += 1
        self.open.add(connection)
        return connection, peer

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection was closed, here or there."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        collector, body = self.server.collector, b""
        if collector.reads_bodies:
            body = self.rfile.read(length := int(self.headers["content-length"]))
            if len(body) < length:
                raise ConnectionError
        if body and self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        request = Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        collector.requests.append(request)
        answer = collector.script.popleft() if collector.script else collector.usual
        if answer in collector.accepting:  # before the answer is sent: its reader may look at once
            collector.taken.append(request)
        answer(self.connection, request)

    def log_message(self, *_: object) -> None:
        return


class Collector:
    """Takes requests while it is open. ``script``: the next answers, and then ``usual`` for ever.

    ``taken``: the requests whose answer was one of ``accepting``. ``reads_bodies``: whether a request is read to its
    end before it is answered.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.taken: list[Request] = []
        self.accepting: tuple[Answer, ...] = (OK,)
        self.connections = 0
        self.script: deque[Answer] = deque()
        self.usual: Answer = OK
        self.reads_bodies = True
        self.tls = tls
        (self.port,) = free_ports(1)  # of which no passing connection takes one while it is closed
        self._server: _Server | None = None
        self.open()

    @property
    def endpoint(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def open(self) -> None:
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()

    def close(self) -> None:
        if self._server is None:
            return
        self._server.shutdown()
        for each in list(self._server.open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._server = None

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Boot id and event of each log record that was taken, by number; the same one again is left out."""
        found = {(boot_id, event["seq"]): event for one in list(self.taken) for boot_id, event in one.events()}
        return [(boot_id, found[boot_id, seq]) for boot_id, seq in sorted(found)]
