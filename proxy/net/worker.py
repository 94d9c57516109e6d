"""A worker process, which serves connections that the main process has accepted. ``proxy.net.worker_process`` starts
it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import structlog
import uvloop

from proxy.config import Config
from proxy.config.serialization import unpack
from proxy.core.causes import Cause
from proxy.core.counters import ListenerCounters
from proxy.errors import LocalError
from proxy.limits.principal_quotas import Logins
from proxy.net.consumer_handover import HandedConnection
from proxy.net.data_plane import DataPlane
from proxy.net.feature_update_calls import FeatureUpdateCalls
from proxy.net.forced_exit import EXIT_MARGIN, force_exit_after
from proxy.net.open_connections import KafkaConnection
from proxy.net.sockets import AcceptedSocket
from proxy.net.ticker import Ticker
from proxy.net.worker_ipc import (
    Abort,
    ClientsLoggedIn,
    CloseConnection,
    ConfigPrepared,
    ConnectionsClosed,
    ConnectionsPage,
    DescribeConnections,
    DiscardConfig,
    Drain,
    FeatureUpdateAnswered,
    FindIdlest,
    HandBroker,
    HandConsumer,
    HoldConnection,
    IdlestConnection,
    IpcChannel,
    PrepareConfig,
    ReportLogins,
    ReportThrottles,
    ReportTransition,
    RequestSnapshot,
    SnapshotReply,
    StartFailed,
    StartWorker,
    TakeConnection,
    ToWorker,
    UpdateConfig,
    UpdateFeaturesView,
    UpdateFleetView,
    UpdateGroupsView,
    WorkerReady,
)
from proxy.telemetry import RateLimitedLogger, configure_logging

log = structlog.get_logger(__name__)


def run_worker(descriptor: int) -> int:
    """Run the worker until its end and return the exit code. ``descriptor``: the Unix socket to the main process."""
    # A terminal or supervisor may signal the whole process group. The main process decides what it means.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run_worker(socket.socket(fileno=descriptor)))


async def _run_worker(sock: socket.socket) -> int:
    return await Worker(sock).run()


class Worker:
    """Carries out the messages of the main process. If the main process is gone, the worker drains and exits."""

    def __init__(self, sock: socket.socket) -> None:
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()
        self._started: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._channel: IpcChannel[ToWorker] = IpcChannel(
            sock, ToWorker, self._on_message, on_peer_gone=self._on_main_gone, on_all_sent=self._send_closed_if_room
        )
        self._feature_updates = FeatureUpdateCalls(self._channel.send)
        self._replies: set[asyncio.Task[None]] = set()
        self._rate_limited = RateLimitedLogger(log)
        self._number = 0
        self._spread = False
        self._config: Config
        self._closed_connections: list[int] = []  # not reported to the main process yet

    async def run(self) -> int:
        """Wait for the configuration, serve connections and finally drain. Returns the exit code."""
        if not await self._started:
            return 1
        ticker = Ticker()
        try:
            self._data_plane = DataPlane(self._config, ticker, self._number)
        except LocalError as error:
            self._channel.send(StartFailed(str(error)))
            self._channel.flush_and_close()
            return 1
        self._data_plane.on_connection_closed(self._on_connection_closed)
        self._data_plane.on_feature_update(self._feature_updates.call)
        self._data_plane.on_consumer(self._hand_consumer)
        ticker.callbacks.append(self._rate_limited.flush)
        ticker.start()
        self._channel.send(WorkerReady(await self._data_plane.snapshot()))
        await self._stop.wait()
        force_exit_after(
            (self._config.drain_timeout_ms + self._config.observer_shutdown_timeout_ms) / 1000 + EXIT_MARGIN
        )
        await self._data_plane.stop(self._abort, spread=self._spread)
        await self._send_snapshot(0)
        self._channel.flush_and_close()
        return 0

    def _on_message(self, message: ToWorker, descriptor: int | None) -> None:
        match message:
            case TakeConnection():
                self._take_connection(message, descriptor)
            case RequestSnapshot():
                self._send_closed()  # even an empty one proves that the event loop runs
                task = asyncio.get_running_loop().create_task(self._send_snapshot(message.request_id))
                self._replies.add(task)
                task.add_done_callback(self._replies.discard)
            case FindIdlest():
                found = self._data_plane.find_idlest(message.listeners)
                self._channel.send(IdlestConnection(message.request_id, *(found or (None, 0.0))))
            case CloseConnection():
                self._data_plane.close_connection(message.number, message.cause)
            case DescribeConnections():
                self._channel.send(ConnectionsPage(message.request_id, self._describe(message)))
            case HoldConnection():
                self._data_plane.hold_connection(message.number, message.hold_ms)
            case ReportLogins():
                self._data_plane.report_logins(self._send_logins if message.wanted else None)
            case ReportThrottles():
                self._data_plane.report_throttles(message.reports)
            case PrepareConfig():
                task = asyncio.get_running_loop().create_task(self._prepare(message.request_id, unpack(message.config)))
                self._replies.add(task)
                task.add_done_callback(self._replies.discard)
            case DiscardConfig():
                self._data_plane.discard_config()
            case UpdateConfig():
                self._update_config(unpack(message.config))
            case UpdateFleetView():
                self._data_plane.update_fleet_view(message.view)
            case UpdateFeaturesView():
                self._data_plane.update_features_view(message.view)
            case UpdateGroupsView():
                self._data_plane.update_groups_view(message.view)
            case ReportTransition():
                self._data_plane.report_transition(message.change, self._number)
            case FeatureUpdateAnswered():
                self._feature_updates.on_answered(message)
            case StartWorker():
                self._number, self._config = message.number, unpack(message.config)
                self._listeners = {listener.name: listener for listener in self._config.listeners}
                configure_logging(self._config.log_level, self._config.log_format, worker=self._number)
                self._started.set_result(True)
            case Drain():
                self._spread = message.spread
                self._stop.set()
            case Abort():
                self._abort.set()
                self._stop.set()

    def _update_config(self, config: Config) -> None:
        configure_logging(config.log_level, config.log_format, worker=self._number)
        try:
            self._data_plane.update_config(config)
        except LocalError as error:  # the worker that replaces this one begins with this configuration
            log.error("config_not_applied", error=str(error))
            self._listeners = {}  # no client is served as the old configuration says
            self._abort.set()
            self._stop.set()
        else:
            self._config = config
            self._listeners = {listener.name: listener for listener in config.listeners}

    async def _prepare(self, request_id: int, config: Config) -> None:
        error = ""
        try:
            await self._data_plane.prepare_config(config)
        except LocalError as problem:
            error = str(problem)
        self._channel.send(ConfigPrepared(request_id, error))

    def _on_main_gone(self) -> None:
        if not self._started.done():
            self._started.set_result(False)
        self._feature_updates.on_main_gone()
        self._stop.set()

    def _take_connection(self, message: TakeConnection, descriptor: int | None) -> None:
        listener = self._listeners.get(message.listener)
        if descriptor is None:  # this process was out of descriptors, and the kernel has closed the socket
            self._count_closed(message.listener, "worker_lost")
            self._rate_limited.warning("connection_lost", listener=message.listener, error="EMFILE")
            self._on_connection_closed(message.number)
            return
        if listener is None:  # a reload has removed it, or could not be applied
            os.close(descriptor)
            self._count_closed(message.listener, "drain_completed")
            self._on_connection_closed(message.number)
            return
        sock = AcceptedSocket(descriptor)
        self._data_plane.handle_connection(listener, sock, (message.host, message.port), message.number)

    def _count_closed(self, listener: str, cause: Cause) -> None:
        self._data_plane.listener_counters.setdefault(listener, ListenerCounters()).closed[cause] += 1

    def _hand_consumer(
        self, handed: HandedConnection, client: socket.socket | None, broker: socket.socket | None
    ) -> None:
        handed.worker = self._number
        if broker is not None:
            self._channel.send(HandBroker(handed.number), broker)
        self._channel.send(HandConsumer(handed), client)

    def _on_connection_closed(self, number: int) -> None:
        if not self._closed_connections:
            asyncio.get_running_loop().call_soon(self._send_closed_if_room)  # one message per iteration
        self._closed_connections.append(number)

    def _describe(self, message: DescribeConnections) -> list[tuple[int, KafkaConnection]]:
        if message.number is None:
            return self._data_plane.open_connections.describe_page(message.after)
        found = self._data_plane.open_connections.find(message.number)
        return [] if found is None else [(message.number, found)]

    def _send_closed_if_room(self) -> None:
        if self._closed_connections and not self._channel.is_full:  # otherwise sent once the channel has room
            self._send_closed()

    def _send_closed(self) -> None:
        ended, self._closed_connections = self._closed_connections, []
        self._channel.send(ConnectionsClosed(ended))

    def _send_logins(self, logins: Logins, earlier: bool) -> None:
        self._channel.send(ClientsLoggedIn(logins, earlier))

    async def _send_snapshot(self, request_id: int) -> None:
        self._channel.send(SnapshotReply(request_id, await self._data_plane.snapshot()))
