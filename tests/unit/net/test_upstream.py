import asyncio
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from proxy.config import Endpoint
from proxy.net.upstream import Upstream


@pytest.fixture
def busy() -> Iterator[tuple[Endpoint, Callable[[], list[tuple[str, int]]]]]:
    """A broker that lets nobody in, until the call, which returns who had to wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        endpoint = Endpoint(*server.getsockname())
        server.settimeout(5)
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


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_connection_that_takes_a_while_is_begun_once(busy):
    endpoint, let_in = busy
    before = descriptors()
    connecting = asyncio.create_task(Upstream(endpoint, 10.0).connect())
    await asyncio.sleep(0.01)
    assert descriptors() == before + 1
    addresses = await asyncio.to_thread(let_in)

    with await connecting as sock:
        assert [sock.getsockname()] == addresses
        assert not sock.getblocking()


async def test_a_connection_that_is_given_up_leaves_nothing(busy):
    endpoint, _ = busy
    before = descriptors()
    with pytest.raises(TimeoutError):
        await Upstream(endpoint, 0.05).connect()
    connecting = asyncio.create_task(Upstream(endpoint, 10.0).connect())
    await asyncio.sleep(0.01)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await asyncio.sleep(0)

    assert descriptors() == before


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_broker_that_is_not_there_is_told_of_as_such(host):
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(host, server.getsockname()[1])
    before = descriptors()
    with pytest.raises(ConnectionRefusedError):
        await Upstream(endpoint, 10.0).connect()

    assert descriptors() == before


@pytest.fixture
def broker() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_the_broker_is_dialled_from_the_address_given(broker):
    upstream = Upstream(Endpoint(*broker.getsockname()), 10.0, "127.0.0.9")
    for _ in range(2):
        with await upstream.connect() as ours, broker.accept()[0] as theirs:
            assert theirs.getpeername() == ours.getsockname()
            assert ours.getsockname()[0] == "127.0.0.9"
            assert ours.getsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT)


@pytest.mark.parametrize(
    ("source", "message"),
    [("192.0.2.1", "Cannot assign requested address"), ("::1", "has no address of the kind of upstream.source ::1")],
)
async def test_an_address_that_the_broker_cannot_be_dialled_from_is_told_of(broker, source, message):
    before = descriptors()
    with pytest.raises(OSError, match=message):
        await Upstream(Endpoint(*broker.getsockname()), 10.0, source).connect()

    assert descriptors() == before


async def test_of_a_name_s_addresses_only_those_of_the_source_s_kind_are_tried(broker, monkeypatch):
    async def both_kinds(upstream: Upstream, deadline: float):
        return [(socket.AF_INET6, ("::1", 9, 0, 0)), (socket.AF_INET, broker.getsockname())]

    monkeypatch.setattr(Upstream, "_look_up", both_kinds)
    upstream = Upstream(Endpoint("localhost", broker.getsockname()[1]), 10.0, "127.0.0.9")
    with await upstream.connect() as ours:
        assert ours.getsockname()[0] == "127.0.0.9"
