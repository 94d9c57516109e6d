"""Requests that the sidecar sends to the cluster, and their responses, as bytes.

The layouts are those of Kafka's message JSONs. The versions are not flexible, but for those of ``flexible_request``,
and brokers have them since 2.6. A decoder raises MalformedBody for a response that is not as its definition says, and
RequestRefused for a response with an error. Nothing is allocated from a declared length.
"""

from __future__ import annotations

import re
import struct
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from proxy.config.values import INT32_MAX, Endpoint
from proxy.core import wire
from proxy.core.encode import NO_TAGGED_FIELDS, encode
from proxy.core.schema import layout
from proxy.core.struct import ObservableStructImpl, view
from proxy.core.wire import Buffer
from proxy.errors import BrokersideError, MalformedBody

METADATA, SASL_HANDSHAKE, API_VERSIONS, DESCRIBE_CONFIGS = 3, 17, 18, 32
SASL_AUTHENTICATE, DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 36, 48, 49

TOPIC_IDS_SINCE = 10
"""First version of Metadata whose response has topic ids (KIP-516)."""

IP = "ip"
"""Kafka's entity type of client addresses."""

IP_RATE = "connection_creation_rate"
"""Kafka's one quota of an ``ip`` entity: connections per second."""

ANY_NAME = 2
"""A filter's match type: every entity of the type, the default among them."""

BROKER = 4
"""Resource type of a broker's configuration."""

MAX_ENTITY_PARTS = 100
"""Most types, and most quotas, of one entity; Kafka knows three and five. More would keep the loop busy."""

NOT_AUTHORIZED = 31

ERRORS = {
    29: "not authorized for this topic",
    NOT_AUTHORIZED: "not authorized: the sidecar's own user needs DescribeConfigs and AlterConfigs on the cluster",
    33: "SASL mechanism not enabled",
    34: "SASL is not what the listener speaks",
    35: "not in a version that the broker knows",
    41: "not the controller",
    42: "invalid request",
    58: "SASL authentication failed",
}

_OTHER_BROKER = re.compile(r"Unexpected broker id, expected ([0-9]{1,10})\b")
"""The error of a broker that is asked for another one's configuration: the only response of Kafka with the broker's own
id."""

_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from
_float64 = struct.Struct(">d").unpack_from


class RequestRefused(BrokersideError):
    """The cluster responded with an error. ``code``: Kafka's error code."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        self.code = code
        super().__init__(f"{what}: {message or ERRORS.get(code, 'refused')} (error {code})")


class RpcRequest(NamedTuple):
    """One request without its header. ``key``: of the api. ``body``: with the tagged fields of a flexible header."""

    key: int
    version: int
    body: bytes


class BrokerFacts(NamedTuple):
    """One broker that runs: its advertised address on the listener that was asked, and its rack if it has one."""

    endpoint: Endpoint
    rack: str | None


class ClusterFacts(NamedTuple):
    """The cluster's id, empty where it has none, and the brokers that run, by id."""

    cluster_id: str
    brokers: dict[int, BrokerFacts]


def flexible_request(key: int, version: int, values: Mapping[str, Any]) -> RpcRequest:
    """Return a request of a flexible version: its header, version 2, ends with tagged fields. ``values``: see
    ``encode``."""
    return RpcRequest(key, version, NO_TAGGED_FIELDS + encode(layout(key, version, response=False), values))


def flexible_response(key: int, version: int, answer: Buffer) -> ObservableStructImpl:
    """Return the response to a ``flexible_request``, without the tagged fields of its header, version 1.

    Not for ApiVersions, whose response header never has any. Raises MalformedBody.
    """
    with _reading(answer):
        body = bytes(answer[wire.skip_tags(answer, 0) :])
    return whole(view(key, version, body, response=True))


def whole(found: ObservableStructImpl) -> ObservableStructImpl:
    """Return ``found``. Raises MalformedBody if it is not as it is defined, up to its end."""
    found.unknown_tagged_fields()  # they come last
    return found


def metadata_request() -> RpcRequest:
    """Ask which brokers there are, without topics. Metadata v1 is the first version that can ask for no topics."""
    return RpcRequest(METADATA, 1, struct.pack(">i", 0))


def decode_brokers(answer: Buffer) -> dict[int, Endpoint]:
    """Return each broker's advertised address on the listener that was asked, by id."""
    with _reading(answer):
        return {node: broker.endpoint for node, broker in _brokers(answer, 0)[0].items()}


def cluster_request() -> RpcRequest:
    """Ask which brokers there are, and for the cluster's id."""
    return RpcRequest(METADATA, 2, struct.pack(">i", 0))


def decode_cluster(answer: Buffer) -> ClusterFacts:
    """Decode the response to ``cluster_request``."""
    with _reading(answer):
        found, pos = _brokers(answer, 0)
        cluster_id, _ = _text(answer, pos)
        return ClusterFacts(cluster_id or "", found)


class TopicFacts(NamedTuple):
    """One topic: its id (16 bytes), and the leader of each partition; None while it has none."""

    id: bytes
    leaders: tuple[int | None, ...]


def topics_request(names: Iterable[str]) -> RpcRequest:
    """Ask for topics by name, without creating any. For brokers since 2.8, see ``TOPIC_IDS_SINCE``."""
    return flexible_request(METADATA, TOPIC_IDS_SINCE, {"Topics": [{"Name": name} for name in names]})


def decode_topics(answer: Buffer) -> dict[str, TopicFacts]:
    """Return the topics that exist, by name."""
    topics = {}
    for one in flexible_response(METADATA, TOPIC_IDS_SINCE, answer).get("Topics"):
        if not one.get("ErrorCode"):
            leaders = {part.get("PartitionIndex"): part.get("LeaderId") for part in one.get("Partitions")}
            known = (leaders.get(partition, -1) for partition in range(len(leaders)))
            topic_id = urlsafe_b64decode(one.get("TopicId") + "==")
            topics[one.get("Name")] = TopicFacts(topic_id, tuple(leader if leader >= 0 else None for leader in known))
    return topics


def api_versions_request() -> RpcRequest:
    """Ask which apis the broker supports; answered before any login. ``proxy.interceptors.api_versions`` decodes it."""
    return RpcRequest(API_VERSIONS, 0, b"")


def sasl_handshake_request(mechanism: str) -> RpcRequest:
    """Ask for a SASL mechanism; ``sasl_authenticate_request`` follows."""
    return RpcRequest(SASL_HANDSHAKE, 1, _string(mechanism))


def check_sasl_handshake(answer: Buffer) -> None:
    """Raise RequestRefused if the broker does not have the mechanism; the error names those that it has."""
    with _reading(answer):
        code = _int16(answer, 0)[0]
        count, pos = wire.int32_length(answer, 2)
        offered = []
        for _ in range(count):
            name, pos = _text(answer, pos)
            offered.append(name or "")
    if code:
        raise RequestRefused(
            "SASL", code, f"{ERRORS.get(code, 'refused')}, only {', '.join(offered)}" if offered else None
        )


def sasl_authenticate_request(token: bytes) -> RpcRequest:
    """Send the client's next message of the SASL exchange."""
    return RpcRequest(SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)


def decode_sasl_token(answer: Buffer) -> bytes:
    """Return the server's message of the SASL exchange."""
    with _reading(answer):
        code = _int16(answer, 0)[0]
        message, pos = _text(answer, 2)
        length, pos = wire.int32_length(answer, pos)
        if pos + length > len(answer):
            raise IndexError
        token = bytes(answer[pos : pos + max(0, length)])
    if code:
        raise RequestRefused("SASL", code, message)
    return token


def describe_ip_quotas_request() -> RpcRequest:
    """Ask for all quotas of addresses, the default one included."""
    body = struct.pack(">i", 1) + _string(IP) + struct.pack(">bh?", ANY_NAME, -1, False)
    return RpcRequest(DESCRIBE_CLIENT_QUOTAS, 0, body)


def decode_ip_quotas(answer: Buffer) -> Iterator[tuple[str | None, float] | None]:
    """Give name (None: the default) and connections per second of each address that has a quota, one by one.

    The names are as they were given to Kafka: addresses in any form, and host names. Other entities give None, so that
    the caller can count the steps.
    """
    with _reading(answer):
        code = _int16(answer, 4)[0]
        message, pos = _text(answer, 6)
        if code:
            raise RequestRefused("reading the cluster's quotas", code, message)
        count, pos = wire.int32_length(answer, pos)
    for _ in range(count):
        with _reading(answer):
            entity, pos = _entity(answer, pos)
            values, pos = _entity_part_count(answer, pos)
            rate = None
            for _ in range(values):
                key, pos = _text(answer, pos)
                if key == IP_RATE:
                    rate = _float64(answer, pos)[0]
                pos += 8
        yield (entity[0][1], rate) if rate is not None and len(entity) == 1 and entity[0][0] == IP else None


def set_ip_rates_request(addresses: Iterable[str], rate: int) -> RpcRequest:
    """Store a quota of ``rate`` connections per second for each of ``addresses``."""
    op = struct.pack(">i", 1) + _string(IP_RATE) + struct.pack(">d?", rate, False)
    entries = [struct.pack(">i", 1) + _string(IP) + _string(address) + op for address in addresses]
    body = struct.pack(">i", len(entries)) + b"".join(entries) + struct.pack(">?", False)
    return RpcRequest(ALTER_CLIENT_QUOTAS, 0, body)


def check_quotas_altered(answer: Buffer) -> None:
    """Raise RequestRefused for the first quota that was not stored."""
    with _reading(answer):
        count, pos = wire.int32_length(answer, 4)
        for _ in range(count):
            code = _int16(answer, pos)[0]
            message, pos = _text(answer, pos + 2)
            entity, pos = _entity(answer, pos)
            if code:
                names = ", ".join(name or "<default>" for _, name in entity)
                raise RequestRefused(f"setting the quota of {names}", code, message)


def describe_broker_request(broker_id: int, keys: Iterable[str]) -> RpcRequest:
    """Ask for a broker's configuration values in force; only that broker itself can answer."""
    names = [_string(key) for key in keys]
    body = struct.pack(">ib", 1, BROKER) + _string(str(broker_id)) + struct.pack(">i", len(names)) + b"".join(names)
    return RpcRequest(DESCRIBE_CONFIGS, 1, body + struct.pack(">?", False))


def decode_other_broker(answer: Buffer) -> int | None:
    """Return the id of the broker that has answered ``describe_broker_request``, if it is another one; else None."""
    with _reading(answer):
        count, pos = wire.int32_length(answer, 4)
        message = _text(answer, pos + 2)[0] if count else None
    found = _OTHER_BROKER.search(message or "")
    return int(found[1]) if found and int(found[1]) <= INT32_MAX else None


def decode_broker_configs(answer: Buffer) -> dict[str, str]:
    """Return the configuration values by key; keys without a value are left out."""
    found = {}
    with _reading(answer):
        results, pos = wire.int32_length(answer, 4)
        for _ in range(results):
            code = _int16(answer, pos)[0]
            message, pos = _text(answer, pos + 2)
            _, pos = wire.string(answer, pos + 1)
            if code:
                raise RequestRefused("reading the broker's configuration", code, message)
            configs, pos = wire.int32_length(answer, pos)
            for _ in range(configs):
                name, pos = _text(answer, pos)
                value, pos = _text(answer, pos)
                synonyms, pos = wire.int32_length(answer, pos + 3)
                for _ in range(synonyms):
                    _, pos = wire.string(answer, pos)
                    _, pos = wire.string(answer, pos)
                    pos += 1
                if name is not None and value is not None:
                    found[name] = value
    return found


@contextmanager
def _reading(answer: Buffer) -> Iterator[None]:
    try:
        yield
    except (*wire.TRUNCATED, wire.DecodeError, UnicodeDecodeError):
        raise MalformedBody("broker", f"an answer of {len(answer)} bytes that is not as defined") from None


def _string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def _text(buf: Buffer, pos: int) -> tuple[str | None, int]:
    raw, pos = wire.string(buf, pos)
    return None if raw is None else raw.decode(), pos


def _brokers(answer: Buffer, pos: int) -> tuple[dict[int, BrokerFacts], int]:
    found = {}
    count, pos = wire.int32_length(answer, pos)
    for _ in range(count):
        node = _int32(answer, pos)[0]
        host, pos = _text(answer, pos + 4)
        port = _int32(answer, pos)[0]
        rack, pos = _text(answer, pos + 4)
        found[node] = BrokerFacts(Endpoint(host or "", port), rack)
    return found, pos


def _entity(buf: Buffer, pos: int) -> tuple[list[tuple[str | None, str | None]], int]:
    """The (type, name) pairs of one quota entity."""
    parts = []
    count, pos = _entity_part_count(buf, pos)
    for _ in range(count):
        kind, pos = _text(buf, pos)
        name, pos = _text(buf, pos)
        parts.append((kind, name))
    return parts, pos


def _entity_part_count(buf: Buffer, pos: int) -> tuple[int, int]:
    count, pos = wire.int32_length(buf, pos)
    if count > MAX_ENTITY_PARTS:
        raise wire.DecodeError(f"{count} parts of one quota")
    return count, pos
