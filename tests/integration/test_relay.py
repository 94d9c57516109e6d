"""The data path over real sockets: order, back-pressure, half-close, drain, descriptors, and the sidecar's answers."""

import asyncio
import gc
import os
import random
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.core.interception import MAX_PENDING_RESPONSES
from proxy.core.interceptor import Interceptor, InterceptorChain
from proxy.core.session import MAX_IN_FLIGHT, TURN, Session
from proxy.local.ports import HOST
from proxy.net import connection_manager
from proxy.net.descriptors import RESERVED_DESCRIPTORS
from proxy.telemetry.snapshot import open_descriptors
from tests.frames import METADATA, batch, produce, request, response
from tests.integration.conftest import free_port
from tests.integration.peer import Behaviour, Reader, Writer, answer_after_eof, answer_in_order, read_frame, silent
from tests.integration.tls_bench import Bench, bench, silent_sidecar, tls_bench  # noqa: F401
from tests.tools import fetched
from tests.tools.interceptors import HELD, REPLIED, Chooser, replied


@contextmanager
def slow_client(running: Bench, asked: bytes) -> Iterator[socket.socket]:
    """One whose kernel takes little; it has sent a request."""
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((HOST, running.port))
        slow.sendall(asked)
        slow.setblocking(False)
        yield slow


async def receive(sock: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1 << 20), 60)
        if not chunk:
            break
        received += chunk
    return bytes(received)


@pytest.mark.promise(
    "architecture.md", "A side of a connection that ends what it sends still gets all that the other side sends."
)
async def test_who_half_closes_gets_all_that_the_other_side_sends(tmp_path):
    got = asyncio.get_running_loop().create_future()

    async def close_first(reader, writer):
        writer.write_eof()
        got.set_result(await reader.read())

    for keys in ([METADATA] * 100, [REPLIED], [METADATA, REPLIED] * 2):
        async with answering(tmp_path, answer_after_eof) as running:
            reader, writer = await running.dial()
            writer.write(b"".join(request(key, 1, n) for n, key in enumerate(keys)))
            writer.write_eof()
            expected = b"".join(response(n, replied(1) if key == REPLIED else b"") for n, key in enumerate(keys))
            assert await reader.read() == expected
            await running.ends(client_closed=1)
    async with bench(tmp_path, close_first) as running:
        reader, writer = await running.dial()
        assert await reader.read() == b""
        writer.write(request(METADATA, 1, 1))
        writer.write_eof()
        assert await got == request(METADATA, 1, 1)


@pytest.mark.promise("security.md", "A client that does not read holds up nobody else, and is not cut.")
async def test_a_client_that_does_not_read_pauses_the_broker_and_nobody_else(tmp_path):
    size = 40_000_000
    body = random.Random(1).randbytes(size)  # equal bytes would hide those that come twice

    async def stream(reader, writer):
        while True:
            frame = await read_frame(reader)
            number = int.from_bytes(frame[8:12], "big")
            writer.write(response(number, body if number == 7 else b""))

    for make, most in ((bench, 320 * 1024), (tls_bench, 600_000)):
        async with make(tmp_path, stream) as running:
            slow, asking = await running.dial()
            asking.write(request(METADATA, 1, 7))
            await running.until(lambda: running.counters.pauses["broker"] >= 1)  # called at once
            (relay,) = running.manager.relays
            assert relay.unsent("client") < most
            reader, writer = await running.dial()
            writer.write(request(METADATA, 1, 1))
            assert await read_frame(reader) == response(1)
            writer.close()
            assert await asyncio.wait_for(slow.readexactly(size + 8), 60) == response(7, body)
            await running.until(lambda: running.exchanges[-1].response_bytes == size + 8)


@pytest.mark.promise(
    "architecture.md",
    "A client that sends what is not Kafka's protocol is closed, and no byte of it reaches the broker.",
)
async def test_hostile_bytes_close_the_connection_and_never_reach_the_broker(tmp_path):
    hello = bytes.fromhex("16030100f8010000f40303") + bytes(32)
    cases = [
        (b"GET / HTTP/1.1\r\n\r\n", "client_invalid_size", ""),
        ((-1).to_bytes(4, "big", signed=True) + bytes(20), "client_invalid_size", ""),
        (request(METADATA, 1, 1)[:12] + b"\x7f\xff" + b"c", "client_invalid_header", ""),
        (hello, "client_invalid_size", "(these bytes begin a TLS record: the client uses TLS, and this listener does"),
    ]
    reached = bytearray()

    async def note(reader, _):
        while chunk := await reader.read(1024):
            reached.extend(chunk)

    for sent, cause, hint in cases:
        with capture_logs() as logged:
            async with bench(tmp_path, note) as running:
                reader, writer = await running.dial()
                writer.write(sent)
                assert await reader.read() == b"", sent
                assert running.counters.closed == {cause: 1}, sent
                assert reached == b"", sent
        (line,) = [line for line in logged if line["event"] == "connection_refused"]
        assert (line["cause"], hint in line["detail"]) == (cause, True), sent


@pytest.mark.promise(
    "restart.md",
    "A sidecar that is stopped accepts no more, and ends each connection once its open requests are answered.",
)
async def test_a_drain_answers_what_was_asked_and_accepts_no_more(tmp_path):
    release = asyncio.Event()
    body = random.Random(3).randbytes(400_000)

    async def answer_later(reader, writer):
        while True:
            frame = await read_frame(reader)
            if frame[11] == 1:
                await release.wait()
            writer.write(response(frame[11], body if frame[11] == 2 else b""))

    async with bench(tmp_path, answer_later) as running:
        reader, writer = await running.dial()
        await running.dial()
        writer.write(request(METADATA, 1, 1))
        with slow_client(running, request(METADATA, 1, 2)) as slow:  # it still reads what was answered
            await running.until(lambda: running.counters.requests[METADATA] == 2 and len(running.exchanges) == 1)
            drain = asyncio.ensure_future(running.drain(10))
            await running.until(lambda: running.counters.closed["drain_completed"])
            with pytest.raises(ConnectionRefusedError):
                await running.dial()
            assert await receive(slow, 1 << 30) == response(2, body)
            await running.ends(drain_completed=2)
        release.set()
        assert await reader.read() == response(1)
        await drain
        assert running.counters.closed == {"drain_completed": 3}
        assert [exchange.outcome for exchange in running.exchanges] == ["answered"] * 2


@pytest.mark.promise("config/process.md", "`drain.timeout.ms` bounds how long a stop waits for open requests.")
async def test_a_drain_cuts_what_stays_open_and_says_so(tmp_path):
    async with bench(tmp_path, silent) as running:
        _, writer = await running.dial()
        writer.write(request(METADATA, 1, 1))
        await running.until(lambda: running.counters.requests[METADATA] == 1)
        await running.drain(0.1)
        assert running.counters.closed == {"drain_timeout": 1}
        assert [exchange.outcome for exchange in running.exchanges] == ["connection_lost"]


@pytest.mark.promise("security.md", "64 descriptors stay free of clients, for the admin port and the sidecar itself.")
async def test_descriptors_that_are_opened_after_the_start_are_not_taken_from_the_reserve(tmp_path, monkeypatch):
    """Whether the kernel reports how many there are, or not, as before Linux 6.2."""
    for reports in (True, False):
        if not reports:
            monkeypatch.setattr("proxy.net.descriptors.reported_descriptors", lambda: 0)
        gc.collect()  # so that nothing that earlier tests have left is closed meanwhile
        with socket.create_server((HOST, 0), backlog=100) as broker:
            async with bench(tmp_path, answer_in_order, f"{HOST}:{broker.getsockname()[1]}") as running:
                clients = [socket.socket() for _ in range(60)]
                opened = [os.dup(broker.fileno()) for _ in range(200)]
                limit = open_descriptors() + RESERVED_DESCRIPTORS + 20
                before = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
                try:
                    for client in clients:
                        client.setblocking(False)
                        await asyncio.get_running_loop().sock_connect(client, (HOST, running.port))
                    await running.until(lambda: running.counters.accept_errors["EMFILE"] >= 5)
                    assert open_descriptors() == limit - RESERVED_DESCRIPTORS, reports
                    assert running.counters.accepted == 10, reports
                    os.close(opened.pop())
                    os.close(opened.pop())
                    await running.until(lambda: running.counters.accepted == 11)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, before)
                    for descriptor in opened:
                        os.close(descriptor)
                    for client in clients:
                        client.close()


@pytest.mark.promise(
    "operations.md", "An error of the sidecar's own costs the events of a connection, and not a byte of its traffic."
)
async def test_an_error_of_ours_costs_the_record_of_a_connection_and_not_the_connection(tmp_path):
    """Where bytes would be missing, it ends."""
    asked = request(METADATA, 1, 2) + request(METADATA, 1, 3)
    for held in (0, 5):  # bytes of them that the session keeps when it fails
        async with bench(tmp_path, answer_in_order) as running:
            with intercepting(Chooser()) if held else nullcontext():
                reader, writer = await running.dial()
                writer.write(request(METADATA, 1, 1) + asked[:held])
                assert await read_frame(reader) == response(1)
            running.counters.requests[METADATA] = None  # the session fails where it counts
            writer.write(asked[held:])
            if held:
                assert await reader.read() == b""
                await running.ends(session_failed=1)
            else:
                assert [await read_frame(reader) for _ in range(2)] == [response(2), response(3)]
            assert running.counters.abandoned == 1


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def test_what_was_sent_right_before_a_reset_arrives_and_the_connection_ends(tmp_path):
    got = asyncio.get_running_loop().create_future()

    async def take(reader, writer):
        got.set_result(await reader.read())

    frame = produce(1, 0, batch(3))
    async with bench(tmp_path, take) as running:
        with socket.create_connection((HOST, running.port)) as client:
            await running.until(lambda: running.counters.active == 1)
            client.sendall(frame)  # both before the loop turns: data and reset come as one event
            reset(client)
        assert await got == frame
        await running.ends(client_reset=1)
    with socket.create_server((HOST, 0)) as listener:
        async with bench(tmp_path, take, f"{HOST}:{listener.getsockname()[1]}") as running:
            reader, writer = await running.dial()
            await running.until(lambda: running.counters.active == 1)
            broker, _ = listener.accept()
            writer.write(request(METADATA, 1, 1) + request(METADATA, 1, 2))
            await running.until(lambda: running.counters.requests[METADATA] == 2)
            broker.sendall(response(1, b"whole"))
            reset(broker)
            assert await reader.read() == response(1, b"whole")
            await running.ends(broker_reset=1)


@contextmanager
def intercepting(interceptor: Interceptor) -> Iterator[None]:
    chain = InterceptorChain([interceptor])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_manager, "Session", lambda *given: Session(*given[:5], chain, given[6]))
        yield


@asynccontextmanager
async def answering(
    tmp_path: Path, behaviour: Behaviour, chooser: Callable[[], Interceptor] = Chooser
) -> AsyncIterator[Bench]:
    async with bench(tmp_path, behaviour) as running:
        with intercepting(chooser()):
            yield running


@pytest.mark.promise(
    "architecture.md",
    "What the sidecar answers itself comes in the order of the requests, between the broker's responses.",
)
async def test_answers_and_responses_come_in_the_order_of_their_requests(tmp_path):
    async with answering(tmp_path, answer_in_order) as running:
        reader, writer = await running.dial()
        for n in range(100):
            writer.write(request(METADATA, 1, n, b"x" * n) + request(REPLIED, 3, n, b"y" * n))
            writer.write(request(HELD, 0, n, b"held") + request(HELD, 0, n, b"forward"))
        for n in range(100):
            interception = [await read_frame(reader) for _ in range(4)]
            assert interception == [response(n), response(n, replied(3)), response(n, b"held"), response(n)]
        assert running.counters.intercepted == {(REPLIED, "replied"): 100, (HELD, "replied"): 100}
        assert sum(each.synthesized for each in running.exchanges) == 200


@pytest.mark.promise(
    "architecture.md",
    "A client that does not read what the sidecar answers is not read either, so little waits for it.",
)
async def test_a_client_that_does_not_read_its_answers_is_not_read_either(tmp_path):
    body = b"a" * 40
    async with answering(tmp_path, answer_in_order) as running:
        count = 8_000_000 // (len(body) + 8)  # more than the kernel takes
        asked = b"".join(request(HELD, 0, n, body) for n in range(count)) + request(METADATA, 1, count)
        with slow_client(running, b"") as slow:
            asking = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(slow, asked))
            await running.until(lambda: running.counters.pauses["client"] >= 1)
            (relay,) = running.manager.relays
            for _ in range(20):
                await asyncio.sleep(0.01)
                assert relay.unsent("client") <= 65_536 + MAX_PENDING_RESPONSES + 2 * len(body) + 100
            assert not relay.is_drained
            reader, writer = await running.dial()  # others continue
            writer.write(request(METADATA, 1, 1))
            assert await read_frame(reader) == response(1)
            expected = b"".join(response(n, body) for n in range(count)) + response(count)
            assert await receive(slow, len(expected)) == expected
            await asking


@contextmanager
def each_turn(count: Callable[[], int]) -> Iterator[list[int]]:
    """How much a counter grew in each turn of the loop; filled when the block ends."""
    loop, counts, growth = asyncio.get_running_loop(), [count()], list[int]()

    def look() -> None:
        nonlocal looking
        counts.append(count())
        looking = loop.call_soon(look)

    looking = loop.call_soon(look)
    yield growth
    looking.cancel()
    growth += [after - before for before, after in pairwise(counts)]


@pytest.mark.promise(
    "security.md",
    "Of a client that sends many requests at once, 25 are read in a turn, or 100 where all are forwarded.",
)
async def test_a_chunk_of_many_requests_is_read_in_turns(tmp_path):
    """Answered, held, forwarded, and without a response. Twice as many are read where a chunk ends and the next one is
    there already."""
    for one in (request(REPLIED, 0, 1), request(HELD, 0, 1, b"held"), request(METADATA, 1, 1), produce(1, 0, b"")):
        assert await most_in_a_turn(tmp_path, one) <= 2 * TURN, one


async def most_in_a_turn(tmp_path: Path, one: bytes) -> int:
    got = bytearray()

    async def take(reader: Reader, writer: Writer) -> None:
        while data := await reader.read(100_000):
            got.extend(data)
            if one[5] == METADATA:
                writer.write(response(1) * (len(got) // len(one) - (len(got) - len(data)) // len(one)))

    count = 2_000
    async with answering(tmp_path, take) as running:
        reader, writer = await running.dial()
        with each_turn(lambda: sum(running.counters.requests.values())) as growth:
            writer.write(one * count)
            await running.until(lambda: sum(running.counters.requests.values()) == count)
        answer = {REPLIED: response(1, replied(0)), HELD: response(1, b"held"), METADATA: response(1)}.get(one[5], b"")
        assert await asyncio.wait_for(reader.readexactly(len(answer) * count), 60) == answer * count
        if one[5] not in (REPLIED, HELD):
            await running.until(lambda: got == one * count)
    return max(growth)


async def test_a_broker_that_ends_before_it_answers_ends_a_client_with_many_open_requests(tmp_path):
    one = request(METADATA, 1, 1)

    async def never(reader, writer):
        got = asked = 0
        while asked < MAX_IN_FLIGHT or got < asked * len(one):  # until there is nothing more to read
            got += len(await reader.read(100_000))
            asked = running.counters.requests[METADATA]

    async with answering(tmp_path, never) as running:
        reader, writer = await running.dial()
        writer.write(one * 5_000)
        await running.until(lambda: running.counters.requests[METADATA] >= MAX_IN_FLIGHT)
        assert await reader.read() == b""
        writer.close()
        await running.ends(broker_closed=1)


@asynccontextmanager
async def balanced(folder: Path, option: str) -> AsyncIterator[tuple[Bench, int]]:
    """A sidecar whose connections need a header each, and the port of an HAProxy before it that sends headers as
    ``option`` says. Skips the test where there is none to run."""
    try:
        program, root = await asyncio.to_thread(fetched.debian, "haproxy", ["haproxy"])
    except fetched.MissingError as missing:
        pytest.skip(f"no HAProxy: {missing}")
    settings = {"proxy.protocol": "required", "proxy.protocol.trusted": ["127.0.0.1/32"]}
    async with bench(folder, answer_in_order, quotas={"max.connections.per.ip": 1}, **settings) as running:
        port = free_port()
        (folder / "haproxy.cfg").write_text(
            "global\n  nbthread 1\n  maxconn 100\n"
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n"
            f"listen kafka\n  bind {HOST}:{port}\n  unique-id-format id-%pid\n"
            f"  server sidecar {HOST}:{running.port} {option}\n"
        )
        libraries = fetched.environment_of(root)
        process = await asyncio.create_subprocess_exec(
            program, "-db", "-f", str(folder / "haproxy.cfg"), env=os.environ | libraries
        )
        try:
            async with asyncio.timeout(60):
                while process.returncode is None:
                    with suppress(ConnectionRefusedError):
                        (await asyncio.open_connection(HOST, port))[1].close()
                        break
                    await asyncio.sleep(0.02)
            yield running, port
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.mark.slow
@pytest.mark.promise("limits.md", "PROXY headers of version 1 and 2 are read, as HAProxy sends them.")
async def test_limits_and_names_are_those_of_the_client_before_the_load_balancer(tmp_path):
    for option in ("send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id,crc32c"):
        async with balanced(tmp_path, option) as (running, port):
            clients = [
                await asyncio.open_connection(HOST, port, local_addr=(source, 0))
                for source in ("127.0.0.5", "127.0.0.6", "127.0.0.6")
            ]
            for number, (reader, writer) in enumerate(clients):
                writer.write(request(METADATA, 1, number, b"x" * 5000))
                async with asyncio.timeout(60):
                    if number == 2:
                        assert await reader.read() == b"", "the second one of an address"
                    else:
                        assert await read_frame(reader) == response(number)
            known = {relay.id.split("-")[1] for relay in running.manager.relays}
            known = {name for name in known if not name.startswith(f"{HOST}:")}  # with which HAProxy was found ready
            assert known == {"{}:{}".format(*writer.get_extra_info("sockname")) for _, writer in clients[:2]}
            assert running.counters.closed["quota_exceeded"] == 1
            for _, writer in clients:
                writer.close()
    async with balanced(tmp_path, "") as (running, port):  # no header, from HAProxy or past it
        for count, to in enumerate((running.port, port), start=1):
            reader, writer = await asyncio.open_connection(HOST, to)
            writer.write(b"\x00\x00\x00\x10 no header here")
            async with asyncio.timeout(60):
                with suppress(ConnectionResetError):  # what it sent was not read
                    assert await reader.read() == b""
            writer.close()
            assert running.counters.closed["invalid_proxy_header"] == count
