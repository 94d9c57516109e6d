import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from proxy.config import Endpoint, Listener
from proxy.core.counters import ListenerCounters
from proxy.net import proxy_header
from proxy.net.proxy_header import ProxyHeaderReader

HEADER = b"PROXY TCP4 192.0.2.7 198.51.100.1 51234 9092\r\n"
KAFKA = b"\x00\x00\x00\x20 a request" + b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" * 200
SOMEBODY = ("127.0.0.9", 40_000)


class Door:
    """A listening socket whose connections are given to ``ProxyHeaderReader``; notes whom they let in."""

    def __init__(self) -> None:
        self.counters = ListenerCounters()
        self.reader = ProxyHeaderReader({"CLIENT": self.counters})
        self.came: list[tuple[socket.socket, tuple[str, int]]] = []
        self.clients: list[socket.socket] = []
        self.trusted = ("127.0.0.0/8", "fd00::/8")
        self._server = socket.create_server(("127.0.0.1", 0))

    async def dial(self, sent: bytes = b"", address: tuple[str, int] = SOMEBODY) -> socket.socket:
        """Connect, send, and only then admit: what was sent is there at the first read."""
        client = socket.create_connection(self._server.getsockname())
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.clients.append(client)
        if sent:
            client.sendall(sent)
        sock, _ = self._server.accept()
        if sent:
            assert len(sock.recv(len(sent), socket.MSG_PEEK | socket.MSG_WAITALL)) == len(sent)
        sock.setblocking(False)
        bind = Endpoint("127.0.0.1", 1)
        listener = Listener.model_construct(name="CLIENT", bind=bind, proxy_protocol_trusted=self.trusted)
        self.reader.read_header(listener, sock, address, lambda sock, address: self.came.append((sock, address)))
        return client

    async def until(self, condition) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.001)

    async def ends(self, client: socket.socket) -> bool:
        """Whether the client sees the end."""
        async with asyncio.timeout(60):
            try:
                return await asyncio.get_running_loop().sock_recv(client, 1) == b""
            except ConnectionResetError:  # the rest of what it sent was not read
                return True


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    door = Door()
    yield door
    door.reader.close()
    for sock in [*door.clients, *(sock for sock, _ in door.came), door._server]:
        sock.close()


async def rest(sock: socket.socket, size: int) -> bytes:
    data = b""
    async with asyncio.timeout(60):
        while len(data) < size:
            data += await asyncio.get_running_loop().sock_recv(sock, size - len(data))
    return data


@pytest.mark.promise(
    "limits.md", "With `proxy.protocol: required`, limits, audit and metrics use the address in the PROXY header."
)
async def test_a_header_lets_in_with_its_address_however_it_comes_and_not_a_byte_more_is_taken(door):
    await door.dial(HEADER + KAFKA)
    slow = await door.dial()
    for at in range(len(HEADER)):
        assert len(door.came) == 1
        assert door.counters.active == 1
        slow.sendall(HEADER[at : at + 1])
        await asyncio.sleep(0.001)
    await door.until(lambda: len(door.came) == 2)
    slow.sendall(KAFKA)
    cut = await door.dial(HEADER[:20])
    await asyncio.sleep(0.001)
    cut.sendall(HEADER[20:] + KAFKA)
    await door.until(lambda: len(door.came) == 3)
    for sock, address in door.came:
        assert address == ("192.0.2.7", 51_234)
        assert await rest(sock, len(KAFKA)) == KAFKA
    assert (door.counters.active, door.counters.closed) == (0, {})
    await door.dial(b"PROXY UNKNOWN\r\n")
    assert door.came[-1][1] == SOMEBODY, "without an address in the header it is that of the load balancer"


async def test_the_loop_is_not_busy_while_a_header_is_incomplete(door, monkeypatch):
    looks = 0

    def look(pending, original=proxy_header._PendingHeader._on_readable):
        nonlocal looks
        looks += 1
        original(pending)

    monkeypatch.setattr(proxy_header._PendingHeader, "_on_readable", look)
    client = await door.dial(HEADER[:10])
    for at in range(10, 20):
        client.sendall(HEADER[at : at + 1])
        await asyncio.sleep(0.01)
    assert looks <= 1 + 10


@pytest.mark.promise(
    "limits.md", "Behind a load balancer a connection without a PROXY header, or from another address, is closed."
)
async def test_what_begins_otherwise_or_is_not_trusted_is_closed(door):
    for sent, detail in ((KAFKA, "begins with"), (b"PROXY TCP4 nobody nobody 1 2\r\n" + KAFKA, "no address")):
        door.reader = ProxyHeaderReader({"CLIENT": door.counters})  # whose log is limited
        with capture_logs() as lines:
            assert await door.ends(await door.dial(sent)), sent
        ((event, cause, peer, text),) = [(one["event"], one["cause"], one["peer"], one["detail"]) for one in lines]
        assert (event, cause, peer) == ("proxy_header_refused", "invalid_proxy_header", "127.0.0.9"), sent
        assert detail in text, sent
    for address in ("192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"):
        assert await door.ends(await door.dial(HEADER, (address, 1))), address
    client = await door.dial(HEADER[:-1])
    client.shutdown(socket.SHUT_WR)
    assert await door.ends(client)
    assert door.counters.closed == {"invalid_proxy_header": 3, "untrusted_proxy": 3}
    assert (door.counters.active, door.came) == (0, [])
    for address in ("127.9.9.9", "fd00::1", "::ffff:127.0.0.1"):
        await door.dial(HEADER, (address, 1))
    assert len(door.came) == 3, "trust is by network"


async def test_waiting_for_headers_is_bounded_in_time_and_number(door, monkeypatch):
    monkeypatch.setattr(proxy_header, "MAX_PENDING_HEADERS", 2)
    first, second, third = [await door.dial() for _ in range(3)]
    assert await door.ends(third)
    assert (door.counters.active, door.counters.closed) == (2, {"proxy_header_overload": 1})
    first.sendall(HEADER)
    await door.until(lambda: door.came)
    monkeypatch.setattr(proxy_header, "HEADER_TIMEOUT", 0.05)
    late = await door.dial(HEADER[:-1])
    assert await door.ends(late)
    assert (door.counters.active, door.counters.closed["proxy_header_timeout"]) == (1, 1)
    door.reader.close()
    assert await door.ends(second)
    assert (door.counters.active, door.counters.closed["drain_completed"]) == (0, 1)
