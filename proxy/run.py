"""``brokerside run``: runs one sidecar from its configuration to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop

from proxy import __version__
from proxy.config import Config
from proxy.coordinator.wire import CLUSTER_METADATA
from proxy.core.apis import (
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
)
from proxy.daemon_executor import DaemonExecutor
from proxy.errors import LocalError
from proxy.features.status import FeaturesStatus
from proxy.features.view import FeaturesView
from proxy.fleet.applied_epoch import Applied, AuditLevels, GroupLevels
from proxy.fleet.feature_poller import FeaturePoller
from proxy.fleet.fleet_poller import FleetPoller
from proxy.fleet.quota_poller import QuotaPoller
from proxy.fleet.succession import Succession
from proxy.interceptors.broker_metadata import FleetView
from proxy.net.admin import AdminEndpoint
from proxy.net.connection_handler import ConnectionHandler
from proxy.net.data_plane import DataPlane
from proxy.net.forced_exit import EXIT_MARGIN, force_exit_after
from proxy.net.group_pages import GroupPages
from proxy.net.http import ACCEPT_BACKLOG
from proxy.net.listener_manager import ListenerManager
from proxy.net.listening_sockets import ListeningSockets, PassedSocket, close_all, sockets_of_systemd
from proxy.net.takeover_client import Takeover
from proxy.net.takeover_server import IS_PID_1, TakeoverServer
from proxy.net.ticker import Ticker
from proxy.net.worker_pool import WorkerPool
from proxy.protocol.private import BASE
from proxy.reload import ConfigFileMonitor, Reloader, ReloadResult
from proxy.sd_notify import ServiceNotifier
from proxy.start_checks import check_consumers, check_start, descriptor_limit
from proxy.successor import TAKEOVER_REQUIRED, SuccessorStarter
from proxy.telemetry import configure_logging

if TYPE_CHECKING:  # imported where groups are coordinated
    from proxy.group_coordinator import GroupCoordinator
    from proxy.net.consumers import ConsumerConnections

log = structlog.get_logger(__name__)

ADMIN = "admin"
"""The name of the admin endpoint's listening socket."""

READY_TIMEOUT = 10.0
"""Seconds that a successor may take until it could serve clients. Then it exits, and its predecessor continues."""

READY_POLL_INTERVAL = 0.1

OPEN_TIMEOUT = 10.0
"""Seconds within which a reload has to open new listeners."""

RESIGN_TIME = 3.0
"""Seconds that a sidecar which coordinates groups takes longer to end: others take them first, 2 s at most, and the
consumers learn it, within 1 s."""

SAME_SIGNAL_TIME = 0.1
"""Seconds in which a second signal is the same one: a terminal, a shell and a supervisor may each send it."""

QUOTAS_TIMEOUT = 1.0
"""Seconds that the first accept waits for the quotas of the cluster. After that those of the file apply."""


def run(file: ConfigFileMonitor, config: Config, *, takeover: bool = False) -> int:
    """Run until SIGTERM or SIGINT, then drain. A second signal ends the sidecar at once. Returns the exit code.

    ``file``: the monitored file from which ``config`` was loaded. ``takeover``: take over from the sidecar that runs.
    If that has started this process, as ``TAKEOVER_REQUIRED`` says, it is an error if none runs.
    """
    required = bool(os.environ.pop(TAKEOVER_REQUIRED, ""))
    if takeover and config.takeover_socket_path is None:
        raise LocalError("--takeover needs takeover.socket.path, the same for both sidecars")
    sockets = sockets_of_systemd()
    check_start(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(file, config, sockets, takeover, required))


async def _run(
    file: ConfigFileMonitor, config: Config, sockets: ListeningSockets, wants_takeover: bool, required: bool
) -> int:
    stop = asyncio.Event()
    abort = asyncio.Event()
    notifier = ServiceNotifier()
    accepted = taken_over = False
    stop_asked_at = 0.0
    successor: TakeoverServer | None = None  # where one may take over

    def begin_stop() -> None:
        running = reloader.config
        seconds = (running.drain_timeout_ms + running.observer_shutdown_timeout_ms) / 1000 + EXIT_MARGIN
        seconds += RESIGN_TIME if running.coordinator.enabled else 0.0
        force_exit_after(seconds)
        notifier.stopping(seconds)
        stop.set()

    def on_signal(name: str) -> None:
        nonlocal stop_asked_at
        if not stop.is_set():
            stop_asked_at = loop.time()
            begin_stop()
        elif loop.time() >= stop_asked_at + SAME_SIGNAL_TIME:
            log.warning("stopping_at_once", signal=name)
            abort.set()

    def on_taken_over(pid: int) -> None:
        nonlocal taken_over
        taken_over = True
        if starter.has_started(pid):  # one from elsewhere is not accepted as part of the service
            notifier.replaced(pid)
        admin.stop_accepting()
        if not stop.is_set():
            begin_stop()

    def on_successor_requested() -> None:
        if successor is None:
            on_successor_failed("takeover.socket.path is not set")
        elif os.getpid() == 1:
            on_successor_failed(IS_PID_1)
        elif not stop.is_set():
            starter.start()

    def on_successor_failed(problem: str) -> None:
        if not stop.is_set():
            log.error("successor_failed", error=problem)
            notifier.status(f"The last takeover failed: {problem}")

    def on_reloaded(done: ReloadResult) -> None:
        if done.result != "draining":
            notifier.ready(f"The last reload was rejected: {done.errors[0]}" if done.errors else "Running")

    async def apply(changed: Config) -> bool:
        nonlocal successor
        check_consumers(changed, descriptor_limit())
        try:
            opened = await opening.run(partial(listeners.open_new, changed), OPEN_TIMEOUT)
        except (TimeoutError, OSError) as error:  # a resolver that does not answer; no descriptor, or closed meanwhile
            raise LocalError(f"listeners: cannot be opened: {error.strerror or 'no answer'}") from None
        is_moved = changed.takeover_socket_path != reloader.config.takeover_socket_path
        moved = _create_takeover_server(changed, listeners, admin, on_taken_over) if is_moved else None

        async def discard() -> None:
            close_all(opened.values())
            handler.discard_config()
            admin.discard_config()
            if moved is not None:
                await moved.close()

        try:
            await admin.prepare_config(changed)
            await handler.prepare_config(changed)
            if moved is not None:
                await moved.bind()
            if successor is not None and successor.is_busy and not stop.is_set():
                raise LocalError("a successor takes over, and has read the file itself")
        except BaseException:
            await discard()
            raise
        if stop.is_set():
            await discard()
            return False
        configure_logging(changed.log_level, changed.log_format)
        handler.update_config(changed)
        listeners.update_config(changed, opened)
        fleet.reconfigure(changed)
        admin.update_config(changed)
        if watch is not None:
            watch.reconfigure(changed)
        if features is not None:
            features.reconfigure(changed)
        if coordinator is not None:
            coordinator.reconfigure(changed)
        if is_moved:
            before, successor = successor, moved
            if before is not None:
                await before.close()
            if moved is not None and accepted:
                await moved.start()
        return True

    async def leave_registry() -> None:
        """Write the last record. A successor registers then, and needs to know what this process has left to do."""
        await fleet.close(signs_off=accepted and not taken_over)  # of a failed takeover, the predecessor continues
        if taken_over and successor is not None:
            report = successor.report_applied
            if features is not None:
                features.hand_over(lambda applied: report(*applied))
            else:
                report(*Applied())

    def on_fleet_view(view: FleetView) -> None:
        handler.update_fleet_view(view)
        if coordinator is not None:
            coordinator.update_fleet_view(view)

    def on_features_view(view: FeaturesView) -> None:
        handler.update_features_view(view)
        if coordinator is not None:
            coordinator.update_features(view)

    def start_accepting() -> None:
        nonlocal accepted
        accepted = True
        listeners.start_accepting()
        ticker.start()
        if watch is not None:
            watch.mark_accepting()
        if features is not None:
            features.mark_accepting()

    loop = asyncio.get_running_loop()
    opening = DaemonExecutor("listeners")
    reloader = Reloader(file, config, apply, on_start=notifier.reloading, on_end=on_reloaded)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    predecessor = await _begin_takeover(config, required) if wants_takeover else None
    if predecessor is not None:
        sockets = ListeningSockets(predecessor.sockets)
    loop.add_signal_handler(signal.SIGHUP, reloader.request_reload, "SIGHUP")
    starter = SuccessorStarter(notifier.environment, on_successor_failed)
    ticker = Ticker()
    handler = await _start_connection_handler(config, ticker)
    consumers: ConsumerConnections | None = None
    if config.coordinator.enabled:
        from proxy.net.consumer_handler import ConsumerHandler
        from proxy.net.consumers import ConsumerConnections

        consumers = ConsumerConnections(config, handler)
        ticker.callbacks.append(consumers.on_tick)
        handler = ConsumerHandler(handler, consumers)
    listeners = ListenerManager(config, handler, ticker, sockets)
    problems = ReadinessProblems(listeners)
    watch = _create_quota_poller(config, listeners, handler, ticker, partial(problems.set, "quotas"))
    fleet = _create_fleet_poller(config, handler, on_fleet_view, ticker, partial(problems.set, "fleet"))
    coordinator = _create_group_coordinator(config, handler, consumers, fleet, ticker)
    features = _create_feature_poller(
        config,
        handler,
        on_features_view,
        fleet,
        partial(problems.set, "features"),
        coordinator.group_levels if coordinator is not None else GroupLevels,
        inherits=predecessor is not None,
    )
    admin = AdminEndpoint(
        listeners,
        reloader,
        watch.state if watch is not None else None,
        fleet,
        features.status if features is not None else partial(FeaturesStatus, config.features_disabled),
        GroupPages(coordinator),
    )
    successor = _create_takeover_server(config, listeners, admin, on_taken_over)
    reloading = asyncio.create_task(reloader.run())
    try:
        if successor is not None:
            await successor.bind()
        admin_socket = sockets.open(ADMIN, config.admin.bind, ACCEPT_BACKLOG, "admin.bind")
        if predecessor is None:
            admin.start(admin_socket)
        fleet.start(registers=predecessor is None)
        if coordinator is not None:
            coordinator.start()
        if features is not None:
            features.start()
        if watch is not None:
            watch.start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUOTAS_TIMEOUT):
                    await watch.wait_for_first_answer()
        listeners.open()
        if predecessor is None:
            sockets.check_all_used()
            start_accepting()
        else:
            await _wait_until_ready(admin, predecessor, stop)
            succession = Succession(fleet, features)
            predecessor.on_applied, predecessor.on_ended = succession.predecessor_applies, succession.predecessor_ended
            await predecessor.complete(listeners, start_accepting)
            succession.took_over(has_ended=predecessor.has_ended)
            admin.start(admin_socket)
            for unused in sockets.close_unused():
                log.info("listener_not_taken_over", name=unused.name)
        if successor is not None:
            await successor.start()
        log.info(
            "started",
            version=__version__,
            broker_id=config.broker_id,
            admin=str(config.admin.bind),
            workers=config.workers,
            config_hash=reloader.state.hash,
        )
        notifier.ready()
        loop.add_signal_handler(signal.SIGUSR2, on_successor_requested)
        ticker.callbacks.append(notifier.ping)  # not before: during a takeover, the service is another process
        await stop.wait()
    finally:
        reloader.stop()
        if successor is not None:
            await successor.close()
        listeners.close()
        if features is not None:
            features.resign()
        if coordinator is not None:
            await coordinator.resign()
        await asyncio.gather(handler.stop(abort, spread=taken_over), leave_registry())
        if coordinator is not None:
            await coordinator.close()
        if features is not None:
            await features.close()
        ticker.stop()
        if watch is not None:
            await watch.close()
        reloading.cancel()  # it may wait for a blocked file system
        await asyncio.wait([reloading])
        await admin.close()
        notifier.close()
        for end in (successor, predecessor):
            if end is not None:
                end.finish()
    log.info("stopped")
    return 0


async def _begin_takeover(config: Config, required: bool) -> Takeover | None:
    assert config.takeover_socket_path is not None
    return await Takeover.begin(config.takeover_socket_path, config.broker_id, required=required)


async def _wait_until_ready(admin: AdminEndpoint, predecessor: Takeover, stop: asyncio.Event) -> None:
    """Wait until nothing but accepting is missing. Raises LocalError with what is, after ``READY_TIMEOUT``, if
    ``stop`` is set, or if ``predecessor`` refuses meanwhile."""
    deadline = asyncio.get_running_loop().time() + READY_TIMEOUT
    while found := await admin.find_problems():
        if asyncio.get_running_loop().time() > deadline:
            raise LocalError(f"not ready to take over after {READY_TIMEOUT:.0f} s: {'; '.join(found)}")
        await asyncio.sleep(READY_POLL_INTERVAL)
        predecessor.raise_if_refused()
    if stop.is_set():
        raise LocalError("stopped before it could take over")


def _create_takeover_server(
    config: Config, listeners: ListenerManager, admin: AdminEndpoint, on_taken_over: Callable[[int], None]
) -> TakeoverServer | None:
    if config.takeover_socket_path is None:
        return None

    return TakeoverServer(
        Path(config.takeover_socket_path),
        config.broker_id,
        listeners,
        lambda: [*listeners.listening_sockets, PassedSocket(ADMIN, admin.listening_socket)],
        on_taken_over,
    )


async def _start_connection_handler(config: Config, ticker: Ticker) -> ConnectionHandler:
    if config.workers == 1:
        return DataPlane(config, ticker)
    workers = WorkerPool(config, ticker)
    await workers.start()
    return workers


class ReadinessProblems:
    """Problems that keep the sidecar from being ready, by who found them."""

    def __init__(self, listeners: ListenerManager) -> None:
        self._listeners = listeners
        self._found: dict[str, str | None] = {}

    def set(self, who: str, problem: str | None) -> None:
        """Set the problem that ``who`` has found; None if there is none any more."""
        self._found[who] = problem
        self._listeners.not_ready_reason = next(filter(None, self._found.values()), None)


def _create_quota_poller(
    config: Config,
    listeners: ListenerManager,
    handler: ConnectionHandler,
    ticker: Ticker,
    set_problem: Callable[[str | None], None],
) -> QuotaPoller | None:
    """Return what polls the cluster's quotas. It polls at once if clients may have altered some through this
    sidecar."""
    if config.internal_bootstrap_servers is None:
        return None

    watch = QuotaPoller(config, listeners.update_cluster_quotas, set_problem)
    ticker.callbacks.append(_on_new_responses(handler, [ALTER_CLIENT_QUOTAS], watch.refresh))
    return watch


def _create_fleet_poller(
    config: Config,
    handler: ConnectionHandler,
    on_view: Callable[[FleetView], None],
    ticker: Ticker,
    set_problem: Callable[[str | None], None],
) -> FleetPoller:
    """Return what observes the fleet. It polls the broker's configuration at once if clients may have altered it."""
    fleet = FleetPoller(config, on_view, set_problem)
    ticker.callbacks.append(_on_new_responses(handler, [INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS], fleet.refresh))
    return fleet


def _create_feature_poller(
    config: Config,
    handler: ConnectionHandler,
    on_view: Callable[[FeaturesView], None],
    fleet: FleetPoller,
    set_problem: Callable[[str | None], None],
    group_levels: Callable[[], GroupLevels],
    *,
    inherits: bool,
) -> FeaturePoller | None:
    """Return what follows the features of the fleet; None if this sidecar does not take part. ``inherits``: it takes
    over from another process."""
    if config.features_disabled is not None:
        return None

    async def audit_levels() -> AuditLevels:
        return AuditLevels.of((await handler.snapshot()).audit, handler.process_ended_at)

    features = FeaturePoller(config, fleet, on_view, set_problem, audit_levels, group_levels, inherits=inherits)
    handler.on_feature_update(features.update)
    return features


def _create_group_coordinator(
    config: Config,
    handler: ConnectionHandler,
    consumers: ConsumerConnections | None,
    fleet: FleetPoller,
    ticker: Ticker,
) -> GroupCoordinator | None:
    """Return what coordinates groups of consumers; None if this sidecar does not. It looks at topics at once if clients
    may have altered some through this sidecar, and for other coordinators if a client looks for one."""
    if consumers is None:
        return None

    from proxy.coordinator.machine import Coordinator
    from proxy.fleet.group_cluster import GroupCluster
    from proxy.group_coordinator import GroupCoordinator

    machine = partial(Coordinator, api_key_base=config.private_api_key_base)
    coordinator = GroupCoordinator(
        config, machine, consumers, partial(GroupCluster, config, fleet), handler.update_groups_view
    )
    consumers.on_event = coordinator.post
    consumers.may_send = coordinator.may_send
    looks_for = config.private_api_key_base + CLUSTER_METADATA - BASE
    altered = [CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS]
    ticker.callbacks += [
        _on_new_responses(handler, [looks_for], coordinator.expect_coordinator),
        _on_new_responses(handler, altered, coordinator.refresh_topics),
    ]
    return coordinator


def _on_new_responses(
    handler: ConnectionHandler, api_keys: Sequence[int], callback: Callable[[], None]
) -> Callable[[], None]:
    """Return a function that calls ``callback`` if requests of ``api_keys`` were answered since its last run."""
    seen = 0

    def check() -> None:
        nonlocal seen
        before, seen = seen, sum(map(handler.count_responses, api_keys))
        if seen != before:
            callback()

    return check
