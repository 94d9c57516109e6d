"""BrokerMetadata (draft of KIP-35): which brokers there are, what each supports, and its tags.

This request is not part of Kafka's protocol. Its api key is ``private.api.key.base``. Its framing is Kafka's: request
header v1, response header v0, nothing flexible. It never reaches a broker.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from proxy.core.interceptor import ON_BODY, Disposition, Interceptor, Request, Verdict
from proxy.core.wire import MAX_STRING, TRUNCATED, Buffer, DecodeError, int32_length, string
from proxy.errors import MalformedBody

BROKER_METADATA_VERSION = 0

THIS_BROKER = -1
"""In a request: the broker of this sidecar."""

UNKNOWN_ADDRESS = "", -1
"""Host and port of a broker whose address for clients is unknown."""

HostPort = tuple[str, int]
"""Host and port."""

_int32 = struct.Struct(">i")
_entry = struct.Struct(">iii")


class BrokerEntry(Struct, frozen=True):
    """One broker in a response. The protocol range is inclusive, or -1 and -1 if it is unknown."""

    node_id: int
    host: str
    port: int
    protocol_min: int
    protocol_max: int
    tags: Mapping[str, str] = {}


class BrokerView(Struct, frozen=True, array_like=True):
    """What the sidecar knows about one broker.

    ``addresses``: what clients dial, by listener name in lower case. A broker that is not ``running`` has them, too.
    """

    node_id: int
    addresses: Mapping[str, HostPort]
    protocol_min: int = -1
    protocol_max: int = -1
    tags: Mapping[str, str] = {}
    running: bool = True


class FleetView(Struct, frozen=True, array_like=True):
    """What the sidecar knows about all brokers, including its own with ``node_id``.

    ``protected``: known topic ids (16 bytes) of the sidecars' own topics.
    """

    node_id: int
    brokers: tuple[BrokerView, ...]
    protected: tuple[bytes, ...] = ()


class FleetDirectory:
    """The current view of the fleet, shared by all listeners of a process. ``view`` is replaced as a whole."""

    def __init__(self, view: FleetView) -> None:
        self.view = view

    @property
    def view(self) -> FleetView:
        """What is known now."""
        return self._view

    @view.setter
    def view(self, view: FleetView) -> None:
        """The current view."""
        self._view = view
        running = sorted((broker for broker in view.brokers if broker.running), key=lambda broker: broker.node_id)
        self._running = {broker.node_id: broker for broker in running}

    def select(self, listener: str, wanted: Sequence[int]) -> list[BrokerEntry]:
        """Return the brokers of ``wanted``, ordered by node id, as clients of ``listener`` see them.

        An empty ``wanted`` selects all of them. Brokers that are unknown or do not run are left out, and none is
        repeated.
        """
        return [self.entry(listener, node_id) for node_id in self.select_ids(wanted)]

    def select_ids(self, wanted: Sequence[int]) -> Collection[int]:
        """Return the node ids of these brokers, as ``select`` does."""
        if not wanted:
            return self._running.keys()
        ids = {self.view.node_id if node_id == THIS_BROKER else node_id for node_id in wanted}
        return sorted(ids & self._running.keys())

    def entry(self, listener: str, node_id: int) -> BrokerEntry:
        """Return a broker that runs, as clients of ``listener`` see it."""
        broker = self._running[node_id]
        host, port = broker.addresses.get(listener.lower(), UNKNOWN_ADDRESS)
        return BrokerEntry(node_id, host, port, broker.protocol_min, broker.protocol_max, broker.tags)


class BrokerMetadataInterceptor(Interceptor):
    """Answers BrokerMetadata on one listener. ``open_to_all``: whether unauthenticated clients get an answer."""

    def __init__(self, fleet: FleetDirectory, listener: str, api_key: int, *, open_to_all: bool) -> None:
        self._fleet = fleet
        self._listener = listener
        self._api_key = api_key
        self._open_to_all = open_to_all
        self._view = FleetView(THIS_BROKER, ())
        self._encoded: dict[int, bytes] = {}  # brokers of the view in a response, once one was asked for

    def flags(self, api_key: int, api_version: int) -> int:
        """Its one version. Other versions are unsupported requests."""
        return ON_BODY if api_key == self._api_key and api_version == BROKER_METADATA_VERSION else 0

    def on_body(self, request: Request, body: bytes) -> Verdict:
        """Answer the request. That of an unauthenticated client is forwarded, and the broker closes the connection."""
        if request.connection.principal_source == "unauthenticated" and not self._open_to_all:
            return Disposition.FORWARD
        if self._view is not self._fleet.view:
            self._view, self._encoded = self._fleet.view, {}
        ids, encoded = self._fleet.select_ids(decode_request(body)), self._encoded
        for node_id in ids:
            if node_id not in encoded:
                encoded[node_id] = _encode_broker(self._fleet.entry(self._listener, node_id))
        return _int32.pack(len(ids)) + b"".join([encoded[node_id] for node_id in ids])


def encode_request(node_ids: Iterable[int]) -> bytes:
    """Return the body of a request."""
    wanted = list(node_ids)
    return struct.pack(f">i{len(wanted)}i", len(wanted), *wanted)


def decode_request(body: Buffer) -> list[int]:
    """Return the node ids of a request; null is the same as empty. Raises MalformedBody."""
    try:
        count, pos = int32_length(body, 0)
        if len(body) != pos + 4 * max(0, count):
            raise DecodeError(f"{len(body) - pos} bytes for {count} node ids")
    except TRUNCATED:
        raise MalformedBody("client", "a request without node ids") from None
    return list(struct.unpack_from(f">{max(0, count)}i", body, pos))


def encode_response(brokers: Sequence[BrokerEntry]) -> bytes:
    """Return the body of a response. Raises ValueError for a text that is too long for a string of Kafka."""
    return _int32.pack(len(brokers)) + b"".join(map(_encode_broker, brokers))


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
    except (*TRUNCATED, DecodeError, UnicodeDecodeError):
        raise MalformedBody(
            "broker", f"a BrokerMetadata response of {len(body)} bytes that is not as defined"
        ) from None
    return brokers


def _encode_broker(broker: BrokerEntry) -> bytes:
    parts = [_int32.pack(broker.node_id), _string(broker.host)]
    parts.append(_entry.pack(broker.port, broker.protocol_min, broker.protocol_max))
    parts.append(_int32.pack(len(broker.tags)))
    for name, value in broker.tags.items():
        parts += [_string(name), _string(value)]
    return b"".join(parts)


def _string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > MAX_STRING:
        raise ValueError(f"a text of {len(raw)} bytes (allowed: {MAX_STRING})")
    return struct.pack(">h", len(raw)) + raw


def _text(body: Buffer, pos: int) -> tuple[str, int]:
    raw, pos = string(body, pos)
    return (raw or b"").decode(), pos
