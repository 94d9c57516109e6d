"""``brokerside run``: runs one sidecar from its configuration to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import structlog
import uvloop

from proxy import __version__
from proxy.config import Config
from proxy.core.apis import ALTER_CLIENT_QUOTAS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from proxy.fleet.fleet_poller import FleetPoller
from proxy.fleet.quota_poller import QuotaPoller
from proxy.net.acceptor import DESCRIPTORS_PER_CONNECTION, usable_descriptors
from proxy.net.admin import AdminEndpoint
from proxy.net.admission import DESCRIPTORS_PER_HELD
from proxy.net.connection_handler import ConnectionHandler
from proxy.net.data_plane import DataPlane
from proxy.net.forced_exit import EXIT_MARGIN, force_exit_after
from proxy.net.listener_manager import ListenerManager
from proxy.net.ticker import Ticker
from proxy.net.worker_pool import WorkerPool
from proxy.reload import ConfigFileMonitor, Reloader
from proxy.telemetry import configure_logging

log = structlog.get_logger(__name__)

QUOTAS_TIMEOUT = 1.0
"""Seconds that the first accept waits for the quotas of the cluster. After that those of the file apply."""


def run(file: ConfigFileMonitor, config: Config) -> int:
    """Run until SIGTERM or SIGINT, then drain. A second signal ends the sidecar at once. Returns the exit code.

    ``file``: the monitored file from which ``config`` was loaded.
    """
    _raise_descriptor_limit()
    _check_backlog(config.socket_listen_backlog_size)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(file, config))


async def _run(file: ConfigFileMonitor, config: Config) -> int:
    stop = asyncio.Event()
    abort = asyncio.Event()

    def on_signal(name: str) -> None:
        if stop.is_set():
            log.warning("stopping_at_once", signal=name)
            abort.set()
        else:
            force_exit_after((config.drain_timeout_ms + config.observer_shutdown_timeout_ms) / 1000 + EXIT_MARGIN)
        stop.set()

    def apply(changed: Config) -> None:
        configure_logging(changed.log_level)
        handler.update_config(changed)
        listeners.update_config(changed)
        fleet.reconfigure(changed)
        admin.update_config(changed)
        if watch is not None:
            watch.reconfigure(changed)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    reloader = Reloader(file, config, apply)
    loop.add_signal_handler(signal.SIGHUP, reloader.request_reload, "SIGHUP")
    ticker = Ticker()
    handler = await _start_connection_handler(config, ticker)
    listeners = ListenerManager(config, handler, ticker)
    problems = ReadinessProblems(listeners)
    watch = _create_quota_poller(config, listeners, handler, ticker, partial(problems.set, "quotas"))
    fleet = _create_fleet_poller(config, handler, ticker, partial(problems.set, "fleet"))
    admin = AdminEndpoint(
        listeners, reloader, watch.state if watch is not None else None, lambda: fleet.registry_dropped
    )
    reloading = asyncio.create_task(reloader.run())
    try:
        admin.start()
        fleet.start()
        if watch is not None:
            watch.start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUOTAS_TIMEOUT):
                    await watch.wait_for_first_answer()
        listeners.start()
        ticker.start()
        if watch is not None:
            watch.mark_accepting()
        log.info(
            "started",
            version=__version__,
            broker_id=config.broker_id,
            admin=str(config.admin.bind),
            workers=config.workers,
            config_hash=reloader.state.hash,
        )
        await stop.wait()
    finally:
        reloader.stop()
        listeners.close()
        await asyncio.gather(handler.stop(abort), fleet.close())
        ticker.stop()
        if watch is not None:
            await watch.close()
        reloading.cancel()  # it may wait for a blocked file system
        await asyncio.wait([reloading])
        await admin.close()
    log.info("stopped")
    return 0


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
    config: Config, handler: ConnectionHandler, ticker: Ticker, set_problem: Callable[[str | None], None]
) -> FleetPoller:
    """Return what observes the fleet. It polls the broker's configuration at once if clients may have altered it."""
    fleet = FleetPoller(config, handler.update_fleet_view, set_problem)
    ticker.callbacks.append(_on_new_responses(handler, [INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS], fleet.refresh))
    return fleet


def _on_new_responses(
    handler: ConnectionHandler, api_keys: Sequence[int], callback: Callable[[], None]
) -> Callable[[], None]:
    """Return a function that calls ``callback`` if responses of ``api_keys`` were relayed since its last run."""
    seen = 0

    def check() -> None:
        nonlocal seen
        before, seen = seen, sum(map(handler.count_responses, api_keys))
        if seen != before:
            callback()

    return check


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections = usable_descriptors() // DESCRIPTORS_PER_CONNECTION
    log.info("descriptors", limit=hard, connections=connections, held=hard // DESCRIPTORS_PER_HELD)


def _check_backlog(wanted: int) -> None:
    """Warn if Linux shortens the backlog, which it does silently. A burst of connects would then wait for
    retransmissions."""
    try:
        allowed = int(Path("/proc/sys/net/core/somaxconn").read_text())
    except (OSError, ValueError):
        return
    if allowed < wanted:
        log.warning("backlog_cut", wanted=wanted, allowed=allowed, setting="net.core.somaxconn")
