"""What one process does with connections: carry them, tell observers of them, count them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import structs

from proxy import __version__
from proxy.config import Config, hmac_keys
from proxy.core.apis import APIS
from proxy.core.tally import Tally
from proxy.core.watch import Watch
from proxy.errors import LocalError
from proxy.limits.throttles import ThrottleReport
from proxy.net.connection_manager import Carrier
from proxy.net.ticker import Beat
from proxy.telemetry.logs import log_lines_dropped
from proxy.telemetry.snapshot import Snapshot, added, process_counts

if TYPE_CHECKING:
    from observers.dispatch import Dispatcher
    from observers.lane import ObserverStats

AUDIT = "observers.audit:AuditObserver"
"""The built-in observer, whose own counts are metrics too."""

log = structlog.get_logger(__name__)


class Station:
    """Carries connections in this process. ``number``: of the worker. It starts with being constructed."""

    able = True
    full = False

    def __init__(self, config: Config, beat: Beat, number: int = 1) -> None:
        """Raises LocalError for an observer that cannot work."""
        boot_id = uuid.uuid4().hex
        self._config = config
        self._beat = beat
        self._number = number
        self._dispatcher = _observers(config, boot_id, number)
        self._carrier = Carrier(config, _watch(config, self._dispatcher) if self._dispatcher else None)
        self.tallies = self._carrier.tallies
        self.carry = self._carrier.carry
        self.on_end = self._carrier.on_end
        self.close_idlest = self._carrier.close_idlest
        self.idlest = self._carrier.idlest
        self.evict = self._carrier.evict
        self.tell = self._carrier.tell
        if self._dispatcher is not None:
            beat.calls.append(self._dispatcher.flush)
        beat.calls.append(self._carrier.beat)
        log.info("carrying", boot_id=boot_id)

    @property
    def holding(self) -> int:
        """Connections that have descriptors, or need them."""
        return self._carrier.holding

    def on_room(self, call: Callable[[], None]) -> None:
        """Never calls: it is never full."""

    def answered(self, api_key: int) -> int:
        """Responses of this api that have passed."""
        return sum(tally.responses.get(api_key, 0) for tally in self.tallies.values())

    def report(self, reports: Sequence[ThrottleReport]) -> None:
        """Tell the observers of throttled connections."""
        if self._dispatcher is not None:
            self._dispatcher.report(reports)

    def change(self, config: Config) -> None:
        """Take what can be changed of a running station; who accepts is this same process, and sets the log's level."""
        self._carrier.change(config)

    async def snapshot(self) -> Snapshot:
        """Present counts."""
        tallies = {name: added(Tally(), tally) for name, tally in self.tallies.items()}
        snapshot = Snapshot(tallies, process_counts(), self._beat.lag)
        snapshot.log_lines_dropped = log_lines_dropped()
        budget = self._carrier.budget
        snapshot.memory_charged, snapshot.memory_limit = budget.charged, budget.limit
        snapshot.memory_waits = budget.waits
        snapshot.workers[self._number] = sum(tally.active for tally in tallies.values())
        if self._dispatcher is not None:  # some of its counts are behind an observer's lock
            snapshot.observers, snapshot.audit = await asyncio.to_thread(_observed, self._dispatcher)
        return snapshot

    async def stop(self, now: asyncio.Event) -> None:
        """Drain within ``drain.timeout.ms`` and close the observers; all of it at once when ``now`` is set."""
        await until(self._carrier.drain(self._config.drain_timeout_ms / 1000), now)
        if now.is_set():
            self._carrier.cut()
        self._beat.stop()
        if self._dispatcher is not None:
            await _close(self._dispatcher, self._config.observer_shutdown_timeout_ms / 1000, now)


async def until(work: Coroutine[Any, Any, object], stop: asyncio.Event) -> None:
    """Run ``work`` to its end, or drop it as soon as ``stop`` is set."""
    tasks: set[asyncio.Task[object]] = {asyncio.create_task(work), asyncio.create_task(stop.wait())}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def _observers(config: Config, boot_id: str, number: int) -> Dispatcher | None:
    if not config.observer_class_names:
        return None
    from observers.dispatch import Dispatcher, ObserverError  # with librdkafka, which nothing else here needs

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
            "inventory.interval.ms": config.audit.inventory_interval_ms,
            "spool.path": config.audit.spool_path,
            "spool.max.bytes": config.audit.spool_max_bytes,
            "authenticator": hmac_keys.authenticator(hmac_keys.AUDIT, config.audit.hmac_keys_file),
        },
        "observer.records.deep": config.observer_records_deep,
        "api.names": {key: api.name for key, api in APIS.items()},
    }
    try:
        dispatcher = Dispatcher(config.observer_class_names, configs)
        dispatcher.start()
    except ObserverError as error:
        raise LocalError(f"observer.class.names: {error}") from error
    return dispatcher


def _watch(config: Config, dispatcher: Dispatcher) -> Watch:
    return Watch(
        dispatcher.record,
        dispatcher.note,
        dispatcher.interest,
        dispatcher.observed,
        config.observer_max_body_bytes,
    )


def _observed(dispatcher: Dispatcher) -> tuple[dict[str, ObserverStats], dict[str, Any]]:
    audit: Any = dispatcher.observers.get(AUDIT)
    return {stats.name: stats for stats in dispatcher.stats()}, structs.asdict(audit.stats()) if audit else {}


async def _close(dispatcher: Dispatcher, patience: float, now: asyncio.Event) -> None:
    """Let the observers finish, on a thread of their own, and say what each of them got and lost in the end."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def close() -> None:
        dispatcher.close(patience)
        loop.call_soon_threadsafe(closed.set)

    if not now.is_set():
        threading.Thread(target=close, name="close observers", daemon=True).start()
        await until(closed.wait(), now)
    observers, audit = _observed(dispatcher)
    for stats in observers.values():
        counts = {
            "delivered": stats.delivered,
            "dropped": sum(stats.dropped.values()),
            "failed": stats.failed,
            "queued": stats.queued,
        }
        log.info("observer_closed", observer=stats.name, **counts)
    if audit:
        counts = {name: audit[name] for name in ("emitted", "delivered", "dropped", "spooled", "queued")}
        log.info("audit_closed", **counts)
