"""Connections before brokers that are scripts: what they may say, and what is left of them."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from proxy.config import Config, Endpoint
from proxy.errors import PeerError
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


@asynccontextmanager
async def saying(reply: bytes) -> AsyncIterator[Endpoint]:
    """A port that says exactly these bytes when it is asked, and then ends the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
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
        (b"\x15\x03\x03\x00\x02\x02\x50", "352518912 bytes (these bytes begin a TLS record: this port of the"),
        (b"\xff\xff\xff\xff", "an answer of -1 bytes"),
        (b"\0\0\0\x03\0\0\0", "an answer of 3 bytes"),
        (b"\0\0\0\x04\0\0\0\x07", "an answer to another request"),
    ]:
        async with saying(reply) as endpoint:
            opened = await BrokerConnection.open(endpoint, Security(), None, "me")
            with pytest.raises((BrokerUnreachable, PeerError)) as failed:
                await opened.call(PING)
            assert said in str(failed.value), reply
            opened.close()
    security = Security.from_settings({"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"})
    for reply in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        async with saying(reply) as endpoint:
            with pytest.raises(BrokerUnreachable, match=r"does it use TLS|does not use TLS"):
                await BrokerConnection.open(endpoint, security, security.build_ssl_context(), "me")


async def test_a_broker_that_says_nothing_is_waited_for_no_longer_than_allowed() -> None:
    async def silent(_: int, __: bytes) -> bytes:
        return await asyncio.get_running_loop().create_future()

    async with broker(silent) as port:
        opened = await BrokerConnection.open(Endpoint("127.0.0.1", port), Security(), None, "me")
        with pytest.raises(BrokerUnreachable, match="no answer within"):
            await opened.call(PING, 0.05)
        opened.close()


@pytest.mark.promise(
    "architecture.md",
    "Where the own broker does not run, the sidecar asks another one of the cluster, and knows that it did.",
)
async def test_another_broker_answers_where_the_own_one_does_not_run() -> None:
    async def own(key: int, body: bytes) -> bytes:
        return b"from home"

    async with broker(own) as own_port:
        for known, says, away in (
            ({"b2": 1, "b1": own_port}, b"from home", None),
            ({"b2": 2, "b1": 1}, b"from another", "broker 1 does not answer"),
            ({"b2": 2}, b"from another", "broker 1 is not in the cluster"),
        ):

            async def other(key: int, body: bytes, known: dict[str, int] = known) -> bytes:
                return brokers(**known) if key == messages.METADATA else b"from another"

            async with broker(other) as port:
                caller = client(1, port)
                assert await caller.call(PING) == says, known
                assert caller.away_reason == away or (away is not None and away in (caller.away_reason or "")), known
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
