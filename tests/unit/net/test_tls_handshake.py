"""The begin of TLS, before OpenSSL has bytes of a client, and handshakes whose peer does not read."""

import asyncio
import contextlib
import socket

import pytest

from proxy.errors import PeerError
from proxy.net.tls_handshake import TlsHandshake
from proxy.net.tls_stream import TlsStream
from tests.fuzz.tls import Client, contexts


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


@pytest.mark.parametrize("record", [1, 3, 4, 100])
@pytest.mark.parametrize("piece", [1, 2, 5, 1000])
def test_the_length_of_a_client_hello_is_bounded_before_it_arrives(record: int, piece: int):
    for length, expected in (
        (16384, "open"), (16385, "its ClientHello has 16385 bytes, more than 16384"),
        (0xFFFFFF, "its ClientHello has 16777215 bytes, more than 16384"),
    ):  # fmt: skip
        sent = records(b"\x01" + length.to_bytes(3, "big") + bytes(20), record)
        assert outcome(cut(sent, piece)) == expected


@pytest.mark.parametrize(
    ("sent", "detail"),
    [
        (b"\x16\x03\x01\x00\x00", "its first message is not a ClientHello"),  # an empty record
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", "its first message is not a ClientHello"),
        (b"\x15\x03\x01\x00\x02\x01\x5a", "its first message is not a ClientHello"),  # an alert
        (b"\x80\x2e\x01\x03\x01", "its first bytes are not TLS"),  # SSLv2
        (b"\x16\x03\x01\x00\x01\x01\x14\x03\x03\x00\x01\x01", "its first message is not a ClientHello"),
    ],
)
def test_other_first_messages_are_refused(sent: bytes, detail: str):
    assert outcome([sent]).startswith(detail)


@pytest.mark.parametrize("record", [1, 3, 50])
def test_a_client_hello_may_be_split_over_records(record: int):
    client, stream = Client(), TlsStream(contexts()[0])
    answer = stream.shake_hands(records(client.shake_hands()[5:], record))
    stream.check()
    stream.shake_hands(client.shake_hands(answer))
    assert stream.established


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
        async with asyncio.timeout(10):
            while handshake.is_late:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.005)
        client.send(b"more")
        assert not handshake.is_late
        handshake.abort()
