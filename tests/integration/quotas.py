"""Requests about quotas as bytes, right and wrong ones, and the answers of a real broker to them (M7, M8, M12)."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from proxy.core.apis import request_is_flexible

RATE = "connection_creation_rate"
CREATION = "max.connection.creation.rate"
DESCRIBE, ALTER, ALTER_CONFIGS = 48, 49, 44
EXACT, DEFAULT, ANY = 0, 1, 2
TIMEOUT = 60.0

Entity = Sequence[tuple[str, str | None]]
Op = tuple[str, float, bool]
Component = tuple[str, int, str | None]


class Case(NamedTuple):
    """One request, and what Kafka answers."""

    name: str
    key: int
    version: int
    body: bytes
    code: int
    said: str = ""
    """Part of the message."""


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


def cases(broker: int) -> list[Case]:
    """All of the tables. They leave the broker without quotas, as long as all of them are sent in this order."""
    return [case for version in (0, 1) for case in (*_m7(version), *_m8(version))] + _m12(broker)


def _m7(version: int) -> list[Case]:
    def case(name: str, entity: Entity, ops: Sequence[Op], code: int, said: str = "", validate: bool = False) -> Case:
        body = alter(entity, *ops, version=version, validate=validate)
        return Case(f"alter v{version}: {name}", ALTER, version, body, code, said)

    def ip(name: str | None) -> Entity:
        return [("ip", name)]

    def to(rate: float) -> Sequence[Op]:
        return [(RATE, rate, False)]

    def gone(rate: float = 0.0) -> Sequence[Op]:
        return [(RATE, rate, True)]

    unresolvable = "is not a valid IP or resolvable host."
    combined = "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
    unknown = "Invalid configuration key"
    not_above_0 = "must be greater than 0"
    one = ip("10.0.0.1")
    return [
        case("the KIP's own example", ip("93.284.53.13"), to(100), 42, unresolvable),
        case("an address", ip("93.184.53.13"), to(100), 0),
        case("and without it", ip("93.184.53.13"), gone(), 0),
        *(case(f"only looking at {name}", ip(name), to(5), 0, validate=True) for name in ("::1", "localhost", None)),
        case("a network", ip("10.0.0.0/8"), to(5), 42, unresolvable),
        case("with a user", [("ip", "10.0.0.1"), ("user", "u")], to(1), 42, combined),
        case("with a client id", [("ip", "10.0.0.1"), ("client-id", "u")], to(1), 42, combined),
        case("empty", ip(""), to(1), 42, "Empty ip not supported"),
        case("another type", [("host", "x")], to(1), 42, "Unhandled client quota entity type: host"),
        case("no entity", [], to(1), 42, "Invalid empty client quota entity"),
        case("another key", one, [("producer_byte_rate", 1, False)], 42, f"{unknown} producer_byte_rate"),
        case("of a user", [("user", "u")], to(5), 42, f"{unknown} {RATE}"),
        case("0", one, to(0), 42, not_above_0),
        case("negative", one, to(-1), 42, not_above_0),
        case("half", one, to(1.5), 42, "cannot be a fractional value."),
        case("too much", one, to(3e9), 42, "is too large for an INT."),
        case("a key twice", one, [*to(1), *to(2)], 42, "duplicate"),
        case("nothing to remove", ip("10.0.0.9"), gone(), 0),
        case("a type twice", [("ip", "10.0.0.1"), ("ip", "10.0.0.2")], to(1), 0),
        case("the last of the two", ip("10.0.0.2"), gone(), 0),
    ]


def _m8(version: int) -> list[Case]:
    def case(name: str, components: Sequence[Component], code: int, said: str = "") -> Case:
        return Case(
            f"describe v{version}: {name}", DESCRIBE, version, describe(*components, version=version), code, said
        )

    combined = "IP filter component should not be used with user or clientId filter component."
    also = "but also specified a match string."
    return [
        case("all addresses", [("ip", ANY, None)], 0),
        case("everything", [], 0),
        case("with users", [("ip", ANY, None), ("user", ANY, None)], 42, combined),
        case("with client ids", [("ip", EXACT, "1.1.1.1"), ("client-id", DEFAULT, None)], 42, combined),
        case(
            "a type twice",
            [("ip", ANY, None), ("ip", DEFAULT, None)],
            42,
            "Entity type ip cannot appear more than once",
        ),
        case("no type", [("", ANY, None)], 42, "Invalid empty entity type."),
        case("another type", [("host", ANY, None)], 35),
        case("exactly nothing", [("ip", EXACT, None)], 42, "MATCH_TYPE_EXACT, but set match string to null."),
        case("the default with a name", [("ip", DEFAULT, "x")], 42, also),
        case("any with a name", [("ip", ANY, "x")], 42, also),
        case("another match", [("ip", 7, None)], 42, "Unknown match type 7"),
    ]


def _m12(broker: int) -> list[Case]:
    def case(name: str, key: str, value: str | None, code: int, said: str = "") -> Case:
        return Case(f"{key}: {name}", ALTER_CONFIGS, 0, set_config(broker, key, value), code, said)

    keys = (CREATION, f"listener.name.client.{CREATION}")
    # Right after a change the broker words its refusals differently: those come first.
    refused = [
        case(name, key, value, 42, said)
        for key in keys
        for name, value, said in (("0", "0", CREATION), ("negative", "-1", "Value must be at least 0"))
    ]
    return refused + [
        case(name, key, value, 0) for key in keys for name, value in (("many", "2000000000"), ("removed", None))
    ]


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
