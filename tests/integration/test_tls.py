"""TLS that a sidecar terminates or originates, over real sockets, with scripted peers."""

import array
import asyncio
import contextlib
import fcntl
import itertools
import os
import resource
import shutil
import socket
import ssl
import termios
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy import admin_client
from proxy.config import Endpoint
from proxy.core.names import shorten
from proxy.local.ports import HOST
from proxy.tls import certificates
from tests.faults import site as faults
from tests.frames import METADATA, request, response
from tests.integration.peer import Reader, Writer, answer_after_eof, answer_in_order, read_frame, upstream
from tests.integration.tls_bench import VERSIONS, Bench, silent_sidecar, tls_bench  # noqa: F401
from tests.tools.authority import Authority, Pair
from tests.tools.bench.measure import children

MTLS: dict[str, object] = {"ssl.truststore.location": "ca.pem", "ssl.client.auth": "required"}


class HandMade:
    """A client whose every byte of TLS a test sees, and can leave out, cut or repeat."""

    def __init__(self, context: ssl.SSLContext, reader: Reader, writer: Writer) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, running: Bench, context: ssl.SSLContext | None = None) -> "HandMade":
        return cls(context or running.context(), *await running.dial(plain=True))

    def flush(self) -> None:
        self.writer.write(self.outgoing.read())

    async def receive(self) -> bool:
        data = await self.reader.read(65536)
        self.incoming.write(data)
        return bool(data)

    async def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                self.flush()
                assert await self.receive(), "closed"

    async def read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                part = self.tls.read(size - len(found))
            except ssl.SSLWantReadError:
                self.flush()
                if not await self.receive():
                    raise ConnectionError("an end without close_notify") from None
                continue
            except ssl.SSLZeroReturnError:
                break
            if not part:
                break
            found += part
        return bytes(found)

    async def first_byte(self) -> bytes:
        await self.shake_hands()  # with TLS 1.3 a client does not learn here whether its certificate is accepted
        return await self.read(1)

    def close_notify(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        self.flush()

    def client_hello(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()


async def asks(reader: Reader, writer: Writer, number: int = 1) -> None:
    writer.write(request(METADATA, 1, number))
    async with asyncio.timeout(60):
        assert await read_frame(reader) == response(number)


async def echo(reader: Reader, writer: Writer) -> None:
    while True:
        frame = await read_frame(reader)
        writer.write((len(frame) - 10).to_bytes(4, "big") + frame[8:12] + frame[14:])
        await writer.drain()


@pytest.mark.promise(
    "tls.md", "Where TLS ends at the sidecar, requests of TLS 1.2 and 1.3 pass unchanged, in order, and are observed."
)
@pytest.mark.promise("tls.md", "SNI is not needed: clients without a name, or with another one, are accepted.")
async def test_requests_are_answered_in_order_and_observed(tmp_path):
    suites = {"TLSv1.3": "TLS_AES_256_GCM_SHA384", "TLSv1.2": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}
    large = bytes(range(256)) * 16_384  # 4 MiB
    for version in VERSIONS:
        name = version.name.replace("_", ".")
        bodies = [*(b"x" * number for number in range(300)), large]
        sent = [request(METADATA, 1, number, body, client_id=None) for number, body in enumerate(bodies)]
        async with tls_bench(tmp_path, echo) as running:
            reader, writer = await running.dial(running.context(version=version))
            writer.write(b"".join(sent))
            for number, body in enumerate(bodies):
                assert await read_frame(reader) == response(number, body), (name, number)
            await running.until(lambda: len(running.exchanges) == len(sent))  # noqa: B023  # called at once
            assert [exchange.correlation_id for exchange in running.exchanges] == list(range(len(bodies))), name
            writer.close()
            await running.ends(client_closed=1)
            assert running.counters.received["client"] == sum(map(len, sent)), name
            connection = running.changes[-1].connection
            assert (connection.tls_version, connection.tls_cipher) == (name, suites[name])
            assert connection.tls_client_serial is None
            assert running.counters.tls_handshakes == {(name, "full"): 1}
            for asked in ("", "other.example"):
                (context := running.context(version=version)).check_hostname = False
                client = await asyncio.open_connection(HOST, running.port, ssl=context, server_hostname=asked)
                client[1].write(request(METADATA, 1, 1, client_id=None))
                assert await read_frame(client[0]) == response(1)
                client[1].close()


async def test_nothing_before_the_end_of_a_stream_is_lost_and_the_end_is_told(tmp_path):
    """Also where each of the client's records has one byte."""
    asked = b"".join(request(METADATA, 1, number, b"x" * 20) for number in range(40))
    expected = b"".join(response(number) for number in range(40))
    for version in VERSIONS:
        async with tls_bench(tmp_path, answer_after_eof) as running:
            client = await HandMade.dial(running, running.context(version=version))
            await client.shake_hands()
            for byte in asked:
                client.tls.write(bytes([byte]))
            client.close_notify()
            if version is ssl.TLSVersion.TLSv1_3:
                assert await client.read(len(expected) + 1) == expected  # an end without close_notify raises
            await running.ends(client_closed=1)
            assert running.counters.responses[3] == 40, version


@pytest.mark.promise(
    "tls.md", "The broker is dialled after the client's handshake, so a storm of handshakes costs it nothing."
)
async def test_the_broker_is_connected_after_the_handshake_alone(tmp_path):
    """The client's first request comes with the end of its handshake."""
    connected = 0

    async def count(reader, writer):
        nonlocal connected
        connected += 1
        await answer_in_order(reader, writer)

    async with tls_bench(tmp_path, count) as running:
        client = await HandMade.dial(running)
        await running.until(lambda: running.counters.active == 1)
        client.writer.write(client.client_hello())
        assert await client.receive()
        await asyncio.sleep(0.1)
        assert connected == 0
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.tls.do_handshake()
                break
            assert await client.receive()
        client.tls.write(request(METADATA, 1, 3))
        client.flush()  # the client's Finished and its request at once
        assert await client.read(8) == response(3)
        assert connected == 1


@pytest.mark.promise("tls.md", "`connection.setup.timeout.ms` bounds a handshake.")
async def test_a_handshake_has_the_deadline_of_the_first_request(tmp_path):
    async with tls_bench(tmp_path, answer_in_order, **{"connection.setup.timeout.ms": 300}) as running:
        clients = [await HandMade.dial(running) for _ in range(3)]
        for client, sent in zip(clients, (b"", b"\x16\x03\x01", clients[2].client_hello()[:100]), strict=True):
            client.writer.write(sent)
        for client in clients:
            assert await client.reader.read() == b""
            client.writer.close()
        await running.ends(connection_setup_timeout=3)


@pytest.mark.promise(
    "tls.md", "A round of the event loop has two steps of handshakes at most, so a storm delays others little."
)
async def test_an_iteration_of_the_loop_has_two_steps_of_handshakes_at_most(tmp_path):
    count, most = 40, 2
    async with tls_bench(tmp_path, answer_in_order) as running:
        context = running.manager._tls["CLIENT"].server
        steps = 0

        class Counted(ssl.SSLObject):
            def do_handshake(self):
                nonlocal steps
                steps += 1
                super().do_handshake()

        context.sslobject_class = Counted

        async def each_iteration(counter):
            found = []
            while (before := counter()) < count:
                await asyncio.sleep(0)
                found.append(counter() - before)
            return found

        clients = [socket.create_connection((HOST, running.port)) for _ in range(count)]
        for client in clients:  # none is accepted yet
            hello = ssl.MemoryBIO()
            with contextlib.suppress(ssl.SSLWantReadError):
                running.context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
            client.sendall(hello.read())
        assert max(await each_iteration(lambda: steps)) <= most
        for client in clients:
            client.shutdown(socket.SHUT_WR)
        assert max(await each_iteration(lambda: running.counters.closed["client_closed"])) <= most
        for client in clients:
            client.close()


@pytest.mark.promise(
    "tls.md", "A failed handshake ends with `client_tls_failed`, and the log says why, also of a client without TLS."
)
async def test_a_first_message_that_is_none_of_tls_or_too_long_is_refused_with_a_hint(tmp_path):
    cases = [
        (request(METADATA, 1, 1), "security.protocol PLAINTEXT"),
        (b"\x16\x03\x01\x40\x00\x01\x00\x40\x01", "its ClientHello has 16385 bytes, more than 16384"),
    ]
    for sent, detail in cases:
        async with tls_bench(tmp_path, answer_in_order) as running:
            with capture_logs() as lines:
                reader, writer = await asyncio.open_connection(HOST, running.port)
                writer.write(sent)
                assert len(await reader.read()) <= 7, "an alert at most"
                await running.ends(client_tls_failed=1)
                writer.close()
            (line,) = [line for line in lines if line["event"] == "connection_refused"]
            assert detail in line["detail"]


def serial(folder: Path) -> str | None:
    return certificates.first_of((folder / "a-client.crt").read_text()).serial


@pytest.mark.promise(
    "tls.md",
    "The principal of a client is the subject of its certificate, written as Java writes it, with its serial "
    "number in events.",
)
async def test_the_subject_of_a_clients_certificate_is_its_principal(tmp_path):
    subject = "CN=alice,OU=Billing,O=Example\\, Inc.,C=DE"
    async with tls_bench(tmp_path, answer_in_order, MTLS) as running:
        reader, writer = await running.dial(running.context(name=subject))
        await asks(reader, writer)
        await running.until(lambda: len(running.exchanges) == 1)
        connection = running.exchanges[0].connection
        assert (connection.principal, connection.principal_source) == (f"User:{subject}", "mtls")
        opened, authenticated = running.changes
        assert (opened.change, opened.connection.principal_source) == ("opened", "unauthenticated")
        assert opened.connection.tls_version is None
        assert (authenticated.change, authenticated.connection.principal_source) == ("authenticated", "mtls")
        assert authenticated.connection.tls_client_serial == serial(tmp_path)
    long = ",".join(f"OU={number:02}{'x' * 60}" for number in range(40))  # each connection would keep it
    async with tls_bench(tmp_path, answer_in_order, MTLS | {"ssl.client.auth": "requested"}) as running:
        for context in (running.context(), running.context(name=long)):
            await asks(*await running.dial(context))
        await running.until(lambda: len(running.exchanges) == 2)
        assert [(one.connection.principal, one.connection.principal_source) for one in running.exchanges] == [
            ("User:ANONYMOUS", "anonymous"),
            (f"User:{shorten(long.encode()).decode()}", "mtls"),
        ]


@pytest.mark.promise("tls.md", "With `SASL_SSL` a client is who it logs in as, whatever its certificate says.")
async def test_the_certificate_of_a_client_that_logs_in_names_no_principal(tmp_path):
    async with tls_bench(tmp_path, answer_in_order, MTLS, **{"security.protocol": "SASL_SSL"}) as running:
        _, writer = await running.dial(running.context(name="CN=alice"))
        writer.close()
        await running.until(lambda: len(running.changes) == 2)
        connection = running.changes[1].connection
        assert (connection.principal, connection.principal_source) == ("User:ANONYMOUS", "unauthenticated")
        assert connection.tls_client_serial == serial(tmp_path)


@pytest.mark.promise(
    "tls.md",
    "Rules map subjects to principals; a client to which none applies is closed, and the event has its serial number.",
)
async def test_rules_map_the_subject(tmp_path):
    rules = "RULE:^CN=([^,]+),OU=Services.*$/$1/L, RULE:^CN=(.*)$/other-$1/"
    async with tls_bench(tmp_path, answer_in_order, MTLS | {"ssl.principal.mapping.rules": rules}) as running:
        for subject in ("CN=Orders,OU=Services,C=DE", "CN=Bob"):
            reader, writer = await running.dial(running.context(name=subject))
            await asks(reader, writer)
            writer.close()
        await running.ends(client_closed=2)
        assert {one.connection.principal for one in running.exchanges} == {"User:orders", "User:other-Bob"}
        _, writer = await running.dial(running.context(name="O=Nobody"))
        await running.ends(client_closed=2, client_tls_failed=1)
        closed = running.changes[-1]
        expected = ("closed", "client_tls_failed", serial(tmp_path))
        assert (closed.change, closed.cause, closed.connection.tls_client_serial) == expected


@pytest.mark.promise(
    "tls.md",
    "With `ssl.client.auth: required`, a client without a certificate of the truststore's CAs sends nothing "
    "to the broker.",
)
async def test_a_client_without_a_certificate_that_is_trusted_is_refused(tmp_path):
    stranger = Authority(tmp_path / "others").issue("mallory", "CN=alice")
    async with tls_bench(tmp_path, answer_in_order, MTLS) as running:
        contexts = [running.context(version=version) for version in VERSIONS]
        contexts.append(running.context())
        contexts[-1].load_cert_chain(*stranger)
        for number, context in enumerate(contexts, 1):
            client = await HandMade.dial(running, context)
            with pytest.raises((ssl.SSLError, AssertionError, ConnectionError)):
                await client.first_byte()
            await running.ends(client_tls_failed=number)
            client.writer.close()
        assert running.counters.requests == {}


@pytest.mark.promise(
    "tls.md", "A client that connects again may resume its session, and keeps the principal of its certificate."
)
async def test_a_session_is_resumed_with_its_principal(tmp_path):
    async with tls_bench(tmp_path, answer_in_order, MTLS) as running:
        context = running.context(name="CN=alice")

        def ask(session):
            with (
                socket.create_connection((HOST, running.port)) as plain,
                context.wrap_socket(plain, server_hostname="localhost", session=session) as tls,
            ):
                tls.sendall(request(METADATA, 1, 1))
                assert tls.recv(100) == response(1)
                return tls.session

        session = await asyncio.to_thread(ask, None)
        await asyncio.to_thread(ask, session)
        assert running.counters.tls_handshakes == {("TLSv1.3", "full"): 1, ("TLSv1.3", "resumed"): 1}
        await running.until(lambda: len(running.exchanges) == 2)
        assert {one.connection.principal for one in running.exchanges} == {"User:CN=alice"}


OPENSSL = shutil.which("openssl")

BODY = bytes(byte for byte in range(256) if byte not in b"kKQR") * 120
"""30 kB. Without the letters of commands: any byte may be the first of a read."""


@asynccontextmanager
async def openssl_client(running: Bench, *options: str | Path) -> AsyncIterator[tuple[int, Reader]]:
    """``openssl s_client``: a pipe of what it sends, and what it prints."""
    reading, writing = os.pipe()
    client = await asyncio.create_subprocess_exec(
        OPENSSL, "s_client", "-connect", f"127.0.0.1:{running.port}", "-servername", "localhost", "-tls1_3",
        "-CAfile", running.authority.ca, "-verify_return_error", *options, stdin=reading,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    os.close(reading)
    try:
        yield writing, client.stdout
    finally:
        os.close(writing)
        with contextlib.suppress(ProcessLookupError):
            client.kill()
        await client.wait()


async def send_alone(pipe: int, data: bytes) -> None:
    """Write ``data``, and wait until it was read: so what follows is read by itself."""
    while data:
        data = data[os.write(pipe, data[:4096]) :]
        unread = array.array("i", [1])
        while unread[0]:
            fcntl.ioctl(pipe, termios.FIONREAD, unread)
            await asyncio.sleep(0.001)


@pytest.mark.skipif(OPENSSL is None, reason="openssl(1) is not installed, and Python cannot change keys")
@pytest.mark.promise("tls.md", "A client of TLS 1.3 may change its keys at any time, and ask the sidecar to.")
async def test_requests_and_responses_pass_while_keys_change(tmp_path):
    rounds = 10
    for command in (b"k", b"K"):  # openssl changes its keys, or the sidecar's too, where a read begins with it
        messages = tmp_path / f"messages-{command.decode()}"
        options = ("-quiet", "-no_ign_eof", "-msg", "-msgfile", messages)
        async with tls_bench(tmp_path, echo) as running, openssl_client(running, *options) as (pipe, received):
            for number in range(rounds):
                frame = request(METADATA, 1, number, BODY, client_id=None)
                half = len(frame) // 2
                for part in (frame[:half], command, frame[half:]):
                    await send_alone(pipe, part)
                assert await read_frame(received) == response(number, BODY), command
            await running.until(lambda: len(running.exchanges) == rounds)  # called at once
            assert [one.correlation_id for one in running.exchanges] == list(range(rounds))
            assert running.counters.closed == {}
        updates = [line[:3] for line in messages.read_text().splitlines() if "KeyUpdate" in line]
        assert updates.count(">>>") == rounds
        assert updates.count("<<<") == (rounds if command == b"K" else 0)


@pytest.mark.skipif(OPENSSL is None, reason="openssl(1) is not installed, and Python cannot send early data")
@pytest.mark.promise("tls.md", "Early data (0-RTT) is never accepted, also of a client that resumes its session.")
async def test_early_data_is_not_accepted(tmp_path):
    saved, early = tmp_path / "session", tmp_path / "early"
    early.write_bytes(request(METADATA, 1, 7, b"early", client_id=None))
    async with tls_bench(tmp_path, echo) as running:

        async def connect(*options):
            async with openssl_client(running, *options) as (pipe, received):
                os.write(pipe, request(METADATA, 1, 8, b"later", client_id=None))
                return (await received.readuntil(response(8, b"later"))).decode("ascii", "replace")

        await connect("-sess_out", saved)
        printed = await connect("-sess_in", saved, "-early_data", early)
        assert "Reused, TLSv1.3" in printed
        assert "Early data was not sent" in printed, "the session allows none"
        assert [one.correlation_id for one in running.exchanges] == [8, 8]


NAME = "kafka-1.example"
Seen = list[tuple[str, str, bool]]
"""Of each connection the name it was asked for, that of the client, and whether it is resumed."""


def originated(authority: Authority) -> dict[str, object]:
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

    context.sni_callback = on_name

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
) -> AbstractAsyncContextManager[Bench]:
    settings: dict[str, object] = {"security.protocol": protocol, "upstream.tls": tls}
    return tls_bench(folder, answer_in_order, to=f"{HOST}:{port}", **settings)


async def come_and_go(running: Bench) -> None:
    reader, writer = await running.dial()
    await asks(reader, writer)
    writer.close()
    await running.until(lambda: running.counters.active == 0)


@pytest.mark.promise(
    "tls.md",
    "`upstream.tls` gives the broker's port TLS, with the sidecar's certificate and the name that is "
    "expected, whether clients have TLS or not.",
)
async def test_tls_is_originated_to_the_broker(tmp_path):
    authority = Authority(tmp_path / "brokers")
    async with broker_with_tls(authority, "required") as (port, seen):
        for protocol in ("SSL", "PLAINTEXT"):
            async with behind(tmp_path, port, originated(authority), protocol) as running:
                reader, writer = await running.dial()
                writer.write(request(METADATA, 1, 1, bytes(2 << 20)) + request(METADATA, 1, 2))
                assert [await read_frame(reader) for _ in range(2)] == [response(1), response(2)], protocol
                writer.close()
                await running.ends(client_closed=1)
        assert seen == [(NAME, "sidecar", False)] * 2


@pytest.mark.promise(
    "tls.md",
    "With an empty `ssl.endpoint.identification.algorithm` the broker's certificate may be of any name, not of any CA.",
)
async def test_the_name_in_a_brokers_certificate_is_not_checked_where_that_is_configured(tmp_path):
    authority, other = Authority(tmp_path / "brokers"), Authority(tmp_path / "others")
    async with broker_with_tls(authority) as (port, _):
        for ca, cause in ((authority.ca, "client_closed"), (other.ca, "broker_tls_failed")):
            tls = {"ssl.truststore.location": str(ca), "ssl.endpoint.identification.algorithm": ""}
            async with behind(tmp_path, port, {**tls, "ssl.server.name": "other.example"}) as running:
                reader, writer = await running.dial()
                if ca is authority.ca:
                    await asks(reader, writer)
                else:
                    assert await reader.read() == b""
                writer.close()
                await running.ends(**{cause: 1})


@pytest.mark.promise("tls.md", "The sidecar resumes its sessions with a broker until the listener's TLS changes.")
async def test_sessions_with_the_broker_are_resumed_until_its_tls_changes(tmp_path):
    authority = Authority(tmp_path / "brokers")
    for version in VERSIONS:
        settings = originated(authority) | {"ssl.enabled.protocols": [version.name.replace("_", ".")]}
        async with broker_with_tls(authority, "required") as (port, seen), behind(tmp_path, port, settings) as running:
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
async def test_a_broker_that_fails_a_resumption_is_connected_once_more(tmp_path):
    authority = Authority(tmp_path / "brokers")
    settings: dict[str, object] = {"ssl.truststore.location": str(authority.ca), "ssl.server.name": NAME}
    async with broker_with_tls(authority, fails=(2,)) as (port, seen), behind(tmp_path, port, settings) as running:
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
async def test_a_broker_whose_certificate_is_not_as_configured_gets_no_request(tmp_path):
    authority = Authority(tmp_path / "brokers")
    got = bytearray()

    async def plain(reader, writer):
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


CLIENTS = 6
"""Clients that connect at once, so that each of two workers gets some."""


class ReloadSite(faults.Site):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings["workers"] = 2
        self.authority = Authority(folder)
        self.tls = files_of(self.authority.issue("sidecar"))
        self.clients: list[tuple[Reader, Writer]] = []

    async def reload(self, *errors: str, to: int = 0, **keys: Any) -> None:
        """Read another configuration, which is refused with ``errors``, if there are any. ``to``: port of the broker.
        ``keys``: of the listener, with ``_`` for ``.``."""
        listener = {"name": "CLIENT", "bind": f"{HOST}:{self.port}", "upstream": f"{HOST}:{to or self.peer.port}"}
        self.settings["listeners"] = [listener | {name.replace("_", "."): value for name, value in keys.items()}]
        self.write({"max.connections": 7 if errors else 100})
        reloaded = await asyncio.to_thread(admin_client.post_reload, Endpoint.parse(self.admin))
        assert reloaded.result == ("rejected" if errors else "applied"), reloaded
        assert len(reloaded.errors) == len(errors)
        assert all(said in error for said, error in zip(errors, reloaded.errors, strict=True)), reloaded.errors
        quotas = await asyncio.to_thread(admin_client.get_quotas, Endpoint.parse(self.admin))
        assert next(one.limit for one in quotas.limits if one.quota == "connections") == 100

    async def dial_with_tls(self) -> tuple[Reader, Writer]:
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        return await asyncio.open_connection(HOST, self.port, ssl=context, server_hostname="localhost")

    async def serves(self, *, tls: bool) -> None:
        """New clients are served, and so are all that were there."""
        self.clients += await asyncio.gather(*(self.dial_with_tls() if tls else self.dial() for _ in range(CLIENTS)))
        for number, client in enumerate(self.clients):
            await faults.asks(client, number)


def files_of(pair: Pair) -> dict[str, object]:
    return {"ssl.certificate.location": pair.certificate.name, "ssl.key.location": pair.key.name}


@pytest.fixture
async def site(tmp_path):
    site = ReloadSite(tmp_path)
    await site.start({"max.connections": 100})
    yield site
    for _, writer in site.clients:
        writer.close()
    await site.stop()


@pytest.mark.promise(
    "tls.md", "A reload begins and ends TLS on both sides of a listener for new connections alone, in all workers."
)
async def test_a_reload_begins_and_ends_tls_for_new_connections_alone(site, tmp_path):
    authority = Authority(tmp_path / "brokers")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("broker", names=(NAME,)))
    encrypted: list[bytes] = []

    async def serve(reader, writer):
        while True:
            frame = await read_frame(reader)
            encrypted.extend([frame] * (b"brokerside-" not in frame))  # which the sidecar itself asks
            writer.write(response(int.from_bytes(frame[8:12], "big")))

    def requests():
        return site.peer.requests, len(encrypted)

    async with upstream(serve, context) as tls_port:
        await site.serves(tls=False)
        await site.reload(security_protocol="SSL", tls=site.tls)
        await site.serves(tls=True)
        assert requests() == (3 * CLIENTS, 0)
        await site.reload(to=tls_port, security_protocol="SSL", tls=site.tls, upstream_tls=originated(authority))
        await site.serves(tls=True)
        assert requests() == (5 * CLIENTS, CLIENTS)
        await site.reload()
        await site.serves(tls=False)
        assert requests() == (8 * CLIENTS, 2 * CLIENTS)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await site.dial_with_tls()


@pytest.mark.promise(
    "tls.md", "A pair that does not match, or a certificate that has expired, rejects the whole file of a reload."
)
async def test_a_pair_that_cannot_be_used_refuses_the_whole_reload(site):
    """Also where only one worker cannot prepare it."""
    expired = files_of(site.authority.issue("expired", days=-0.5))
    await site.reload("has expired at", security_protocol="SSL", tls=expired)
    mixed = site.tls | {"ssl.key.location": site.authority.issue("other").key.name}
    await site.reload("is not the key of ssl.certificate.location", security_protocol="SSL", tls=mixed)
    worker = children(site.pid)[-1]
    _, hard = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    before = resource.prlimit(worker, resource.RLIMIT_NOFILE, (0, hard))
    try:
        await site.reload("TLS: Too many open files", security_protocol="SSL", tls=site.tls)
    finally:
        resource.prlimit(worker, resource.RLIMIT_NOFILE, before)
    await site.serves(tls=False)


@pytest.mark.promise("tls.md", "Connections in their handshake stay as they began when a reload ends TLS.")
async def test_a_handshake_ends_as_it_began_where_a_reload_ends_tls(tmp_path):
    async with tls_bench(tmp_path, answer_in_order) as running, upstream(answer_in_order) as other:
        client = await HandMade.dial(running)
        await running.until(lambda: running.counters.active == 1)
        running.reload(tls=None, upstream=f"{HOST}:{other}")  # SSL passes through from now on, to a port with TLS
        await client.shake_hands()
        client.tls.write(request(METADATA, 1, 5))
        assert await client.read(8) == response(5)
        await running.until(lambda: len(running.exchanges) == 1)


@pytest.mark.promise("tls.md", "A reload with a new pair shows it to new clients, and closes no connection.")
async def test_a_new_certificate_is_shown_to_new_clients_and_closes_no_connection(tmp_path):
    """Those in their handshake keep what they began with towards the broker, too."""
    trust = {"upstream.tls": {"ssl.truststore.location": "ca.pem"}}
    async with tls_bench(tmp_path, answer_in_order) as running:
        reader, writer = await running.dial()
        shown = writer.get_extra_info("ssl_object").getpeercert(True)
        running.authority.issue("broker")
        running.reload()
        _, other = await running.dial()
        assert other.get_extra_info("ssl_object").getpeercert(True) != shown
        other.close()
        await asks(reader, writer, 5)
    async with tls_bench(tmp_path, answer_in_order, **trust) as running:
        before = running.manager.listeners.by_name["CLIENT"]
        tls = before.upstream._tls
        running.authority.issue("broker")
        running.reload()
        after = running.manager.listeners.by_name["CLIENT"]
        assert after.tls is not before.tls
        assert (before.upstream._tls, after.upstream._tls) == (tls, after.tls)
