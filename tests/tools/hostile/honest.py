"""Honest clients, each a process of its own, and what each of them counts.

``python -m tests.tools.hostile.honest WHAT ADDRESS SECONDS …`` prints one line of JSON at its end.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from proxy.client.consumer import ConsumerFailed, CoordinatedConsumer
from proxy.client.consumer.streams import MessageStream
from tests.frames import METADATA, request
from tests.tools.hostile.checks import SESSION_TIMEOUT

PAUSE = 0.01
"""Seconds between two small requests."""

PATIENCE = 20.0
"""Seconds for an answer to a small request; then it counts as an error, and the client dials again."""

SHARING = 60.0
"""Seconds until each consumer has partitions, from its start: the first offsets of a new cluster take some."""

LAST_MESSAGES = 60.0
"""Seconds for what is still on its way to the consumers at the end."""

BROKERS_ONLY = struct.pack(">i", 0)
"""The body of a Metadata v1 request that asks for no topics."""


def small(address: str, seconds: float) -> dict[str, object]:
    """Ask for Metadata again and again on one connection. Times in milliseconds; ``foreign``: wrong addresses;
    ``requests``: when each began, on the monotonic clock, and how long it took, in seconds, and whether it
    failed."""
    host, _, port = address.rpartition(":")
    times: list[float] = []
    requests: list[tuple[float, float, bool]] = []
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
            requests.append((began, time.monotonic() - began, True))
            if sock is not None:
                sock.close()
            sock = None
        else:
            times.append((time.monotonic() - began) * 1000)
            requests.append((began, times[-1] / 1000, False))
            foreign += _first_broker(answer) != (host, int(port))
        time.sleep(PAUSE)
    if sock is not None:
        sock.close()
    return {"count": len(times), "errors": errors, "foreign": foreign, "requests": requests, **percentiles(times)}


def commit(address: str, seconds: float, topic: str) -> dict[str, Any]:
    """Commit one transaction after the other. Percentiles in milliseconds; one that fails has taken as long as it took.
    ``commits``: when each began, on the monotonic clock, and how long it took, in seconds, without
    ``init_transactions``."""
    commits: list[tuple[float, float]] = []
    errors = 0
    until = time.monotonic() + seconds
    producer: Producer | None = None
    while time.monotonic() < until:
        try:
            if producer is None:
                starting = Producer({"bootstrap.servers": address, "transactional.id": "honest", "log_level": 0})
                starting.init_transactions(PATIENCE)
                producer = starting
            began = time.monotonic()
            try:
                producer.begin_transaction()
                producer.produce(topic, b"committed")
                producer.commit_transaction(PATIENCE)
            finally:
                commits.append((began, time.monotonic() - began))
        except KafkaException:
            errors += 1
            producer = None
        time.sleep(PAUSE)
    times = [took * 1000 for _, took in commits]
    return {"count": len(commits), "errors": errors, "commits": commits, **percentiles(times)}


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
            acknowledged.append(int(message.value() or b""))
        else:
            failed += 1

    began = time.monotonic()
    for number in range(int(seconds * rate)):
        producer.produce(topic, str(number), on_delivery=delivered)
        producer.poll(max(0.0, began + number / rate - time.monotonic()))
    left = producer.flush(60)
    return {"acknowledged": acknowledged, "failed": failed + left}


def consume(address: str, seconds: float, topic: str, partitions: int, rate: int, broker: str) -> dict[str, object]:
    """Two consumers of one group, and a producer of what they read; they fetch from the broker itself.

    Prints a line once both have a share; ``seconds`` begin then. ``revoked``: when one of them lost a partition after
    that, on the monotonic clock, once for each partition; None if one never had any. ``again``: messages that were
    handed out twice. ``got``: how many each got.
    """
    began = time.monotonic()
    until = began + SHARING + seconds
    revoked: list[float] = []
    got: dict[str, list[tuple[int, int]]] = {"one": [], "two": []}
    failures: list[str] = []

    def lose(partitions: Sequence[tuple[str, int]]) -> None:
        revoked.extend([time.monotonic()] * len(partitions))

    def read(name: str, stream: MessageStream) -> None:
        try:
            for message in stream:
                got[name].append((message.partition() or 0, message.offset() or 0))
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
            session_timeout_ms=int(1000 * SESSION_TIMEOUT),
            kafka={"bootstrap.servers": broker},
            on_revoked=lose,
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
            until = time.monotonic() + seconds
            print(f"both have partitions after {time.monotonic() - began:.1f} s", flush=True)
        producer.produce(topic, str(number), partition=number % partitions, on_delivery=delivered)
        producer.poll(1 / rate)
        number += 1
    producer.flush(60)
    produced = len(acknowledged)
    deadline = time.monotonic() + LAST_MESSAGES
    while len(set(got["one"] + got["two"])) < produced and time.monotonic() < deadline:
        time.sleep(0.1)
    lost = None if before is None else revoked[before:]
    with ThreadPoolExecutor(len(consumers)) as pool:
        list(pool.map(CoordinatedConsumer.shutdown, consumers))
    every = got["one"] + got["two"]
    again = len(every) - len(set(every))
    missing = max(0, produced - len(set(every)))
    each = {name: len(messages) for name, messages in got.items()}
    return {
        "produced": produced, "lost": missing, "again": again, "revoked": lost, "failures": failures, "got": each,
    }  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    what, address, seconds, *more = arguments
    if what == "small":
        said = small(address, float(seconds))
    elif what == "commit":
        said = commit(address, float(seconds), *more)
    elif what == "consume":
        topic, partitions, rate, broker = more
        said = consume(address, float(seconds), topic, int(partitions), int(rate), broker)
    else:
        topic, rate = more
        said = produce(address, float(seconds), topic, int(rate))
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
