"""TLS that a sidecar originates, over real sockets, with scripted brokers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.config import load
from tests.frames import METADATA, request, response
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame
from tests.integration.tls_bench import TlsBench, every_version, silent_sidecar, tls_bench  # noqa: F401
from tests.tools.authority import Authority


def originated(authority: Authority) -> dict[str, object]:
    """``upstream.tls`` with a certificate of the sidecar's."""
    pair = authority.issue("sidecar", "CN=sidecar")
    return {
        "ssl.truststore.location": str(authority.ca),
        "ssl.server.name": "kafka-1.example",
        "ssl.certificate.location": str(pair.certificate),
        "ssl.key.location": str(pair.key),
    }


@pytest.mark.parametrize("protocol", ["SSL", "PLAINTEXT"])
async def test_tls_is_originated_to_the_broker(tmp_path: Path, protocol: str) -> None:
    authority = Authority(tmp_path / "brokers")
    async with broker_with_tls(authority, tmp_path / "brokers", client="required") as (port, seen):
        async with behind(tmp_path, port, protocol, originated(authority)) as running:
            if protocol == "SSL":
                reader, writer = await running.dial()
            else:
                reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            body = bytes(2 << 20)
            writer.write(request(METADATA, 1, 1, body) + request(METADATA, 1, 2))
            assert [await read_frame(reader) for _ in range(2)] == [response(1), response(2)]
            writer.close()
            await running.until(lambda: running.counters.closed == {"client_closed": 1})
        assert seen == [("kafka-1.example", "sidecar", False)]


@every_version
async def test_sessions_with_the_broker_are_resumed_until_its_tls_changes(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    authority = Authority(tmp_path / "brokers")
    settings = originated(authority) | {"ssl.enabled.protocols": [version.name.replace("_", ".")]}

    async def ask(running: TlsBench) -> None:
        reader, writer = await running.dial()
        writer.write(request(METADATA, 1, 1))
        assert await read_frame(reader) == response(1)
        writer.close()
        await running.until(lambda: running.counters.active == 0)

    async with (
        broker_with_tls(authority, tmp_path / "brokers", client="required") as (port, seen),
        behind(tmp_path, port, "SSL", settings) as running,
    ):
        for _ in range(3):
            await ask(running)
        authority.issue("sidecar", "CN=renewed")
        with capture_logs() as lines:
            running.manager.update_config(load(tmp_path / "sidecar.yaml", {}), running.sink)
            await running.until(lambda: any(line["event"] == "tls_updated" for line in lines))
        for _ in range(2):
            await ask(running)
    assert seen == [
        ("kafka-1.example", name, resumed)
        for name, resumed in (
            ("sidecar", False), ("sidecar", True), ("sidecar", True), ("renewed", False), ("renewed", True),
        )
    ]  # fmt: skip


async def test_a_broker_that_fails_a_resumption_is_connected_once_more(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "brokers")
    settings: dict[str, object] = {
        "ssl.truststore.location": str(authority.ca),
        "ssl.server.name": "kafka-1.example",
    }
    async with (
        broker_with_tls(authority, tmp_path / "brokers", fails=(2,)) as (port, seen),
        behind(tmp_path, port, "SSL", settings) as running,
    ):
        for _ in range(3):
            reader, writer = await running.dial()
            writer.write(request(METADATA, 1, 1))
            assert await read_frame(reader) == response(1)
            writer.close()
            await running.until(lambda: running.counters.active == 0)
        cancelled = asyncio.create_task(running.manager.listeners.by_name["CLIENT"].upstream.open())
        await asyncio.sleep(0)
        cancelled.cancel()
        reader, writer = await running.dial()
        writer.write(request(METADATA, 1, 1))
        assert await read_frame(reader) == response(1)
        writer.close()
        await running.until(lambda: running.counters.active == 0)
        assert running.counters.closed == {"client_closed": 4}
    assert [resumed for _, _, resumed in seen] == [False, False, True, True]


@pytest.mark.parametrize(
    ("keys", "detail"),
    [
        ({}, "self-signed|unable to get|certificate"),
        ({"ssl.truststore.location": "CA", "ssl.server.name": "other.example"}, "Hostname mismatch"),
    ],
)
async def test_a_broker_whose_certificate_is_not_as_configured_gets_no_request(
    tmp_path: Path, keys: dict[str, object], detail: str
) -> None:
    authority = Authority(tmp_path / "brokers")
    async with broker_with_tls(authority, tmp_path / "brokers") as (port, _):
        keys = {name: str(authority.ca) if value == "CA" else value for name, value in keys.items()}
        async with behind(tmp_path, port, "SSL", keys or {"ssl.enabled.protocols": ["TLSv1.3"]}) as running:
            with capture_logs() as lines:
                reader, writer = await running.dial()
                writer.write(request(METADATA, 1, 1))
                assert await reader.read() == b""
                await running.until(lambda: running.counters.closed == {"broker_tls_failed": 1})
                writer.close()
            assert any(line["event"] == "connection_broken" for line in lines)
            assert [line for line in lines if detail.split("|")[-1] in line.get("detail", "")], lines


async def test_a_broker_without_tls_is_said_to_be_one(tmp_path: Path) -> None:
    async def plain(reader: Reader, writer: Writer) -> None:
        await reader.read(100)

    async with tls_bench(tmp_path, plain, **{"upstream.tls": {"ssl.truststore.location": "ca.pem"}}) as running:
        with capture_logs() as lines:
            reader, writer = await running.dial()
            assert await reader.read() == b""
            await running.until(lambda: running.counters.closed == {"broker_tls_failed": 1})
            writer.close()
        assert "port without TLS" in next(line["detail"] for line in lines if line["event"] == "connection_broken")


@contextlib.asynccontextmanager
async def broker_with_tls(  # type: ignore[no-untyped-def]
    authority: Authority, folder: Path, client: str = "none", fails: tuple[int, ...] = ()
):
    """A broker that answers in order, over TLS. ``fails``: which handshakes it ends with an alert, from 1 on.

    Yields its port, and of each connection the name it was asked for, that of the client, and whether it is resumed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("broker", names=("kafka-1.example",)))
    if client == "required":
        context.load_verify_locations(str(authority.ca))
        context.verify_mode = ssl.CERT_REQUIRED
    seen: list[tuple[str, str, bool]] = []
    names: list[str] = []
    begun = itertools.count(1)

    def on_name(_: ssl.SSLObject, name: str, __: ssl.SSLContext) -> int | None:
        if next(begun) in fails:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        names.append(name)
        return None

    context.sni_callback = on_name

    async def serve(reader: Reader, writer: Writer) -> None:
        certificate = writer.get_extra_info("peercert") or {}
        subject = dict(part for parts in certificate.get("subject", ()) for part in parts)
        seen.append((names.pop(), subject.get("commonName", ""), writer.get_extra_info("ssl_object").session_reused))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer_in_order(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()


@contextlib.asynccontextmanager
async def behind(folder: Path, port: int, protocol: str, originated: dict[str, object]):  # type: ignore[no-untyped-def]
    """A sidecar before a broker with TLS."""
    settings: dict[str, object] = {"security.protocol": protocol, "upstream.tls": originated}
    async with tls_bench(folder, answer_in_order, to=f"127.0.0.1:{port}", **settings) as running:
        yield running
