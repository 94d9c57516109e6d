"""Honest clients, each a process of its own, and what each of them counts.

``python -m tests.hostile.honest WHAT ADDRESS SECONDS …`` prints one line of JSON at its end.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, Message, Producer

from tests.frames import METADATA, request

PAUSE = 0.01
"""Seconds between two small requests."""

PATIENCE = 20.0
"""Seconds for an answer to a small request; then it counts as an error, and the client dials again."""

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


def main(arguments: Sequence[str]) -> None:
    what, address, seconds, *more = arguments
    if what == "small":
        said = small(address, float(seconds))
    else:
        topic, rate = more
        said = produce(address, float(seconds), topic, int(rate))
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
