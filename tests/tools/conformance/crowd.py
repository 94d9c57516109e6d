"""Clients that connect at set times, and what became of each: ``python -m tests.tools.conformance.crowd PLAN``.

A process of its own, so that nothing else delays its clock; it imports only what starts quickly.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import ipaddress
import json
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

IP_BIND_ADDRESS_NO_PORT = 24
"""Linux: choose the port when connecting, so that one address can be used by 28,000 connections to each server."""

REQUEST = struct.pack(">ihhih", 10, 18, 0, 7, -1)
"""ApiVersions v0, correlation id 7, no client id: every broker answers it at once."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes close() send RST: nothing stays in TIME_WAIT."""


@dataclass(frozen=True)
class Plan:
    """What a crowd does. Times in seconds.

    ``count``: connects, or 0 for connects until SIGTERM comes. ``source``: the address that clients come from, or the
    first of ``sources`` successive ones, taken in turn.
    ``rate``: connects per second at even intervals; 0 for all at once. ``in_turn``: each connects when the one before
    it was answered. ``ask``: send a request, so that it is known when a connection was accepted. ``leave``: close as
    soon as connected (by reset), or answered. ``patience``: give up unanswered connections after that long (0: never).
    ``watch``: continue for so long after the last connect, unless all were answered or ended, or SIGTERM comes.
    ``free_after``: close the
    first connection that long after the last connect (0: never). ``begin_after``: wait before all that.
    ``on_line``: wait for a line of standard input before that.
    """

    port: int
    count: int
    source: str = "127.0.0.1"
    sources: int = 1
    rate: float = 0.0
    in_turn: bool = False
    ask: bool = True
    leave: str = "never"
    patience: float = 0.0
    watch: float = 3.0
    free_after: float = 0.0
    begin_after: float = 0.0
    on_line: bool = False


@dataclass
class Visits:
    """What became of each connection, in the order of the connects; times in seconds since ``began``, -1 for never.

    ``how`` they ended: ``open`` (not at all), ``fin``, ``rst``, ``left`` and ``gave_up`` (by the client), ``refused``.
    ``began`` is of the monotonic clock, which is the same in every process of a machine.
    """

    began: float
    dialled: list[float] = field(default_factory=list)
    connected: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    how: list[str] = field(default_factory=list)

    def refused(self) -> list[int]:
        """Those that the server closed before it had answered."""
        return [i for i, how in enumerate(self.how) if how in ("fin", "rst") and self.answered[i] < 0]

    def holds(self) -> list[float]:
        """How long those that were refused had been connected, sorted."""
        return sorted(self.ended[i] - self.connected[i] for i in self.refused())

    def accepted(self) -> list[float]:
        """When connections were answered, sorted; for a crowd that does not ask, when those still open connected."""
        asked = sorted(when for when in self.answered if when >= 0)
        return asked or sorted(self.connected[i] for i, how in enumerate(self.how) if how == "open")

    def most_held(self) -> int:
        """How many of those that were refused were connected at the worst moment."""
        steps = [(self.connected[i], 1) for i in self.refused()] + [(self.ended[i], -1) for i in self.refused()]
        held = most = 0
        for _, step in sorted(steps):
            held += step
            most = max(most, held)
        return most


class Crowd:
    """Runs one plan in this thread."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._poll = select.epoll()
        self._open: dict[int, tuple[socket.socket, int]] = {}
        self._deadlines: deque[tuple[float, int]] = deque()
        self._unsettled = 0
        self._freed = not plan.free_after
        self._leaving = False
        self._count = plan.count or sys.maxsize
        first = int(ipaddress.ip_address(plan.source))
        self._sources = [str(ipaddress.ip_address(first + i)) for i in range(plan.sources)]
        self.visits = Visits(time.monotonic())

    def run(self) -> Visits:
        plan, visits = self._plan, self.visits
        last = 0.0
        while True:
            now = self._now()
            done = len(visits.dialled)
            while done < self._count and self._due(done) <= now:
                self._dial(done)
                done += 1
                last = self._now()
                if not done % 64:
                    break  # look after the others
            self._give_up(now)
            if done >= self._count:
                if not self._freed and now > last + plan.free_after:
                    self._freed = True
                    self._end(self._open_of(0), "left")
                if self._leaving or now > last + plan.watch or (plan.ask and self._freed and not self._unsettled):
                    break
            self._look(0.0 if done < self._count and self._due(done) <= now else 0.001)
        for sock, _ in list(self._open.values()):
            sock.close()
        return visits

    def leave(self) -> None:
        """End as soon as all have connected, or connect no more where nothing else ends that."""
        if self._plan.count:
            self._leaving = True
        else:
            self._count = len(self.visits.dialled)

    def _now(self) -> float:
        return time.monotonic() - self.visits.began

    def _due(self, index: int) -> float:
        if self._plan.in_turn:
            return float("inf") if self._unsettled else 0.0
        return index / self._plan.rate if self._plan.rate else 0.0

    def _dial(self, index: int) -> None:
        visits = self.visits
        for column in (visits.connected, visits.answered, visits.ended):
            column.append(-1.0)
        visits.how.append("open")
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        sock.bind((self._sources[index % len(self._sources)], 0))
        visits.dialled.append(self._now())
        self._open[sock.fileno()] = (sock, index)
        self._unsettled += 1
        if self._plan.patience:
            self._deadlines.append((self._now() + self._plan.patience, sock.fileno()))
        problem = sock.connect_ex(("127.0.0.1", self._plan.port))
        if problem not in (0, errno.EINPROGRESS):
            self._end(sock.fileno(), "refused")
            return
        self._poll.register(sock.fileno(), select.EPOLLOUT | select.EPOLLIN)

    def _look(self, timeout: float) -> None:
        for fd, events in self._poll.poll(timeout):
            sock, index = self._open[fd]
            if self.visits.connected[index] < 0:
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    self._end(fd, "refused")
                    continue
                self._connected(fd, sock, index)
            elif events & ~select.EPOLLOUT:
                self._read(fd, sock, index)

    def _connected(self, fd: int, sock: socket.socket, index: int) -> None:
        self.visits.connected[index] = self._now()
        if self._plan.leave == "connected":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._end(fd, "left")
            return
        self._poll.modify(fd, select.EPOLLIN)
        if self._plan.ask:
            with contextlib.suppress(OSError):  # it is read next, and shows how it ended
                sock.send(REQUEST)

    def _read(self, fd: int, sock: socket.socket, index: int) -> None:
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            self._end(fd, "rst")
            return
        if not data:
            self._end(fd, "fin")
        elif self.visits.answered[index] < 0:
            self.visits.answered[index] = self._now()
            if self._plan.leave == "answered":
                self._end(fd, "left")
            else:
                self._unsettled -= 1

    def _give_up(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] < now:
            _, fd = self._deadlines.popleft()
            sock, index = self._open.get(fd, (None, -1))
            # The number may be another connection's by now, which then is younger.
            if (
                sock is None
                or self.visits.answered[index] >= 0
                or now - self.visits.dialled[index] < self._plan.patience
            ):
                continue
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._end(fd, "gave_up")

    def _open_of(self, index: int) -> int:
        return next(fd for fd, (_, its) in self._open.items() if its == index)

    def _end(self, fd: int, how: str) -> None:
        sock, index = self._open.pop(fd)
        sock.close()
        if self.visits.answered[index] < 0 or self._plan.leave == "answered":
            self._unsettled -= 1
        self.visits.ended[index] = self._now()
        self.visits.how[index] = how


@contextlib.contextmanager
def _no_pauses() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def main(argument: str) -> int:
    plan = Plan(**json.loads(argument))
    if plan.on_line:
        sys.stdin.readline()
    time.sleep(plan.begin_after)
    crowd = Crowd(plan)
    signal.signal(signal.SIGTERM, lambda *_: crowd.leave())
    with _no_pauses():
        visits = crowd.run()
    json.dump(asdict(visits), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
