"""The worker processes that serve connections if ``workers`` is greater than 1.

Only the main process accepts. It sends each accepted socket to the worker with the fewest open connections. It records
which connections it has sent to a worker and which of them the worker has reported as closed. A worker that exits is
replaced. Its connections count as closed with the cause ``worker_lost``, and its last counters stay in all sums.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import structlog

from proxy.config import Config, Listener
from proxy.config.serialization import pack
from proxy.coordinator.view import GroupsView
from proxy.core.causes import Cause
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import ConnectionTransition
from proxy.errors import LocalError, describe_os_error
from proxy.features.updates import UpdateFeatures
from proxy.features.view import FeaturesView
from proxy.interceptors.broker_metadata import FleetView
from proxy.limits.model import QuotasState
from proxy.limits.principal_quotas import Logins
from proxy.limits.throttle_reports import AggregatedThrottle
from proxy.net.consumer_handover import TakeConsumer, refuse_consumer
from proxy.net.feature_update_calls import fail_update
from proxy.net.open_connections import ConnectionList, KafkaConnection
from proxy.net.sockets import AcceptedSocket
from proxy.net.ticker import Ticker
from proxy.net.tls_contexts import needs_contexts
from proxy.net.worker_connections import WorkerConnections
from proxy.net.worker_evictions import WorkerEvictions
from proxy.net.worker_ipc import (
    Abort,
    CloseConnection,
    ConfigPrepared,
    DiscardConfig,
    Drain,
    HoldConnection,
    ReportLogins,
    ReportThrottles,
    ReportTransition,
    TakeConnection,
    UpdateConfig,
    UpdateFeaturesView,
    UpdateFleetView,
    UpdateGroupsView,
)
from proxy.net.worker_process import (
    REPLY_TIMEOUT,
    SILENT_AFTER,
    SNAPSHOT_INTERVAL,
    Reply,
    UnsentConnection,
    WorkerProcess,
    spawn_worker,
)
from proxy.telemetry import RateLimitedLogger
from proxy.telemetry.logs import log_lines_dropped
from proxy.telemetry.snapshot import Snapshot, add_counters, process_counts, sum_exited, sum_snapshots

WORKERS_START_TIMEOUT = 30.0
"""Seconds within which all workers have to be ready. They need about one."""

PREPARE_REPLY_TIMEOUT = 12.0
"""Seconds a worker has to do all of a reload that can fail. It gives up after ten itself."""

MIN_RESTART_DELAY, MAX_RESTART_DELAY = 0.1, 10.0
"""Seconds until a worker is replaced; doubled each time it exits again, from the minimum up to the maximum."""

STABLE_AFTER = 10.0
"""Seconds after which the exit of a worker counts as its first one again."""

ABORT_TIMEOUT = 1.0
"""Seconds that workers have to exit after ``Abort``; then they are killed."""

STOP_MARGIN = 2.0
"""Seconds in addition to the configured times of a shutdown after which a worker is killed."""

log = structlog.get_logger(__name__)


class WorkerPool:
    """All workers, as one ``ConnectionHandler``. Belongs to the event loop's thread and never waits for a worker's
    socket."""

    def __init__(self, config: Config, ticker: Ticker) -> None:
        """No worker runs before ``start``."""
        self.listener_counters = {listener.name: ListenerCounters() for listener in config.listeners}
        self.process_ended_at = 0.0
        self._config = config
        self._ticker = ticker
        self._views: dict[type, UpdateFleetView | UpdateFeaturesView | UpdateGroupsView] = {}  # the last of each kind
        self._update_features: UpdateFeatures = fail_update
        self._take_consumer: TakeConsumer = refuse_consumer
        self._workers: dict[int, WorkerProcess] = {}
        self._exited = Snapshot(
            {name: ListenerCounters() for name in self.listener_counters}
        )  # the last counters of exited workers
        self._unassigned: list[UnsentConnection] = []
        self._capacity_callback: Callable[[], None] | None = None
        self._connection_closed_callback: Callable[[int], None] = lambda number: None
        self._logins_callback: Callable[[Logins, bool], None] | None = None
        self._restart_delays: dict[int, float] = {}  # seconds until the next restart, by worker number
        self._restarts = 0
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._running = False
        self._last_request_id = 0
        self._wanted: bytes | None = None  # the configuration that workers prepare
        self._preparing: dict[Reply, WorkerProcess] = {}
        self._connections = WorkerConnections(self._workers, self._next_request_id)
        self._evictions = WorkerEvictions(self._workers, self._next_request_id)
        self.lost_throttle_reports = 0
        """Throttle reports that no worker could receive."""
        self._rate_limited = RateLimitedLogger(log)
        ticker.callbacks.append(self._rate_limited.flush)

    async def start(self) -> None:
        """Start all workers and wait until they are ready. Raises LocalError after ending those that run."""
        try:
            for number in range(1, self._config.workers + 1):
                await self._start_worker(number)
            async with asyncio.timeout(WORKERS_START_TIMEOUT):
                for worker in list(self._workers.values()):
                    await worker.started.wait()
                    if worker.problem:
                        raise LocalError(worker.problem)
        except BaseException as error:
            await self._kill_all()
            if isinstance(error, TimeoutError):
                raise LocalError(f"a worker is not ready after {WORKERS_START_TIMEOUT:.0f} s") from None
            if isinstance(error, OSError):
                raise LocalError(
                    f"workers: {self._config.workers} processes cannot be started: {describe_os_error(error)}"
                ) from None
            raise
        self._running = True
        self._poll_workers()

    @property
    def missing_descriptors(self) -> int:
        """Always 0: workers have descriptors of their own."""
        return 0

    @property
    def is_available(self) -> bool:
        """Whether any worker runs and responds."""
        return any(worker.is_available for worker in self._workers.values())

    @property
    def is_full(self) -> bool:
        """Whether no worker can receive a connection now."""
        return bool(self._unassigned) or not any(worker.has_capacity for worker in self._workers.values())

    @property
    def degradation(self) -> str:
        """What works in part only although connections are served, by the last snapshots of the workers."""
        return next(filter(None, (worker.degradation for worker in self._workers.values())), "")

    def on_capacity(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` each time ``is_full`` becomes False."""
        self._capacity_callback = callback

    def on_connection_closed(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` once with the number of each connection that has ended."""
        self._connection_closed_callback = callback

    def handle_connection(
        self, listener: Listener, sock: AcceptedSocket, address: tuple[str, int], number: int
    ) -> None:
        """Send ``sock``, a client accepted from ``address``, to a worker, or queue it until one has capacity."""
        self._assign(TakeConnection(listener.name, *address, number), sock)
        if self.is_full and any(worker.lacks_descriptors for worker in self._workers.values()):
            self._rate_limited.warning("workers_out_of_capacity", error="EMFILE")

    def report_logins(self, callback: Callable[[Logins, bool], None] | None) -> None:
        """Call ``callback(logins, earlier)`` for clients that log in with SASL, in any worker; None for nobody."""
        changed = (self._logins_callback is None) != (callback is None)
        self._logins_callback = callback
        for worker in self._workers.values() if changed else ():
            worker.send_update(ReportLogins(callback is not None))

    def hold_connection(self, number: int, hold_ms: int) -> None:
        """Do not read the client of the connection with this number for ``hold_ms``; 0: read it again."""
        self._send_order(HoldConnection(number, hold_ms))

    def close_connection(self, number: int, cause: Cause) -> bool:
        """Close the connection with this number for ``cause``, and return whether it was open."""
        return self._send_order(CloseConnection(number, cause))

    def _send_order(self, order: HoldConnection | CloseConnection) -> bool:
        """Send ``order`` to the worker that has its connection, and return whether one has."""
        for worker in self._workers.values():
            if worker.has_connection(order.number):
                worker.channel.send(order)
                return True
        return False

    def _on_logins(self, logins: Logins, earlier: bool) -> None:
        if self._logins_callback is not None:
            self._logins_callback(logins, earlier)

    def count_responses(self, api_key: int) -> int:
        """Return how many requests of this api were answered, by the last snapshots of the workers."""
        listener_counters_of_all = [
            self._exited.listener_counters,
            *(worker.last_listener_counters for worker in self._workers.values()),
        ]
        return sum(
            counters.answered(api_key)
            for listener_counters in listener_counters_of_all
            for counters in listener_counters.values()
        )

    def close_idlest(self, listeners: Collection[str]) -> None:
        """Schedule closing the connection of ``listeners`` that has been idle for longest, if any is open."""
        self._evictions.add(list(listeners))

    async def find_connection(self, number: int) -> KafkaConnection | None:
        """Return the open connection with this number; None if there is none. Raises TimeoutError if its worker does
        not answer."""
        return await self._connections.find(number)

    async def list_connections(self) -> ConnectionList:
        """Return all open connections of all workers that answer in time."""
        return await self._connections.list_all()

    def report_throttles(self, reports: Sequence[AggregatedThrottle]) -> None:
        """Pass throttle reports to the observers of one worker. They are lost if no worker can receive them."""
        if not self._config.observer_class_names:
            return
        for _, worker in sorted(self._workers.items()):
            if worker.can_receive:
                worker.channel.send(ReportThrottles(list(reports)))
                return
        self.lost_throttle_reports += len(reports)
        self._rate_limited.warning("throttles_not_reported", reports=len(reports))

    async def prepare_config(self, config: Config) -> None:
        """Let all workers build TLS contexts, and configure observers with other settings. Raises LocalError if one
        cannot, or does not answer."""
        if config.observers == self._config.observers and not needs_contexts(self._config, config):
            return
        self._wanted = pack(config)
        self._preparing.clear()
        for worker in self._workers.values():
            self._request_preparation(worker, self._wanted)
        deadline = time.monotonic() + PREPARE_REPLY_TIMEOUT
        while waiting := [reply for reply in self._preparing if not reply.done()]:  # more, as workers start
            if not (await asyncio.wait(waiting, timeout=deadline - time.monotonic()))[0]:
                break
        errors = [
            answer.error
            for reply in self._preparing
            if reply.done() and isinstance(answer := reply.result(), ConfigPrepared) and answer.error
        ]  # the result is None of one that has exited
        # A worker that is not ready yet prepares nothing now, and gets no connection before it has the new one.
        errors += [
            f"worker {self._preparing[reply].number} does not answer"
            for reply in waiting
            if self._preparing[reply].is_ready
        ]
        if errors:
            self.discard_config()
            raise LocalError(errors[0])

    def _request_preparation(self, worker: WorkerProcess, config: bytes) -> None:
        self._preparing[worker.prepare_config(self._next_request_id(), config)] = worker

    def discard_config(self) -> None:
        """Give up what ``prepare_config`` has done."""
        for worker in self._workers.values() if self._wanted is not None else ():
            worker.send_update(DiscardConfig())
        self._wanted = None

    def update_config(self, config: Config) -> None:
        """Apply the reloadable keys in all workers, also in those started later."""
        self._wanted = None
        for listener in config.listeners:
            self.listener_counters.setdefault(listener.name, ListenerCounters())
        self._config = config
        for worker in self._workers.values():
            worker.send_update(UpdateConfig(pack(config)))

    def update_fleet_view(self, view: FleetView) -> None:
        """Set what is known about all brokers in all workers, also in those started later."""
        self._update_view(UpdateFleetView(view))

    def update_features_view(self, view: FeaturesView) -> None:
        """Set what is known about the features of the fleet in all workers, also in those started later."""
        self._update_view(UpdateFeaturesView(view))

    def update_groups_view(self, view: GroupsView) -> None:
        """Set what is known about the coordinators of consumer groups in all workers, also in those started later."""
        self._update_view(UpdateGroupsView(view))

    def _update_view(self, update: UpdateFleetView | UpdateFeaturesView | UpdateGroupsView) -> None:
        self._views[type(update)] = update
        for worker in self._workers.values():
            worker.send_update(update)

    def on_consumer(self, callback: TakeConsumer) -> None:
        """Call ``callback`` with each connection whose client registers as a consumer, in any worker."""
        self._take_consumer = callback

    def report_transition(self, change: ConnectionTransition, worker: int) -> None:
        """Report to the observers of a worker what has happened to a connection: those of ``worker``, while it runs."""
        if not self._config.observer_class_names:
            return
        running = [one for _, one in sorted(self._workers.items()) if one.is_available]
        chosen = next((one for one in running if one.number == worker), next(iter(running), None))
        if chosen is not None:
            chosen.channel.send(ReportTransition(change))
        else:
            self._rate_limited.warning("transition_not_reported", connection_id=change.connection.id)

    def on_feature_update(self, callback: UpdateFeatures) -> None:
        """Call ``callback`` for each update of features that a client of any worker asks for."""
        self._update_features = callback

    async def snapshot(self, quotas_state: Callable[[], QuotasState | None] = lambda: None) -> Snapshot:
        """Return the sum of the counters of all running workers, all exited ones and this process.

        Each connection that a worker was given is active or closed, so they add up to what this process has accepted.
        """
        replies = self._request_snapshots()
        if replies:
            await asyncio.wait(replies, timeout=REPLY_TIMEOUT)
        waiting = Counter(connection.listener for connection, _ in self._unassigned)
        listener_counters = {
            name: add_counters(counters, ListenerCounters(active=waiting[name]))  # a copy: a thread sums it up
            for name, counters in self.listener_counters.items()
        }
        own = Snapshot(listener_counters, process_counts(), self._ticker.lag, worker_restarts=self._restarts)
        own.log_lines_dropped = log_lines_dropped()
        own.throttle_reports_lost = self.lost_throttle_reports
        own.workers = dict.fromkeys(range(1, self._config.workers + 1), 0)
        workers = [worker.last_snapshot() for worker in self._workers.values()]
        quotas = quotas_state()
        summed = await asyncio.to_thread(sum_snapshots, [own, self._exited, *workers])
        summed.quotas = quotas
        return summed

    async def stop(self, abort: asyncio.Event, *, spread: bool = False) -> None:
        """Drain all workers and wait until they have exited, or abort them when ``abort`` is set. None runs
        afterwards. ``spread``: see ``ConnectionManager.drain``."""
        self._running = False
        for timer in self._timers.values():
            timer.cancel()
        for starting in self._starting:
            starting.cancel()  # a process that starts all the same finds its peer gone and exits
        self._evictions.stop()
        self._close_unassigned()
        for worker in self._workers.values():
            worker.channel.send(Drain(spread))
        ended = asyncio.create_task(self._wait_for_exit())
        aborted = asyncio.create_task(abort.wait())
        timeout = (self._config.drain_timeout_ms + self._config.observer_shutdown_timeout_ms) / 1000 + STOP_MARGIN
        await asyncio.wait({ended, aborted}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if aborted.done():
            for worker in self._workers.values():
                worker.channel.send(Abort())
            await asyncio.wait({ended}, timeout=ABORT_TIMEOUT)
        for task in (ended, aborted):
            task.cancel()
        for worker in self._workers.values():
            log.warning("worker_killed", worker=worker.number, pid=worker.pid)
        await self._kill_all()
        self._close_unassigned()

    def _close_unassigned(self) -> None:
        dropped, self._unassigned = self._unassigned, []
        for connection, sock in dropped:
            self.listener_counters[connection.listener].closed["drain_completed"] += 1
            sock.close()
            self._connection_closed_callback(connection.number)

    async def _wait_for_exit(self) -> None:
        for worker in list(self._workers.values()):
            await worker.exited.wait()

    async def _kill_all(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        await self._wait_for_exit()

    async def _start_worker(self, number: int) -> None:
        spawned = await asyncio.to_thread(spawn_worker)
        self._workers[number] = WorkerProcess(
            number,
            self._config,
            spawned,
            on_capacity=self._on_capacity,
            on_connection_closed=lambda connection: self._connection_closed_callback(connection),
            on_logins=self._on_logins,
            on_feature_update=lambda request: self._update_features(request),
            on_consumer=lambda *handed: self._take_consumer(*handed),
            on_exit=self._on_exit,
        )
        if self._wanted is not None:
            self._request_preparation(self._workers[number], self._wanted)
        if self._logins_callback is not None:
            self._workers[number].send_update(ReportLogins(True))
        for view in self._views.values():
            self._workers[number].send_update(view)

    def _restart(self, number: int) -> None:
        task = asyncio.get_running_loop().create_task(self._try_restart(number))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _try_restart(self, number: int) -> None:
        try:
            await self._start_worker(number)
        except OSError as error:  # no process or no descriptor is available
            log.warning("worker_not_started", worker=number, error=describe_os_error(error))
            self._restart_later(number)
        else:
            self._restarts += 1

    def _restart_later(self, number: int) -> None:
        delay = self._restart_delays.get(number, MIN_RESTART_DELAY)
        self._restart_delays[number] = min(2 * delay, MAX_RESTART_DELAY)
        self._timers[number] = asyncio.get_running_loop().call_later(delay, self._restart, number)

    def _on_exit(self, worker: WorkerProcess, unsent: list[UnsentConnection]) -> None:
        del self._workers[worker.number]
        self.process_ended_at = time.monotonic()
        self._exited = sum_exited([self._exited, worker.last_snapshot()])
        self._unassigned += unsent
        if not self._running:
            return
        lost = worker.load[0]
        log.error("worker_ended", worker=worker.number, pid=worker.pid, reason=worker.problem, connections=lost)
        if worker.age >= STABLE_AFTER:
            self._restart_delays.pop(worker.number, None)
        self._restart_later(worker.number)
        self._on_capacity()

    def _on_capacity(self) -> None:
        """Assign queued connections: a worker became ready, has capacity again, or has exited and left some."""
        waiting, self._unassigned = self._unassigned, []
        for connection, sock in waiting:
            self._assign(connection, sock)
        if self._capacity_callback is not None and not self.is_full:
            self._capacity_callback()

    def _assign(self, connection: TakeConnection, sock: AcceptedSocket) -> None:
        workers = [worker for worker in self._workers.values() if worker.has_capacity]
        if workers:
            min(workers, key=lambda worker: worker.load).send_connection(connection, sock)
        else:
            self._unassigned.append((connection, sock))

    def _request_snapshots(self) -> list[Reply]:
        request_id = self._next_request_id()
        return [reply for worker in self._workers.values() if (reply := worker.request_snapshot(request_id))]

    def _next_request_id(self) -> int:
        self._last_request_id += 1
        return self._last_request_id

    def _poll_workers(self) -> None:
        for worker in self._workers.values():
            worker.check_liveness()
            if worker.is_ready and worker.silent_intervals == SILENT_AFTER:
                log.error("worker_silent", worker=worker.number, pid=worker.pid, connections=worker.load[0])
        self._request_snapshots()
        self._timers[0] = asyncio.get_running_loop().call_later(SNAPSHOT_INTERVAL, self._poll_workers)
