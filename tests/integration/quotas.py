"""A connection that sends one request at a time, and requests about quotas as bytes."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

from proxy.core.apis import request_is_flexible

RATE = "connection_creation_rate"
CREATION = "max.connection.creation.rate"
DESCRIBE, ALTER, ALTER_CONFIGS = 48, 49, 44
EXACT, DEFAULT, ANY = 0, 1, 2
TIMEOUT = 60.0

Entity = Sequence[tuple[str, str | None]]
Op = tuple[str, float, bool]
Component = tuple[str, int, str | None]


class Peer:
    """A connection that sends one request at a time; ``address``: host:port, ``user`` logs in with SASL PLAIN."""

    def __init__(
        self,
        address: str,
        *,
        source: str = "127.0.0.1",
        user: tuple[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout, source_address=(source, 0))
        self._asked = 0
        if user is not None:
            assert self.ask(17, 1, text("PLAIN"))[:2] == b"\0\0"
            token = f"\0{user[0]}\0{user[1]}".encode()
            assert self.ask(36, 0, struct.pack(">i", len(token)) + token)[:2] == b"\0\0"

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def ask(self, key: int, version: int, body: bytes) -> bytes:
        """Return what follows the correlation id."""
        return self.ask_all([(key, version, body)])[0]

    def ask_all(self, requests: Sequence[tuple[int, int, bytes]]) -> list[bytes]:
        """Send all requests (api key, version, body) at once, and return what follows each correlation id."""
        first, sent = self._asked + 1, b""
        for key, version, body in requests:
            self._asked += 1
            head = struct.pack(">hhi", key, version, self._asked) + text("peer")
            if request_is_flexible(key, version):
                head += b"\0"
            sent += struct.pack(">i", len(head) + len(body)) + head + body
        self.sock.sendall(sent)
        return [self._answer(number) for number in range(first, self._asked + 1)]

    def _answer(self, expected: int) -> bytes:
        size, answered = struct.unpack(">ii", self._read(8))
        assert answered == expected
        return self._read(size - 4)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.sock.recv(size - len(data))
            if not chunk:
                raise ConnectionError("closed")
            data += chunk
        return data


def text(value: str | None, compact: bool = False) -> bytes:
    raw = None if value is None else value.encode()
    if compact:
        return b"\0" if raw is None else bytes([len(raw) + 1]) + raw
    return struct.pack(">h", -1) if raw is None else struct.pack(">h", len(raw)) + raw


def array(items: Sequence[bytes], compact: bool) -> bytes:
    count = bytes([len(items) + 1]) if compact else struct.pack(">i", len(items))
    return count + b"".join(item + (b"\0" if compact else b"") for item in items)


def alter(entity: Entity, *ops: Op, version: int = 0, validate: bool = False) -> bytes:
    """An AlterClientQuotas body for one entity."""
    compact = request_is_flexible(ALTER, version)
    parts = array([text(kind, compact) + text(name, compact) for kind, name in entity], compact)
    changes = array([text(key, compact) + struct.pack(">d?", value, remove) for key, value, remove in ops], compact)
    return array([parts + changes], compact) + struct.pack(">?", validate) + (b"\0" if compact else b"")


def describe(*components: Component, version: int = 0) -> bytes:
    """A DescribeClientQuotas body."""
    compact = request_is_flexible(DESCRIBE, version)
    parts = [text(kind, compact) + struct.pack(">b", match) + text(name, compact) for kind, match, name in components]
    return array(parts, compact) + b"\0" + (b"\0" if compact else b"")


def set_config(broker: int, name: str, value: str | None) -> bytes:
    """An IncrementalAlterConfigs v0 body that sets (None: removes) one key of a broker."""
    change = text(name) + struct.pack(">b", 0 if value is not None else 1) + text(value)
    return struct.pack(">ib", 1, 4) + text(str(broker)) + struct.pack(">i", 1) + change + b"\0"


def error_of(key: int, version: int, answer: bytes) -> tuple[int, str]:
    """Code and message of an answer: the first entry's where each has its own."""
    compact = request_is_flexible(key, version)
    pos = 1 if compact else 0  # the header's tags
    pos += 4  # throttle time
    if key != DESCRIBE:
        pos += 1 if compact else 4
    (code,) = struct.unpack_from(">h", answer, pos)
    pos += 2
    length, pos = (answer[pos] - 1, pos + 1) if compact else (struct.unpack_from(">h", answer, pos)[0], pos + 2)
    return code, answer[pos : pos + max(0, length)].decode()


def served(address: str, source: str, count: int, within: float = 0.5) -> int:
    """Open ``count`` connections at once from ``source``; return how many get an answer ``within`` seconds."""
    ask = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    peers, got = [], 0
    host, _, port = address.rpartition(":")
    try:
        for _ in range(count):
            sock = socket.create_connection((host, int(port)), TIMEOUT, source_address=(source, 0))
            peers.append(sock)
            sock.sendall(ask)
        deadline = time.monotonic() + within
        for sock in peers:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                got += bool(sock.recv(1))
            except (TimeoutError, ConnectionError):
                continue
    finally:
        for sock in peers:
            sock.close()
    return got
