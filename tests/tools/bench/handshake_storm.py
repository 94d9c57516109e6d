"""``python -m tests.tools.bench.handshake_storm``: how long a storm of TLS handshakes keeps other clients waiting.

A sidecar's listener runs in this process. Other processes flood it: some with a ClientHello for each connection, which
costs them nothing and the sidecar a key exchange and a signature, others with whole handshakes. Measured is one
iteration of the event loop, within which no other client is served twice. CPU of the loop's thread says what the
sidecar causes, the clock what the machine adds. A request waits for two iterations at most.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import multiprocessing
import socket
import ssl
import tempfile
import time
from pathlib import Path

import uvloop

from proxy.net import listener_manager
from proxy.net.acceptor import Acceptor
from tests.frames import METADATA, request
from tests.integration.peer import answer_in_order
from tests.integration.tls_bench import tls_bench
from tests.tools.bench.tls import Clients

FLOOD = 100
"""Connections of one flooding process, opened at once, again and again."""

GOAL_MS = 5.0


class Times:
    """CPU of this thread in milliseconds, by what it was spent on."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def add(self, what: str, seconds: float) -> None:
        self.spent.setdefault(what, []).append(seconds * 1000)

    def lines(self) -> list[str]:
        found = []
        for what, all_ in self.spent.items():
            ordered = sorted(all_)
            p99 = ordered[len(ordered) * 99 // 100]
            found.append(f"{what:34} {len(ordered):8}  p99 {p99:6.3f} ms  max {ordered[-1]:6.3f} ms")
        return found


def timed_sslobject(times: Times) -> type[ssl.SSLObject]:
    class Timed(ssl.SSLObject):
        def do_handshake(self) -> None:
            begun = time.thread_time()
            try:
                super().do_handshake()
            finally:
                times.add("a step of OpenSSL, CPU", time.thread_time() - begun)

    return Timed


def time_accepts(times: Times) -> None:
    class Timed(Acceptor):
        def _on_readable(self) -> None:
            begun = time.thread_time()
            super()._on_readable()
            times.add("accepting up to 8 clients, CPU", time.thread_time() - begun)

    listener_manager.Acceptor = Timed  # type: ignore[misc]


def flood(port: int) -> None:
    """Send a ClientHello on each of many connections, read the answers, and close."""
    hello = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    first = hello.read()
    while True:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            socks = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 5)) for _ in range(FLOOD)]
            for sock in socks:
                sock.sendall(first)
            for sock in socks:
                sock.recv(10_000)


def shake_hands(port: int, ca: Path) -> None:
    clients = Clients(port, ca, request(METADATA, 1, 1))
    while True:
        with contextlib.suppress(OSError):
            clients.full_handshake()


async def measure(seconds: float) -> tuple[Times, int]:
    """Return what iterations took, and the whole handshakes."""
    times = Times()
    time_accepts(times)
    with tempfile.TemporaryDirectory() as folder:
        async with tls_bench(Path(folder), answer_in_order) as running:
            context = running.manager._tls["CLIENT"].server
            assert context is not None
            context.sslobject_class = timed_sslobject(times)
            start = multiprocessing.get_context("spawn").Process
            clients = [
                start(target=flood, args=(running.port,), daemon=True),
                start(target=shake_hands, args=(running.port, running.authority.ca), daemon=True),
            ]
            for one in clients:
                one.start()
            await running.until(lambda: sum(running.counters.tls_handshakes.values()) > 0, 60)
            loop = asyncio.get_running_loop()
            done = loop.create_future()
            gc.freeze()  # as a sidecar does
            until = time.monotonic() + seconds
            before = time.thread_time(), time.monotonic()

            def iteration() -> None:
                nonlocal before
                now = time.thread_time(), time.monotonic()
                times.add("an iteration of the loop, CPU", now[0] - before[0])
                times.add("an iteration of the loop, clock", now[1] - before[1])
                before = time.thread_time(), time.monotonic()
                if now[1] < until:
                    loop.call_soon(iteration)
                else:
                    done.set_result(None)

            loop.call_soon(iteration)
            await done
            for one in clients:
                one.kill()
                one.join()
            return times, sum(running.counters.tls_handshakes.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.handshake_storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    times, handshakes = uvloop.run(measure(parser.parse_args().seconds))
    print("\n".join(times.lines()))
    worst = 2 * max(times.spent["an iteration of the loop, CPU"])
    print(f"{handshakes} whole handshakes; a request waits for {worst:.3f} ms of CPU at most, goal {GOAL_MS:.0f} ms")
    return int(worst > GOAL_MS)


if __name__ == "__main__":
    raise SystemExit(main())
