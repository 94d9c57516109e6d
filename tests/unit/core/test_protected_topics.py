"""Requests made to slip past the session's check of topics."""

import struct
import time
from statistics import median

import pytest

from proxy.core.interceptor import Request
from proxy.core.observation_interest import WANT_EXCHANGE, WANT_FACTS
from proxy.core.protected_topics import MAX_CHECKED_ITEMS, ProtectedTopics
from proxy.errors import PeerError
from proxy.interceptors.topic_protection import MAX_HELD_ADMIN_REQUEST, TopicProtection
from tests.cases import each
from tests.frames import METADATA, batch, produce, request, response, sized
from tests.unit.core.test_session_interception import Bench

REGISTRY = b"__brokerside_registry"
DELETE_TOPICS = 20


class Site(Bench):
    def __init__(self) -> None:
        self.refused: list[Request] = []
        self.topics = ProtectedTopics(["audit"])
        protection = TopicProtection(self.topics, self.refused.append)
        super().__init__([protection], wanted=WANT_EXCHANGE | WANT_FACTS, max_frame=1 << 24)
        self.answer = self.broker

    def ask(self, *pieces: bytes) -> bytes:
        """What the broker gets of these pieces."""
        before = len(self.to_broker)
        for piece in pieces:
            self.client(piece, later=True)
        return self.to_broker[before:]

    @property
    def ends(self) -> str | None:
        """Why the connection is to end."""
        interception = self.session.interception
        return interception.cause if interception.ending else None


@pytest.fixture
def site() -> Site:
    return Site()


def flexible(topics: bytes, acks: int = 1, version: int = 9) -> bytes:
    """A Produce of a flexible version; ``topics``: with their count before them."""
    return request(0, version, 1, b"\0" + b"\0" + struct.pack(">hi", acks, 1) + topics)


def named(name: bytes, partitions: bytes = b"\1") -> bytes:
    return bytes([len(name) + 1]) + name + partitions + b"\0"


@pytest.mark.promise("security.md", "A Produce that brokers might read otherwise than the sidecar does not pass.")
@each(
    "topics",
    [
        # A length of 12 to a broker, which drops what is above 32 bits, and of 4 GiB to others.
        b"\3" + named(b"t", b"\2\0\0\0\0" + b"\x8c\x80\x80\x80\x10" + b"v" * 11 + b"\0") + named(REGISTRY),
        b"\3" + b"\2t\1\1\0" + b"\x8c\x80\x80\x80\x10" + b"v" * 12 + named(REGISTRY),  # so long a tagged field
        b"\x81\x80\x80\x80\x80\x01" + named(REGISTRY),  # more than five bytes
        b"\0",  # null
        b"\2\0",
        b"\2\x81\x80\x02" + b"x" * 100,  # a name of 32,768 bytes
    ],
)
def test_what_a_broker_reads_otherwise_or_not_at_all_does_not_pass(topics: bytes) -> None:
    site = Site()
    frame = flexible(topics)
    with pytest.raises(PeerError) as raised:
        site.ask(frame)
    assert raised.value.reason == "invalid_request"
    assert site.to_broker == b""


def test_a_topic_after_forwarded_bytes_ends_the_connection_in_its_turn(site: Site) -> None:
    name = REGISTRY
    frame = flexible(b"\3" + named(b"t", b"\2\0\0\0\0" + b"\x65" + b"v" * 100 + b"\0") + named(name))
    earlier = request(METADATA, 1, 7, bytes(4))
    cut = frame.index(name) + 5
    assert site.ask(earlier + frame[:cut]) == earlier + frame[:cut]
    assert site.ask(frame[cut : cut + 30]) == b""
    assert site.ends is None, "the broker has not answered yet what was asked before"
    assert site.ask(frame[cut + 30 :], produce(9, 1, batch(1))) == b""
    answer = response(7, b"brokers")
    site.answer(answer)
    assert (site.to_client, site.ends) == (answer, "protected_topic")
    site.session.close(2.0)
    exchange = site.exchanges[-1]
    assert (exchange.synthesized, exchange.error_code, exchange.outcome) == (True, 29, "connection_lost")


def test_a_first_topic_that_comes_byte_by_byte_is_not_looked_for_with_each_of_them(site: Site) -> None:
    """The header before it may have 128 KiB."""
    tags = b"\xe8\xfb\x03" + b"\1\0" * 65_000
    topics = b"\2\xfa\1" + b"t" * 249 + b"\1\0\0"
    frame = sized(struct.pack(">hhih", 0, 9, 1, -1) + tags + b"\0" + struct.pack(">hi", 1, 1) + topics)
    cut = frame.index(b"t" * 249) + 248
    assert site.ask(frame[: cut - 250]) == b""
    took = []
    for at in range(cut - 250, cut):
        began = time.thread_time()
        assert site.ask(frame[at : at + 1]) == b""
        took.append(time.thread_time() - began)
    # To parse it 250 times takes several seconds. A virtual machine that stands still adds to one of these times.
    assert 250 * median(took) < 1
    assert site.ask(frame[cut:]) == frame


@pytest.mark.promise(
    "protected-topics.md", "A Produce with more than 1,000 partitions and a protected topic ends the connection."
)
def test_more_partitions_than_are_answered_end_the_connection(site: Site) -> None:
    for count, cause in ((MAX_CHECKED_ITEMS, None), (MAX_CHECKED_ITEMS + 1, "protected_topic")):
        partitions = b"".join(struct.pack(">ii", at, -1) for at in range(count))
        body = struct.pack(">hhiih", -1, 1, 1, 1, len(REGISTRY)) + REGISTRY + struct.pack(">i", count) + partitions
        assert site.ask(request(0, 7, 1, body)) == b""
        assert site.ends == cause


@pytest.mark.promise(
    "protected-topics.md", "An unknown version of a request that could change a protected topic ends the connection."
)
@each(("key", "version"), [(0, 14), (0, 31), (0, 99), (0, -1), (20, 7), (44, 2)])
def test_a_version_that_is_not_known_does_not_pass(key: int, version: int) -> None:
    site = Site()
    assert site.ask(request(key, version, 1, bytes(20))) == b""
    assert site.ends == "unsupported_request"


@pytest.mark.promise(
    "protected-topics.md",
    "An admin request that may change topics is held back up to 1 MiB; a longer one ends the connection.",
)
def test_a_change_is_held_back_up_to_its_bound(site: Site) -> None:
    def delete(*names: bytes) -> bytes:
        body = struct.pack(">i", len(names)) + b"".join(struct.pack(">h", len(name)) + name for name in names)
        return request(DELETE_TOPICS, 1, 5, body + struct.pack(">i", 1))

    long = delete(*[b"t" * 100] * 9_000)
    assert 800_000 < len(long) < MAX_HELD_ADMIN_REQUEST
    assert site.ask(long[:700_000]) == b""
    assert site.ask(long[700_000:]) == long
    assert site.ask(delete(b"a", REGISTRY)) == b""
    with pytest.raises(PeerError) as raised:
        site.ask(delete(*[b"t" * 100] * 11_000))
    assert raised.value.reason == "invalid_size"
    assert site.counters.intercepted == {(DELETE_TOPICS, "denied"): 1}


def test_a_mistake_of_the_sidecar_opens_nothing(site: Site) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    site.interceptors._interceptors[0].on_body = fail
    assert site.ask(request(DELETE_TOPICS, 1, 5, struct.pack(">iih", 1, 1, 0))) == b""
    assert (site.ends, site.counters.intercept_errors) == ("unsupported_request", 1)
    for acks in (0, 1):
        site = Site()
        site.interceptors._interceptors[0].on_protected_topic = fail
        assert site.ask(produce(1, acks, batch(1), topic="brokerside-audit")) == b""
        assert (site.ends, site.counters.intercept_errors) == ("protected_topic", 1)
