"""``workers: N`` with N > 1: the processes that carry connections, as the main process has them.

The main process alone accepts. It sends each accepted socket to the worker with the fewest open connections and keeps
the ledger: what a worker was given, and what it says is closed. A worker that ends is replaced; what it was carrying
counts as closed by ``worker_lost``, and its last counts stay in all sums.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence

import structlog
from msgspec import structs

from proxy.config import Config, Listener
from proxy.config.transfer import pack
from proxy.core.tally import Tally
from proxy.errors import LocalError
from proxy.limits.throttles import ThrottleReport
from proxy.net.ticker import Beat
from proxy.net.worker_ipc import Carry, Change, Cut, Drain, Evict, Idlest, Tell, Throttled
from proxy.net.worker_process import REFRESH, SILENT, Answer, Handle, Unsent, spawn
from proxy.replies.broker_metadata import FleetView
from proxy.telemetry import Repeated
from proxy.telemetry.logs import log_lines_dropped
from proxy.telemetry.snapshot import Snapshot, process_counts, total

START_TIMEOUT = 30.0
"""Seconds until all workers have to be ready; they need about one."""

ANSWER_TIMEOUT = 1.0
"""Seconds a worker has to answer; after that the counts it told last are used, and it closes no idle connection."""

FIRST_RESTART, LAST_RESTART = 0.1, 10.0
"""Seconds until a worker is replaced: from the first number to the second, twice as many each time it ends again."""

STABLE = 10.0
"""Seconds a worker must have lived for its end to count as the first one again."""

CUT_TIMEOUT = 1.0
"""Seconds that workers told to end at once have for it; then they are killed."""

STOP_MARGIN = 2.0
"""Seconds on top of the times configured for a shutdown after which a worker that has not ended is killed."""

log = structlog.get_logger(__name__)


class Workers:
    """All workers, as one ``Carrying``. Belongs to the loop's thread, which never waits for a worker's socket."""

    def __init__(self, config: Config, beat: Beat) -> None:
        """None runs before ``start``."""
        self.tallies = {listener.name: Tally() for listener in config.listeners}
        self._config = config
        self._beat = beat
        self._view: FleetView | None = None
        self._living: dict[int, Handle] = {}
        self._dead = Snapshot({name: Tally() for name in self.tallies})  # the last counts of all that have ended
        self._unplaced: list[Unsent] = []
        self._has_room: Callable[[], None] | None = None
        self._ended: Callable[[int], None] = lambda number: None
        self._delays: dict[int, float] = {}  # until the next restart, by number
        self._restarts = 0
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._serving = False
        self._asked = 0
        self._to_evict: deque[list[str]] = deque()
        self._evicting: asyncio.Task[None] | None = None
        self.unreported = 0
        """Reports that no worker could take."""
        self._repeated = Repeated(log)
        beat.calls.append(self._repeated.flush)

    async def start(self) -> None:
        """Start all workers and wait until they are ready. Raises LocalError, and then none of them runs."""
        try:
            for number in range(1, self._config.workers + 1):
                await self._start_one(number)
            async with asyncio.timeout(START_TIMEOUT):
                for worker in list(self._living.values()):
                    await worker.settled.wait()
                    if worker.problem:
                        raise LocalError(worker.problem)
        except BaseException as error:
            await self._kill()
            if isinstance(error, TimeoutError):
                raise LocalError(f"a worker is not ready after {START_TIMEOUT:.0f} s") from None
            if isinstance(error, OSError):
                raise LocalError(f"workers: {self._config.workers} processes cannot be started: {error}") from None
            raise
        self._serving = True
        self._refresh()

    @property
    def holding(self) -> int:
        """None: workers have descriptors of their own."""
        return 0

    @property
    def able(self) -> bool:
        """Whether any worker runs and answers."""
        return any(worker.able for worker in self._living.values())

    @property
    def full(self) -> bool:
        """Whether no worker can be given a connection just now."""
        return bool(self._unplaced) or not any(worker.has_room for worker in self._living.values())

    def on_room(self, call: Callable[[], None]) -> None:
        """Call it each time ``full`` ends."""
        self._has_room = call

    def on_end(self, call: Callable[[int], None]) -> None:
        """Call it once with the number of each connection that was carried, when that has ended."""
        self._ended = call

    def carry(self, listener: Listener, sock: socket.socket, address: tuple[str, int], number: int) -> None:
        """Give ``sock``, a client accepted from ``address``, to a worker, at once or when one has room."""
        self._place(Carry(listener.name, *address, number), sock)
        if self.full and any(worker.crowded for worker in self._living.values()):
            self._repeated.warning("workers_out_of_capacity", error="EMFILE")

    def answered(self, api_key: int) -> int:
        """Responses of this api that have passed, as last told."""
        told = [self._dead.tallies, *(worker.told for worker in self._living.values())]
        return sum(tally.responses.get(api_key, 0) for tallies in told for tally in tallies.values())

    def close_idlest(self, listeners: Collection[str]) -> None:
        """Close the connection of ``listeners`` that was longest without a byte, if any is open, in a moment."""
        self._to_evict.append(list(listeners))
        if self._evicting is None or self._evicting.done():
            self._evicting = asyncio.create_task(self._evict())

    def report(self, reports: Sequence[ThrottleReport]) -> None:
        """Have the observers of one worker told of throttled connections; where none can take it, nobody is."""
        if not self._config.observer_class_names:
            return
        for _, worker in sorted(self._living.items()):
            if worker.listens:
                worker.channel.send(Throttled(list(reports)))
                return
        self.unreported += len(reports)
        self._repeated.warning("throttles_not_reported", reports=len(reports))

    def change(self, config: Config) -> None:
        """Tell all workers, those to come as well."""
        self._config = config
        for worker in self._living.values():
            worker.tell(Change(pack(config)))

    def tell(self, view: FleetView) -> None:
        """Tell all workers, those to come as well."""
        self._view = view
        for worker in self._living.values():
            worker.tell(Tell(view))

    async def snapshot(self) -> Snapshot:
        """Counts of all workers, living and dead, and of this process."""
        answers = self._ask()
        if answers:
            await asyncio.wait(answers, timeout=ANSWER_TIMEOUT)
        waiting = Counter(carry.listener for carry, _ in self._unplaced)
        tallies = {
            name: structs.replace(tally, active=tally.active + waiting[name]) for name, tally in self.tallies.items()
        }
        own = Snapshot(tallies, process_counts(), self._beat.lag, worker_restarts=self._restarts)
        own.log_lines_dropped = log_lines_dropped()
        own.throttle_reports_lost = self.unreported
        own.workers = dict.fromkeys(range(1, self._config.workers + 1), 0)
        return total([own, self._dead, *(worker.snapshot() for worker in self._living.values())])

    async def stop(self, now: asyncio.Event) -> None:
        """Let all workers drain and end; at once when ``now`` is set. None runs afterwards."""
        self._serving = False
        for timer in self._timers.values():
            timer.cancel()
        for starting in self._starting:
            starting.cancel()  # one whose process starts all the same finds nobody at the other end, and ends
        if self._evicting is not None:
            self._evicting.cancel()
        self._drop_unplaced()
        for worker in self._living.values():
            worker.channel.send(Drain())
        ended = asyncio.create_task(self._all_ended())
        cut = asyncio.create_task(now.wait())
        patience = (self._config.drain_timeout_ms + self._config.observer_shutdown_timeout_ms) / 1000 + STOP_MARGIN
        await asyncio.wait({ended, cut}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if cut.done():
            for worker in self._living.values():
                worker.channel.send(Cut())
            await asyncio.wait({ended}, timeout=CUT_TIMEOUT)
        for task in (ended, cut):
            task.cancel()
        for worker in self._living.values():
            log.warning("worker_killed", worker=worker.number, pid=worker.pid)
        await self._kill()
        self._drop_unplaced()

    def _drop_unplaced(self) -> None:
        dropped, self._unplaced = self._unplaced, []
        for carry, sock in dropped:
            self.tallies[carry.listener].closed["drain_completed"] += 1
            sock.close()
            self._ended(carry.index)

    async def _all_ended(self) -> None:
        for worker in list(self._living.values()):
            await worker.ended.wait()

    async def _kill(self) -> None:
        for worker in self._living.values():
            worker.kill()
        await self._all_ended()

    async def _start_one(self, number: int) -> None:
        spawned = await asyncio.to_thread(spawn)
        self._living[number] = Handle(
            number,
            self._config,
            spawned,
            on_room=self._on_room,
            on_closed=lambda connection: self._ended(connection),
            on_end=self._on_end,
        )
        if self._view is not None:
            self._living[number].tell(Tell(self._view))

    def _restart(self, number: int) -> None:
        task = asyncio.get_running_loop().create_task(self._start_again(number))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_again(self, number: int) -> None:
        try:
            await self._start_one(number)
        except OSError as error:  # no process, or no descriptor, to be had just now
            log.warning("worker_not_started", worker=number, error=str(error))
            self._restart_later(number)
        else:
            self._restarts += 1

    def _restart_later(self, number: int) -> None:
        delay = self._delays.get(number, FIRST_RESTART)
        self._delays[number] = min(2 * delay, LAST_RESTART)
        self._timers[number] = asyncio.get_running_loop().call_later(delay, self._restart, number)

    def _on_end(self, worker: Handle, unsent: list[Unsent]) -> None:
        del self._living[worker.number]
        self._dead = total([self._dead, worker.snapshot()])
        self._unplaced += unsent
        if not self._serving:
            return
        lost = worker.load[0]
        log.error("worker_ended", worker=worker.number, pid=worker.pid, reason=worker.problem, connections=lost)
        if worker.age >= STABLE:
            self._delays.pop(worker.number, None)
        self._restart_later(worker.number)
        self._on_room()

    def _on_room(self) -> None:
        """A worker has become ready, or has room again, or has left something that others have to take."""
        waiting, self._unplaced = self._unplaced, []
        for carry, sock in waiting:
            self._place(carry, sock)
        if self._has_room is not None and not self.full:
            self._has_room()

    def _place(self, carry: Carry, sock: socket.socket) -> None:
        able = [worker for worker in self._living.values() if worker.has_room]
        if able:
            min(able, key=lambda worker: worker.load).carry(carry, sock)
        else:
            self._unplaced.append((carry, sock))

    async def _evict(self) -> None:
        """One after the other: the next one is looked for when the last one is being closed."""
        while self._to_evict:
            listeners = self._to_evict.popleft()
            self._asked += 1
            workers = list(self._living.values())
            asked = {answer: worker for worker in workers if (answer := worker.find_idlest(self._asked, listeners))}
            answered = (await asyncio.wait(asked, timeout=ANSWER_TIMEOUT))[0] if asked else set()
            found = [
                (idlest.since, idlest.connection, asked[answer])
                for answer in answered
                if isinstance(idlest := answer.result(), Idlest) and idlest.connection is not None
            ]
            if found:
                _, connection, worker = min(found, key=lambda each: each[:2])
                worker.channel.send(Evict(connection))

    def _ask(self) -> list[Answer]:
        self._asked += 1
        return [answer for worker in self._living.values() if (answer := worker.ask(self._asked))]

    def _refresh(self) -> None:
        for worker in self._living.values():
            worker.tick()
            if worker.carries and worker.silence == SILENT:
                log.error("worker_silent", worker=worker.number, pid=worker.pid, connections=worker.load[0])
        self._ask()
        self._timers[0] = asyncio.get_running_loop().call_later(REFRESH, self._refresh)
