"""What consumers answer to their coordinator, and what they register with."""

from random import Random

from proxy.coordinator import wire
from proxy.coordinator.subscription import MAX_STREAMS, parse_topic_count
from proxy.coordinator.wire import ConsumedOffset, ConsumerResponse, RegisterConsumerRequest, RegistrationRefused
from proxy.errors import MalformedBody, PeerError
from tests.fuzz.targets import Target

# ---- frames on the connection of a consumer --------------------------------------------------------------------------

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
    return [wire.encode_response(one)[4:] for one in responses]


def frame_once(data: bytes) -> ConsumerResponse | None:
    """What the frame says; None if it cannot be read."""
    try:
        return wire.decode_response(data)
    except PeerError:
        return None


def check_frame(data: bytes, rng: Random) -> None:
    """It is read again as it is written."""
    found = frame_once(data)
    assert found is None or wire.decode_response(wire.encode_response(found)[4:]) == found


# ---- what consumers ask ----------------------------------------------------------------------------------------------

VERSIONS = 3
"""Of RegisterConsumer; the first byte of an input."""

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
        version = number % VERSIONS
        request = RegisterConsumerRequest("g", "c1", text, bool(number % 2), "smallest", 6000, 2)
        found.append(bytes((version,)) + wire.encode_register_consumer_request(version, request))
    return found


def request_once(data: bytes) -> RegisterConsumerRequest | None:
    """The request, of which a coordinator can make something; None if it cannot be read."""
    try:
        request = wire.decode_register_consumer_request((data + b"\0")[0] % VERSIONS, data[1:])
        subscribed(request)
    except (MalformedBody, RegistrationRefused):
        return None
    return request


def subscribed(request: RegisterConsumerRequest) -> dict[str, int]:
    """Its topics, of those there are."""
    return parse_topic_count(request.topic_count).select(TOPICS)


def check_request(data: bytes, rng: Random) -> None:
    """A registration is read again as it is written, and no subscription is more than is allowed."""
    found, version = request_once(data), (data + b"\0")[0] % VERSIONS
    if found is not None:
        body = wire.encode_register_consumer_request(version, found)
        assert wire.decode_register_consumer_request(version, body) == found
        assert all(1 <= streams <= MAX_STREAMS for streams in subscribed(found).values())
        topics = parse_topic_count(found.topic_count)
        assert topics.pattern is None or "__consumer_offsets" not in subscribed(found)


TARGETS = [
    Target("consumer_frames", frame_seeds, check_frame, frame_once, share=40),
    Target("register_request", request_seeds, check_request, request_once, share=30, besides=1 << 20),
]
