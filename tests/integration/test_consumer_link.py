"""The connection of a consumer to a sidecar, over loopback, with a clock that the tests set."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy.client.consumer.events import FrameReceived, LinkConnected, LinkEnded, LinkFailed
from proxy.client.consumer.link import CoordinatorLink, LinkEvent
from proxy.config.values import Endpoint
from proxy.fleet.security import Security
from tests.sasl import authenticate_reply, handshake_reply

SECONDS = 60.0


class Peer:
    """The other end, and the link to it. ``now``: of the link's clock; ``theirs``: once it was accepted."""

    theirs: socket.socket

    def __init__(self, security: Security) -> None:
        self.now = 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(SECONDS)
        address = Endpoint("127.0.0.1", self.server.getsockname()[1])
        self.link = CoordinatorLink(address, security, "c1", lambda: self.now)

    def accept(self) -> socket.socket:
        self.theirs, _ = self.server.accept()
        self.theirs.settimeout(SECONDS)
        return self.theirs

    def look(self, at: int | None = None) -> list[LinkEvent]:
        self.now = self.now if at is None else at
        return list(self.link.poll())

    def wait_and_look(self, at: int | None = None) -> list[LinkEvent]:
        """Look when there is something."""
        assert self.link.interest is not None
        found, events = self.link.interest
        assert any(select.select([found], [found] if events & 2 else [], [], SECONDS))
        return self.look(at)

    def close(self) -> None:
        self.link.close(reset=True)
        self.theirs.close()
        self.server.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def peer(security: Security | None = None) -> Peer:
        made.append(Peer(security or Security()))
        return made[-1]

    yield peer
    for one in made:
        one.close()


def connected(one: Peer) -> Peer:
    """At 0."""
    events = one.look(0)
    while not events:
        events = one.wait_and_look(0)
    assert events == [LinkConnected()]
    one.accept()
    return one


@pytest.fixture
def peer(make: Callable[..., Peer]) -> Peer:
    return connected(make())


@pytest.mark.promise(
    "consumer.md", "What lay in the buffer of a paused process counts as heard when the process last found it empty."
)
def test_a_frame_is_as_old_as_the_last_look_that_found_nothing(peer: Peer) -> None:
    assert peer.look(100) == []
    peer.theirs.sendall(b"\0\0\0\5hello")
    assert peer.wait_and_look(4000) == [FrameReceived(b"hello", 100)]
    peer.theirs.sendall(b"\0\0\0\5he")
    assert peer.wait_and_look(5000) == [], "in pieces: as old as its last byte"
    peer.theirs.sendall(b"llo\0\0\0\5again")
    assert peer.wait_and_look(6000) == [FrameReceived(b"hello", 5000), FrameReceived(b"again", 5000)]
    for number in range(3):
        peer.theirs.sendall(b"\0\0\0\5ping%d" % number)
    found: list[LinkEvent] = []
    while len(found) < 3:
        found += peer.wait_and_look(60_000) if not found else peer.look()
    assert found[0] == FrameReceived(b"ping0", 6000)


def test_it_ends_with_a_reset_or_with_a_fin_after_what_was_sent(make: Callable[..., Peer]) -> None:
    """A FIN would say that the consumer has stopped."""
    for ends_itself in (False, True):
        peer = connected(make())
        if ends_itself:
            peer.link.close(reset=True)
        else:
            peer.theirs.shutdown(socket.SHUT_WR)
            (ended,) = peer.wait_and_look()
            assert isinstance(ended, LinkEnded)
        with pytest.raises(ConnectionResetError):
            peer.theirs.recv(1)
    peer = connected(make())
    peer.theirs.sendall(b"\0\0\0\5hello")  # which nobody will read
    peer.wait_and_look()
    peer.link.send(b"goodbye")
    peer.link.close(reset=False)
    assert [peer.theirs.recv(100), peer.theirs.recv(100)] == [b"goodbye", b""]


def test_a_frame_of_a_wrong_size_ends_it(make: Callable[..., Peer]) -> None:
    for size in (-1, 0, 3, 16 * 1024 * 1024 + 1):
        peer = connected(make())
        peer.theirs.sendall(struct.pack(">i", size))
        (ended,) = peer.wait_and_look()
        assert isinstance(ended, LinkEnded), size
        assert f"a frame of {size} bytes" in ended.reason


def test_what_is_not_read_is_sent_later(peer: Peer) -> None:
    frame = bytes(1 << 20) * 8
    peer.link.send(frame)
    assert peer.link.interest is not None
    assert peer.link.interest[1] == 3
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(_read, peer.theirs, len(frame))
        while not received.done():
            assert peer.look() == []
    assert received.result() == frame


def test_a_peer_that_does_not_read_ends_it(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.client.consumer.link.MAX_UNSENT_BYTES", 1000)
    peer.link.send(bytes(1 << 20) * 16)
    (ended,) = peer.look()
    assert isinstance(ended, LinkEnded)
    assert "does not read" in ended.reason


# Logins

PLAIN = Security(mechanism="PLAIN", user="alice", password="secret")


def _logged_in(one: Peer, serve: Callable[[socket.socket], None]) -> LinkEvent:
    """The event of an attempt to connect."""
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(lambda: serve(one.accept()))
        events = one.look()
        while not events:
            events = one.wait_and_look()
        served.result(SECONDS)
    (event,) = events
    return event


def test_a_wrong_password_is_fatal_and_not_told_and_a_login_that_is_cut_off_is_tried_again(
    make: Callable[..., Peer],
) -> None:
    def refuse(client: socket.socket) -> None:
        _body(client)
        _reply(client, handshake_reply())
        _body(client)
        _reply(client, authenticate_reply(version=0, error_code=58, message="Authentication failed"))

    def cut_off(client: socket.socket) -> None:
        _body(client)
        client.close()

    failed = _logged_in(make(PLAIN), refuse)
    assert isinstance(failed, LinkFailed)
    assert failed.fatal
    assert "secret" not in failed.reason
    failed = _logged_in(make(PLAIN), cut_off)
    assert isinstance(failed, LinkFailed)
    assert (failed.fatal, failed.refused) == (False, False)


def _read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += client.recv(size - len(data))
    return data


def _body(client: socket.socket) -> bytes:
    return _read(client, int.from_bytes(_read(client, 4), "big"))


def _reply(client: socket.socket, body: bytes) -> None:
    client.sendall(struct.pack(">ii", 4 + len(body), 0) + body)
