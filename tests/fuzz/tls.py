"""Hostile bytes for TLS: in place of a handshake, over one, after one, and in place of a second ClientHello.

All streams of a process share their BIOs. So each input is followed by an exchange on another stream, which has to be
unharmed.
"""

import contextlib
import ssl
import tempfile
from functools import cache
from pathlib import Path
from random import Random

from proxy.errors import PeerError
from proxy.net.tls_stream import TlsStream
from tests.fuzz.mutate import cuts
from tests.tools.authority import Authority

INSTEAD, OVER, AFTER, AGAIN = range(4)
"""The first byte of an input, modulo their number: what the rest of it is."""

MESSAGE = b"what was sent before"


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and of its clients."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*authority.issue("broker"))
        server.load_verify_locations(authority.ca)
        server.verify_mode = ssl.CERT_OPTIONAL
        return server, ssl.create_default_context(cafile=str(authority.ca))


class Client:
    """A client of Python's, with BIOs of its own."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (context or contexts()[1]).wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def shake_hands(self, received: bytes = b"") -> bytes:
        self.incoming.write(received)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


def connected() -> tuple[TlsStream, Client]:
    stream, client = TlsStream(contexts()[0]), Client()
    answer = stream.shake_hands(client.shake_hands())
    while not stream.established:
        answer = stream.shake_hands(client.shake_hands(answer))
    client.incoming.write(answer)  # tickets
    return stream, client


@cache
def asking_again() -> tuple[ssl.SSLContext, bytes]:
    """Of a server that wants another key share than its clients send, and the first message of one."""
    with tempfile.TemporaryDirectory() as folder:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*Authority(Path(folder)).issue("broker"))
        server.set_ecdh_curve("prime256v1")
    return server, Client().shake_hands()


@cache
def bystander() -> tuple[TlsStream, Client]:
    return connected()


def check_bystander() -> None:
    stream, client = bystander()
    assert stream.decrypt(client.encrypt(MESSAGE)) == MESSAGE
    client.incoming.write(stream.encrypt(MESSAGE))
    assert client.tls.read(100) == MESSAGE


def failed(stream: TlsStream) -> bool:
    """Whether a stream has failed, as it may."""
    try:
        stream.check()
    except PeerError as error:
        if (error.side, error.reason) != ("client", "tls_failed") or not error.detail:
            raise AssertionError("it failed in another way") from error
        return True
    return False


def handshake_with(pieces: list[bytes], *, again: bool = False) -> str:
    """What becomes of a handshake whose client sends ``pieces``. ``again``: it is asked for a second ClientHello, and
    the first one comes with the first piece."""
    context, first = asking_again() if again else (contexts()[0], b"")
    stream = TlsStream(context)
    for piece in (first + pieces[0], *pieces[1:]) if pieces else ():
        answer = stream.shake_hands(piece)
        assert len(answer) < 65_536
        if failed(stream):
            return "failed"
        assert not stream.established
    return "open"


def hello_with(data: bytes) -> bytes:
    """A real first message of a client with ``data`` in it, at the place that its first two bytes say."""
    hello = bytearray(Client().shake_hands())
    at = int.from_bytes(data[:2], "big") % len(hello)
    hello[at : at + len(data) - 2] = data[2:]
    return bytes(hello)


def after(pieces: list[bytes]) -> bytes:
    """What is decrypted of a valid message, and ``pieces`` of hostile bytes after it."""
    stream, client = connected()
    found = stream.decrypt(client.encrypt(MESSAGE))
    with contextlib.suppress(PeerError):
        for piece in pieces:
            found += stream.decrypt(piece)
    failed(stream)
    return found


def once(data: bytes) -> object:
    what, rest = (data + b"\0")[0] % 4, data[1:]
    if what == AFTER:
        return after([rest])
    return handshake_with([hello_with(rest) if what == OVER else rest], again=what == AGAIN)


def check(data: bytes, rng: Random) -> None:
    what, rest = (data + b"\0")[0] % 4, data[1:]
    if what == AFTER:
        assert after(cuts(rng, rest)) == MESSAGE
    else:
        sent = hello_with(rest) if what == OVER else rest
        whole = handshake_with([sent], again=what == AGAIN)
        assert whole == handshake_with(cuts(rng, sent), again=what == AGAIN), "pieces make a difference"
    check_bystander()


def seeds() -> list[bytes]:
    """Cut messages, records of each type, and what is no TLS at all."""
    hello = Client().shake_hands()
    records = [bytes([kind]) + b"\x03\x03\x00\x20" + bytes(32) for kind in (20, 21, 22, 23, 24)]
    cut = [hello[:size] for size in range(0, len(hello), 37)]
    others = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x0e\0\3\0\1\0\0\0\7\xff\xff\0\0\0\0",
        b"\x80\x2e\1\3\1",
        b"\x15\3\3\0\2\2\x50",
    ]
    return [
        *(bytes([INSTEAD]) + one for one in (*cut, *records, *others)),
        *(bytes([OVER]) + at.to_bytes(2, "big") + b"\xff\xff" for at in range(0, 500, 23)),
        *(bytes([AFTER]) + one for one in (*records, *others, hello)),
        *(bytes([AGAIN]) + before + one for before in (b"", b"\x14\3\3\0\1\1") for one in (*cut, *records, *others)),
    ]
