"""TLS that a sidecar originates, over real sockets, with scripted brokers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.local.ports import HOST
from tests.frames import METADATA, request, response
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame
from tests.integration.test_tls import asks
from tests.integration.tls_bench import VERSIONS, TlsBench, silent_sidecar, tls_bench  # noqa: F401
from tests.tools.authority import Authority

NAME = "kafka-1.example"
Seen = list[tuple[str, str, bool]]
"""Of each connection the name it was asked for, that of the client, and whether it is resumed."""


def originated(authority: Authority) -> dict[str, object]:
    """``upstream.tls`` with a certificate of the sidecar's."""
    pair = authority.issue("sidecar", "CN=sidecar")
    files = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    return {"ssl.truststore.location": str(authority.ca), "ssl.server.name": NAME, **files}


@asynccontextmanager
async def broker_with_tls(
    authority: Authority, client: str = "none", fails: tuple[int, ...] = ()
) -> AsyncIterator[tuple[int, Seen]]:
    """A broker that answers in order, over TLS. ``fails``: which handshakes it ends with an alert, from 1 on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("broker", names=(NAME,)))
    if client == "required":
        context.load_verify_locations(str(authority.ca))
        context.verify_mode = ssl.CERT_REQUIRED
    seen: Seen = []
    names: list[str] = []
    begun = itertools.count(1)

    def on_name(_: ssl.SSLObject, name: str, __: ssl.SSLContext) -> int | None:
        if next(begun) in fails:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        names.append(name)
        return None

    context.sni_callback = on_name  # type: ignore[assignment]

    async def serve(reader: Reader, writer: Writer) -> None:
        certificate = writer.get_extra_info("peercert") or {}
        subject = dict(part for parts in certificate.get("subject", ()) for part in parts)
        seen.append((names.pop(), subject.get("commonName", ""), writer.get_extra_info("ssl_object").session_reused))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer_in_order(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()


def behind(
    folder: Path, port: int, tls: dict[str, object], protocol: str = "SSL"
) -> AbstractAsyncContextManager[TlsBench]:
    """A sidecar before a broker with TLS."""
    settings: dict[str, object] = {"security.protocol": protocol, "upstream.tls": tls}
    return tls_bench(folder, answer_in_order, to=f"{HOST}:{port}", **settings)


async def come_and_go(running: TlsBench) -> None:
    """One client asks, and its connection ends."""
    reader, writer = await running.dial()
    await asks(reader, writer)
    writer.close()
    await running.until(lambda: running.counters.active == 0)


@pytest.mark.promise(
    "tls.md",
    "`upstream.tls` gives the broker's port TLS, with the sidecar's certificate and the name that is "
    "expected, whether clients have TLS or not.",
)
async def test_tls_is_originated_to_the_broker(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "brokers")
    async with broker_with_tls(authority, "required") as (port, seen):
        for protocol in ("SSL", "PLAINTEXT"):
            async with behind(tmp_path, port, originated(authority), protocol) as running:
                dialled = running.dial() if protocol == "SSL" else asyncio.open_connection(HOST, running.port)
                reader, writer = await dialled
                writer.write(request(METADATA, 1, 1, bytes(2 << 20)) + request(METADATA, 1, 2))
                assert [await read_frame(reader) for _ in range(2)] == [response(1), response(2)], protocol
                writer.close()
                await running.ends(client_closed=1)
        assert seen == [(NAME, "sidecar", False)] * 2


@pytest.mark.promise(
    "tls.md",
    "With an empty `ssl.endpoint.identification.algorithm` the broker's certificate may be of any name, not of any CA.",
)
async def test_the_name_in_a_brokers_certificate_is_not_checked_where_that_is_configured(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "brokers"), Authority(tmp_path / "others")
    async with broker_with_tls(authority) as (port, _):
        for ca, cause in ((authority.ca, "client_closed"), (other.ca, "broker_tls_failed")):
            tls = {"ssl.truststore.location": str(ca), "ssl.endpoint.identification.algorithm": ""}
            async with behind(tmp_path, port, {**tls, "ssl.server.name": "other.example"}) as running:
                async with running.client() as (reader, writer):
                    if ca is authority.ca:
                        await asks(reader, writer)
                    else:
                        assert await reader.read() == b""
                await running.ends(**{cause: 1})


@pytest.mark.promise("tls.md", "The sidecar resumes its sessions with a broker until the listener's TLS changes.")
async def test_sessions_with_the_broker_are_resumed_until_its_tls_changes(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "brokers")
    for version in VERSIONS:
        settings = originated(authority) | {"ssl.enabled.protocols": [version.name.replace("_", ".")]}
        async with (
            broker_with_tls(authority, "required") as (port, seen),
            behind(tmp_path, port, settings) as running,
        ):
            for _ in range(3):
                await come_and_go(running)
            authority.issue("sidecar", "CN=renewed")
            with capture_logs() as lines:
                running.reload()
                await running.until(lambda: any(line["event"] == "tls_updated" for line in lines))
            for _ in range(2):
                await come_and_go(running)
        expected = [("sidecar", False), ("sidecar", True), ("sidecar", True), ("renewed", False), ("renewed", True)]
        assert seen == [(NAME, *one) for one in expected], version


@pytest.mark.promise(
    "tls.md", "Where a broker fails a handshake that resumes a session, the sidecar connects once more without it."
)
async def test_a_broker_that_fails_a_resumption_is_connected_once_more(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "brokers")
    settings: dict[str, object] = {"ssl.truststore.location": str(authority.ca), "ssl.server.name": NAME}
    async with (
        broker_with_tls(authority, fails=(2,)) as (port, seen),
        behind(tmp_path, port, settings) as running,
    ):
        for _ in range(3):
            await come_and_go(running)
        cancelled = asyncio.create_task(running.manager.listeners.by_name["CLIENT"].upstream.open())
        await asyncio.sleep(0)
        cancelled.cancel()
        await come_and_go(running)
        assert running.counters.closed == {"client_closed": 4}
    assert [resumed for _, _, resumed in seen] == [False, False, True, True]


@pytest.mark.promise(
    "tls.md",
    "A broker whose certificate fails the check, or that has no TLS, gets no byte of a client, and the log says why.",
)
async def test_a_broker_whose_certificate_is_not_as_configured_gets_no_request(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "brokers")
    got = bytearray()

    async def plain(reader: Reader, writer: Writer) -> None:
        while data := await reader.read(100):
            got.extend(data)
            if data[:1] == b"\x16":
                return

    trusted = {"ssl.truststore.location": str(authority.ca)}
    cases: list[tuple[dict[str, object], str, bool]] = [
        ({"ssl.enabled.protocols": ["TLSv1.3"]}, "certificate", True),
        ({**trusted, "ssl.server.name": "other.example"}, "Hostname mismatch", True),
        ({"ssl.truststore.location": "ca.pem"}, "port without TLS", False),
    ]
    async with broker_with_tls(authority) as (port, seen):
        for tls, detail, has_tls in cases:
            to = f"{HOST}:{port}" if has_tls else ""
            async with tls_bench(tmp_path, plain, to=to, **{"upstream.tls": tls}) as running:
                with capture_logs() as lines:
                    reader, writer = await running.dial()
                    writer.write(request(METADATA, 1, 1))
                    assert await reader.read() == b"", detail
                    await running.ends(broker_tls_failed=1)
                    writer.close()
                assert [line for line in lines if line["event"] == "connection_broken" and detail in line["detail"]]
        assert seen == []
    assert request(METADATA, 1, 1) not in got
