"""A steady producer on one connection: ``python -m tests.tools.conformance.producer PORT RATE < REQUEST``.

A process of its own, so that its clock runs whatever else happens; it ends with SIGTERM. Prints ``[[when, took], …]``,
seconds: when each request was sent, of the monotonic clock, and how long its answer took.
"""

from __future__ import annotations

import gc
import json
import signal
import socket
import struct
import sys
import time


def produce(port: int, rate: float, request: bytes, samples: list[tuple[float, float]]) -> None:
    """Send ``request`` at even intervals, and append a sample for each answer."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = sock.makefile("rb")
        began = time.monotonic()
        count = 0
        while True:
            count += 1
            due = began + count / rate
            now = time.monotonic()
            if now < due:
                time.sleep(due - now)
                # That it woke late is not the server's doing; that the answer before came late is.
                due = time.monotonic()
            sock.sendall(request)
            (size,) = struct.unpack(">i", reader.read(4))
            reader.read(size)
            samples.append((due, time.monotonic() - due))


def main(port: str, rate: str) -> int:
    samples: list[tuple[float, float]] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gc.disable()
    try:
        produce(int(port), float(rate), sys.stdin.buffer.read(), samples)
    except KeyboardInterrupt:
        json.dump(samples, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
