"""Honest clients, each a process of its own, and what each of them counts.

``python -m tests.hostile.honest WHAT ADDRESS SECONDS …`` prints one line of JSON at its end.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaError, Message, Producer

from proxy.client.consumer import ConsumerFailed, CoordinatedConsumer
from proxy.client.consumer.streams import MessageStream
from tests.frames import METADATA, request

PAUSE = 0.01
"""Seconds between two small requests."""

PATIENCE = 20.0
"""Seconds for an answer to a small request; then it counts as an error, and the client dials again."""

SESSION_TIMEOUT_MS = 20_000
"""Of the honest consumers. All processes share a few processors, and attackers may keep these for seconds."""

LAST_MESSAGES = 60.0
"""Seconds for what is still on its way to the consumers at the end."""

BROKERS_ONLY = struct.pack(">i", 0)
"""The body of a Metadata v1 request that asks for no topics."""


def small(address: str, seconds: float) -> dict[str, object]:
    """Ask for Metadata again and again on one connection. Times in milliseconds; ``foreign``: wrong addresses."""
    host, _, port = address.rpartition(":")
    times: list[float] = []
    errors = foreign = 0
    until = time.monotonic() + seconds
    sock: socket.socket | None = None
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            if sock is None:
                sock = socket.create_connection((host, int(port)), PATIENCE)
            sock.sendall(request(METADATA, 1, 7, BROKERS_ONLY, "honest-small"))
            answer = _frame(sock)
        except OSError:
            errors += 1
            if sock is not None:
                sock.close()
            sock = None
        else:
            times.append((time.monotonic() - began) * 1000)
            foreign += _first_broker(answer) != (host, int(port))
        time.sleep(PAUSE)
    if sock is not None:
        sock.close()
    return {"count": len(times), "errors": errors, "foreign": foreign, **percentiles(times)}


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the maximum."""
    ordered = sorted(times) or [float("inf")]
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def _frame(sock: socket.socket) -> bytes:
    return _exactly(sock, struct.unpack(">i", _exactly(sock, 4))[0])


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (piece := sock.recv(size - len(data))):
            raise ConnectionResetError
        data += piece
    return data


def _first_broker(answer: bytes) -> tuple[str, int]:
    """Its address, from a Metadata v1 response of one broker. Source: MetadataResponse.json."""
    (length,) = struct.unpack_from(">h", answer, 12)
    (port,) = struct.unpack_from(">i", answer, 14 + length)
    return answer[14 : 14 + length].decode(), port


def produce(address: str, seconds: float, topic: str, rate: int) -> dict[str, object]:
    """Produce with librdkafka; ``acknowledged``: the numbers of the records that the broker has acknowledged."""
    producer = Producer({"bootstrap.servers": address, "client.id": "honest-librdkafka", "enable.idempotence": True})
    acknowledged: list[int] = []
    failed = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal failed
        if error is None:
            acknowledged.append(int((message.value() or b"").rpartition(b"-")[2]))
        else:
            failed += 1

    began = time.monotonic()
    for number in range(int(seconds * rate)):
        producer.produce(topic, f"librdkafka-{number}".encode(), on_delivery=delivered)
        producer.poll(max(0.0, began + number / rate - time.monotonic()))
    left = producer.flush(60)
    return {"acknowledged": acknowledged, "failed": failed + left}


def consume(address: str, seconds: float, topic: str, partitions: int, rate: int, broker: str) -> dict[str, object]:
    """Two consumers of one group, and a producer of what they read; they fetch from the broker itself.

    ``revoked``: partitions that one of them lost after both had a share; None if one never had. ``again``: messages
    that were handed out twice.
    """
    until = time.monotonic() + seconds
    revoked: list[tuple[str, int]] = []
    got: dict[str, Counter[tuple[int, int]]] = {"one": Counter(), "two": Counter()}
    failures: list[str] = []

    def read(name: str, stream: MessageStream) -> None:
        try:
            for message in stream:
                got[name][message.partition() or 0, message.offset() or 0] += 1
        except ConsumerFailed as error:
            failures.append(str(error))

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.append(message.offset() or 0)

    consumers = []
    for name in got:
        consumer = CoordinatedConsumer(
            address,
            "honest",
            name,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            kafka={"bootstrap.servers": broker},
            on_revoked=revoked.extend,
        )
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        threading.Thread(target=read, args=[name, stream], daemon=True).start()
        consumers.append(consumer)
    producer = Producer({"bootstrap.servers": broker})
    number, before = 0, None
    acknowledged: list[int] = []
    while time.monotonic() < until:
        if before is None and all(got.values()):
            before = len(revoked)
        producer.produce(topic, str(number), partition=number % partitions, on_delivery=delivered)
        producer.poll(1 / rate)
        number += 1
    producer.flush(60)
    produced = len(acknowledged)
    deadline = time.monotonic() + LAST_MESSAGES
    while len(got["one"] | got["two"]) < produced and time.monotonic() < deadline:
        time.sleep(0.1)
    lost = None if before is None else len(revoked) - before
    with ThreadPoolExecutor(len(consumers)) as pool:
        list(pool.map(CoordinatedConsumer.shutdown, consumers))
    every = got["one"] + got["two"]
    again = every.total() - len(every)
    missing = max(0, produced - len(every))
    return {"produced": produced, "lost": missing, "again": again, "revoked": lost, "failures": failures}


def main(arguments: Sequence[str]) -> None:
    what, address, seconds, *more = arguments
    if what == "small":
        said = small(address, float(seconds))
    elif what == "consume":
        topic, partitions, rate, broker = more
        said = consume(address, float(seconds), topic, int(partitions), int(rate), broker)
    else:
        topic, rate = more
        said = produce(address, float(seconds), topic, int(rate))
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
