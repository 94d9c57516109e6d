"""What consumers and their coordinator send each other, what consumers register with, and the records of groups."""

from __future__ import annotations

import struct
from random import Random

from proxy.coordinator import wire
from proxy.coordinator.records import (
    ClaimRecord,
    GenerationRecord,
    GenerationValue,
    GroupRecord,
    MemberRecord,
    MemberValue,
    OwnersRecord,
    OwnersValue,
    UnreadableRecord,
    decode_record,
    encode_key,
    encode_value,
)
from proxy.coordinator.subscription import MAX_STREAMS, TopicCount, parse_topic_count
from proxy.coordinator.wire import (
    AssignedThread,
    ClusterMetadataRequest,
    ConsumedOffset,
    ConsumerResponse,
    EndpointEntry,
    PingRequest,
    PushedFrame,
    RegisterConsumerRequest,
    RegistrationRefused,
    StartFetcherRequest,
    StopFetcherRequest,
)
from proxy.errors import MalformedBody, PeerError
from tests.fuzz.targets import Target

# ---- frames on the connection of a consumer --------------------------------------------------------------------------

RESPONSE, PUSHED = b"\0", b"\1"
"""Which side has sent an input: its first byte."""

OFFSETS = (ConsumedOffset("t", 1, 0, 42), ConsumedOffset("t", -1, 2**31 - 1, 2**63 - 1), ConsumedOffset("ü", 1, 7, 0))


def frame_seeds() -> list[bytes]:
    responses = [
        *(
            ConsumerResponse(1, key, 0, "c1", found)
            for key in (wire.PING, wire.STOP_FETCHER)
            for found in (OFFSETS, ())
        ),
        ConsumerResponse(-1, wire.PING, -1, ""),
        ConsumerResponse(3, wire.START_FETCHER, 1, "c1"),
    ]
    threads = AssignedThread("c1-0", (*OFFSETS, ConsumedOffset("t", 1, 3, wire.SMALLEST))), AssignedThread("c1-1", ())
    pushed = [
        wire.encode_ping(1, PingRequest("c1", 0)),
        wire.encode_stop_fetcher(2, StopFetcherRequest("c1")),
        wire.encode_stop_fetcher(2, StopFetcherRequest("c1", (("t", 0), ("ü", 7)))),
        wire.encode_start_fetcher(3, StartFetcherRequest("c1", threads, (EndpointEntry(1, "h", 9092),))),
        wire.encode_start_fetcher(3, StartFetcherRequest("c1", (), ())),
    ]
    return [RESPONSE + wire.encode_response(one)[4:] for one in responses] + [PUSHED + frame[4:] for frame in pushed]


def frame_once(data: bytes) -> ConsumerResponse | PushedFrame | None:
    """What the frame says; None if it cannot be read."""
    try:
        return wire.decode_pushed(data[1:]) if data[:1] == PUSHED else wire.decode_response(data[1:])
    except PeerError:
        return None


def check_frame(data: bytes, rng: Random) -> None:
    """It is read again as it is written."""
    found = frame_once(data)
    if isinstance(found, ConsumerResponse):
        assert wire.decode_response(wire.encode_response(found)[4:]) == found
    elif isinstance(found, PushedFrame):
        again = wire.decode_pushed(_written(found)[4:])
        assert (again.api_key, again.correlation_id, again.request) == (
            found.api_key,
            found.correlation_id,
            found.request,
        )


def _written(frame: PushedFrame) -> bytes:
    match frame.request:
        case PingRequest() as ping:
            return wire.encode_ping(frame.correlation_id, ping)
        case StopFetcherRequest() as stop:
            return wire.encode_stop_fetcher(frame.correlation_id, stop)
        case start:
            return wire.encode_start_fetcher(frame.correlation_id, start)


# ---- what consumers ask ----------------------------------------------------------------------------------------------

REGISTER_VERSIONS, CLUSTER_VERSIONS = 3, 2
"""The first byte of an input: the version of RegisterConsumer, or one of ClusterMetadata after those."""

TOPICS = ["t", "whitetopic", "a" * 249, "__consumer_offsets", "a.b-c_D9", "b" * 240]
TOPIC_COUNTS = [
    '{"t": 4, "whitetopic": 1000}',
    "*4*white.*",
    "!1!(black|__).*[^a]{3}",
    "*2*(a|aa)*b?",
    r"*1*(?i)[[:alpha:]]{1,9}\.\w+\d$",
    "*1*(a.{9}){20}",
    "",
]


def request_seeds() -> list[bytes]:
    found = []
    for number, text in enumerate(TOPIC_COUNTS):
        version = number % REGISTER_VERSIONS
        request = RegisterConsumerRequest("g", "c1", text, bool(number % 2), "smallest", 6000, 2)
        found.append(bytes((version,)) + wire.encode_register_consumer_request(version, request))
    return [*found, b"\3", b"\4" + wire.encode_cluster_metadata_request(1, ClusterMetadataRequest("g"))]


def request_once(data: bytes) -> RegisterConsumerRequest | ClusterMetadataRequest | None:
    """The request, and what a coordinator makes of it; None if it cannot be read."""
    version, body = (data + b"\0")[0] % (REGISTER_VERSIONS + CLUSTER_VERSIONS), data[1:]
    try:
        if version >= REGISTER_VERSIONS:
            return wire.decode_cluster_metadata_request(version - REGISTER_VERSIONS, body)
        request = wire.decode_register_consumer_request(version, body)
        subscribed(request)
    except (MalformedBody, RegistrationRefused):
        return None
    return request


def subscribed(request: RegisterConsumerRequest) -> dict[str, int]:
    """Its topics, of those there are."""
    return parse_topic_count(request.topic_count).select(TOPICS)


def check_request(data: bytes, rng: Random) -> None:
    """A registration is read again as it is written, and no subscription is more than is allowed."""
    found, version = request_once(data), (data + b"\0")[0] % (REGISTER_VERSIONS + CLUSTER_VERSIONS)
    if isinstance(found, RegisterConsumerRequest):
        body = wire.encode_register_consumer_request(version, found)
        assert wire.decode_register_consumer_request(version, body) == found
        assert all(1 <= streams <= MAX_STREAMS for streams in subscribed(found).values())
        topics: TopicCount = parse_topic_count(found.topic_count)
        assert topics.pattern is None or "__consumer_offsets" not in subscribed(found)
    elif found is not None:
        assert wire.encode_cluster_metadata_request(version - REGISTER_VERSIONS, found) == data[1:]


# ---- records of groups -----------------------------------------------------------------------------------------------

_length = struct.Struct(">H")


def record_seeds() -> list[bytes]:
    member = MemberValue('{"t":2}', True, "smallest", 6000, 1, "app", "User:alice", "CLIENT")
    records: list[ClaimRecord | GroupRecord] = [
        ClaimRecord(7, 3, 1, "boot"),
        GenerationRecord("g", GenerationValue(7, "starting", 1)),
        MemberRecord("a/b% é", "c\n", member),
        OwnersRecord("g", "t", OwnersValue(7, "AbC", {"c1-0": (0, 1), "c1-1": (2,)})),
        OwnersRecord("coordinator", "t", None),
    ]
    return [_joined(encode_key(record), encode_value(record)) for record in records]


def _joined(key: bytes, value: bytes | None) -> bytes:
    return _length.pack(len(key)) + key + (b"" if value is None else b"=" + value)


def record_once(data: bytes) -> ClaimRecord | GroupRecord | None:
    """What the record says; None if it cannot be read. An input is the key's length, the key, ``=`` and the value."""
    end = 2 + int.from_bytes(data[:2], "big")
    try:
        return decode_record(data[2:end], data[end + 1 :] if data[end : end + 1] == b"=" else None)
    except UnreadableRecord:
        return None


def check_record(data: bytes, rng: Random) -> None:
    """A record has the key that it was read from, and is read again as it is written."""
    found = record_once(data)
    if found is not None:
        key = encode_key(found)
        assert data[2:].startswith(key)
        assert decode_record(key, encode_value(found)) == found


TARGETS = [
    Target("consumer_frames", frame_seeds, check_frame, frame_once, share=40),
    Target("register_request", request_seeds, check_request, request_once, share=30, besides=1 << 20),
    Target("group_records", record_seeds, check_record, record_once, share=30),
]
