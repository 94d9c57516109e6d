"""What hostile consumers do with one connection to a sidecar that coordinates groups.

Each gets the attack's counts, the connection's number, and the connection. The groups are the attackers' own: who may
join a group is a matter of ACLs. Source: docs/coordinator.md, the messages.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from proxy.coordinator import wire
from proxy.coordinator.subscription import MAX_PATTERN, MAX_TOPICS
from tests.frames import sized

Kind = Callable[[Counter[str], int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

GROUPS = 50
"""Groups that attackers share, so that they are rebalanced again and again."""

HOLD = 30.0
"""Seconds for which a connection that is not closed is kept."""

LONGEST = 4 << 20
"""Of a frame from a consumer."""

PIPELINED = 64
PATTERNS = ("((a{0,30}){0,30}){0,30}", "(" * 300 + "a" + ")*" * 300, "(a|aa)+" * (MAX_PATTERN // 7), "(x+x+)+y")
"""The first has too many states; of the others, matchers that backtrack make very much."""


def _registration(number: int, topics: str = '{"honest":1}', **changed: object) -> bytes:
    asked = wire.RegisterConsumerRequest(
        f"hostile-{number % GROUPS}", f"attacker-{number}", topics, True, "smallest", 6000, 2
    )._replace(**changed)
    body = wire.encode_register_consumer_request(2, asked)
    return wire.request_frame(wire.REGISTER_CONSUMER, 2, number, "hostile", body)


async def _register(
    counts: Counter[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes
) -> int:
    """Return the error code of the response. Raises EOFError."""
    writer.write(frame)
    size = int.from_bytes(await reader.readexactly(4), "big")
    code = int.from_bytes((await reader.readexactly(size))[4:6], "big")
    counts[f"code {code}"] += 1
    return code


async def _drop(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def mute(counts: Counter[str], number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _register(counts, reader, writer, _registration(number))
    await _drop(reader)


async def half(counts: Counter[str], number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    frame = _registration(number)
    writer.write(frame[: random.randrange(4, len(frame))])
    await _drop(reader)


async def flood(counts: Counter[str], number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Registrations that are refused, as fast as they are taken; it reads no response."""
    frame = _registration(number, session_timeout_ms=1) * PIPELINED
    while True:
        writer.write(frame)
        await writer.drain()
        counts["flooded"] += PIPELINED


async def trickle(
    counts: Counter[str], number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Registers, and sends a response as long as may be in small pieces."""
    await _register(counts, reader, writer, _registration(number))
    writer.write(sized(bytes(LONGEST - 4))[:1000])
    while True:
        writer.write(bytes(1000))
        await writer.drain()
        await asyncio.sleep(0.1)


async def forge(counts: Counter[str], number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Registers, and responds to what was never asked."""
    await _register(counts, reader, writer, _registration(number))
    response = wire.ConsumerResponse(12345, wire.PING, 0, f"attacker-{number}", ())
    writer.write(wire.encode_response(response) * PIPELINED)
    await _drop(reader)


async def topics(counts: Counter[str], number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Registers for as many topics as may be, with as many streams, in a group of its own."""
    names = {f"t-{random.randrange(1 << 40):012x}": 1000 for _ in range(MAX_TOPICS)}
    frame = _registration(number, json.dumps(names), group_id=f"hostile-own-{random.randrange(1 << 30)}")
    await _register(counts, reader, writer, frame)
    await _drop(reader)


async def pattern(
    counts: Counter[str], number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Registers with all patterns that cost something, one after the other."""
    for each in PATTERNS:
        if not await _register(counts, reader, writer, _registration(number, f"*1000*{each}")):
            break
    await _drop(reader)


async def visit(counts: Counter[str], number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Registers and goes, again and again: its group is rebalanced each time."""
    await _register(counts, reader, writer, _registration(number))


async def found(counts: Counter[str], number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Registers in a new group each time, and goes."""
    await _register(
        counts, reader, writer, _registration(number, group_id=f"hostile-{number}-{random.randrange(1 << 30)}")
    )


KINDS: tuple[Kind, ...] = (mute, half, flood, trickle, forge, topics, pattern, visit, found)
