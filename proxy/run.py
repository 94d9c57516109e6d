"""``brokerside run``: one configuration in, one running sidecar, one exit code out."""

from __future__ import annotations

import asyncio
import resource
import signal
import threading
import uuid
from pathlib import Path
from typing import Any

import structlog
import uvloop

from observers.audit import AuditObserver
from observers.dispatch import Dispatcher
from observers.errors import ObserverError
from proxy import __version__
from proxy.config import Config
from proxy.core.apis import APIS
from proxy.errors import LocalError
from proxy.net.admin import Admin
from proxy.net.sidecar import Sidecar
from proxy.telemetry import Metrics

log = structlog.get_logger(__name__)

DESCRIPTORS_PER_CONNECTION = 2
"""One socket towards the client, one towards the broker."""


def run(config: Config) -> int:
    """Run until SIGTERM or SIGINT, then drain; a second signal ends it at once. Returns the exit code."""
    _raise_descriptor_limit()
    _check_backlog(config.socket_listen_backlog_size)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(config))


async def _run(config: Config) -> int:
    boot_id = uuid.uuid4().hex
    dispatcher = _observers(config, boot_id)
    sidecar = Sidecar(config, dispatcher.record if dispatcher else None, dispatcher.flush if dispatcher else _nothing)
    metrics = Metrics(sidecar, dispatcher)
    admin = Admin(config, metrics.render, lambda: sidecar.draining)
    stop = asyncio.Event()
    now = asyncio.Event()

    def on_signal(name: str) -> None:
        if stop.is_set():
            log.warning("stopping_at_once", signal=name)
            now.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        await admin.start()
        sidecar.start()
        log.info(
            "started", version=__version__, boot_id=boot_id, broker_id=config.broker_id, admin=str(config.admin.bind)
        )
        await stop.wait()
        await _until(sidecar.drain(config.drain_timeout_ms / 1000), now)
    finally:
        if now.is_set():
            sidecar.cut()
        if dispatcher is not None:
            await _close(dispatcher, config.observer_shutdown_timeout_ms / 1000, now)
        await admin.close()
    log.info("stopped")
    return 0


async def _close(dispatcher: Dispatcher, patience: float, now: asyncio.Event) -> None:
    """Let the observers finish, on a thread of their own, and say what each of them got and lost in the end."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def close() -> None:
        dispatcher.close(patience)
        loop.call_soon_threadsafe(closed.set)

    if not now.is_set():
        threading.Thread(target=close, name="close observers", daemon=True).start()
        await _until(closed.wait(), now)
    for stats in dispatcher.stats():
        counts = {
            "delivered": stats.delivered,
            "dropped": stats.dropped,
            "failed": stats.failed,
            "queued": stats.queued,
        }
        log.info("observer_closed", observer=stats.name, **counts)
    for observer in dispatcher.observers.values():
        if isinstance(observer, AuditObserver):
            audit = observer.stats()
            log.info(
                "audit_closed",
                emitted=audit.emitted,
                delivered=audit.delivered,
                dropped=dict(audit.dropped),
                queued=audit.queued,
            )


def _observers(config: Config, boot_id: str) -> Dispatcher | None:
    if not config.observer_class_names:
        return None
    configs: dict[str, Any] = {
        "broker.id": config.broker_id,
        "boot.id": boot_id,
        "sidecar.version": __version__,
        "internal": config.internal_client_settings(),
        "audit": {
            "topic": config.audit.topic,
            "exclude.topics": config.audit.exclude_topics,
            "exclude.principals": config.audit.exclude_principals,
            "producer": config.audit.producer,
        },
        "api.names": {key: api.name for key, api in APIS.items()},
    }
    try:
        dispatcher = Dispatcher(config.observer_class_names, configs)
        dispatcher.start()
    except ObserverError as error:
        raise LocalError(f"observer.class.names: {error}") from error
    return dispatcher


async def _until(work: Any, stop: asyncio.Event) -> None:
    """Run ``work`` to its end, or drop it as soon as ``stop`` is set."""
    tasks = {asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    log.info("descriptors", limit=hard, connections=hard // DESCRIPTORS_PER_CONNECTION)


def _check_backlog(wanted: int) -> None:
    """Linux cuts a longer backlog without a word, and a storm of connections then waits for retransmissions."""
    try:
        allowed = int(Path("/proc/sys/net/core/somaxconn").read_text())
    except (OSError, ValueError):
        return
    if allowed < wanted:
        log.warning("backlog_cut", wanted=wanted, allowed=allowed, setting="net.core.somaxconn")


def _nothing() -> None:
    """What is flushed when nobody observes."""
