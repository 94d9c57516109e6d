"""BrokerMetadata (KIP-35, its draft): which brokers there are, what each supports, and its tags.

The request is not Kafka's: its api key is ``private.api.key.base``. Its framing is (request header v1, response header
v0, nothing flexible). No broker ever sees one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from proxy.core.intercept import ASKED, Interceptor, Request, Verdict, Way
from proxy.core.wire import MAX_STRING, TRUNCATED, Buffer, Nonsense, int32_length, string
from proxy.errors import MalformedBody

VERSION = 0

THIS_BROKER = -1
"""In a request: the broker that is asked."""

MAX_KEPT = 1024
"""Bytes of a request whose answer is kept for the next one: clients mostly ask for the same."""

NOWHERE = "", -1
"""Host and port of a broker whose address for clients is not known."""

Address = tuple[str, int]

_int32 = struct.Struct(">i")
_entry = struct.Struct(">iii")


class BrokerEntry(Struct, frozen=True):
    """One broker in a response. The range is inclusive, -1 and -1 where it is not known."""

    node_id: int
    host: str
    port: int
    protocol_min: int
    protocol_max: int
    tags: Mapping[str, str] = {}


class BrokerView(Struct, frozen=True, array_like=True):
    """What the sidecar knows of one broker. ``addresses``: what clients dial, by listener name in lower case; also of a
    broker that is not ``running``."""

    node_id: int
    addresses: Mapping[str, Address]
    protocol_min: int = -1
    protocol_max: int = -1
    tags: Mapping[str, str] = {}
    running: bool = True


class FleetView(Struct, frozen=True, array_like=True):
    """What the sidecar knows of all brokers, its own (``node_id``) among them; for whoever carries connections.

    ``protected``: topic ids (16 bytes) of the sidecars' own topics, as far as they are known.
    """

    node_id: int
    brokers: tuple[BrokerView, ...]
    protected: tuple[bytes, ...] = ()


class Fleet:
    """The present view, one for all listeners of a process. ``view`` is replaced as a whole."""

    def __init__(self, view: FleetView) -> None:
        self.view = view

    @property
    def view(self) -> FleetView:
        """What is known now."""
        return self._view

    @view.setter
    def view(self, view: FleetView) -> None:
        self._view = view
        running = sorted((broker for broker in view.brokers if broker.running), key=lambda broker: broker.node_id)
        self._running = {broker.node_id: broker for broker in running}

    def select(self, listener: str, wanted: Sequence[int]) -> list[BrokerEntry]:
        """Return the brokers asked for, by node id, as clients of ``listener`` see them.

        None asked for: all. Those that do not run or are not known are left out, and nobody is told twice.
        """
        ids = {self.view.node_id if node_id == THIS_BROKER else node_id for node_id in wanted}
        known = self._running
        name = listener.lower()
        found = []
        for broker in [known[node_id] for node_id in sorted(ids & known.keys())] if wanted else known.values():
            host, port = broker.addresses.get(name, NOWHERE)
            found.append(BrokerEntry(broker.node_id, host, port, broker.protocol_min, broker.protocol_max, broker.tags))
        return found


class BrokerMetadata(Interceptor):
    """Of one listener. ``open_to_all``: whether it is answered before the client has authenticated."""

    def __init__(self, fleet: Fleet, listener: str, api_key: int, *, open_to_all: bool) -> None:
        self._fleet = fleet
        self._listener = listener
        self._api_key = api_key
        self._open_to_all = open_to_all
        self._last = (FleetView(THIS_BROKER, ()), b"", b"")  # the view, what was asked for, and what was answered

    def wants(self, api_key: int, api_version: int) -> int:
        """Its one version; any other is a request that is not supported."""
        return ASKED if api_key == self._api_key and api_version == VERSION else 0

    def ask(self, request: Request, body: bytes) -> Verdict:
        """Answer, unless the client is not logged in: the broker closes then, as for any other request."""
        if request.connection.principal_source == "unauthenticated" and not self._open_to_all:
            return Way.FORWARD
        view, asked, answer = self._last
        if view is not self._fleet.view or asked != body:
            answer = encode_response(self._fleet.select(self._listener, decode_request(body)))
            if len(body) <= MAX_KEPT:
                self._last = (self._fleet.view, body, answer)
        return answer


def encode_request(node_ids: Iterable[int]) -> bytes:
    """Return the body of a request."""
    wanted = list(node_ids)
    return struct.pack(f">i{len(wanted)}i", len(wanted), *wanted)


def decode_request(body: Buffer) -> list[int]:
    """Return the node ids of a request; null is as empty. Raises MalformedBody."""
    try:
        count, pos = int32_length(body, 0)
        if len(body) != pos + 4 * max(0, count):
            raise Nonsense(f"{len(body) - pos} bytes for {count} node ids")
    except TRUNCATED:
        raise MalformedBody("client", "a request without node ids") from None
    return list(struct.unpack_from(f">{max(0, count)}i", body, pos))


def encode_response(brokers: Sequence[BrokerEntry]) -> bytes:
    """Return the body of a response. Raises ValueError for a text longer than Kafka's strings may be."""
    parts = [_int32.pack(len(brokers))]
    for broker in brokers:
        parts += [_int32.pack(broker.node_id), _string(broker.host)]
        parts.append(_entry.pack(broker.port, broker.protocol_min, broker.protocol_max))
        parts.append(_int32.pack(len(broker.tags)))
        for name, value in broker.tags.items():
            parts += [_string(name), _string(value)]
    return b"".join(parts)


def decode_response(body: Buffer) -> list[BrokerEntry]:
    """Return the brokers of a response. Raises MalformedBody."""
    try:
        brokers = []
        count, pos = int32_length(body, 0)
        for _ in range(count):
            node_id = _int32.unpack_from(body, pos)[0]
            host, pos = _text(body, pos + 4)
            port, low, high = _entry.unpack_from(body, pos)
            tags: dict[str, str] = {}
            pairs, pos = int32_length(body, pos + _entry.size)
            for _ in range(pairs):
                name, pos = _text(body, pos)
                tags[name], pos = _text(body, pos)
            brokers.append(BrokerEntry(node_id, host, port, low, high, tags))
        if pos != len(body):
            raise MalformedBody("broker", f"{len(body) - pos} bytes after the brokers")
    except (*TRUNCATED, Nonsense, UnicodeDecodeError):
        raise MalformedBody(
            "broker", f"a BrokerMetadata response of {len(body)} bytes that is not as defined"
        ) from None
    return brokers


def _string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > MAX_STRING:
        raise ValueError(f"a text of {len(raw)} bytes (allowed: {MAX_STRING})")
    return struct.pack(">h", len(raw)) + raw


def _text(body: Buffer, pos: int) -> tuple[str, int]:
    raw, pos = string(body, pos)
    return (raw or b"").decode(), pos
