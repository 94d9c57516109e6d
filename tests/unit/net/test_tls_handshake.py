"""The begin of TLS, before OpenSSL has bytes of a client, and handshakes whose peer does not read."""

import asyncio
import contextlib
import hashlib
import socket
import ssl
from collections.abc import Callable
from itertools import product

import pytest

from proxy.errors import PeerError
from proxy.net.tls_handshake import TlsHandshake
from proxy.net.tls_stream import TlsStream
from tests.fuzz.tls import Client, contexts
from tests.tools.authority import Authority


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def records(message: bytes, size: int) -> bytes:
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in cut(message, size))


def outcome(pieces: list[bytes]) -> str:
    stream = TlsStream(contexts()[0])
    try:
        for piece in pieces:
            assert stream.shake_hands(piece) == b""
            stream.check()
    except PeerError as error:
        return error.detail
    return "open"


def test_the_length_of_a_client_hello_is_bounded_before_it_arrives():
    for record in [1, 3, 4, 100]:
        for piece in [1, 2, 5, 1000]:
            for length, expected in (
                (16384, "open"), (16385, "its ClientHello has 16385 bytes, more than 16384"),
                (0xFFFFFF, "its ClientHello has 16777215 bytes, more than 16384"),
            ):  # fmt: skip
                sent = records(b"\x01" + length.to_bytes(3, "big") + bytes(20), record)
                assert outcome(cut(sent, piece)) == expected, (record, piece)


@pytest.mark.promise("tls.md", "A ClientHello may be split over any number of TLS records.")
def test_a_client_hello_may_be_split_over_records():
    for record in [1, 3, 50]:
        client, stream = Client(), TlsStream(contexts()[0])
        answer = stream.shake_hands(records(client.shake_hands()[5:], record))
        stream.check()
        stream.shake_hands(client.shake_hands(answer))
        assert stream.established, record


CHANGE_CIPHER_SPEC = b"\x14\x03\x03\x00\x01\x01"


@pytest.fixture(scope="module")
def retry(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[TlsStream, Client]]:
    """Makes a stream that asks its client for another key share, and that client."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue("broker"))
    server.set_ecdh_curve("prime256v1")  # OpenSSL's clients begin with X25519
    trusting = ssl.create_default_context(cafile=str(authority.ca))
    return lambda: (TlsStream(server), Client(trusting))


def is_retry(answer: bytes) -> bool:
    return answer[11:43] == hashlib.sha256(b"HelloRetryRequest").digest()


def test_a_second_client_hello_is_answered(retry):
    for record, piece in product((1, 50, 10_000), (1, 7, 10_000)):
        stream, client = retry()
        answer = stream.shake_hands(client.shake_hands())
        assert is_retry(answer)
        second = client.shake_hands(answer)
        assert second.startswith(CHANGE_CIPHER_SPEC)
        sent = CHANGE_CIPHER_SPEC + records(second[len(CHANGE_CIPHER_SPEC) + 5 :], record)
        answer = b"".join(stream.shake_hands(one) for one in cut(sent, piece))
        stream.check()
        stream.shake_hands(client.shake_hands(answer))
        assert stream.established, (record, piece)


def test_the_length_of_a_second_client_hello_is_bounded(retry):
    for length, at_once, before in product((16385, 131_396, 0xFFFFFF), (False, True), (b"", CHANGE_CIPHER_SPEC)):
        stream, client = retry()
        second = before + records(b"\x01" + length.to_bytes(3, "big"), 100)
        if at_once:  # OpenSSL would read it right after the first one
            answer = stream.shake_hands(client.shake_hands() + second)
        else:
            answer = stream.shake_hands(client.shake_hands())
            stream.check()
            assert stream.shake_hands(second) == b"", length
        assert is_retry(answer), length
        with pytest.raises(PeerError, match=f"its ClientHello has {length} bytes, more than 16384"):
            stream.check()


def test_the_records_of_a_client_hello_are_bounded():
    hello = b"\x01" + (16384).to_bytes(3, "big") + bytes(16384)
    for piece in (100_000, 16_384, 1000):
        assert outcome(cut(records(hello, 1), piece)) == "the records of its ClientHello have more than 17408 bytes"
    assert outcome([records(hello, 100)[:17_000]]) == "open"


async def test_a_client_that_does_not_read_its_handshake_is_not_waited_for():
    client, server = socket.socketpair()
    with client, server:
        server.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while server.send(bytes(4096)):
                pass
        handshake = TlsHandshake(TlsStream(contexts()[0]), server, lambda error: None)
        handshake.start()
        client.send(Client().shake_hands())
        assert handshake.is_late
        async with asyncio.timeout(60):
            while handshake.is_late:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.005)
        client.send(b"more")
        assert not handshake.is_late
        handshake.abort()
