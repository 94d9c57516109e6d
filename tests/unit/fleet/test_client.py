"""Connections before brokers that are scripts: what they may say, and what is left of them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from proxy.config import Config, Endpoint
from proxy.errors import LocalError, PeerError
from proxy.fleet.client import ClusterClient
from proxy.fleet.connection import BrokerConnection, BrokerUnreachable
from proxy.fleet.security import Security
from proxy.rpc import messages
from proxy.rpc.messages import RequestRefused, RpcRequest
from tests.unit.fleet.cluster import text

PING = RpcRequest(48, 0, b"ping")
Answer = Callable[[int, bytes], Awaitable[bytes | None]]


@asynccontextmanager
async def broker(answer: Answer) -> AsyncIterator[int]:
    """Answer each request, given its key and body, with a body; None ends the connection. Yields the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                key, _, correlation_id, length = struct.unpack_from(">hhih", frame)
                body = await answer(key, frame[10 + length :])
                if body is None:
                    return
                head = struct.pack(">ii", 4 + len(body), correlation_id)
                writer.write(head + body)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)


async def raw(reply: bytes) -> Exception:
    """What a connection raises that gets exactly these bytes, and then the end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    opened = await BrokerConnection.open(endpoint, Security(), None, "me")
    try:
        with pytest.raises((BrokerUnreachable, PeerError)) as failed:
            await opened.call(PING)
        return failed.value
    finally:
        opened.close()
        server.close()
        await asyncio.sleep(0)


def client(*ports: int, **internal: str) -> ClusterClient:
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    listener = {"name": "CLIENT", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2"}
    settings = {name.replace("_", "."): value for name, value in internal.items()}
    values = {"broker.id": 1, "internal.bootstrap.servers": servers, "listeners": [listener], "internal": settings}
    return ClusterClient(Config.model_validate(values), "me")


def brokers(**ports: int) -> bytes:
    """A Metadata answer: ports of loopback by broker id."""
    listed = [
        struct.pack(">i", int(name.lstrip("b"))) + text("127.0.0.1") + struct.pack(">ih", port, -1)
        for name, port in ports.items()
    ]
    return struct.pack(">i", len(listed)) + b"".join(listed)


async def test_what_is_no_answer() -> None:
    for reply, said in [
        (b"", "the connection was closed"),
        (b"\0\0\0\x08\0\0\0\x01\0", "the connection was closed"),
        (b"HTTP/1.1 400 Bad Request", "an answer of 1213486160 bytes"),
        (
            b"\x15\x03\x03\x00\x02\x02\x50",
            "352518912 bytes (these bytes begin a TLS record: this port of the broker uses",
        ),
        (b"\xff\xff\xff\xff", "an answer of -1 bytes"),
        (b"\0\0\0\x03\0\0\0", "an answer of 3 bytes"),
        (b"\0\0\0\x04\0\0\0\x07", "an answer to another request"),
    ]:
        assert said in str(await raw(reply)), (reply, said)


async def test_a_broker_that_says_nothing_is_waited_for_no_longer_than_allowed() -> None:
    async def silent(_: int, __: bytes) -> bytes:
        return await asyncio.get_running_loop().create_future()

    async with broker(silent) as port:
        opened = await BrokerConnection.open(Endpoint("127.0.0.1", port), Security(), None, "me")
        with pytest.raises(BrokerUnreachable, match="no answer within"):
            await opened.call(PING, 0.05)
        opened.close()


async def test_the_own_broker_is_found_from_any_other() -> None:
    home: list[bytes] = []

    async def own(key: int, body: bytes) -> bytes:
        home.append(body)
        return b"from home"

    async with broker(own) as own_port:

        async def other(key: int, body: bytes) -> bytes:
            assert key == messages.METADATA
            return brokers(b2=1, b1=own_port)

        async with broker(other) as other_port:
            caller = client(other_port)
            assert await caller.call(PING) == b"from home"
            assert caller.away_reason is None
            caller.close()


@pytest.mark.promise(
    "architecture.md",
    "Where the own broker does not run, the sidecar asks another one of the cluster, and knows that it did.",
)
async def test_another_broker_answers_where_the_own_one_does_not_run() -> None:
    for known in [True, False]:

        async def other(key: int, body: bytes, known: bool = known) -> bytes:
            if key == messages.METADATA:
                return brokers(b2=2, b1=1) if known else brokers(b2=2)
            return b"from another"

        async with broker(other) as port:
            caller = client(1, port)
            assert await caller.call(PING) == b"from another", known
            assert ("broker 1 does not answer" if known else "broker 1 is not in the cluster") in (
                caller.away_reason or ""
            ), known
            caller.close()


async def test_a_kept_connection_that_has_ended_is_made_anew_once() -> None:
    answered = 0

    async def restarting(key: int, body: bytes) -> bytes | None:
        nonlocal answered
        if key == messages.METADATA:
            return brokers()
        answered += 1
        return None if answered in (2, 4, 5) else b"%d" % answered

    async with broker(restarting) as port:
        caller = client(port)
        assert await caller.call(PING) == b"1"
        assert await caller.call(PING) == b"3"
        with pytest.raises(BrokerUnreachable, match="the connection was closed"):
            await caller.call(PING)
        assert await caller.call(PING) == b"6"
        caller.close()


async def test_nobody_there_is_reported_with_an_address_and_without_words_of_python() -> None:
    for host in ("127.0.0.1", "localhost"):  # one address, and mostly two
        with pytest.raises(BrokerUnreachable) as raised:
            await BrokerConnection.open(Endpoint(host, 1), Security(), None, "me")
        assert str(raised.value) == f"{host}:1: Connection refused"
    with pytest.raises(LocalError, match=r"sasl\.mechanism GSSAPI"):  # which it cannot heed, and no network error
        await client(1, security_protocol="sasl_plaintext").call(PING)


async def test_tls_where_there_is_none_is_named() -> None:
    for reply in [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"]:

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: bytes | None = reply
        ) -> None:
            await reader.read(1000)
            if reply is not None:
                writer.write(reply)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        security = Security.from_settings({"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"})
        with pytest.raises(BrokerUnreachable, match=r"does it use TLS|does not use TLS"):
            await BrokerConnection.open(endpoint, security, security.build_ssl_context(), "me")
        server.close()


@pytest.mark.promise("security.md", "A password that a broker refuses is not in the error that says so.")
async def test_a_password_that_is_wrong() -> None:
    async def strict(key: int, body: bytes) -> bytes:
        if key == messages.SASL_HANDSHAKE:
            return b"\0\0\0\0\0\1" + text("PLAIN")
        assert body[4:] == b"\0me\0hunter2"
        return struct.pack(">h", 58) + text("Authentication failed") + struct.pack(">i", 0)

    async with broker(strict) as port:
        security = Security(mechanism="PLAIN", user="me", password="hunter2")
        with pytest.raises(RequestRefused, match="Authentication failed") as refused:
            await BrokerConnection.open(Endpoint("127.0.0.1", port), security, None, "me")
        assert "hunter2" not in str(refused.value)
