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
