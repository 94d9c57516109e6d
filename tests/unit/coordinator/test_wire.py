"""The messages between consumers and their coordinator, as bytes."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.coordinator import wire
from proxy.errors import MalformedBody, PeerError

BROKER = wire.EndpointEntry(1, "h", 9092)
REGISTRATION = wire.RegisterConsumerRequest("g", "c1", '{"t":2}', True, "smallest", 6000)

CLUSTER_METADATA_REQUESTS = [
    (0, wire.ClusterMetadataRequest(None), "0000000b7531000000000002000163"),
    (1, wire.ClusterMetadataRequest("g"), "0000000e7531000100000002000163000167"),
]

CLUSTER_METADATA_RESPONSES = [
    (wire.ClusterMetadataResponse(0, 1, (BROKER,)), "000000170000000200000000000100010000000100016800002384"),
    (wire.ClusterMetadataResponse(15, -1, ()), "0000000c00000002000fffffffff0000"),
]

REGISTER_CONSUMER_REQUESTS = [
    (0, REGISTRATION, "0000002a75320000000000030001630001670002633100077b2274223a327d010008736d616c6c65737400001770"),
    (
        2,
        REGISTRATION._replace(protocol_level=2),
        "0000002c75320002000000030001630001670002633100077b2274223a327d010008736d616c6c657374000017700002",
    ),
]

REGISTER_CONSUMER_RESPONSES = [
    (0, wire.RegisterConsumerResponse(26), "0000000600000003001a"),
    (1, wire.RegisterConsumerResponse(0, 1, 7), "0000000e0000000300000000000100000007"),
    (2, wire.RegisterConsumerResponse(0, 1, 7), "0000000e0000000300000000000100000007"),
]

START = wire.StartFetcherRequest("c1", (wire.AssignedThread("c1-0", (wire.ConsumedOffset("t", 1, 0, 42),)),), (BROKER,))

PUSHED: list[tuple[Callable[[], bytes], wire.PushedFrame, str]] = [
    (
        lambda: wire.encode_ping(1, wire.PingRequest("c1", 0)),
        wire.PushedFrame(wire.PING, 0, 1, wire.PingRequest("c1", 0)),
        "00000012753a000000000001ffff0002633100000000",
    ),
    (
        lambda: wire.encode_stop_fetcher(2, wire.StopFetcherRequest("c1")),
        wire.PushedFrame(wire.STOP_FETCHER, 0, 2, wire.StopFetcherRequest("c1")),
        "0000000e753b000000000002ffff00026331",
    ),
    (
        lambda: wire.encode_stop_fetcher(2, wire.StopFetcherRequest("c1", (("t", 0),)), {("t", 0): 1}),
        wire.PushedFrame(wire.STOP_FETCHER, 1, 2, wire.StopFetcherRequest("c1", (("t", 0),))),
        "0000001a753b000100000002ffff00026331000000010001740003312d30",
    ),
    (
        lambda: wire.encode_start_fetcher(3, START),
        wire.PushedFrame(wire.START_FETCHER, 0, 3, START),
        (
            "00000035753c000000000003ffff000263310001000463312d3000010001740003312d30000000000000002a"
            "00010000000100016800002384"
        ),
    ),
]

RESPONSES = [
    (
        wire.ConsumerResponse(1, wire.PING, 0, "c1", (wire.ConsumedOffset("t", 1, 0, 42),)),
        "0000001e00000001753a00000002633100010001740003312d30000000000000002a",
    ),
    (wire.ConsumerResponse(1, wire.PING, 0, "c1"), "0000000c00000001753a000000026331"),
    (wire.ConsumerResponse(2, wire.STOP_FETCHER, 0, "c1", ()), "0000000e00000002753b0000000263310000"),
    (wire.ConsumerResponse(3, wire.START_FETCHER, 0, "c1"), "0000000c00000003753c000000026331"),
]


@pytest.mark.promise("consumer-protocol.md", "The page shows each message of coordinated consumers byte by byte.")
def test_the_frames_of_the_page_are_these() -> None:
    page = (Path(__file__).parents[3] / "docs" / "consumer-protocol.md").read_text()
    rows = re.findall(r"^\| .* \| `([0-9a-f]+)` \|$", page, re.MULTILINE)
    tables: list[list[Any]] = [
        *(CLUSTER_METADATA_REQUESTS, CLUSTER_METADATA_RESPONSES),
        *(REGISTER_CONSUMER_REQUESTS, REGISTER_CONSUMER_RESPONSES, PUSHED, RESPONSES),
    ]
    assert len(rows) == 9
    assert set(rows) <= {row[-1] for table in tables for row in table}


def body_of(frame: str) -> bytes:
    """What follows the request header of client ``c``."""
    return bytes.fromhex(frame)[4 + 8 + 3 :]


def without_size(frame: bytes) -> bytes:
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    return frame[4:]


def unread(kind: type[Exception], read: Callable[..., object], *arguments: object) -> str:
    """Why something cannot be read; empty if it can."""
    try:
        read(*arguments)
    except kind as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_what_consumers_ask_is_these_bytes() -> None:
    for version, asked, golden in CLUSTER_METADATA_REQUESTS:
        body = wire.encode_cluster_metadata_request(version, asked)
        assert wire.request_frame(wire.CLUSTER_METADATA, version, 2, "c", body).hex() == golden
        assert wire.decode_cluster_metadata_request(version, body_of(golden)) == asked
    three = tuple(wire.EndpointEntry(number, f"kafka-{number}.example", 9092) for number in range(3))
    for answer, golden in (*CLUSTER_METADATA_RESPONSES, (wire.ClusterMetadataResponse(0, 2, three), "")):
        body = wire.encode_cluster_metadata_response(answer)
        assert not golden or wire.response_frame(2, body).hex() == golden
        assert wire.decode_cluster_metadata_response(body) == answer
    for version, registration, golden in REGISTER_CONSUMER_REQUESTS:
        body = wire.encode_register_consumer_request(version, registration)
        assert wire.request_frame(wire.REGISTER_CONSUMER, version, 3, "c", body).hex() == golden
        assert wire.decode_register_consumer_request(version, body_of(golden)) == registration
    for version, registered, golden in REGISTER_CONSUMER_RESPONSES:
        body = wire.encode_register_consumer_response(version, registered)
        assert wire.response_frame(3, body).hex() == golden
        assert wire.decode_register_consumer_response(version, body) == registered
    body = wire.encode_register_consumer_request(1, REGISTRATION._replace(auto_commit=False))
    at = len(body) - len("smallest") - 7
    assert body[at] == 0, "a boolean is one byte, and any but 0 is true"
    other = body[:at] + b"\x7f" + body[at + 1 :]
    assert wire.decode_register_consumer_request(1, other) == REGISTRATION


@pytest.mark.promise(
    "consumer-protocol.md", "RegisterConsumer with bytes after its end is answered with 42; a cut one cannot be read."
)
def test_what_consumers_ask_in_other_ways_cannot_be_read() -> None:
    for version in (0, 1, 2):
        body = wire.encode_register_consumer_request(version, REGISTRATION)
        with pytest.raises(wire.RegistrationRefused, match="2 bytes after the request") as error:
            wire.decode_register_consumer_request(version, body + b"\0\0")
        assert error.value.code == 42
        for length in range(len(body)):
            said = unread(MalformedBody, wire.decode_register_consumer_request, version, body[:length])
            assert "RegisterConsumer request" in said, (version, length)
    response = wire.encode_cluster_metadata_response(CLUSTER_METADATA_RESPONSES[0][0])
    for length in range(len(response)):
        assert unread(MalformedBody, wire.decode_cluster_metadata_response, response[:length]), length
    request = wire.encode_cluster_metadata_request(1, wire.ClusterMetadataRequest("g"))
    for version, wrong in (
        *((1, one) for one in (b"", request[:-1], request + b"\0", b"\xff\xff", b"\0\1\xff")),
        (0, request),
    ):
        assert unread(MalformedBody, wire.decode_cluster_metadata_request, version, wrong), (version, wrong)
    for version, wrong in ((0, b""), (0, b"\0\0\0"), (1, b"\0\0"), (2, bytes(11))):
        assert unread(MalformedBody, wire.decode_register_consumer_response, version, wrong), (version, wrong)


def test_what_a_coordinator_pushes_and_its_answers_are_these_bytes() -> None:
    for encode, decoded, golden in PUSHED:
        assert encode().hex() == golden
        frame = without_size(bytes.fromhex(golden))
        assert wire.decode_pushed(frame) == decoded
        for wrong in (*(frame[:length] for length in range(len(frame))), frame + b"\0"):
            assert unread(MalformedBody, wire.decode_pushed, wrong), (golden, wrong)
    for response, golden in RESPONSES:
        assert wire.encode_response(response).hex() == golden
        frame = without_size(bytes.fromhex(golden))
        assert wire.decode_response(frame) == response
        without_offsets = len(wire.encode_response(response._replace(offsets=None))) - 4
        for wrong in (*(frame[:length] for length in set(range(len(frame))) - {without_offsets}), frame + b"\0"):
            assert "consumer_malformed" in unread(PeerError, wire.decode_response, wrong), (golden, wrong)
    offsets = tuple(wire.ConsumedOffset(topic, -1, 7, 2**62) for topic in ("t", "ü", "t"))
    response = wire.ConsumerResponse(2**31 - 1, wire.STOP_FETCHER, 1, "c1", offsets)
    assert wire.decode_response(without_size(wire.encode_response(response))) == response
    of_thread = tuple(wire.ConsumedOffset("t", leader, 1, -2) for leader in (-1, 2**31 - 1))
    threads = tuple(wire.AssignedThread(f"a-b-{number}", of_thread) for number in range(2))
    for request in (
        wire.StartFetcherRequest("a-b", threads, (BROKER, BROKER)),
        wire.StartFetcherRequest("a-b", (), ()),
    ):
        found = wire.decode_pushed(without_size(wire.encode_start_fetcher(9, request)))
        assert found == wire.PushedFrame(wire.START_FETCHER, 0, 9, request)
    all_of_them = struct.pack(">hhihh", wire.STOP_FETCHER, 1, 1, -1, 2) + b"c1" + struct.pack(">i", -1)
    assert wire.decode_pushed(all_of_them).request == wire.StopFetcherRequest("c1", None)


@pytest.mark.promise("consumer-protocol.md", "With another `private.api.key.base` all api keys move with it.")
def test_the_configured_base_moves_the_keys_on_the_wire_alone() -> None:
    ping = wire.PingRequest("c1", 1)
    frame = without_size(wire.encode_ping(5, ping, base=20_000))
    assert frame[:2] == struct.pack(">h", 20_010)
    assert wire.decode_pushed(frame, base=20_000) == wire.PushedFrame(wire.PING, 0, 5, ping)
    with pytest.raises(MalformedBody):
        wire.decode_pushed(frame)
    response = wire.ConsumerResponse(5, wire.START_FETCHER, 0, "c1")
    frame = without_size(wire.encode_response(response, base=20_000))
    assert frame[4:6] == struct.pack(">h", 20_012)
    assert wire.decode_response(frame, base=20_000) == response


def test_a_partition_follows_the_last_hyphen() -> None:
    def frame(text: str) -> bytes:
        raw = text.encode()
        entry = b"\0\1t" + struct.pack(">h", len(raw)) + raw + struct.pack(">q", 5)
        return struct.pack(">ihh", 1, wire.PING, 0) + b"\0\2c1" + b"\0\1" + entry

    for text, leader, partition in (
        ("1-0", 1, 0),
        ("-1-3", -1, 3),
        ("a-b-2147483647", -1, 2**31 - 1),
        ("7", -1, 7),
        ("99999999999-7", -1, 7),
    ):
        assert wire.decode_response(frame(text)).offsets == (wire.ConsumedOffset("t", leader, partition, 5),), text
    for text in ("", "1-", "1-x", "1-2147483648", "1-١", "1-0000000000001", "1- 1"):
        assert "consumer_malformed" in unread(PeerError, wire.decode_response, frame(text)), text


def test_what_neither_side_sends_cannot_be_read() -> None:
    for response in (
        wire.ConsumerResponse(1, wire.PING, 0, "c1", (wire.ConsumedOffset("t", 1, 0, -3),)),
        wire.ConsumerResponse(1, wire.START_FETCHER, 0, "c1", ()),
        wire.ConsumerResponse(1, wire.REGISTER_CONSUMER, 0, "c1"),
    ):
        with pytest.raises(PeerError) as error:
            wire.decode_response(without_size(wire.encode_response(response)))
        assert (error.value.side, error.value.reason) == ("client", "consumer_malformed"), response
    for key, version in ((wire.PING, 1), (wire.STOP_FETCHER, 2), (wire.START_FETCHER, 1), (30_013, 0), (3, 1)):
        frame = struct.pack(">hhihh", key, version, 1, -1, 2) + b"c1\0\0\0\0"
        assert unread(MalformedBody, wire.decode_pushed, frame), (key, version)
    for count in (-2, 32_768, 2**31 - 1):
        frame = struct.pack(">hhihh", wire.STOP_FETCHER, 1, 1, -1, 2) + b"c1" + struct.pack(">i", count)
        assert unread(MalformedBody, wire.decode_pushed, frame), f"a count is not believed: {count}"
