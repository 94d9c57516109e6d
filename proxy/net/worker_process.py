"""One worker process, as the main process sees it: its start, its messages, its connections and its exit."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from msgspec import structs

from observers.observer_thread import ObserverStats
from proxy.config import Config
from proxy.config.serialization import pack
from proxy.core.causes import Cause
from proxy.core.counters import ListenerCounters
from proxy.features.updates import UpdateFeatures
from proxy.limits.principal_quotas import Logins
from proxy.net.consumer_handover import TakeConsumer
from proxy.net.sockets import AcceptedSocket
from proxy.net.worker_ipc import (
    ClientsLoggedIn,
    ConfigPrepared,
    ConnectionsClosed,
    ConnectionsPage,
    DescribeConnections,
    DiscardConfig,
    FeatureUpdateAnswered,
    FeatureUpdateAsked,
    FindIdlest,
    HandBroker,
    HandConsumer,
    IdlestConnection,
    IpcChannel,
    PrepareConfig,
    ReportLogins,
    RequestSnapshot,
    SnapshotReply,
    StartFailed,
    StartWorker,
    TakeConnection,
    ToMain,
    UpdateConfig,
    UpdateFeaturesView,
    UpdateFleetView,
    UpdateGroupsView,
    WorkerReady,
)
from proxy.telemetry.snapshot import ProcessCounts, Snapshot, add_counters

SNAPSHOT_INTERVAL = 1.0
"""Seconds between two requests for counters. What a worker has counted since is lost if it is killed."""

REPLY_TIMEOUT = 1.0
"""Seconds a worker has to reply. After that its last counters are used, and it evicts no connection."""

SILENT_AFTER = 3
"""Intervals without a message after which a worker gets nothing more, until it sends something."""

KILL_AFTER = 5
"""Intervals without a message after which a worker is killed. Its clients get no answers either."""

START_WITHIN = 60
"""Intervals without a message after which a worker is killed that is not ready yet."""

RESERVED_WORKER_DESCRIPTORS = 100
"""Descriptors of a worker that are not for connections: libraries, the event loop, connections of observers."""

LOST_CAUSE: Cause = "worker_lost"

Update = (
    PrepareConfig
    | DiscardConfig
    | UpdateConfig
    | UpdateFleetView
    | UpdateFeaturesView
    | UpdateGroupsView
    | ReportLogins
)
"""A message that a worker gets as soon as it is ready, in the order in which they were sent."""

UnsentConnection = tuple[TakeConnection, AcceptedSocket]
"""A connection with its socket that is queued for a worker."""

Reply = asyncio.Future[SnapshotReply | IdlestConnection | ConnectionsPage | ConfigPrepared | None]
"""The reply to a request; None if the worker exits before it replies."""


class SpawnedWorker(NamedTuple):
    """A process that was started. ``pidfd``: its pidfd. ``sock``: this process's end of the socket pair."""

    process: subprocess.Popen[bytes]
    pidfd: int
    sock: socket.socket


class WorkerProcess:
    """A worker process from its start to its exit.

    * ``on_capacity()`` is called when it becomes ready or can receive connections again.
    * ``on_connection_closed(number)`` is called for each of its connections that has ended, also by its exit.
    * ``on_logins(logins, earlier)`` is called for its clients that have logged in, while ``ReportLogins`` wants them.
    * ``on_feature_update(request)`` is called for each update of features that one of its clients asks for.
    * ``on_consumer`` (``TakeConsumer``) is called with each connection whose client registers as a consumer. It is not
      one of this worker any more then.
    * ``on_exit(self, unsent)`` is called once it has exited, with the connections that were not sent to it.
    """

    def __init__(
        self,
        number: int,
        config: Config,
        spawned: SpawnedWorker,
        *,
        on_capacity: Callable[[], None],
        on_connection_closed: Callable[[int], None],
        on_logins: Callable[[Logins, bool], None],
        on_feature_update: UpdateFeatures,
        on_consumer: TakeConsumer,
        on_exit: Callable[[WorkerProcess, list[UnsentConnection]], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.number = number
        self.started = asyncio.Event()
        """Set once the worker is ready or has failed to start; ``problem`` is empty if it is ready."""
        self.exited = asyncio.Event()
        self.problem = ""
        self.is_ready = False
        """Whether it is ready and has not exited."""
        self.silent_intervals = 0
        """Intervals without a message from it. Not measured by a clock, which would also count pauses of this
        process."""
        self._snapshot_requested = False  # since the last message
        self._pending_updates: list[Update] = []  # sent once it is ready
        self._started_at = monotonic()
        self._on_capacity = on_capacity
        self._on_connection_closed = on_connection_closed
        self._on_logins = on_logins
        self._on_feature_update = on_feature_update
        self._feature_updates: set[asyncio.Task[None]] = set()
        self._on_consumer = on_consumer
        self._handed_brokers: dict[int, socket.socket] = {}  # of consumers that come next, by their numbers
        self._on_exit = on_exit
        self._assigned = Counter[str]()  # by listener name
        self._open: set[int] = set()
        # A worker has the same limit of descriptors as this process and needs two for each connection.
        self._capacity = max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_WORKER_DESCRIPTORS) // 2)
        self._last_snapshot = Snapshot({listener.name: ListenerCounters() for listener in config.listeners})
        self._replies: dict[int, Reply] = {}
        self._process, self._pidfd, sock = spawned
        self.channel: IpcChannel[ToMain] = IpcChannel(sock, ToMain, self._on_message, on_all_sent=on_capacity)
        self._loop.add_reader(self._pidfd, self._on_process_exit)
        self.channel.send(StartWorker(number, pack(config)))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return monotonic() - self._started_at

    @property
    def is_available(self) -> bool:
        """Whether it serves connections, as far as is known."""
        return self.is_ready and self.silent_intervals < SILENT_AFTER

    @property
    def can_receive(self) -> bool:
        """Whether messages can be sent to it now."""
        return self.is_available and not self.channel.is_full

    @property
    def has_capacity(self) -> bool:
        """Whether connections can be sent to it now."""
        return self.can_receive and not self.lacks_descriptors

    @property
    def lacks_descriptors(self) -> bool:
        """Whether it has no descriptors for another connection. The kernel would close a socket that is sent to it."""
        return len(self._open) >= self._capacity

    @property
    def exit_status(self) -> str:
        """How it has exited: ``exit 1`` or ``SIGKILL``."""
        code = self._process.returncode
        return f"exit {code}" if code >= 0 else signal.Signals(-code).name

    @property
    def load(self) -> tuple[int, int]:
        """The order in which workers are chosen: by open connections, then by all connections ever sent to it."""
        return len(self._open), self._assigned.total()

    @property
    def last_listener_counters(self) -> dict[str, ListenerCounters]:
        """The counters of its last snapshot, by listener name."""
        return self._last_snapshot.listener_counters

    def send_connection(self, connection: TakeConnection, sock: AcceptedSocket) -> None:
        """Send it a connection."""
        self._assigned[connection.listener] += 1
        self._open.add(connection.number)
        self.channel.send(connection, sock)

    def has_connection(self, number: int) -> bool:
        """Return whether it serves the connection with this number, as far as is known."""
        return number in self._open

    def send_update(self, message: Update) -> None:
        """Send ``message``, now or once the worker is ready."""
        if self.is_ready:
            self.channel.send(message)
        else:
            self._pending_updates.append(message)

    def request_snapshot(self, request_id: int) -> Reply | None:
        """Request its counters. The future is done when ``last_snapshot`` has them. None if it cannot be asked now."""
        if not self.is_ready or (self._snapshot_requested and not self.has_capacity):
            return None
        self._snapshot_requested = True
        return self._send_request(RequestSnapshot(request_id))

    def find_idlest(self, request_id: int, listeners: list[str]) -> Reply | None:
        """Request the connection of ``listeners`` that has been idle for longest. None if it cannot be asked now."""
        return self._send_request(FindIdlest(request_id, listeners)) if self.can_receive else None

    def describe_connections(self, request_id: int, after: int, number: int | None = None) -> Reply | None:
        """Request some connections, with the lowest numbers above ``after``, or the one with ``number``.

        Returns None if it cannot be asked now.
        """
        return self._send_request(DescribeConnections(request_id, after, number)) if self.can_receive else None

    def prepare_config(self, request_id: int, config: bytes) -> Reply:
        """Request to do all of a reload that can fail, now or once the worker is ready."""
        reply = self._replies[request_id] = self._loop.create_future()
        self.send_update(PrepareConfig(request_id, config))
        return reply

    def _send_request(self, request: RequestSnapshot | FindIdlest | DescribeConnections) -> Reply:
        reply = self._replies[request.request_id] = self._loop.create_future()
        self.channel.send(request)
        return reply

    def check_liveness(self) -> None:
        """Count an interval without a message, and kill the worker after too many of them."""
        self.silent_intervals += 1
        if self.silent_intervals >= (KILL_AFTER if self.is_ready else START_WITHIN):
            self.problem = (
                f"worker {self.number} has sent nothing for {self.silent_intervals * SNAPSHOT_INTERVAL:.0f} s"
            )
            self.kill()

    @property
    def degradation(self) -> str:
        """What works in part only although it serves connections, in one sentence; empty for nothing."""
        both = (self._last_snapshot.audit, self._last_snapshot.opentelemetry)
        return "; ".join(counts["spool_problem"] for counts in both if counts.get("spool_problem"))

    def last_snapshot(self) -> Snapshot:
        """Return its last counters, with the open connections as this process knows them.

        After its exit: its open connections count as closed, queued items of its observers as dropped, and its audit
        events on disk as left to other workers.
        """
        last = structs.replace(self._last_snapshot, listener_counters={})
        known = self._last_snapshot.listener_counters
        for name in {**known, **self._assigned}:  # it may have been lost before it knew a new listener
            counters = known.get(name) or ListenerCounters()
            active = self._assigned[name] - sum(counters.closed.values())
            if self.exited.is_set():
                counters = structs.replace(
                    counters, closed={**counters.closed, LOST_CAUSE: counters.closed.get(LOST_CAUSE, 0) + active}
                )
                active = 0
            last.listener_counters[name] = structs.replace(counters, active=active)
        if self.is_ready:
            last.loop_lag = max(last.loop_lag, self.silent_intervals * SNAPSHOT_INTERVAL)
        if self.exited.is_set():
            last.process = ProcessCounts(cpu_seconds=last.process.cpu_seconds)
            last.loop_lag = 0.0
            last.observers = {name: _without_queue(stats) for name, stats in last.observers.items()}
            last.audit, last.opentelemetry = _without_spool(last.audit), _without_spool(last.opentelemetry)
        last.workers = {self.number: sum(counters.active for counters in last.listener_counters.values())}
        return last

    def kill(self) -> None:
        """Kill it. ``exited`` is set later."""
        self._process.kill()

    def _on_message(self, message: ToMain, descriptor: int | None) -> None:
        had_room = self.has_capacity
        self.silent_intervals = 0
        self._snapshot_requested = False
        match message:
            case ConnectionsClosed():
                self._mark_closed(message.numbers)
            case ClientsLoggedIn():
                self._on_logins(message.logins, message.earlier)
            case FeatureUpdateAsked():
                task = self._loop.create_task(self._answer_feature_update(message))
                self._feature_updates.add(task)
                task.add_done_callback(self._feature_updates.discard)
            case HandBroker():
                if descriptor is not None:
                    self._handed_brokers[message.number] = socket.socket(fileno=descriptor)
            case HandConsumer():
                self._take_consumer(message, descriptor)
            case SnapshotReply() | IdlestConnection() | ConnectionsPage() | ConfigPrepared():
                if isinstance(message, SnapshotReply):
                    self._last_snapshot = message.snapshot
                if (reply := self._replies.pop(message.request_id, None)) is not None:
                    reply.set_result(message)
            case WorkerReady():
                self._last_snapshot = message.snapshot
                self.is_ready = True
                for update in self._pending_updates:
                    self.channel.send(update)
                self.started.set()
            case StartFailed():
                self.problem = message.error
        if self.has_capacity and not had_room:
            self._on_capacity()

    def _take_consumer(self, message: HandConsumer, descriptor: int | None) -> None:
        """Pass a consumer on. It has no socket where this process was out of descriptors."""
        handed, number = message.handed, message.handed.number
        broker = self._handed_brokers.pop(number, None)
        self._open.remove(number)
        self._assigned[handed.connection.listener] -= 1
        client = None if descriptor is None else socket.socket(fileno=descriptor)
        for sock in filter(None, (client, broker)):
            sock.setblocking(False)
        self._on_consumer(handed, client, broker)

    async def _answer_feature_update(self, message: FeatureUpdateAsked) -> None:
        self.channel.send(FeatureUpdateAnswered(message.request_id, await self._on_feature_update(message.request)))

    def _on_process_exit(self) -> None:
        self._process.poll()  # reaps the process
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        unsent = [
            (message, sock)
            for message, sock in self.channel.close()
            if isinstance(message, TakeConnection) and isinstance(sock, AcceptedSocket)
        ]
        for connection, _ in unsent:
            self._assigned[connection.listener] -= 1
            self._open.remove(connection.number)
        self.problem = self.problem or f"worker {self.number} ended with {self.exit_status}"
        self.is_ready = False
        self.started.set()
        self.exited.set()
        for reply in self._replies.values():
            reply.set_result(None)
        for task in self._feature_updates:
            task.cancel()  # nobody waits for the answer
        for broker in self._handed_brokers.values():  # it was killed before it could send the consumer
            broker.close()
        self._on_exit(self, unsent)
        self._mark_closed(list(self._open))

    def _mark_closed(self, numbers: list[int]) -> None:
        for number in numbers:
            self._open.remove(number)
            self._on_connection_closed(number)


def spawn_worker() -> SpawnedWorker:
    """Start a new interpreter with the same module search path. Raises OSError.

    Blocks until the kernel has executed the program, some milliseconds or as long as the disk takes. So it is not for
    the event loop's thread.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A worker inherits this. Signals to all processes of a service would end it until it ignores them.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR2))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "proxy", "worker", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            return SpawnedWorker(process, os.pidfd_open(process.pid), ours)
        except OSError:
            process.kill()
            process.wait()
            raise
    except OSError:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()


def _without_queue(stats: ObserverStats) -> ObserverStats:
    dropped = add_counters(stats.dropped, {LOST_CAUSE: stats.queued} if stats.queued else {})
    return structs.replace(stats, dropped=dropped, queued=0, breaker_open=False)


def _without_spool(audit: dict[str, Any]) -> dict[str, Any]:
    """Return its last audit counters without the spool, which another worker has taken over and counts.

    Empty where it has no such observer.
    """
    if not audit:
        return {}
    dropped = add_counters(audit["dropped"], {LOST_CAUSE: audit["queued"]} if audit["queued"] else {})
    gone: dict[str, Any] = dict.fromkeys(("queued", "queued_bytes", "spooled", "spool_bytes"), 0)
    gone |= {"spool_problem": "", "problems": {}, "undelivered": {}, "levels": {}, "searched": {}}
    return {**audit, **gone, "dropped": dropped, "left": audit["spooled"]}
