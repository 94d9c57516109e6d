"""TLS that a sidecar terminates, over real sockets, with scripted peers: bytes, ends, handshakes, certificates."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.core.names import shorten
from proxy.local.ports import HOST
from proxy.net.connection_manager import SPREAD_SHARE
from proxy.net.relay import Relay
from proxy.tls import certificates
from tests.frames import METADATA, request, response
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame
from tests.integration.tls_bench import VERSIONS, TlsBench, silent_sidecar, tls_bench  # noqa: F401
from tests.tools.authority import Authority

TLS_1_3 = ssl.TLSVersion.TLSv1_3
MTLS: dict[str, object] = {"ssl.truststore.location": "ca.pem", "ssl.client.auth": "required"}


class HandMade:
    """A client whose every byte of TLS a test sees, and can leave out, cut or repeat."""

    def __init__(self, context: ssl.SSLContext, reader: Reader, writer: Writer) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, running: TlsBench, context: ssl.SSLContext | None = None) -> HandMade:
        return cls(context or running.context(), *await asyncio.open_connection(HOST, running.port))

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


# ---- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise(
    "tls.md", "Where TLS ends at the sidecar, requests of TLS 1.2 and 1.3 pass unchanged, in order, and are observed."
)
async def test_requests_are_answered_in_order_and_observed(tmp_path: Path) -> None:
    async def echo(reader: Reader, writer: Writer) -> None:
        while True:
            frame = await read_frame(reader)
            writer.write((len(frame) - 10).to_bytes(4, "big") + frame[8:12] + frame[14:])
            await writer.drain()

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


@pytest.mark.promise("tls.md", "SNI is not needed: clients without a name, or with another one, are accepted.")
async def test_a_client_may_ask_for_any_name(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        context = running.context()
        context.check_hostname = False
        for name in ("", "other.example"):
            reader, writer = await asyncio.open_connection(HOST, running.port, ssl=context, server_hostname=name)
            await asks(reader, writer)
            writer.close()


async def test_a_client_that_ends_what_it_sends_still_gets_its_responses(tmp_path: Path) -> None:
    """Also where each of its records has one byte."""

    async def answer_after_eof(reader: Reader, writer: Writer) -> None:
        frames = []
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                frames.append(await read_frame(reader))
        for frame in frames:
            writer.write((4).to_bytes(4, "big") + frame[8:12])
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    asked = b"".join(request(METADATA, 1, number, b"x" * 20) for number in range(40))
    expected = b"".join(response(number) for number in range(40))
    for version in VERSIONS:
        async with tls_bench(tmp_path, answer_after_eof) as running:
            client = await HandMade.dial(running, running.context(version=version))
            await client.shake_hands()
            for byte in asked:
                client.tls.write(bytes([byte]))
            client.close_notify()
            if version is TLS_1_3:
                assert await client.read(len(expected) + 1) == expected
            await running.ends(client_closed=1)
            assert running.counters.responses[3] == 40, version
            client.writer.close()


async def test_a_broker_that_closes_ends_the_client_with_close_notify(tmp_path: Path) -> None:
    async def answer_once(reader: Reader, writer: Writer) -> None:
        frame = await read_frame(reader)
        writer.write((4).to_bytes(4, "big") + frame[8:12])
        await writer.drain()

    async with tls_bench(tmp_path, answer_once) as running:
        client = await HandMade.dial(running)
        await client.shake_hands()
        client.tls.write(request(METADATA, 1, 7))
        assert await client.read(100) == response(7)  # an end without close_notify raises
        client.writer.close()
        await running.until(lambda: sum(running.counters.closed.values()) == 1)


POURED = 32 << 20
"""Bytes: more than the buffers of all sockets on the way."""


async def test_a_client_that_does_not_read_pauses_the_broker(tmp_path: Path) -> None:
    sent = 0

    async def pour(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        frame = await read_frame(reader)
        writer.write((POURED + 4).to_bytes(4, "big") + frame[8:12])
        while sent < POURED:
            writer.write(bytes(65536))
            await writer.drain()
            sent += 65536
        await reader.read()  # after ``drain`` the writer may still have 64 KiB, which its end here would discard

    async with tls_bench(tmp_path, pour) as running:
        client = await HandMade.dial(running)
        await client.shake_hands()
        client.tls.write(request(METADATA, 1, 1))
        client.flush()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await running.until(lambda: running.counters.pauses["broker"] > 0)
        (relay,) = running.manager.relays
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < POURED
        assert relay.unsent("client") < 600_000
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await client.read(8 + POURED)) == 8 + POURED
        client.writer.close()


async def test_garbage_after_the_handshake_ends_the_connection_behind_what_was_valid(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running)
        await client.shake_hands()
        client.tls.write(request(METADATA, 1, 1))
        client.writer.write(client.outgoing.read() + b"\x17\x03\x03\x00\x20" + bytes(32))
        await running.ends(client_tls_failed=1)
        assert running.counters.requests[3] == 1
        client.writer.close()


# ---- handshakes -----------------------------------------------------------------------------------------------------


@pytest.mark.promise(
    "tls.md", "The broker is dialled after the client's handshake, so a storm of handshakes costs it nothing."
)
async def test_the_broker_is_connected_after_the_handshake_alone(tmp_path: Path) -> None:
    """The client's first request comes with the end of its handshake."""
    connected = 0

    async def count(reader: Reader, writer: Writer) -> None:
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
        client.writer.close()


@pytest.mark.promise("tls.md", "`connection.setup.timeout.ms` bounds a handshake.")
async def test_a_handshake_has_the_deadline_of_the_first_request(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order, **{"connection.setup.timeout.ms": 300}) as running:
        clients = [await HandMade.dial(running) for _ in range(3)]
        for client, sent in zip(clients, (b"", b"\x16\x03\x01", clients[2].client_hello()[:100]), strict=True):
            client.writer.write(sent)
        for client in clients:
            assert await client.reader.read() == b""
            client.writer.close()
        await running.ends(connection_setup_timeout=3)


async def test_a_client_that_goes_away_during_its_handshake_has_closed(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running)
        client.writer.write(client.client_hello())
        assert await client.receive()
        client.writer.close()
        await running.ends(client_closed=1)


@pytest.mark.promise(
    "tls.md", "A round of the event loop has two steps of handshakes at most, so a storm delays others little."
)
async def test_an_iteration_of_the_loop_has_two_steps_of_handshakes_at_most(tmp_path: Path) -> None:
    count, most = 40, 2
    async with tls_bench(tmp_path, answer_in_order) as running:
        context = running.manager._tls["CLIENT"].server
        assert context is not None
        steps = 0

        class Counted(ssl.SSLObject):
            def do_handshake(self) -> None:
                nonlocal steps
                steps += 1
                super().do_handshake()

        context.sslobject_class = Counted

        async def each_iteration(counter: Callable[[], int]) -> list[int]:
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
async def test_a_first_message_that_is_none_of_tls_or_too_long_is_refused_with_a_hint(tmp_path: Path) -> None:
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


async def test_a_drain_ends_handshakes_in_a_part_of_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running)
        await running.until(lambda: running.counters.active == 1)
        ended, left = running.manager._end_connections, []

        async def end_connections(relays: Sequence[Relay], timeout_s: float, spread_s: float = 0.0) -> None:
            left.append((timeout_s, spread_s))
            await ended(relays, timeout_s, spread_s)

        monkeypatch.setattr(running.manager, "_end_connections", end_connections)
        running.sidecar.close()
        await running.manager.drain(0.4, spread=True)
        ((timeout, spread),) = left
        assert timeout <= 0.4 * (1 - SPREAD_SHARE)
        assert spread <= timeout
        assert running.counters.closed == {"drain_completed": 1}
        assert await client.reader.read() == b""
        client.writer.close()


async def test_a_handshake_of_a_removed_listener_ends_with_it(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running)
        await running.until(lambda: running.counters.active == 1)
        running.manager.update_config(running.config.model_copy(update={"listeners": ()}), running.sink)
        with pytest.raises(ConnectionError):
            await client.first_byte()
        assert running.counters.closed == {"drain_completed": 1}
        client.writer.close()


async def test_a_mistake_after_a_handshake_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a mistake")

    async with tls_bench(tmp_path, answer_in_order) as running:
        monkeypatch.setattr(running.manager, "_connect", fail)
        with capture_logs() as lines:
            client = await HandMade.dial(running)
            with pytest.raises(ConnectionError):
                await client.first_byte()
        assert running.counters.closed == {"client_reset": 1}
        assert [line["error"] for line in lines if line["event"] == "relay_failed"] == ["KeyError"]
        client.writer.close()
        monkeypatch.setattr(running.manager, "_on_handshake_end", fail)
        with capture_logs() as lines:
            client = await HandMade.dial(running)
            await client.shake_hands()
            client.flush()
            await running.until(lambda: "handshake_end_failed" in [line["event"] for line in lines])
        client.writer.close()


async def test_a_connection_whose_connect_has_not_begun_is_drained(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order, **{"security.protocol": "PLAINTEXT"}) as running:
        running.manager.listeners.by_name["CLIENT"].upstream.near = None
        client, accepted = socket.socketpair()
        with client:
            running.sidecar.admission.submit(running.config.listeners[0], accepted, HOST, 1)
            assert running.counters.active == 1
            await running.manager._end_setups(list(running.manager.relays))
            assert accepted.fileno() == -1
            assert not running.manager.relays
            assert running.counters.closed == {"drain_completed": 1}


# ---- certificates of clients ----------------------------------------------------------------------------------------


def serial(folder: Path) -> str | None:
    """Of the last certificate of a client."""
    return certificates.first_of((folder / "a-client.crt").read_text()).serial


@pytest.mark.promise(
    "tls.md",
    "The principal of a client is the subject of its certificate, written as Java writes it, with its serial "
    "number in events.",
)
async def test_the_subject_of_a_clients_certificate_is_its_principal(tmp_path: Path) -> None:
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
        writer.close()


async def test_a_very_long_subject_is_cut(tmp_path: Path) -> None:
    """A certificate has room for 100 KB of it, which each connection would keep."""
    subjects = [",".join(f"OU={number:02}{last * 60}" for number in range(40)) for last in "xy"]
    async with tls_bench(tmp_path, answer_in_order, MTLS) as running:
        for subject in subjects:
            reader, writer = await running.dial(running.context(name=subject))
            await asks(reader, writer)
            writer.close()
        await running.until(lambda: len(running.exchanges) == 2)
        expected = {f"User:{shorten(subject.encode()).decode()}" for subject in subjects}
        assert {one.connection.principal for one in running.exchanges} == expected


@pytest.mark.promise("tls.md", "With `SASL_SSL` a client is who it logs in as, whatever its certificate says.")
async def test_the_certificate_of_a_client_that_logs_in_names_no_principal(tmp_path: Path) -> None:
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
async def test_rules_map_the_subject(tmp_path: Path) -> None:
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
        writer.close()


@pytest.mark.promise(
    "tls.md",
    "With `ssl.client.auth: required`, a client without a certificate of the truststore's CAs sends nothing "
    "to the broker.",
)
async def test_a_client_without_a_certificate_that_is_trusted_is_refused(tmp_path: Path) -> None:
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


async def test_a_client_without_a_certificate_is_anonymous_where_one_is_requested(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order, MTLS | {"ssl.client.auth": "requested"}) as running:
        reader, writer = await running.dial()
        await asks(reader, writer)
        await running.until(lambda: len(running.exchanges) == 1)
        connection = running.exchanges[0].connection
        assert (connection.principal, connection.principal_source) == ("User:ANONYMOUS", "anonymous")
        writer.close()


@pytest.mark.promise(
    "tls.md", "A client that connects again may resume its session, and keeps the principal of its certificate."
)
async def test_a_session_is_resumed_with_its_principal(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order, MTLS) as running:
        context = running.context(name="CN=alice")

        def ask(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
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
