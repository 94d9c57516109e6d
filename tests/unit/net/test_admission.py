"""A burst that a limit lets in at once does not keep the event loop from the traffic of open connections."""

import asyncio
import contextlib
import socket
from collections import Counter

import pytest
import uvloop

from proxy.config import Endpoint, Listener
from proxy.core.counters import ListenerCounters
from proxy.limits.model import Limits, ListenerLimits, Quota
from proxy.local.ports import HOST, free_ports
from proxy.net import admission
from proxy.net.acceptor import Acceptor
from proxy.net.admission import AdmissionControl
from proxy.net.listening_sockets import bind_listening_socket
from proxy.net.round_robin import round_robin_for

CLIENTS = 60
TURNS = 60


class Handler:
    """Notes in which turn of the event loop each connection is handled."""

    def __init__(self) -> None:
        self.listener_counters = {"CLIENT": ListenerCounters()}
        self.turn = 0
        self.handled: Counter[int] = Counter()
        self._open: list[socket.socket] = []
        self._loop = asyncio.get_running_loop()

    async def take_turns(self, count: int) -> None:
        """Let the event loop take ``count`` turns, the last of them a few milliseconds long."""
        for _ in range(count):
            self.turn += 1
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)

    async def wait_for(self, count: int) -> None:
        """Take turns until so many connections are handled, and as many more turns: no others follow."""
        for _ in range(500):
            if self.handled.total() >= count:
                break
            await self.take_turns(1)
        await self.take_turns(TURNS)

    def on_connection_closed(self, callback) -> None:
        self.end = callback

    def _ignore(self, *_) -> None:
        """Nothing here asks for it."""

    close_idlest = hold_connection = close_connection = report_throttles = _ignore

    def handle_connection(self, listener, sock, address, number) -> None:
        self.handled[self.turn] += 1
        self._open.append(sock)

    def close(self) -> None:
        for sock in self._open:
            sock.close()


class Site:
    """A listener with limits whose clock stands still, and ``CLIENTS`` clients in its backlog."""

    def __init__(self, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000
        monkeypatch.setattr(admission, "monotonic_ns", lambda: self.now * 1_000_000)
        self.handler = Handler()
        self.admission = AdmissionControl(limits, self.handler, self._on_unblocked)
        (port,) = free_ports(1)
        self.listener = Listener(name="CLIENT", bind=f"{HOST}:{port}", upstream=f"{HOST}:1")
        counters = self.handler.listener_counters["CLIENT"]
        self.acceptor = Acceptor(
            bind_listening_socket(Endpoint(HOST, port), CLIENTS), counters, self._on_accept, lambda error: None
        )
        self.clients = [socket.create_connection((HOST, port)) for _ in range(CLIENTS)]

    def _on_accept(self, sock: socket.socket, address: tuple[str, int]) -> bool:
        self.admission.submit(self.listener, sock, *address)
        return not self.admission.is_blocked("CLIENT")

    def _on_unblocked(self) -> None:
        if not self.admission.is_blocked("CLIENT"):
            self.acceptor.start_accepting()

    def close(self) -> None:
        self.acceptor.close()
        self.admission.close()
        self.handler.close()
        for client in self.clients:
            client.close()


@contextlib.contextmanager
def at(limits: Limits, monkeypatch: pytest.MonkeyPatch):
    site = Site(limits, monkeypatch)
    try:
        yield site
    finally:
        site.close()


def run(work) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


@pytest.mark.promise(
    "limits.md",
    "What a rate lets in at once is admitted in steps, so that handshakes do not delay the requests of open "
    "connections.",
)
def test_what_a_window_lets_in_at_once_is_admitted_in_steps(monkeypatch):
    async def burst() -> None:
        with at(Limits(listeners={"CLIENT": ListenerLimits(rate=Quota(100))}), monkeypatch) as site:
            site.acceptor.start_accepting()
            await site.handler.take_turns(TURNS)
            assert site.handler.handled.total() == 2, "no time has passed"
            for millisecond in range(1, 15):
                site.now += 1
                await site.handler.wait_for(2 + 2 * millisecond)
                assert site.handler.handled.total() == 2 + 2 * millisecond
            site.now += 1000
            await site.handler.wait_for(2 + 2 * 14 + 2)
            assert site.handler.handled.total() == 2 + 2 * 14 + 2

    run(burst())


@pytest.mark.promise(
    "architecture.md", "Connections that have more to do take turns, one for each round of the event loop."
)
async def test_each_round_of_the_loop_is_one_turn_in_the_order_of_those_that_wait() -> None:
    turns, rounds = round_robin_for(asyncio.get_running_loop()), list[list[str]]()

    def wanting(name: str, times: int) -> None:
        def take_turn() -> None:
            nonlocal times
            rounds[-1].append(name)
            times -= 1
            if times:
                turns.schedule(take_turn)

        turns.schedule(take_turn)

    wanting("a", 3)
    wanting("b", 1)
    wanting("c", 2)
    for _ in range(9):
        rounds.append([])
        await asyncio.sleep(0)
        if rounds[-1] == ["b"]:
            wanting("d", 1)
    assert rounds == [["a"], ["b"], ["c"], ["a"], ["d"], ["c"], ["a"], [], []]
    # An error costs nobody else a turn.
    loop = asyncio.get_running_loop()
    turns, taken, errors = round_robin_for(loop), [0], list[object]()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def fail() -> None:
        raise RuntimeError

    turns.schedule(fail)
    turns.schedule(lambda: taken.append(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert taken == [0, 1]
    assert len(errors) == 1
