"""The messages between consumers and their coordinator, both ways: private apis 30001, 30002 and 30010–30012.

Big endian; a string is an int16 length and UTF-8; a boolean is one byte. Source: seed 001, sections 7 and 11;
docs/consumer-protocol.md. What consumers ask is encoded as a body: ``request_frame`` and ``response_frame`` put around
it what Kafka's protocol does. What a coordinator pushes, and the response to that, is encoded as a whole frame, and
decoded from a frame without its size. An encoder raises ValueError for a text or a list that is too long for its
field, and struct.error for a number that is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from proxy.coordinator.codes import RegistrationCode
from proxy.core.wire import MAX_STRING, TRUNCATED, Buffer, DecodeError, string
from proxy.errors import BrokersideError, MalformedBody, PeerError
from proxy.protocol.private import BASE

CLUSTER_METADATA = 30_001
REGISTER_CONSUMER = 30_002
PING = 30_010
STOP_FETCHER = 30_011
START_FETCHER = 30_012

MAX_COUNT = 32_767
"""Of the partitions, threads and brokers of one message: the seed's counts are int16."""

SMALLEST = -2
"""Start offset: the earliest one, as ``auto_offset_reset`` says."""
LARGEST = -1


class EndpointEntry(NamedTuple):
    """A broker as clients dial it."""

    broker_id: int
    host: str
    port: int


class ClusterMetadataRequest(NamedTuple):
    """``group_id``: None in version 0."""

    group_id: str | None


class ClusterMetadataResponse(NamedTuple):
    """``brokers``: the sidecars that run, as clients of the same listener dial them."""

    error_code: int
    coordinator_id: int
    """-1 if there is none."""
    brokers: tuple[EndpointEntry, ...]


class RegisterConsumerRequest(NamedTuple):
    """``auto_offset_reset``: as sent; ``protocol_level``: 1 before version 2."""

    group_id: str
    consumer_id: str
    topic_count: str
    auto_commit: bool
    auto_offset_reset: str
    session_timeout_ms: int
    protocol_level: int = 1


class RegisterConsumerResponse(NamedTuple):
    """Version 0 has the error code alone."""

    error_code: int
    coordinator_id: int = -1
    generation: int = -1


class PingRequest(NamedTuple):
    """``num_retries``: pings without an answer before this one."""

    consumer_id: str
    num_retries: int


class StopFetcherRequest(NamedTuple):
    """Asks the consumer to stop, and to say how far it got."""

    consumer_id: str
    partitions: tuple[tuple[str, int], ...] | None = None
    """Version 1: those to stop; None: all."""


class ConsumedOffset(NamedTuple):
    """``offset``: the next one to consume, SMALLEST or LARGEST. On the wire the partition is text,
    ``<leader>-<partition>``."""

    topic: str
    leader: int
    partition: int
    offset: int


class AssignedThread(NamedTuple):
    """``partitions``: with the offset to start at; SMALLEST or LARGEST where none is known."""

    thread_id: str
    partitions: tuple[ConsumedOffset, ...]


class StartFetcherRequest(NamedTuple):
    """The whole assignment of a consumer. ``brokers``: all, so that it need not ask for them."""

    consumer_id: str
    threads: tuple[AssignedThread, ...]
    brokers: tuple[EndpointEntry, ...]


class ConsumerResponse(NamedTuple):
    """The response to each of the three pushed requests. ``offsets``: None if they are absent."""

    correlation_id: int
    api_key: int
    error_code: int
    consumer_id: str
    offsets: tuple[ConsumedOffset, ...] | None = None


PushedRequest = PingRequest | StopFetcherRequest | StartFetcherRequest


class PushedFrame(NamedTuple):
    """What a coordinator has sent. ``api_key``: as the constants above say, whatever the configured base is."""

    api_key: int
    api_version: int
    correlation_id: int
    request: PushedRequest


class RegistrationRefused(BrokersideError):
    """A RegisterConsumer request that can be read and is not right. ``code``: the error of the response."""

    def __init__(self, code: int, detail: str) -> None:
        self.code = code
        super().__init__(f"RegisterConsumer: {detail} (error {code})")


_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_int64 = struct.Struct(">q")
_error_coordinator = struct.Struct(">hi")
_error_coordinator_generation = struct.Struct(">hii")
_request_header = struct.Struct(">hhi")
_pushed_header = struct.Struct(">ihhih")
"""With the size before it, and the length of a client id that is null after it."""

_response = struct.Struct(">ihh")
"""Correlation id, api key and error code: how the response to a pushed request begins."""

_partition_and_offset = tuple(struct.Struct(f">h{length}sq") for length in range(24))
"""The end of an entry, by the length of its ``<leader>-<partition>``."""

_PUSHED_HEADER_SIZE = _pushed_header.size - _int32.size
_INT32_DIGITS = 10
_INT32_MAX = 2**31 - 1
_ALL = -1
"""In place of a number of partitions: StopFetcher stops all."""


# ---- what consumers ask ----------------------------------------------------------------------------------------------


def request_frame(api_key: int, api_version: int, correlation_id: int, client_id: str | None, body: bytes) -> bytes:
    """Return a whole frame with request header v1. ``api_key``: as it is configured."""
    name = _int16.pack(-1) if client_id is None else _string(client_id)
    frame = _request_header.pack(api_key, api_version, correlation_id) + name + body
    return _int32.pack(len(frame)) + frame


def response_frame(correlation_id: int, body: bytes) -> bytes:
    """Return a whole frame with response header v0."""
    return _int32.pack(_int32.size + len(body)) + _int32.pack(correlation_id) + body


def encode_cluster_metadata_request(api_version: int, request: ClusterMetadataRequest) -> bytes:
    """Return the body of a request: empty in version 0."""
    return _string(request.group_id or "") if api_version >= 1 else b""


def decode_cluster_metadata_request(api_version: int, body: Buffer) -> ClusterMetadataRequest:
    """Return a request. Raises MalformedBody."""
    try:
        group_id, pos = _text(body, 0) if api_version >= 1 else (None, 0)
        _check_end(body, pos)
    except (*TRUNCATED, DecodeError, UnicodeDecodeError):
        raise _malformed("client", "a ClusterMetadata request", body) from None
    return ClusterMetadataRequest(group_id)


def encode_cluster_metadata_response(response: ClusterMetadataResponse) -> bytes:
    """Return the body of a response, of either version."""
    head = _error_coordinator.pack(response.error_code, response.coordinator_id)
    return head + _brokers(response.brokers)


def decode_cluster_metadata_response(body: Buffer) -> ClusterMetadataResponse:
    """Return a response, of either version. Raises MalformedBody."""
    try:
        error_code, coordinator_id = _error_coordinator.unpack_from(body)
        brokers, pos = _read_brokers(body, _error_coordinator.size)
        _check_end(body, pos)
    except (*TRUNCATED, DecodeError, UnicodeDecodeError):
        raise _malformed("broker", "a ClusterMetadata response", body) from None
    return ClusterMetadataResponse(error_code, coordinator_id, brokers)


def encode_register_consumer_request(api_version: int, request: RegisterConsumerRequest) -> bytes:
    """Return the body of a request. Versions before 2 have no ``protocol_level``."""
    return b"".join(
        (
            _string(request.group_id),
            _string(request.consumer_id),
            _string(request.topic_count),
            b"\1" if request.auto_commit else b"\0",
            _string(request.auto_offset_reset),
            _int32.pack(request.session_timeout_ms),
            _int16.pack(request.protocol_level) if api_version >= 2 else b"",
        )
    )


def decode_register_consumer_request(api_version: int, body: Buffer) -> RegisterConsumerRequest:
    """Return a request, whatever its texts and numbers are.

    Raises MalformedBody if it cannot be read, and RegistrationRefused if bytes follow it.
    """
    try:
        group_id, pos = _text(body, 0)
        consumer_id, pos = _text(body, pos)
        topic_count, pos = _text(body, pos)
        auto_commit = body[pos] != 0
        auto_offset_reset, pos = _text(body, pos + 1)
        session_timeout_ms = _int32.unpack_from(body, pos)[0]
        pos += _int32.size
        protocol_level = 1
        if api_version >= 2:
            protocol_level = _int16.unpack_from(body, pos)[0]
            pos += _int16.size
    except (*TRUNCATED, DecodeError, UnicodeDecodeError):
        raise _malformed("client", "a RegisterConsumer request", body) from None
    if pos != len(body):
        raise RegistrationRefused(RegistrationCode.INVALID_REQUEST, f"{len(body) - pos} bytes after the request")
    return RegisterConsumerRequest(
        group_id, consumer_id, topic_count, auto_commit, auto_offset_reset, session_timeout_ms, protocol_level
    )


def encode_register_consumer_response(api_version: int, response: RegisterConsumerResponse) -> bytes:
    """Return the body of a response."""
    if api_version == 0:
        return _int16.pack(response.error_code)
    return _error_coordinator_generation.pack(response.error_code, response.coordinator_id, response.generation)


def decode_register_consumer_response(api_version: int, body: Buffer) -> RegisterConsumerResponse:
    """Return a response. Raises MalformedBody."""
    layout = _int16 if api_version == 0 else _error_coordinator_generation
    if len(body) != layout.size:
        raise _malformed("broker", "a RegisterConsumer response", body)
    return RegisterConsumerResponse(*layout.unpack(body))


# ---- what a coordinator pushes ---------------------------------------------------------------------------------------


def encode_ping(correlation_id: int, request: PingRequest, base: int = BASE) -> bytes:
    """Return a whole frame. ``base``: ``private.api.key.base``, here and below."""
    body = _string(request.consumer_id) + _int32.pack(request.num_retries)
    return _pushed(PING, 0, correlation_id, body, base)


def encode_stop_fetcher(
    correlation_id: int,
    request: StopFetcherRequest,
    leaders: Mapping[tuple[str, int], int] = MappingProxyType({}),
    base: int = BASE,
) -> bytes:
    """Return a whole frame, of version 1 if it names partitions. ``leaders``: of those, where they are known."""
    consumer_id = _string(request.consumer_id)
    if request.partitions is None:
        return _pushed(STOP_FETCHER, 0, correlation_id, consumer_id, base)
    parts = [consumer_id, _int32.pack(_checked(len(request.partitions)))]
    for topic, partition in request.partitions:
        text = b"%d-%d" % (leaders.get((topic, partition), -1), partition)
        parts += (_string(topic), _int16.pack(len(text)), text)
    return _pushed(STOP_FETCHER, 1, correlation_id, b"".join(parts), base)


def encode_start_fetcher(correlation_id: int, request: StartFetcherRequest, base: int = BASE) -> bytes:
    """Return a whole frame."""
    topics: dict[str, bytes] = {}
    parts = [_string(request.consumer_id), _int16.pack(_checked(len(request.threads)))]
    for thread in request.threads:
        parts += (_string(thread.thread_id), _offsets(thread.partitions, topics))
    parts.append(_brokers(request.brokers))
    return _pushed(START_FETCHER, 0, correlation_id, b"".join(parts), base)


def decode_pushed(frame: Buffer, base: int = BASE) -> PushedFrame:
    """Return what the frame of a coordinator, without its size, says. Raises MalformedBody."""
    try:
        key, version, correlation_id = _request_header.unpack_from(frame)
        _, pos = string(frame, _request_header.size)
        key += BASE - base
        consumer_id, pos = _text(frame, pos)
        request: PushedRequest
        if (key, version) == (PING, 0):
            request = PingRequest(consumer_id, _int32.unpack_from(frame, pos)[0])
            pos += _int32.size
        elif key == STOP_FETCHER and version in (0, 1):
            partitions, pos = _read_partitions(frame, pos) if version == 1 else (None, pos)
            request = StopFetcherRequest(consumer_id, partitions)
        elif (key, version) == (START_FETCHER, 0):
            threads, pos = _read_threads(frame, pos)
            brokers, pos = _read_brokers(frame, pos)
            request = StartFetcherRequest(consumer_id, threads, brokers)
        else:
            raise DecodeError("a request that no coordinator sends")
        _check_end(frame, pos)
    except (*TRUNCATED, DecodeError, UnicodeDecodeError):
        raise _malformed("broker", "a frame of the coordinator", frame) from None
    return PushedFrame(key, version, correlation_id, request)


def encode_response(response: ConsumerResponse, base: int = BASE) -> bytes:
    """Return a consumer's response to a pushed request as a whole frame."""
    body = _string(response.consumer_id)
    if response.offsets is not None:
        body += _offsets(response.offsets, {})
    key = response.api_key - BASE + base
    frame = _response.pack(response.correlation_id, key, response.error_code) + body
    return _int32.pack(len(frame)) + frame


def decode_response(frame: Buffer, base: int = BASE) -> ConsumerResponse:
    """Return what the frame of a consumer, without its size, says.

    Raises PeerError (``consumer_malformed``), also for offsets in the response to StartFetcher.
    """
    try:
        correlation_id, key, error_code = _response.unpack_from(frame)
        key += BASE - base
        consumer_id, pos = _text(frame, _response.size)
        offsets: tuple[ConsumedOffset, ...] | None = None
        if pos != len(frame) and key != START_FETCHER:
            offsets, pos = _read_offsets(frame, pos, {})
        if key not in (PING, STOP_FETCHER, START_FETCHER):
            raise DecodeError("a response to nothing that a coordinator sends")
        _check_end(frame, pos)
    except (*TRUNCATED, DecodeError, UnicodeDecodeError):
        detail = f"a response of {len(frame)} bytes that is not as defined"
        raise PeerError("client", "consumer_malformed", detail) from None
    return ConsumerResponse(correlation_id, key, error_code, consumer_id, offsets)


# ---- the parts of them -----------------------------------------------------------------------------------------------


def _malformed(side: Literal["client", "broker"], what: str, data: Buffer) -> MalformedBody:
    return MalformedBody(side, f"{what} of {len(data)} bytes that is not as defined")


def _checked(count: int) -> int:
    if count > MAX_COUNT:
        raise ValueError(f"{count} entries (allowed: {MAX_COUNT})")
    return count


def _check_end(data: Buffer, pos: int) -> None:
    if pos != len(data):
        raise DecodeError(f"{len(data) - pos} bytes too many")


def _string(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > MAX_STRING:
        raise ValueError(f"a text of {len(raw)} bytes (allowed: {MAX_STRING})")
    return _int16.pack(len(raw)) + raw


def _text(data: Buffer, pos: int) -> tuple[str, int]:
    raw, pos = string(data, pos)
    if raw is None:
        raise DecodeError("a text that is null")
    return raw.decode(), pos


def _count(data: Buffer, pos: int) -> tuple[int, int]:
    count: int = _int16.unpack_from(data, pos)[0]
    if count < 0:
        raise DecodeError(f"a count of {count}")
    return count, pos + _int16.size


def _pushed(api_key: int, api_version: int, correlation_id: int, body: bytes, base: int) -> bytes:
    size = _PUSHED_HEADER_SIZE + len(body)
    return _pushed_header.pack(size, api_key - BASE + base, api_version, correlation_id, -1) + body


def _brokers(brokers: Iterable[EndpointEntry]) -> bytes:
    parts = [_int32.pack(one.broker_id) + _string(one.host) + _int32.pack(one.port) for one in brokers]
    return _int16.pack(_checked(len(parts))) + b"".join(parts)


def _read_brokers(data: Buffer, pos: int) -> tuple[tuple[EndpointEntry, ...], int]:
    found = []
    count, pos = _count(data, pos)
    for _ in range(count):
        broker_id = _int32.unpack_from(data, pos)[0]
        host, pos = _text(data, pos + _int32.size)
        found.append(EndpointEntry(broker_id, host, _int32.unpack_from(data, pos)[0]))
        pos += _int32.size
    return tuple(found), pos


def _offsets(entries: tuple[ConsumedOffset, ...], topics: dict[str, bytes]) -> bytes:
    """``topics``: names that were written already, as strings."""
    parts = [_int16.pack(_checked(len(entries)))]
    for topic, leader, partition, offset in entries:
        name = topics.get(topic)
        if name is None:
            name = topics[topic] = _string(topic)
        text = b"%d-%d" % (leader, partition)
        parts += (name, _partition_and_offset[len(text)].pack(len(text), text, offset))
    return b"".join(parts)


def _read_offsets(data: Buffer, pos: int, topics: dict[bytes, str]) -> tuple[tuple[ConsumedOffset, ...], int]:
    """``topics``: names that were read already."""
    found = []
    count, pos = _count(data, pos)
    for _ in range(count):
        topic, leader, partition, pos = _read_partition(data, pos, topics)
        offset = _int64.unpack_from(data, pos)[0]
        if offset < SMALLEST:
            raise DecodeError(f"an offset of {offset}")
        found.append(ConsumedOffset(topic, leader, partition, offset))
        pos += _int64.size
    return tuple(found), pos


def _read_threads(data: Buffer, pos: int) -> tuple[tuple[AssignedThread, ...], int]:
    found = []
    topics: dict[bytes, str] = {}
    count, pos = _count(data, pos)
    for _ in range(count):
        thread_id, pos = _text(data, pos)
        partitions, pos = _read_offsets(data, pos, topics)
        found.append(AssignedThread(thread_id, partitions))
    return tuple(found), pos


def _read_partitions(data: Buffer, pos: int) -> tuple[tuple[tuple[str, int], ...] | None, int]:
    """Return the partitions of StopFetcher; None for all."""
    count = _int32.unpack_from(data, pos)[0]
    pos += _int32.size
    if count == _ALL:
        return None, pos
    if not 0 <= count <= MAX_COUNT:
        raise DecodeError(f"a count of {count}")
    found = []
    topics: dict[bytes, str] = {}
    for _ in range(count):
        topic, _, partition, pos = _read_partition(data, pos, topics)
        found.append((topic, partition))
    return tuple(found), pos


def _read_partition(data: Buffer, pos: int, topics: dict[bytes, str]) -> tuple[str, int, int, int]:
    """Return topic, leader, partition and the offset after them. The partition is what follows the last ``-``."""
    raw, pos = string(data, pos)
    text, pos = string(data, pos)
    if raw is None or text is None:
        raise DecodeError("a text that is null")
    topic = topics.get(raw)
    if topic is None:
        topic = topics[raw] = raw.decode()
    before, _, number = text.rpartition(b"-")
    if not number.isdigit() or len(number) > _INT32_DIGITS or (partition := int(number)) > _INT32_MAX:
        raise DecodeError("a partition that is none")
    # A leader is only a hint, and so what it says is not checked.
    is_id = before.isdigit() and len(before) <= _INT32_DIGITS
    return topic, int(before) if is_id else -1, partition, pos
