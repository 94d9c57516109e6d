"""A sidecar that answers some requests later, for tests of them over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from proxy.core.budget import OPEN
from proxy.core.interceptor import BrokerCall, Deferred, Request, Served, Verdict
from tests.frames import METADATA, request
from tests.integration.peer import Behaviour, Reader, answer_in_order
from tests.integration.test_relay import Bench
from tests.integration.test_relay_answers import answering
from tests.integration.tls_bench import TlsBench
from tests.tools.interceptors import HELD, Chooser

FLEXIBLE = 9
"""The first version of Metadata whose headers have tagged fields."""

Serve = Callable[[BrokerCall], Awaitable[Served]]


class Later(Chooser):
    """``serve`` serves HELD."""

    def __init__(self, serve: Serve) -> None:
        super().__init__()
        self.serve = serve

    def on_body(self, request: Request, body: bytes) -> Verdict:
        return Deferred(self.serve) if request.api_key == HELD else super().on_body(request, body)


def serving(
    tmp_path: Path, serve: Serve, behaviour: Behaviour = answer_in_order
) -> contextlib.AbstractAsyncContextManager[Bench]:
    """A sidecar that serves deferred requests so."""
    return answering(tmp_path, behaviour, partial(Later, serve))


def deferred(number: int) -> bytes:
    return request(HELD, 0, number)


async def ask(call: BrokerCall) -> bytes | None:
    """The broker's answer to Metadata v1."""
    return await call(METADATA, 1, b"asked")


def charged(running: Bench | TlsBench) -> int:
    return running.manager.budget.counts[OPEN]


async def closes(running: Bench | TlsBench, cause: str, reader: Reader) -> None:
    """The client's connection ends for ``cause``, without a byte more."""
    assert await asyncio.wait_for(reader.read(), 60) == b""
    await running.until(lambda: running.counters.closed == {cause: 1})
    assert charged(running) == 0


async def never(call: BrokerCall) -> bytes | None:
    await asyncio.sleep(60)
    return b"late"
