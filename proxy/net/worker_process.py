"""One worker process as the main process holds it: its start, its channel, its ledger, its end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from msgspec import structs

from observers.lane import ObserverStats
from proxy.config import Config
from proxy.config.transfer import pack
from proxy.core.causes import Cause
from proxy.core.tally import Tally
from proxy.net.worker_ipc import (
    Ask,
    Carry,
    Change,
    Channel,
    Closed,
    Failed,
    FindIdlest,
    Idlest,
    Ready,
    Report,
    Start,
    Tell,
    ToMain,
)
from proxy.telemetry.snapshot import ProcessCounts, Snapshot, added

REFRESH = 1.0
"""Seconds between two askings for counts: what a worker counted since is never told if it dies."""

SILENT = 3
"""Times ``REFRESH`` without a word after which a worker is given nothing more, until it says something."""

HUNG = 5
"""Times ``REFRESH`` without a word after which it is killed: its clients hear nothing either."""

STARTING = 60
"""The same for one that is not ready yet."""

RESERVED = 100
"""Descriptors of a worker that are not for connections: libraries, the loop, its observers' connections."""

LOST: Cause = "worker_lost"

Unsent = tuple[Carry, socket.socket]
"""A connection and its socket, on their way to a worker."""

Answer = asyncio.Future[Report | Idlest | None]
"""To a question; None where the worker ended instead of answering."""


class Spawned(NamedTuple):
    """A process that was started. ``watch``: its pidfd. ``sock``: this end of the channel to it."""

    process: subprocess.Popen[bytes]
    watch: int
    sock: socket.socket


class Handle:
    """A worker from its start to its end.

    ``on_room()`` is called when it becomes ready or has room again, ``on_closed(number)`` for each connection that has
    ended in it or with it, ``on_end(self, unsent)`` once it has ended, with what it could not be given any more.
    """

    def __init__(
        self,
        number: int,
        config: Config,
        spawned: Spawned,
        *,
        on_room: Callable[[], None],
        on_closed: Callable[[int], None],
        on_end: Callable[[Handle, list[Unsent]], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.number = number
        self.settled = asyncio.Event()
        """Whether it is known if it can carry: it can, unless there is a ``problem``."""
        self.ended = asyncio.Event()
        self.problem = ""
        self.carries = False
        """Whether it is ready, and has not ended."""
        self.silence = 0
        """Times ``REFRESH`` without a word from it; no clock, which would count this process's own hanging as well."""
        self._asked = False  # since then
        self._untold: list[Change | Tell] = []  # for when it is ready
        self._born = monotonic()
        self._on_room = on_room
        self._on_closed = on_closed
        self._on_end = on_end
        self._given = {listener.name: 0 for listener in config.listeners}
        self._open: set[int] = set()
        # A worker may have as many descriptors as this process, and needs two for each connection.
        self._capacity = max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED) // 2)
        self._last = Snapshot({listener.name: Tally() for listener in config.listeners})
        self._answers: dict[int, Answer] = {}
        self._process, self._watch, sock = spawned
        self.channel: Channel[ToMain] = Channel(sock, ToMain, self._received, has_room=on_room)
        self._loop.add_reader(self._watch, self._exited)
        self.channel.send(Start(number, pack(config)))

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return monotonic() - self._born

    @property
    def able(self) -> bool:
        """Whether it carries, as far as is known."""
        return self.carries and self.silence < SILENT

    @property
    def listens(self) -> bool:
        """Whether it may be told something now."""
        return self.able and not self.channel.full

    @property
    def has_room(self) -> bool:
        """Whether it may be given a connection now."""
        return self.listens and not self.crowded

    @property
    def crowded(self) -> bool:
        """Whether it has descriptors for no more connections: the kernel would close one that it is sent."""
        return self.load[0] >= self._capacity

    @property
    def end(self) -> str:
        """How it ended: ``exit 1``, ``SIGKILL``."""
        code = self._process.returncode
        return f"exit {code}" if code >= 0 else signal.Signals(-code).name

    @property
    def load(self) -> tuple[int, int]:
        """What to compare workers by: connections that are open, then connections it was ever given."""
        return len(self._open), sum(self._given.values())

    @property
    def told(self) -> dict[str, Tally]:
        """What it told last of its counts, by listener."""
        return self._last.tallies

    def carry(self, carry: Carry, sock: socket.socket) -> None:
        """Give it a connection."""
        self._given[carry.listener] += 1
        self._open.add(carry.index)
        self.channel.send(carry, sock)

    def tell(self, message: Change | Tell) -> None:
        """Send it ``message``, at once or when it is ready."""
        if self.carries:
            self.channel.send(message)
        else:
            self._untold.append(message)

    def ask(self, number: int) -> Answer | None:
        """Ask for its counts; the future is done when ``snapshot`` has them. None where it cannot be asked."""
        if not self.carries or (self._asked and not self.has_room):
            return None
        self._asked = True
        return self._question(Ask(number))

    def find_idlest(self, number: int, listeners: list[str]) -> Answer | None:
        """Ask for the connection of ``listeners`` that is longest idle. None where it cannot be asked now."""
        return self._question(FindIdlest(number, listeners)) if self.listens else None

    def _question(self, question: Ask | FindIdlest) -> Answer:
        answer = self._answers[question.number] = self._loop.create_future()
        self.channel.send(question)
        return answer

    def tick(self) -> None:
        """To be called every ``REFRESH`` seconds: counts the silence, and ends the worker when it is too long."""
        self.silence += 1
        if self.silence >= (HUNG if self.carries else STARTING):
            self.problem = f"worker {self.number} said nothing for {self.silence * REFRESH:.0f} s"
            self.kill()

    def snapshot(self) -> Snapshot:
        """Return what it counted last; which connections are open is what the ledger says.

        Of one that has ended: what it was carrying is closed, what its observers had not delivered is dropped, and what
        its audit had on disk is left to the others.
        """
        last = structs.replace(self._last, tallies={})
        for name, tally in self._last.tallies.items():
            active = self._given[name] - sum(tally.closed.values())
            if self.ended.is_set():
                tally = structs.replace(tally, closed={**tally.closed, LOST: tally.closed.get(LOST, 0) + active})
                active = 0
            last.tallies[name] = structs.replace(tally, active=active)
        if self.carries:
            last.loop_lag = max(last.loop_lag, self.silence * REFRESH)
        if self.ended.is_set():
            last.process = ProcessCounts(cpu_seconds=last.process.cpu_seconds)
            last.loop_lag = 0.0
            last.observers = {name: _without_queue(stats) for name, stats in last.observers.items()}
            last.audit = _without_spool(last.audit) if last.audit else {}
        last.workers = {self.number: sum(tally.active for tally in last.tallies.values())}
        return last

    def kill(self) -> None:
        """End it at once; ``ended`` follows."""
        self._process.kill()

    def _received(self, message: ToMain, _: int | None) -> None:
        had_room = self.has_room
        self.silence = 0
        self._asked = False
        match message:
            case Closed():
                self._end(message.numbers)
            case Report() | Idlest():
                if isinstance(message, Report):
                    self._last = message.snapshot
                if (answer := self._answers.pop(message.number, None)) is not None:
                    answer.set_result(message)
            case Ready():
                self._last = message.snapshot
                self.carries = True
                for untold in self._untold:
                    self.channel.send(untold)
                self.settled.set()
            case Failed():
                self.problem = message.error
        if self.has_room and not had_room:
            self._on_room()

    def _exited(self) -> None:
        self._process.poll()  # that it has ended is known
        self._loop.remove_reader(self._watch)
        os.close(self._watch)
        unsent = [(message, sock) for message, sock in self.channel.close() if isinstance(message, Carry) and sock]
        for carry, _ in unsent:
            self._given[carry.listener] -= 1
            self._open.remove(carry.index)
        self.problem = self.problem or f"worker {self.number} ended with {self.end}"
        self.carries = False
        self.settled.set()
        self.ended.set()
        for answer in self._answers.values():
            answer.set_result(None)
        self._on_end(self, unsent)
        self._end(list(self._open))

    def _end(self, numbers: list[int]) -> None:
        for number in numbers:
            self._open.remove(number)
            self._on_closed(number)


def spawn() -> Spawned:
    """Start a fresh interpreter that finds the same modules as this one. Raises OSError.

    Waits until the kernel has begun the program, some milliseconds or as long as its disk takes: not for the loop's
    thread.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "proxy", "worker", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            return Spawned(process, os.pidfd_open(process.pid), ours)
        except OSError:
            process.kill()
            process.wait()
            raise
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()


def _without_queue(stats: ObserverStats) -> ObserverStats:
    dropped = added(stats.dropped, {LOST: stats.queued} if stats.queued else {})
    return structs.replace(stats, dropped=dropped, queued=0, breaker_open=False)


def _without_spool(audit: dict[str, Any]) -> dict[str, Any]:
    """Its spool is another worker's by now, which counts what is there."""
    dropped = added(audit["dropped"], {LOST: audit["queued"]} if audit["queued"] else {})
    gone = {"queued": 0, "queued_bytes": 0, "spooled": 0, "spool_bytes": 0, "spool_failed": False, "problems": {}}
    return {**audit, **gone, "dropped": dropped, "left": audit["spooled"]}
