"""Lookups of a broker's name, with a resolver that answers when the test says so."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from proxy.config import Endpoint
from proxy.net.upstream_resolver import UpstreamResolver

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
