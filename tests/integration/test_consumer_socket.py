"""How many frames of one consumer are reported before others are served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from proxy.core.causes import Cause
from proxy.net.consumer_socket import FRAMES, ConsumerSocket, PartialFrames
from tests.frames import sized

FLOOD = 1000


class Owner:
    """Counts frames. ``one_by_one``: pauses the socket with each and lets it go on at once, as a refusal does."""

    def __init__(self, one_by_one: bool) -> None:
        self.frames = 0
        self.sock: ConsumerSocket | None = None
        self._one_by_one = one_by_one

    def on_frame(self, frame: bytes) -> None:
        self.frames += 1
        if self._one_by_one and self.sock is not None:
            self.sock.pause()
            self.sock.resume()

    def may_send(self) -> bool:
        return True

    def on_end(self, cause: Cause, *, by_peer: bool) -> None:
        raise AssertionError(cause)

    def on_buffered(self) -> None:
        raise AssertionError

    def on_drained(self) -> None:
        raise AssertionError


@asynccontextmanager
async def flooded(one_by_one: bool) -> AsyncIterator[tuple[Owner, socket.socket]]:
    """A socket to which very many frames were sent."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    owner = Owner(one_by_one)
    owner.sock = ConsumerSocket(ours, owner, PartialFrames(), {"client": 0})
    theirs.sendall(sized(bytes(20)) * FLOOD)
    try:
        yield owner, theirs
    finally:
        owner.sock.abort()
        theirs.close()


@pytest.mark.parametrize(("one_by_one", "most"), [(True, 1), (False, FRAMES)])
async def test_a_flood_is_reported_in_parts_and_whole(one_by_one: bool, most: int) -> None:
    async with flooded(one_by_one) as (owner, theirs):
        assert owner.sock is not None
        owner.sock.resume()
        seen = [0]
        while owner.frames < FLOOD:
            await asyncio.sleep(0)
            seen.append(owner.frames)
        assert max(after - before for before, after in pairwise(seen)) <= most
        theirs.sendall(sized(bytes(20)))
        while owner.frames == FLOOD:  # noqa: ASYNC110  # a turn of the loop is what is measured
            await asyncio.sleep(0)
        assert owner.frames == FLOOD + 1
