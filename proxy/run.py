"""``brokerside run``: one configuration in, one running sidecar, one exit code out."""

from __future__ import annotations

import asyncio
import resource
import signal
from pathlib import Path

import structlog
import uvloop

from proxy import __version__
from proxy.config import Config
from proxy.net.admin import Admin
from proxy.net.beat import Beat
from proxy.net.sidecar import Carrying, Sidecar
from proxy.net.station import Station
from proxy.net.workers import Workers

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
    beat = Beat()
    carrying = await _carrying(config, beat)
    sidecar = Sidecar(config, carrying, beat)
    admin = Admin(config, sidecar)
    try:
        await admin.start()
        sidecar.start()
        beat.start()
        log.info(
            "started",
            version=__version__,
            broker_id=config.broker_id,
            admin=str(config.admin.bind),
            workers=config.workers,
        )
        await stop.wait()
    finally:
        sidecar.close()
        await carrying.stop(now)
        beat.stop()
        await admin.close()
    log.info("stopped")
    return 0


async def _carrying(config: Config, beat: Beat) -> Carrying:
    if config.workers == 1:
        return Station(config, beat)
    workers = Workers(config, beat)
    await workers.start()
    return workers


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
