"""How a broker is dialled, its name looked up, and when it is asked again for what it supports."""

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proxy.config import Endpoint
from proxy.local.ports import HOST, free_ports
from proxy.net import api_versions_probe
from proxy.net import upstream as module
from proxy.net.api_versions_probe import MAX_ANSWER_AGE, ApiVersionsProbe
from proxy.net.upstream import Upstream
from proxy.net.upstream_resolver import UpstreamResolver


@pytest.fixture
def busy() -> Iterator[tuple[Endpoint, Callable[[], list[tuple[str, int]]]]]:
    """A broker that lets nobody in, until the call, which returns who had to wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        endpoint = Endpoint(*server.getsockname())
        server.settimeout(60)
        first = socket.create_connection(server.getsockname())  # fills the backlog

        def let_in() -> list[tuple[str, int]]:
            server.accept()[0].close()
            sock, address = server.accept()
            sock.close()
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
            return [address]

        with first:
            yield endpoint, let_in


def open_sockets() -> int:
    """Sockets that Python has open. The process may have others: threads of librdkafka open and close theirs at any
    time."""
    gc.collect()
    return sum(issubclass(type(each), socket.socket) and each.fileno() >= 0 for each in gc.get_objects())


async def test_a_connection_that_takes_a_while_is_begun_once(busy):
    endpoint, let_in = busy
    before = open_sockets()
    connecting = asyncio.create_task(Upstream(endpoint, 60.0).connect())
    await asyncio.sleep(0.01)
    assert open_sockets() == before + 1
    addresses = await asyncio.to_thread(let_in)
    with await connecting as sock:
        assert [sock.getsockname()] == addresses
        assert not sock.getblocking()


async def test_a_connection_that_is_given_up_leaves_nothing(busy):
    endpoint, _ = busy
    before = open_sockets()
    with pytest.raises(TimeoutError):
        await Upstream(endpoint, 0.05).connect()
    connecting = asyncio.create_task(Upstream(endpoint, 10.0).connect())
    await asyncio.sleep(0.01)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await asyncio.sleep(0)
    assert open_sockets() == before


@pytest.fixture
def broker() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def refusing() -> tuple[str, int]:
    """An address where nobody listens."""
    (port,) = free_ports(1)
    return HOST, port


@pytest.mark.promise("limits.md", "With `upstream.source` the sidecar dials the broker from that address.")
async def test_the_broker_is_dialled_from_the_address_given(broker, monkeypatch):
    upstream = Upstream(Endpoint(*broker.getsockname()), 10.0, "127.0.0.9")
    for _ in range(2):
        with await upstream.connect() as ours, broker.accept()[0] as theirs:
            assert theirs.getpeername() == ours.getsockname()
            assert ours.getsockname()[0] == "127.0.0.9"
            assert ours.getsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT)
    there = broker.getsockname()
    upstream = named(monkeypatch, Upstream(Endpoint("broker", there[1]), 10.0, "127.0.0.9"), ("::1", there[1]), there)
    with await upstream.connect() as ours:
        assert ours.getsockname()[0] == "127.0.0.9", "of its addresses only those of the source's family are tried"


async def test_what_cannot_be_dialled_is_reported_and_leaves_nothing(broker, refusing):
    before = open_sockets()
    there = Endpoint(*broker.getsockname())
    for endpoint, source, message in (
        (there, "192.0.2.1", "Cannot assign requested address"),
        (there, "::1", "has no address of the family of upstream.source ::1"),
        (Endpoint("localhost", refusing[1]), None, "Connection refused"),
    ):
        with pytest.raises(OSError, match=message):
            await Upstream(endpoint, 10.0, source).connect()
        assert open_sockets() == before, message


def named(monkeypatch: pytest.MonkeyPatch, upstream: Upstream, *found: tuple[str, int]) -> Upstream:
    """Have its name resolve to ``found``: the machine's own names have no more than two addresses."""

    def resolve(*_: object, **__: object) -> list[Any]:
        return [
            (socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
            for host, port in found
        ]

    monkeypatch.setattr(upstream, "_resolver", UpstreamResolver(Endpoint("broker", 9092), resolve))
    return upstream


@pytest.fixture
def silent(busy) -> tuple[str, int]:
    """An address that never answers."""
    return busy[0].host, busy[0].port


@pytest.mark.promise(
    "architecture.md", "Of several addresses of the broker the next one is tried beside one that does not answer."
)
async def test_the_next_address_is_tried_beside_one_that_does_not_answer(broker, silent, monkeypatch):
    upstream = named(monkeypatch, Upstream(Endpoint("broker", 9092), 600.0), silent, broker.getsockname())
    before = open_sockets()
    async with asyncio.timeout(60):
        with await upstream.connect() as ours:
            assert ours.getpeername() == broker.getsockname()
            await settled()
            assert open_sockets() == before + 1
    monkeypatch.setattr(module, "ATTEMPT_DELAY", 600.0)
    async with asyncio.timeout(60):  # what worked is tried first
        (await upstream.connect()).close()


async def test_the_next_address_is_tried_at_once_after_one_that_refuses(broker, refusing, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPT_DELAY", 60.0)
    upstream = named(monkeypatch, Upstream(Endpoint("broker", 9092), 600.0), refusing, broker.getsockname())
    async with asyncio.timeout(60):
        (await upstream.connect()).close()


async def settled() -> None:
    """Tasks that were cancelled end in the next rounds."""
    for _ in range(3):
        await asyncio.sleep(0)


HANGS = 20.0
FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9092))]
ADDRESSES = [(socket.AF_INET, ("127.0.0.1", 9092))]


class Resolver:
    """``answer``: what it finds, or raises. It waits for ``free``."""

    def __init__(self) -> None:
        self.calls = 0
        self.answer: Any = FOUND
        self.free = threading.Event()
        self.free.set()

    def __call__(self, host: str, port: int, type: int) -> Any:
        self.calls += 1
        self.free.wait(HANGS)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def resolver(monkeypatch):
    monkeypatch.setattr("proxy.net.upstream_resolver.CACHE_TTL", 0.0)
    monkeypatch.setattr("proxy.net.upstream_resolver.SERVE_STALE_AFTER", HANGS)
    resolver = Resolver()
    yield resolver
    resolver.free.set()


@pytest.fixture
def lookup(resolver):
    return UpstreamResolver(Endpoint("kafka", 9092), resolver)


def soon() -> float:
    return asyncio.get_running_loop().time() + HANGS


async def test_all_who_wait_share_one_lookup_which_outlives_those_who_end(lookup, resolver):
    resolver.free.clear()
    waiting = [asyncio.create_task(lookup.resolve(soon())) for _ in range(1000)]
    await asyncio.sleep(0.01)
    for task in waiting[:500]:
        task.cancel()
    await asyncio.wait(waiting[:500])
    with pytest.raises(TimeoutError):
        await lookup.resolve(asyncio.get_running_loop().time() + 0.05)
    resolver.free.set()
    assert await asyncio.gather(*waiting[500:]) == [ADDRESSES] * 500
    assert resolver.calls == 1


@pytest.mark.promise("architecture.md", "While the lookup of the broker's name hangs, its last addresses are used.")
async def test_while_a_lookup_hangs_the_last_answer_is_used_and_no_other_lookup_begins(lookup, resolver, monkeypatch):
    monkeypatch.setattr("proxy.net.upstream_resolver.SERVE_STALE_AFTER", 0.05)
    assert await lookup.resolve(soon()) == ADDRESSES
    resolver.free.clear()
    for _ in range(100):
        assert await asyncio.wait_for(lookup.resolve(soon()), HANGS / 2) == ADDRESSES
    assert resolver.calls == 2


async def test_a_lookup_that_fails_for_now_leaves_the_last_answer_and_a_name_that_has_ended_does_not(
    lookup, resolver, monkeypatch
):
    await lookup.resolve(soon())
    resolver.answer = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert await lookup.resolve(soon()) == ADDRESSES
    resolver.answer = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with pytest.raises(OSError, match=r"^kafka: Name or service not known$"):
        await lookup.resolve(soon())
    resolver.answer = FOUND
    assert await lookup.resolve(soon()) == ADDRESSES
    resolver.answer = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    monkeypatch.setattr("proxy.net.upstream_resolver.MAX_STALE_AGE", 0.0)
    with pytest.raises(OSError, match=r"^kafka: Temporary failure in name resolution$"):
        await lookup.resolve(soon())
    resolver.answer = UnicodeError("label too long")
    with pytest.raises(ValueError, match="label too long"):
        await lookup.resolve(soon())


class Counted(ApiVersionsProbe):
    """Counts in place of asking."""

    asked = 0

    def start(self) -> None:
        self.asked += 1


@pytest.mark.promise(
    "architecture.md", "A broker is asked for its ApiVersions again only when the last answer that passed is too old."
)
def test_only_an_answer_that_is_too_old_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(api_versions_probe, "monotonic", lambda: now)
    asking = Counted(Upstream(Endpoint("127.0.0.1", 9), 1.0, None), lambda ranges: None)
    asking.start_if_stale(now)
    assert asking.asked == 1, "nothing was heard yet"
    asking.mark_answered()
    now += MAX_ANSWER_AGE
    asking.start_if_stale(now)
    assert asking.asked == 1
    now += 0.1
    asking.mark_answered()
    now += MAX_ANSWER_AGE
    asking.start_if_stale(now)
    assert asking.asked == 1, "a client has heard it in between"
    now += 0.1
    asking.start_if_stale(now)
    assert asking.asked == 2
