"""The session's promises: every response finds its request, bodies never hold back bytes, bad frames are refused."""

import struct
import time
from statistics import median

import pytest

from proxy.core.budget import CLIENT_ID, EXCHANGE
from proxy.core.header import MAX_PREFIX
from proxy.core.names import shorten
from proxy.core.session import MAX_IN_FLIGHT
from proxy.errors import PeerError
from tests.cases import each
from tests.frames import METADATA, SASL_HANDSHAKE, batch, produce, request, response, sized
from tests.tools.messages import uvarint
from tests.unit.core.test_session_observation import Bench


def test_acks_0_has_no_response_and_does_not_shift_the_others() -> None:
    bench = Bench()
    bench.client(request(METADATA, 1, 1) + produce(2, 0, batch(3)) + request(METADATA, 1, 3))
    assert bench.ended() == [(2, "no_response")]
    bench.broker(response(1))
    assert not bench.session.is_idle
    bench.broker(response(3))
    assert bench.ended()[1:] == [(1, "answered"), (3, "answered")]
    assert bench.session.is_idle


@pytest.mark.promise(
    "security.md",
    "A size or a header that a broker refuses ends the connection, and no byte of that frame is forwarded.",
)
@each("size", [-(2**31), -1, 0, 1, 9, 104_857_601, 2**31 - 1])
def test_a_size_that_a_broker_refuses_is_refused(size: int) -> None:
    bench = Bench()
    good = request(METADATA, 1, 1)
    with pytest.raises(PeerError) as raised:
        bench.client(good + size.to_bytes(4, "big", signed=True) + b"\0" * 20)
    assert (raised.value.side, raised.value.reason) == ("client", "invalid_size")
    assert bench.session.clean == len(good)
    bench.client((104_857_600).to_bytes(4, "big") + request(METADATA, 1, 1)[4:])
    assert bench.session.requests == 2, "the longest frame"


def test_a_long_client_id_is_not_kept_after_its_exchange() -> None:
    """An idle connection would hold 128 KB that nothing is charged with."""
    bench = Bench()
    names = ["x" * 32_000, "x" * 32_000, "x" * 256, "x" * 31_999 + "y", "x" * 256]
    for name in names:
        bench.client(request(METADATA, 1, 5, client_id=name))
        assert bench.session.client_id == shorten(name.encode()).decode()
        assert bench.session.account.budget.charged == EXCHANGE + CLIENT_ID * len(name)
        bench.broker(response(5))
        bench.session.account.budget.clear_recorded()
    assert [each.client_id for each in bench.exchanges] == names


def test_counts_by_api_key_are_bounded() -> None:
    """A client may send any key, 65,536 of them."""
    bench = Bench()
    bench.client(request(METADATA, 1, 5))
    bench.broker(response(5))
    for key in range(1_000, 2_000):
        bench.client(request(key, 0, 5))
        bench.broker(response(5))
    bench.client(request(METADATA, 1, 5) + request(1_000, 0, 5) + request(11, 1, 5))
    counts = bench.counters.requests
    assert (counts[METADATA], counts[1_000], counts[11], counts[-1]) == (2, 2, 1, 745)
    assert sum(counts.values()) == 1_004
    assert len(bench.counters.responses) == len(counts) - 1 == 257


@each("length", [-2, 12, 32767])
def test_a_client_id_that_does_not_fit_its_frame_is_refused(length: int) -> None:
    frame = bytearray(request(METADATA, 1, 1, b"1234567890"))
    frame[12:14] = length.to_bytes(2, "big", signed=True)
    with pytest.raises(PeerError) as raised:
        Bench().client(bytes(frame))
    assert raised.value.reason == "invalid_header"


FETCH = 1
TAGS = b"\xe8\xfb\x03" + b"\1\0" * 65_000
"""65,000 empty tagged fields of a header, which takes 130 KB with them."""


@pytest.mark.promise("security.md", "A header that comes byte by byte costs no more than its length.")
@each("side", ["client", "broker"])
def test_a_long_header_that_comes_byte_by_byte_is_not_parsed_for_each_of_them(side: str) -> None:
    bench = Bench()
    if side == "client":
        feed, frame = bench.client, struct.pack(">ihhih", 1_000_000, 0, 9, 1, -1) + TAGS
    else:
        bench.client(request(FETCH, 13, 1, bytes(40)))
        feed, frame = bench.broker, struct.pack(">ii", 1_000_000, 1) + TAGS
    feed(frame[:100_000])
    took = []
    for at in range(100_000, 108_000):
        began = time.thread_time()
        feed(frame[at : at + 1])
        took.append(time.thread_time() - began)
    # To parse it 8,000 times takes a second or more. A virtual machine that stands still adds to one of these times.
    assert 8_000 * median(took) < 0.5


def test_a_header_that_does_not_end_is_refused_at_its_bound() -> None:
    bench, sent = Bench(), 0
    frame = struct.pack(">ihhih", 1_000_000, 0, 9, 1, -1) + b"\1\5" + uvarint(900_000) + bytes(900_000)
    with pytest.raises(PeerError) as raised:  # noqa: PT012 - any of the pieces may be the one
        while sent < len(frame):
            sent += 1000
            bench.client(frame[sent - 1000 : sent])
    assert (raised.value.side, raised.value.reason) == ("client", "invalid_header")
    assert MAX_PREFIX < sent <= MAX_PREFIX + 2000


@each(
    ("asked", "message"),
    [
        (b"", "a response without a request"),
        (request(METADATA, 1, 2), "correlation id 1, not 2"),
        (request(METADATA, 1, 1, b"x" * 100)[:-1], "before the end"),
    ],
)
def test_a_response_to_nothing_or_to_what_has_not_ended_is_out_of_sync(asked: bytes, message: str) -> None:
    bench = Bench()
    if asked:
        bench.client(asked)
    with pytest.raises(PeerError, match=message) as raised:
        bench.broker(response(1))
    assert (raised.value.side, raised.value.reason) == ("broker", "out_of_sync")


def test_no_token_follows_the_beginning_of_a_request() -> None:
    """The api and the version distinguish a request from a token, before the rest of its header is there."""
    bench = Bench()
    bench.client(request(SASL_HANDSHAKE, 0, 1, b"\0\x05PLAIN"))
    bench.broker(response(1, b"\0\0\0\0\0\0"))
    bench.client(request(METADATA, 9, 2, b"\0" * 4)[:9])
    with pytest.raises(PeerError, match="a response without a request"):
        bench.broker(sized(b"token"))


@pytest.mark.promise("security.md", "A client with 256 unanswered requests is not read until one is answered.")
def test_too_many_open_requests_saturate_until_answered() -> None:
    bench = Bench()
    for n in range(MAX_IN_FLIGHT):
        assert not bench.session.saturated
        bench.client(request(METADATA, 1, n))
    assert bench.session.saturated
    bench.broker(response(0))
    assert not bench.session.saturated
