"""The attacks. Each one is a process: ``python -m tests.tools.hostile.attacks NAME TARGET-AS-JSON`` prints what it did.

Every attack is bounded in connections, and ends after the seconds it is given. Each comes from a loopback address of
its own, as another machine would, with a lower priority than the sidecar.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from proxy.coordinator import wire
from proxy.coordinator.subscription import MAX_PATTERN, MAX_TOPICS
from proxy.fleet.sidecar_record import SidecarRecord, encode, record_key
from tests.frames import METADATA, request, sized
from tests.tools.messages import uvarint

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter

PRODUCE, FETCH, UNKNOWN, BROKER_METADATA = 0, 1, 20_000, 30_000

UNSUPPORTED = struct.pack(">ihhih", 10, UNKNOWN, 0, 7, -1)
"""14 bytes: a request of an api that no broker has."""

PIPELINED = 4096
"""Requests that a flood writes at a time."""

PARTITIONS = 190_000
"""Of one Produce frame; each takes six bytes."""

WANTED_TOPICS = 20_000
"""Topics of one Metadata request, none of which exists: the response has 1.4 MB."""

REST = 0.05
"""Seconds before an attacker dials again."""

ONE_ADDRESS = 90
"""Connections of hostile consumers from one address."""

BOMB_TAGS = {f"t{n}": "x" * 1000 for n in range(100)}
"""Tags of a registry record that is as large as it may be, and compresses well."""


@dataclass
class Target:
    """Where to. Addresses are ``host:port``; ``seconds``: how long; ``source``: the first address to come from."""

    client: str
    internal: str
    admin: str
    topic: str
    seconds: float
    source: str
    connections: int
    """Of hostile consumers, at the same time."""
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.seconds

    @property
    def going_on(self) -> bool:
        return time.monotonic() < self.until

    async def dial(self, *, admin: bool = False, receive_buffer: int = 0, host: int = 0) -> tuple[Reader, Writer]:
        """Connect from the address with this number; raises OSError."""
        source = f"{self.source.rpartition('.')[0]}.{1 + host}"
        name, _, port = (self.admin if admin else self.client).rpartition(":")
        sock = socket.socket()
        try:
            if receive_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.setblocking(False)
            sock.bind((source, 0))
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, (name, int(port))), 5)
        except BaseException:
            sock.close()
            raise
        self.counts["connections"] += 1
        return await asyncio.open_connection(sock=sock)


Attack = Callable[[Target], Awaitable[None]]
Visit = Callable[[Target, Reader, Writer], Awaitable[None]]


async def _again_and_again(target: Target, visit: Visit, rest: float = REST, **dialling: Any) -> None:
    """Connect, ``visit``, and once more when that has ended."""
    while target.going_on:
        writer: Writer | None = None
        try:
            reader, writer = await target.dial(**dialling)
            async with asyncio.timeout(max(0.1, target.until - time.monotonic())):
                await visit(target, reader, writer)
        except (OSError, EOFError, TimeoutError):
            target.counts["ended"] += 1
        finally:
            if writer is not None:
                writer.transport.abort()
        await asyncio.sleep(rest)


async def _crowd(target: Target, count: int, visit: Visit, **rest: Any) -> None:
    await asyncio.gather(*[_again_and_again(target, visit, **rest) for _ in range(count)])


async def _count_answers(target: Target, reader: Reader) -> None:
    while piece := await reader.read(1 << 18):
        target.counts["bytes_read"] += len(piece)


async def _flood(target: Target, writer: Writer, reader: Reader, frame: bytes) -> None:
    reading = asyncio.create_task(_count_answers(target, reader))
    try:
        while not reading.done():
            writer.write(frame * PIPELINED)
            await writer.drain()
            target.counts["requests"] += PIPELINED
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await reading


# ---- clients ---------------------------------------------------------------------------------------------------------


async def frames(target: Target) -> None:
    """Frames that no client sends: each ends its connection, and gives a log line."""
    shapes = [
        struct.pack(">i", -1),
        sized(b""),
        struct.pack(">ihhih", 1 << 30, 0, 7, 1, 1),
        sized(bytes(8) + b"\x7f\xff"),
        b"\x16\x03\x01\2\0",
    ]

    async def visit(target: Target, reader: Reader, writer: Writer) -> None:
        writer.write(shapes[target.counts["connections"] % len(shapes)])
        await reader.read(100)

    await _crowd(target, 2, visit)


async def unsupported(target: Target) -> None:
    """Requests of an api that no broker has, as fast as they are taken."""

    async def visit(target: Target, reader: Reader, writer: Writer) -> None:
        await _flood(target, writer, reader, UNSUPPORTED)

    await _crowd(target, 3, visit)


async def broker_metadata(target: Target) -> None:
    """Requests that the sidecar itself answers, as fast as they are taken."""
    frame = request(BROKER_METADATA, 0, 7, struct.pack(">i", 0), None)

    async def visit(target: Target, reader: Reader, writer: Writer) -> None:
        await _flood(target, writer, reader, frame)

    await _crowd(target, 1, visit)


async def partitions(target: Target) -> None:
    """A Fetch that waits, and behind it Produce requests of very many partitions, whose facts wait for responses."""
    wait = struct.pack(">iiiibii", -1, 20_000, 1 << 30, 1 << 20, 0, 0, -1) + struct.pack(">ih", 1, len(target.topic))
    wait += target.topic.encode() + struct.pack(">iiqqi", 1, 0, 0, -1, 1 << 20) + struct.pack(">i", 0)
    each = b"".join(struct.pack(">ibb", n, 0, 0) for n in range(PARTITIONS))
    body = b"\0\0" + struct.pack(">hi", -1, 1000) + b"\2" + b"\5none" + uvarint(PARTITIONS + 1) + each + b"\0" + b"\0"

    async def visit(target: Target, reader: Reader, writer: Writer) -> None:
        writer.write(request(FETCH, 7, 1, wait))
        for _ in range(4):
            writer.write(request(PRODUCE, 9, 2, body))
            await asyncio.wait_for(writer.drain(), 30)
            target.counts["requests"] += 1
        await asyncio.sleep(10)

    await _crowd(target, 20, visit, rest=1.0)


async def held(target: Target) -> None:
    """Metadata of very many topics, whose responses the sidecar edits, and which nobody reads."""
    topics = b"".join(struct.pack(">h", 60) + f"{n:060}".encode() for n in range(WANTED_TOPICS))
    frame = request(METADATA, 4, 7, struct.pack(">i", WANTED_TOPICS) + topics + b"\0")

    async def visit(target: Target, reader: Reader, writer: Writer) -> None:
        writer.write(frame)
        await asyncio.wait_for(writer.drain(), 30)
        target.counts["requests"] += 1
        await asyncio.sleep(40)

    await _crowd(target, 100, visit, rest=2.0, receive_buffer=4096)


async def silent(target: Target) -> None:

    async def visit(target: Target, reader: Reader, writer: Writer) -> None:
        await reader.read(1)

    await _crowd(target, 600, visit, rest=1.0)


async def silent_admin(target: Target) -> None:

    async def visit(target: Target, reader: Reader, writer: Writer) -> None:
        await reader.read(1)

    await _crowd(target, 80, visit, rest=0.2, admin=True)


async def slow(target: Target) -> None:
    """Consumers that ask for much and read nothing."""
    fetch = struct.pack(">iiiibii", -1, 500, 1, 50 << 20, 0, 0, -1) + struct.pack(">ih", 1, len(target.topic))
    fetch += target.topic.encode() + struct.pack(">iiqqi", 1, 0, 0, -1, 50 << 20) + struct.pack(">i", 0)

    async def visit(target: Target, reader: Reader, writer: Writer) -> None:
        for _ in range(20):
            writer.write(request(FETCH, 7, 1, fetch))
        await writer.drain()
        await asyncio.sleep(60)

    await _crowd(target, 50, visit, receive_buffer=4096)


async def trickle(target: Target) -> None:
    """Headers with long client ids that come byte by byte."""
    frame = request(PRODUCE, 7, 1, struct.pack(">h", 32_000) + b"t" * 32_000, "i" * 32_000)

    async def visit(target: Target, reader: Reader, writer: Writer) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(frame)):
            writer.write(frame[at : at + 1])
            await writer.drain()  # raises when the connection has ended
            await asyncio.sleep(0.005)

    await _crowd(target, 10, visit)


async def storm(target: Target) -> None:
    """Two hundred connections a second from one address, each with one request."""

    async def one() -> None:
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await target.dial()
            writer.write(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(reader.read(100), 2)
            writer.transport.abort()

    tasks: set[asyncio.Task[None]] = set()
    while target.going_on:
        if len(tasks) < 400:
            task = asyncio.create_task(one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.sleep(0.005)


# ---- writers of topics -----------------------------------------------------------------------------------------------


def _write(target: Target, bootstrap: str, topic: str, records: Sequence[tuple[bytes, bytes]], pause: float) -> None:
    """Produce ``records`` in turn until the end; counts what was accepted and what was refused."""

    def delivered(error: KafkaError | None, message: Message) -> None:
        name = "accepted" if error is None else "refused"
        target.counts[name] += 1
        if error is not None:
            target.counts[f"error {error.name()}"] += 1

    settings = {
        "bootstrap.servers": bootstrap,
        "compression.type": "zstd",
        "log_level": 0,
        "message.timeout.ms": 10_000,
    }
    producer = Producer(settings)
    number = 0
    while target.going_on:
        key, value = records[number % len(records)]
        number += 1
        try:
            producer.produce(topic, value, key, on_delivery=delivered)
        except BufferError:
            pass
        except KafkaException as error:  # it remembers that it was refused
            target.counts["refused"] += 1
            target.counts[f"error {error.args[0].name()}"] += 1
        producer.poll(pause)
    producer.flush(5)


def _spoofed(node_id: int) -> tuple[bytes, bytes]:
    record = SidecarRecord({"CLIENT": "PLAINTEXT"}, ("CLIENT://127.9.9.9:9",), "127.9.9.9", 9, "1", tags=BOMB_TAGS)
    return record_key(node_id), encode(record)


REGISTRY = "__brokerside_registry"


async def spoof(target: Target) -> None:
    """A client that writes registry records through the sidecar."""
    await asyncio.to_thread(_write, target, target.client, REGISTRY, [_spoofed(2)], 0.1)


async def bomb(target: Target) -> None:
    """A writer of the registry at the broker: three hundred sidecars, each as large as may be, again and again."""
    await asyncio.to_thread(_write, target, target.internal, REGISTRY, [_spoofed(n) for n in range(2, 302)], 0.05)


async def forge(target: Target) -> None:
    """A client that writes audit events through the sidecar."""
    await asyncio.to_thread(_write, target, target.client, "brokerside-audit", [(b"1", b"[]")], 0.1)


# ---- neighbours of the admin port ------------------------------------------------------------------------------------


async def rebinding(target: Target) -> None:
    """A page in somebody's browser, whose name has come to mean the admin port's address."""

    async def visit(target: Target, reader: Reader, writer: Writer) -> None:
        path = ("/config", "/quotas")[target.counts["connections"] % 2]
        writer.write(f"GET {path} HTTP/1.1\r\nHost: attacker.example\r\n\r\n".encode())
        if not (line := await reader.readline()):
            raise EOFError  # it had to make room for another one
        target.counts[f"status {line.split(b' ')[1].decode()}"] += 1

    await _again_and_again(target, visit, rest=0.5, admin=True)


# ---- hostile consumers -----------------------------------------------------------------------------------------------

# Each gets the attack's counts, the connection's number, and the connection. The groups are the attackers' own: who may
# join a group is a matter of ACLs. Source: docs/coordinator.md, the messages.

Kind = Callable[[Counter[str], int, Reader, Writer], Awaitable[None]]

GROUPS = 50
"""Groups that attackers share, so that they are rebalanced again and again."""

HOLD = 30.0
"""Seconds for which a connection that is not closed is kept."""

LONGEST = 4 << 20
"""Of a frame from a consumer."""

ASKED_AGAIN = 64
PATTERNS = ("((a{0,30}){0,30}){0,30}", "(" * 300 + "a" + ")*" * 300, "(a|aa)+" * (MAX_PATTERN // 7), "(x+x+)+y")
"""The first has too many states; of the others, matchers that backtrack make very much."""


def _registration(number: int, topics: str = '{"honest":1}', **changed: object) -> bytes:
    asked = wire.RegisterConsumerRequest(
        f"hostile-{number % GROUPS}", f"attacker-{number}", topics, True, "smallest", 6000, 2
    )._replace(**changed)
    body = wire.encode_register_consumer_request(2, asked)
    return wire.request_frame(wire.REGISTER_CONSUMER, 2, number, "hostile", body)


async def _register(counts: Counter[str], reader: Reader, writer: Writer, frame: bytes) -> int:
    """Return the error code of the response. Raises EOFError."""
    writer.write(frame)
    size = int.from_bytes(await reader.readexactly(4), "big")
    code = int.from_bytes((await reader.readexactly(size))[4:6], "big")
    counts[f"code {code}"] += 1
    return code


async def _drop(reader: Reader) -> None:
    while await reader.read(1 << 16):
        pass


async def mute(counts: Counter[str], number: int, reader: Reader, writer: Writer) -> None:
    await _register(counts, reader, writer, _registration(number))
    await _drop(reader)


async def half(counts: Counter[str], number: int, reader: Reader, writer: Writer) -> None:
    frame = _registration(number)
    writer.write(frame[: random.randrange(4, len(frame))])
    await _drop(reader)


async def refused(counts: Counter[str], number: int, reader: Reader, writer: Writer) -> None:
    """Registrations that are refused, as fast as they are taken; it reads no response."""
    frame = _registration(number, session_timeout_ms=1) * ASKED_AGAIN
    while True:
        writer.write(frame)
        await writer.drain()
        counts["flooded"] += ASKED_AGAIN


async def slow_response(counts: Counter[str], number: int, reader: Reader, writer: Writer) -> None:
    """Registers, and sends a response as long as may be in small pieces."""
    await _register(counts, reader, writer, _registration(number))
    writer.write(sized(bytes(LONGEST - 4))[:1000])
    while True:
        writer.write(bytes(1000))
        await writer.drain()
        await asyncio.sleep(0.1)


async def unasked(counts: Counter[str], number: int, reader: Reader, writer: Writer) -> None:
    """Registers, and responds to what was never asked."""
    await _register(counts, reader, writer, _registration(number))
    response = wire.ConsumerResponse(12345, wire.PING, 0, f"attacker-{number}", ())
    writer.write(wire.encode_response(response) * ASKED_AGAIN)
    await _drop(reader)


async def many_topics(counts: Counter[str], number: int, reader: Reader, writer: Writer) -> None:
    """Registers for as many topics as may be, with as many streams, in a group of its own."""
    names = {f"t-{random.randrange(1 << 40):012x}": 1000 for _ in range(MAX_TOPICS)}
    frame = _registration(number, json.dumps(names), group_id=f"hostile-own-{random.randrange(1 << 30)}")
    await _register(counts, reader, writer, frame)
    await _drop(reader)


async def patterns(counts: Counter[str], number: int, reader: Reader, writer: Writer) -> None:
    """Registers with all patterns that cost something, one after the other."""
    for each in PATTERNS:
        if not await _register(counts, reader, writer, _registration(number, f"*1000*{each}")):
            break
    await _drop(reader)


async def visits(counts: Counter[str], number: int, reader: Reader, writer: Writer) -> None:
    """Registers and goes, again and again: its group is rebalanced each time."""
    await _register(counts, reader, writer, _registration(number))


async def new_groups(counts: Counter[str], number: int, reader: Reader, writer: Writer) -> None:
    """Registers in a new group each time, and goes."""
    await _register(
        counts, reader, writer, _registration(number, group_id=f"hostile-{number}-{random.randrange(1 << 30)}")
    )


KINDS: tuple[Kind, ...] = (mute, half, refused, slow_response, unasked, many_topics, patterns, visits, new_groups)


async def consumers(target: Target) -> None:
    """Hostile consumers of all kinds; each address has fewer than may come from it."""

    async def one(number: int) -> None:
        kind = KINDS[number % len(KINDS)]

        async def visit(target: Target, reader: Reader, writer: Writer) -> None:
            async with asyncio.timeout(HOLD):
                await kind(target.counts, number, reader, writer)

        await _again_and_again(target, visit, rest=1.0, host=number // ONE_ADDRESS)

    await asyncio.gather(*[one(number) for number in range(target.connections)])


ATTACKS: dict[str, Attack] = {
    one.__name__: one
    for one in (
        frames, unsupported, broker_metadata, partitions, held, silent, silent_admin, slow, trickle, storm, consumers,
        spoof, bomb, forge, rebinding,
    )
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    name, target = arguments[0], Target(**json.loads(arguments[1]))
    os.nice(10)
    need = 2 * target.connections + 1000
    hard = max(resource.getrlimit(resource.RLIMIT_NOFILE)[1], need)
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    asyncio.run(ATTACKS[name](target))  # type: ignore[arg-type]  # every attack is a coroutine function
    print(json.dumps(target.counts))


if __name__ == "__main__":
    main(sys.argv[1:])
