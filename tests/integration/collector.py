"""A scripted peer in place of an OpenTelemetry collector: real sockets, and answers that a test chooses."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import h11

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
    """Until the other side gives up."""
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


class Collector:
    """Takes requests while it is open. ``script``: the next answers, and then ``usual`` for ever."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.taken: list[Request] = []
        """Those whose answer was one of ``accepting``."""
        self.accepting: tuple[Answer, ...] = (OK,)
        self.connections = 0
        self.script: deque[Answer] = deque()
        self.usual: Answer = OK
        self.reads_bodies = True
        """Whether a request is read to its end before it is answered."""
        (self.port,) = free_ports(1)  # of which no passing connection takes one while it is closed
        self._tls = tls
        self._open: set[socket.socket] = set()
        self._listening: socket.socket | None = None
        self._lock = threading.Lock()  # what is accepted while it is closed is closed, too
        self._threads: list[threading.Thread] = []
        self.open()

    @property
    def endpoint(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Listen, on the same port as before."""
        self._listening = listening = socket.create_server(("127.0.0.1", self.port))
        self._start(self._accept, listening)

    def close(self) -> None:
        """Refuse connections, and close those that there are."""
        with self._lock:
            for each in filter(None, (self._listening, *self._open)):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._listening = None

    def join(self) -> None:
        for thread in self._threads:
            thread.join(10)

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Boot id and event of each log record that was taken, by number; the same one again is left out."""
        found = {(boot_id, event["seq"]): event for one in list(self.taken) for boot_id, event in one.events()}
        return [(boot_id, found[boot_id, seq]) for boot_id, seq in sorted(found)]

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with self._lock:
                    self.connections += 1
                    is_open = self._listening is listening
                    if is_open:
                        self._open.add(connection)
                if is_open:
                    self._start(self._serve, connection)
                else:
                    connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                with self._lock:
                    self._open.discard(connection)
                    connection = wrapped = self._tls.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    )
                    self._open.add(connection)
                wrapped.do_handshake()
            while (request := self._read(connection)) is not None:
                self.requests.append(request)
                answer = self.script.popleft() if self.script else self.usual
                if answer in self.accepting:  # before the answer is sent: its reader may look at once
                    self.taken.append(request)
                answer(connection, request)
        except (OSError, AttributeError):  # the latter: of a socket that is closed during its handshake
            pass
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _read(self, connection: socket.socket) -> Request | None:
        http = h11.Connection(h11.SERVER)
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                data = connection.recv(65_536)
                if not data:
                    return None  # the peer has gone, maybe in the middle of a request
                http.receive_data(data)
            elif isinstance(event, h11.Request):
                head = event
                if not self.reads_bodies:
                    break
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return None
        assert head is not None
        headers = {name.decode(): value.decode() for name, value in head.headers}
        whole = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else bytes(body)
        return Request(head.target.decode(), headers, whole)
