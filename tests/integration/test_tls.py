"""TLS that a sidecar terminates and originates, over real sockets, with scripted peers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.core.names import shorten
from proxy.tls import certificates
from tests.frames import METADATA, request, response
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame
from tests.integration.tls_bench import TlsBench, every_version, silent_sidecar, tls_bench  # noqa: F401
from tests.tools.authority import Authority


class HandMade:
    """A client whose every byte of TLS a test sees, and can leave out, cut or repeat."""

    def __init__(self, context: ssl.SSLContext, reader: Reader, writer: Writer) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, running: TlsBench, context: ssl.SSLContext | None = None) -> HandMade:
        streams = await asyncio.open_connection("127.0.0.1", running.port)
        return cls(context or running.context(), *streams)

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


@every_version
async def test_requests_are_answered_in_order_and_observed(tmp_path: Path, version: ssl.TLSVersion) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        reader, writer = await running.dial(running.context(version=version))
        writer.write(b"".join(request(METADATA, 1, n, b"x" * n) for n in range(300)))
        assert [await read_frame(reader) for _ in range(300)] == [response(n) for n in range(300)]
        await running.until(lambda: len(running.exchanges) == 300)
        assert [exchange.correlation_id for exchange in running.exchanges] == list(range(300))
        writer.close()
        await running.until(lambda: running.counters.closed == {"client_closed": 1})
        assert running.counters.received["client"] == sum(len(request(METADATA, 1, n, b"x" * n)) for n in range(300))
        connection = running.changes[-1].connection
        suite = {"TLSv1_3": "TLS_AES_256_GCM_SHA384", "TLSv1_2": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}
        assert (connection.tls_version, connection.tls_cipher) == (version.name.replace("_", "."), suite[version.name])
        assert connection.tls_client_serial is None
        assert running.counters.tls_handshakes == {(version.name.replace("_", "."), "full"): 1}


@every_version
async def test_megabytes_pass_unchanged_in_both_directions(tmp_path: Path, version: ssl.TLSVersion) -> None:
    async def echo(reader: Reader, writer: Writer) -> None:
        while True:
            frame = await read_frame(reader)
            writer.write((len(frame) - 10).to_bytes(4, "big") + frame[8:12] + frame[14:])
            await writer.drain()

    body = bytes(range(256)) * 16_384  # 4 MiB
    async with tls_bench(tmp_path, echo) as running:
        reader, writer = await running.dial(running.context(version=version))
        for number in range(3):
            writer.write(request(METADATA, 1, number, body, client_id=None))
            answer = await read_frame(reader)
            assert answer[4:8] == number.to_bytes(4, "big")
            assert answer.endswith(body)
        writer.close()


@every_version
async def test_a_client_that_ends_what_it_sends_still_gets_its_responses(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
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

    async with tls_bench(tmp_path, answer_after_eof) as running:
        client = await HandMade.dial(running, running.context(version=version))
        await client.shake_hands()
        for number in range(100):
            client.tls.write(request(METADATA, 1, number))
        client.close_notify()
        expected = b"".join(response(number) for number in range(100))
        if version is ssl.TLSVersion.TLSv1_3:
            assert await client.read(len(expected) + 1) == expected
        await running.until(lambda: running.counters.closed == {"client_closed": 1})
        assert running.counters.responses[3] == 100
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


@every_version
async def test_requests_in_records_of_one_byte_arrive(tmp_path: Path, version: ssl.TLSVersion) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running, running.context(version=version))
        await client.shake_hands()
        for byte in b"".join(request(METADATA, 1, number, b"x" * 200) for number in range(40)):
            client.tls.write(bytes([byte]))
        client.flush()
        client.close_notify()
        expected = b"".join(response(number) for number in range(40))
        if version is ssl.TLSVersion.TLSv1_3:
            assert await client.read(len(expected)) == expected
        await running.until(lambda: running.counters.responses[3] == 40)
        client.writer.close()


async def test_the_first_request_may_come_with_the_end_of_the_handshake(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running)
        client.writer.write(client.client_hello())
        while True:
            assert await client.receive()
            with contextlib.suppress(ssl.SSLWantReadError):
                client.tls.do_handshake()
                break
        client.tls.write(request(METADATA, 1, 3))
        client.flush()  # the client's Finished and its request at once
        assert await client.read(8) == response(3)
        client.writer.close()


POURED = 32 << 20
"""Bytes: more than the buffers of all sockets on the way."""


async def test_a_client_that_does_not_read_pauses_the_broker(tmp_path: Path) -> None:
    sent = 0

    async def pour(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        frame = await read_frame(reader)
        size = POURED
        writer.write((size + 4).to_bytes(4, "big") + frame[8:12])
        while sent < size:
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


async def test_the_broker_is_connected_after_the_handshake_alone(tmp_path: Path) -> None:
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
        await client.shake_hands()
        client.tls.write(request(METADATA, 1, 1))
        assert await client.read(8) == response(1)
        assert connected == 1
        client.writer.close()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"half"])
async def test_a_handshake_has_the_deadline_of_the_first_request(tmp_path: Path, sent: bytes) -> None:
    async with tls_bench(tmp_path, answer_in_order, **{"connection.setup.timeout.ms": 300}) as running:
        client = await HandMade.dial(running)
        client.writer.write(client.client_hello()[:100] if sent == b"half" else sent)
        assert await client.reader.read() == b""
        await running.until(lambda: running.counters.closed == {"connection_setup_timeout": 1})
        client.writer.close()


async def test_a_client_that_goes_away_during_its_handshake_has_closed(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running)
        client.writer.write(client.client_hello())
        assert await client.receive()
        client.writer.close()
        await running.until(lambda: running.counters.closed == {"client_closed": 1})


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

        clients = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(count)]
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


async def test_a_drain_ends_handshakes(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running)
        await running.until(lambda: running.counters.active == 1)
        running.sidecar.close()
        await running.manager.drain(5.0)
        assert running.counters.closed == {"drain_completed": 1}
        assert await client.reader.read() == b""
        client.writer.close()


async def test_a_client_without_tls_is_closed_with_a_hint(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        with capture_logs() as lines:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(request(METADATA, 1, 1))
            assert len(await reader.read()) <= 7  # an alert at most
            await running.until(lambda: running.counters.closed == {"client_tls_failed": 1})
            writer.close()
        (line,) = [line for line in lines if line["event"] == "connection_refused"]
        assert "security.protocol PLAINTEXT" in line["detail"]


async def test_garbage_after_the_handshake_ends_the_connection_behind_what_was_valid(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        client = await HandMade.dial(running)
        await client.shake_hands()
        client.tls.write(request(METADATA, 1, 1))
        client.writer.write(client.outgoing.read() + b"\x17\x03\x03\x00\x20" + bytes(32))
        await running.until(lambda: running.counters.closed == {"client_tls_failed": 1})
        assert running.counters.requests[3] == 1
        client.writer.close()


async def test_a_client_hello_may_be_cut_anywhere(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        for size in range(0, 500, 7):
            client = await HandMade.dial(running)
            data = client.client_hello()
            assert len(data) > 500
            client.writer.write(data[:size])
            await asyncio.sleep(0)
            if size % 2:
                client.writer.close()
            else:
                client.writer.write(data[size:])
                await client.shake_hands()
                client.tls.write(request(METADATA, 1, size))
                assert await client.read(8) == response(size)
                client.writer.close()
        await running.until(lambda: running.counters.active <= 1)
        assert not running.counters.abandoned


# ---- certificates of clients ----------------------------------------------------------------------------------------

MTLS: dict[str, object] = {"ssl.truststore.location": "ca.pem", "ssl.client.auth": "required"}


async def test_the_subject_of_a_clients_certificate_is_its_principal(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order, MTLS) as running:
        reader, writer = await running.dial(running.context(name="CN=alice,OU=Billing,O=Example\\, Inc.,C=DE"))
        writer.write(request(METADATA, 1, 1))
        assert await read_frame(reader) == response(1)
        await running.until(lambda: len(running.exchanges) == 1)
        assert running.exchanges[0].connection.principal == "User:CN=alice,OU=Billing,O=Example\\, Inc.,C=DE"
        assert running.exchanges[0].connection.principal_source == "mtls"
        opened, authenticated = running.changes
        assert (opened.change, opened.connection.principal_source) == ("opened", "unauthenticated")
        assert opened.connection.tls_version is None
        assert (authenticated.change, authenticated.connection.principal_source) == ("authenticated", "mtls")
        pem = (tmp_path / "a-client.crt").read_text()
        assert authenticated.connection.tls_client_serial == certificates.first_of(pem).serial
        writer.close()


async def test_a_very_long_subject_is_cut(tmp_path: Path) -> None:
    """A certificate has room for 100 KB of it, which each connection would keep."""
    subjects = [",".join(f"OU={number:02}{last * 60}" for number in range(40)) for last in "xy"]
    async with tls_bench(tmp_path, answer_in_order, MTLS) as running:
        writers = [(await running.dial(running.context(name=subject)))[1] for subject in subjects]
        for writer in writers:
            writer.write(request(METADATA, 1, 1))
        await running.until(lambda: len(running.exchanges) == 2)
        for writer in writers:
            writer.close()
        expected = {f"User:{shorten(subject.encode()).decode()}" for subject in subjects}
        assert {one.connection.principal for one in running.exchanges} == expected


async def test_the_certificate_of_a_client_that_logs_in_names_no_principal(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order, MTLS, **{"security.protocol": "SASL_SSL"}) as running:
        _, writer = await running.dial(running.context(name="CN=alice"))
        writer.close()
        await running.until(lambda: len(running.changes) == 2)
        connection = running.changes[1].connection
        assert (connection.principal, connection.principal_source) == ("User:ANONYMOUS", "unauthenticated")
        pem = (tmp_path / "a-client.crt").read_text()
        assert connection.tls_client_serial == certificates.first_of(pem).serial


async def test_rules_map_the_subject(tmp_path: Path) -> None:
    rules = "RULE:^CN=([^,]+),OU=Services.*$/$1/L, RULE:^CN=(.*)$/other-$1/"
    async with tls_bench(tmp_path, answer_in_order, MTLS | {"ssl.principal.mapping.rules": rules}) as running:
        writers = []
        for subject in ("CN=Orders,OU=Services,C=DE", "CN=Bob"):
            writers.append((await running.dial(running.context(name=subject)))[1])
            writers[-1].write(request(METADATA, 1, 1))
        await running.until(lambda: len(running.exchanges) == 2)
        assert {one.connection.principal for one in running.exchanges} == {"User:orders", "User:other-Bob"}
        writers.append((await running.dial(running.context(name="O=Nobody")))[1])
        await running.until(lambda: running.counters.closed == {"client_tls_failed": 1})
        serial = certificates.first_of((tmp_path / "a-client.crt").read_text()).serial
        closed = running.changes[-1]
        assert (closed.change, closed.cause, closed.connection.tls_client_serial) == (
            "closed",
            "client_tls_failed",
            serial,
        )
        for writer in writers:
            writer.close()


@every_version
async def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    async with tls_bench(tmp_path, answer_in_order, MTLS) as running:
        client = await HandMade.dial(running, running.context(version=version))
        with pytest.raises((ssl.SSLError, AssertionError, ConnectionError)):
            await client.first_byte()
        await running.until(lambda: running.counters.closed == {"client_tls_failed": 1})
        client.writer.close()


async def test_a_client_without_a_certificate_is_anonymous_where_one_is_requested(tmp_path: Path) -> None:
    tls = MTLS | {"ssl.client.auth": "requested"}
    async with tls_bench(tmp_path, answer_in_order, tls) as running:
        reader, writer = await running.dial()
        writer.write(request(METADATA, 1, 1))
        assert await read_frame(reader) == response(1)
        await running.until(lambda: len(running.exchanges) == 1)
        connection = running.exchanges[0].connection
        assert (connection.principal, connection.principal_source) == ("User:ANONYMOUS", "anonymous")
        writer.close()


async def test_a_certificate_of_another_ca_is_refused(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order, MTLS) as running:
        context = running.context()
        context.load_cert_chain(*Authority(tmp_path / "others").issue("mallory", "CN=alice"))
        client = await HandMade.dial(running, context)
        with pytest.raises((ssl.SSLError, AssertionError, ConnectionError)):
            await client.first_byte()
        await running.until(lambda: running.counters.closed == {"client_tls_failed": 1})
        assert running.counters.requests == {}
        client.writer.close()


async def test_a_session_is_resumed_with_its_principal(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order, MTLS) as running:
        context = running.context(name="CN=alice")

        def ask(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
            with (
                socket.create_connection(("127.0.0.1", running.port)) as plain,
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
