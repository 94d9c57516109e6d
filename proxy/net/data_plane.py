"""Everything that one process does with connections: it relays them, reports them to observers and counts them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import structs

from proxy import __version__
from proxy.config import Config, Secret, hmac_keys, redacted
from proxy.core.apis import APIS
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import ConnectionTransition
from proxy.core.observation_interest import ObservationSink
from proxy.daemon_executor import DaemonExecutor
from proxy.errors import LocalError
from proxy.features.updates import UpdateFeatures
from proxy.features.view import FeaturesView
from proxy.limits.model import QuotasState
from proxy.limits.throttle_reports import AggregatedThrottle
from proxy.net.connection_manager import ConnectionManager
from proxy.net.open_connections import ConnectionList, KafkaConnection, OpenConnections
from proxy.net.ticker import TICK_INTERVAL, Ticker
from proxy.protocol.private import moved
from proxy.telemetry.logs import log_lines_dropped
from proxy.telemetry.snapshot import Snapshot, add_counters, process_counts

if TYPE_CHECKING:
    from observers.dispatch import ConfiguredObserver, Dispatcher
    from observers.observer_thread import ObserverStats

AUDIT_OBSERVER = "observers.audit:AuditObserver"
OPENTELEMETRY_OBSERVER = "observers.opentelemetry:OpenTelemetryLogsObserver"
REQUEST_METRICS_OBSERVER = "observers.request_metrics:RequestMetricsObserver"
"""The built-in observers, whose own counters are exported as metrics."""

PREPARE_TIMEOUT = 10.0
"""Seconds within which TLS contexts have to be built and observers configured in a reload, together. It takes
milliseconds, and longer only where the system's CAs, or what an observer reads, are on a slow file system."""

BUSY = 1000
"""Exchanges and changes in one interval of the ticker from which observers get them in portions: 20,000 a second."""

PORTIONS = 5
"""An observer works on what it gets in one go, and the event loop may have to wait for that long."""

log = structlog.get_logger(__name__)


class DataPlane:
    """Serves connections in this process. ``number`` is that of the worker. Observers start with the construction."""

    is_available = True
    is_full = False

    def __init__(self, config: Config, ticker: Ticker, number: int = 1) -> None:
        """Raises LocalError if an observer cannot be started."""
        boot_id = uuid.uuid4().hex
        self._config = config
        self._ticker = ticker
        self._number = number
        self._dispatcher = _start_observers(config, boot_id, number)
        self._preparing = DaemonExecutor("observers")
        self._preparation: ObserverPreparation | None = None
        self._observed = 0
        self._portions: list[asyncio.TimerHandle] = []
        self.process_ended_at = 0.0  # not before this process itself
        self._connections = ConnectionManager(
            config, observation_of(config, self._dispatcher) if self._dispatcher else None
        )
        self.open_connections = OpenConnections(self._connections.by_number, number)
        self.listener_counters = self._connections.listener_counters
        self.handle_connection = self._connections.handle_connection
        self.on_connection_closed = self._connections.on_connection_closed
        self.close_idlest = self._connections.close_idlest
        self.find_idlest = self._connections.find_idlest
        self.close_connection = self._connections.close_connection
        self.hold_connection = self._connections.hold_connection
        self.report_logins = self._connections.report_logins
        self.update_fleet_view = self._connections.listeners.update_fleet_view
        self.update_groups_view = self._connections.listeners.update_groups_view
        self.on_consumer = self._connections.on_consumer
        if self._dispatcher is not None:
            ticker.callbacks.append(self._flush_observations)
        ticker.callbacks.append(self._connections.on_tick)
        log.info("data_plane_started", boot_id=boot_id)

    @property
    def missing_descriptors(self) -> int:
        """As ``ConnectionHandler``."""
        return self._connections.missing_descriptors

    @property
    def degradation(self) -> str:
        """What works in part only although connections are served, in one sentence; empty for nothing."""
        observers: Any = self._dispatcher.observers if self._dispatcher is not None else {}
        built_in = (observers.get(name) for name in (AUDIT_OBSERVER, OPENTELEMETRY_OBSERVER))
        return "; ".join(one.degradation for one in built_in if one is not None and one.degradation)

    def on_capacity(self, callback: Callable[[], None]) -> None:
        """Do nothing: a data plane is never full."""

    def update_features_view(self, view: FeaturesView) -> None:
        """Set what is known about the features of the fleet. Observers get the levels in use."""
        self._connections.listeners.update_features_view(view)
        if self._dispatcher is not None:
            self._dispatcher.set_finalized_levels(view.levels)

    def on_feature_update(self, callback: UpdateFeatures) -> None:
        """Call ``callback`` for each update of features that a client asks for."""
        self._connections.listeners.update_features = callback

    def _flush_observations(self) -> None:
        """Deliver to the observers what was recorded, and under load what is recorded until the next tick sooner."""
        assert self._dispatcher is not None
        self._dispatcher.flush()
        observed, self._observed = self._observed, self._dispatcher.observed[0]
        if self._observed - observed >= BUSY:
            loop = asyncio.get_running_loop()
            self._portions = [
                loop.call_later(portion * TICK_INTERVAL / PORTIONS, self._dispatcher.flush)
                for portion in range(1, PORTIONS)
            ]

    def report_transition(self, change: ConnectionTransition, worker: int) -> None:
        """Report to the observers what has happened to a connection of a consumer."""
        self._connections.notify_observers(change)

    async def find_connection(self, number: int) -> KafkaConnection | None:
        """Return the connection with this number; None if it is not open."""
        return self.open_connections.find(number)

    async def list_connections(self) -> ConnectionList:
        """Return all open connections, in steps between which the event loop serves them."""
        found, after = ConnectionList([]), 0
        while page := self.open_connections.describe_page(after):
            found.connections += [connection for _, connection in page]
            after = page[-1][0]
            await asyncio.sleep(0)
        return found

    def count_responses(self, api_key: int) -> int:
        """Return how many requests of this api were answered."""
        return sum(counters.answered(api_key) for counters in self.listener_counters.values())

    def report_throttles(self, reports: Sequence[AggregatedThrottle]) -> None:
        """Report throttled connections to the observers."""
        if self._dispatcher is not None:
            self._dispatcher.record_throttles(reports)

    async def prepare_config(self, config: Config) -> None:
        """Build TLS contexts, and configure the observers whose settings differ in ``config`` beside the running ones,
        for ``update_config``.

        Raises LocalError if a context cannot be built, if an observer refuses its settings, or if both take too long.
        What comes later than that, or after ``discard_config``, is not kept.
        """
        self.discard_config()
        preparation, late = None, "TLS: no context"
        if self._dispatcher is not None and config.observers != self._config.observers:
            preparation = self._preparation = ObserverPreparation(self._dispatcher, config)
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT):
                await self._connections.prepare_config(config)
                if preparation is not None:
                    late = "observers: not configured"
                    await self._preparing.run(preparation.run, None)
        except TimeoutError:
            if preparation is not None:
                preparation.cancel()
            raise LocalError(f"{late} within {PREPARE_TIMEOUT:.0f} s") from None

    def discard_config(self) -> None:
        """Forget the contexts, and close the observers, of ``prepare_config``, also those that are still to come."""
        self._connections.discard_config()
        preparation, self._preparation = self._preparation, None
        if preparation is not None:
            preparation.cancel()

    def update_config(self, config: Config) -> None:
        """Apply the reloadable keys, with the contexts and observers of ``prepare_config``.

        The process sets its log level itself. What ``prepare_config`` has not made is made here, and blocks the event
        loop: in a worker that became ready too late to prepare anything, and has no connections yet. Raises LocalError,
        and applies nothing, if a context cannot be built.
        """
        self._connections.update_config(config, self._connections.sink)
        if self._dispatcher is not None and config.observers != self._config.observers:
            try:
                prepared = self._preparation.take() if self._preparation is not None else []
                prepared = prepared or configured_observers(self._dispatcher, config)
                self._dispatcher.replace(prepared, _settings(config), config.observer_shutdown_timeout_ms / 1000)
                self._connections.sink = observation_of(config, self._dispatcher)
                log.info("observers_replaced", observers=[one.loaded.name for one in prepared])
            except LocalError as error:
                log.error("observers_not_replaced", error=str(error))
        self._config = config
        self.discard_config()  # of a preparation that has not ended

    async def snapshot(self, quotas_state: Callable[[], QuotasState | None] = lambda: None) -> Snapshot:
        """As ``ConnectionHandler``."""
        listener_counters = {
            name: add_counters(ListenerCounters(), counters) for name, counters in self.listener_counters.items()
        }
        snapshot = Snapshot(listener_counters, process_counts(), self._ticker.lag)
        snapshot.quotas = quotas_state()
        snapshot.log_lines_dropped = log_lines_dropped()
        budget = self._connections.budget
        snapshot.memory_charged, snapshot.memory_limit = budget.charged, budget.limit
        snapshot.memory_waits = budget.waits
        snapshot.workers[self._number] = sum(counters.active for counters in listener_counters.values())
        if self._dispatcher is not None:  # some counters are behind an observer's lock
            snapshot.observers, snapshot.audit, snapshot.opentelemetry = await asyncio.to_thread(
                _observer_counts, self._dispatcher
            )
            requests: Any = self._dispatcher.observers.get(REQUEST_METRICS_OBSERVER)
            if requests is not None:
                snapshot.requests = await asyncio.to_thread(requests.stats)
        return snapshot

    async def stop(self, abort: asyncio.Event, *, spread: bool = False) -> None:
        """Drain within ``drain.timeout.ms`` and close the observers, or do both at once when ``abort`` is set.

        ``spread``: see ``ConnectionManager.drain``.
        """
        await run_until(self._connections.drain(self._config.drain_timeout_ms / 1000, spread=spread), abort)
        if abort.is_set():
            self._connections.abort_all()
        self._ticker.stop()
        for portion in self._portions:
            portion.cancel()
        if self._dispatcher is not None:
            await _close_observers(self._dispatcher, self._config.observer_shutdown_timeout_ms / 1000, abort)


class ObserverPreparation:
    """Configures observers on a thread of its own, for an event loop that may give up."""

    def __init__(self, dispatcher: Dispatcher, config: Config) -> None:
        self._dispatcher = dispatcher
        self._config = config
        self._lock = threading.Lock()
        self._cancelled = False
        self._configured: list[ConfiguredObserver] = []

    def run(self) -> None:
        """Configure the observers whose settings differ, for ``take``. Raises LocalError."""
        configured = configured_observers(self._dispatcher, self._config)
        with self._lock:
            if not self._cancelled:
                self._configured = configured
                return
        self._dispatcher.discard(configured)

    def take(self) -> list[ConfiguredObserver]:
        """Return the observers, which are the caller's from now on; empty before ``run`` has ended."""
        with self._lock:
            taken, self._configured = self._configured, []
            return taken

    def cancel(self) -> None:
        """Close what ``run`` has configured and nobody has taken, or what it still configures."""
        self._cancelled = True
        if configured := self.take():
            threading.Thread(target=self._dispatcher.discard, args=[configured], daemon=True).start()


def configured_observers(dispatcher: Dispatcher, config: Config) -> list[ConfiguredObserver]:
    """Return the observers whose settings differ in ``config``, configured. Raises LocalError."""
    with observer_errors("observers"):
        return dispatcher.configure_beside(_settings(config), {"config": redacted(config)})


async def run_until(work: Coroutine[Any, Any, object], stop: asyncio.Event) -> None:
    """Run ``work`` to its end, or cancel it as soon as ``stop`` is set."""
    tasks: set[asyncio.Task[object]] = {asyncio.create_task(work), asyncio.create_task(stop.wait())}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def _start_observers(config: Config, boot_id: str, number: int) -> Dispatcher | None:
    if not config.observer_class_names:
        return None
    dispatcher = dispatcher_of(config, boot_id, number)
    with observer_errors():
        dispatcher.start()
    return dispatcher


def check_observers(config: Config) -> None:
    """Construct the observers of ``config``, and let them check their configuration. Nothing is started or sent.

    Raises LocalError.
    """
    if config.observer_class_names:
        dispatcher = dispatcher_of(config, "", 1)
        with observer_errors():
            dispatcher.check()


@contextmanager
def observer_errors(key: str = "observer.class.names") -> Iterator[None]:
    """Raise LocalError for an ObserverError. ``key``: of the configuration, for the message."""
    from observers.errors import ObserverError

    try:
        yield
    except ObserverError as error:
        raise LocalError(f"{key}: {error}") from error


def dispatcher_of(config: Config, boot_id: str, number: int, **options: Any) -> Dispatcher:
    """Return a dispatcher that is not started. ``options``: of its own. Raises LocalError."""
    from observers.dispatch import Dispatcher  # imports librdkafka

    private = moved(config.private_api_key_base, coordinator=config.coordinator.enabled)
    configs: dict[str, Any] = {
        "broker.id": config.broker_id,
        "boot.id": boot_id,
        "worker": number,
        "sidecar.version": __version__,
        "internal": config.internal_client_settings(),
        "audit": {
            "topic": config.audit.topic,
            "exclude.topics": config.audit.exclude_topics,
            "exclude.principals": config.audit.exclude_principals,
            "producer": config.audit.producer,
            "mode": config.audit.mode,
            "rollup.interval.ms": config.audit.rollup_interval_ms,
            "offsets.interval.ms": config.audit.offsets_interval_ms,
            "inventory.interval.ms": config.audit.inventory_interval_ms,
            "spool.path": config.audit.spool_path,
            "spool.max.bytes": config.audit.spool_max_bytes,
            "authenticator": hmac_keys.authenticator(hmac_keys.AUDIT, config.audit.hmac_keys_file),
        },
        "features": config.features_disabled is None,
        "observer.records.deep": config.observer_records_deep,
        "config": redacted(config),
        "api.names": {key: api.name for key, api in (APIS | private).items()},
    }
    with observer_errors():
        return Dispatcher(config.observer_class_names, configs, settings=_settings(config), **options)


def _settings(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings of each observer, with its secrets."""
    return {
        name: {key: value.reveal() if isinstance(value, Secret) else value for key, value in settings.items()}
        for name, settings in config.observers.items()
    }


def observation_of(config: Config, dispatcher: Dispatcher) -> ObservationSink:
    """Return where sessions hand over what they observed, for a dispatcher that has started."""
    return ObservationSink(
        dispatcher.record_exchange,
        dispatcher.record_change,
        dispatcher.interest,
        dispatcher.observed,
        config.observer_max_body_bytes,
    )


def _observer_counts(dispatcher: Dispatcher) -> tuple[dict[str, ObserverStats], dict[str, Any], dict[str, Any]]:
    """Return the counts of all observers; of the audit; and of the OpenTelemetry logs."""
    return (
        {stats.name: stats for stats in dispatcher.stats()},
        _event_counts(dispatcher, AUDIT_OBSERVER),
        _event_counts(dispatcher, OPENTELEMETRY_OBSERVER),
    )


def _event_counts(dispatcher: Dispatcher, name: str) -> dict[str, Any]:
    observer: Any = dispatcher.observers.get(name)
    return structs.asdict(observer.stats()) if observer else {}


async def _close_observers(dispatcher: Dispatcher, timeout_s: float, abort: asyncio.Event) -> None:
    """Close the observers in a separate thread, and log what each of them received and lost."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def close() -> None:
        dispatcher.close(timeout_s)
        loop.call_soon_threadsafe(closed.set)

    if not abort.is_set():
        threading.Thread(target=close, name="close observers", daemon=True).start()
        await run_until(closed.wait(), abort)
    observers, *audits = _observer_counts(dispatcher)
    for stats in observers.values():
        counts = {
            "delivered": stats.delivered,
            "dropped": sum(stats.dropped.values()),
            "failed": stats.failed,
            "queued": stats.queued,
        }
        log.info("observer_closed", observer=stats.name, **counts)
    for event, audit in zip(("audit_closed", "opentelemetry_closed"), audits, strict=True):
        if audit:
            log.info(event, **{name: audit[name] for name in ("emitted", "delivered", "dropped", "spooled", "queued")})
