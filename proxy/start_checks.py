"""Checks at the start whether the machine gives what the configuration needs. Each says the number that is needed.

A sidecar that could serve nobody is refused; one that could not serve all that it may admit starts with a warning.
"""

from __future__ import annotations

import resource
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from proxy.config import Config
from proxy.core.budget import MAX_CHARGED
from proxy.errors import LocalError
from proxy.extras import missing
from proxy.limits.model import UNLIMITED
from proxy.net.admission import DESCRIPTORS_PER_HELD
from proxy.net.descriptors import (
    DESCRIPTORS_PER_CONNECTION,
    RESERVED_DESCRIPTORS,
    descriptors_of_groups,
    usable_descriptors,
)
from proxy.net.worker_process import RESERVED_WORKER_DESCRIPTORS

MIN_DESCRIPTORS, DESCRIPTORS_PER_WORKER = 64, 4
"""Descriptors without which a sidecar cannot start, and what each worker takes of the main process."""

DESCRIPTORS_PER_CONSUMER = 3
"""Descriptors for each consumer of ``coordinator.max.consumers``: its connection, with SASL one to the broker, and as
much as that for everybody else."""

PROCESS_BYTES = 54 * 1024 * 1024
"""Memory of an idle process with the audit, as measured in docs/performance.md."""

EVENTS_BYTES = 16 * 1024 * 1024
"""Events of the audit that wait in memory, at most."""

MEMORY_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Limits of a container or a service: of cgroups v2 and v1."""

log = structlog.get_logger(__name__)


class Machine(NamedTuple):
    """What this process gets. None for what is not known. ``backlog``: connections; ``memory``: bytes."""

    descriptors: int
    backlog: int | None
    memory: int | None


class Shortage(NamedTuple):
    """Something that is less than needed: the event of a warning, and its fields."""

    event: str
    fields: dict[str, Any]


def check_start(config: Config) -> None:
    """Raise the limit of descriptors as far as possible, and log what is less than ``config`` needs.

    Raises LocalError if that is too little to start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections = max(0, usable_descriptors(config) - descriptors_of_groups(config)) // DESCRIPTORS_PER_CONNECTION
    log.info("descriptors", limit=hard, connections=connections, held=hard // DESCRIPTORS_PER_HELD)
    if config.coordinator.enabled and find_spec("re2") is None:
        raise LocalError(f"coordinator.enabled {missing('google-re2', 'coordinator')}")
    for shortage in find_shortages(config, Machine(hard, _backlog(), _memory())):
        log.warning(shortage.event, **shortage.fields)


def descriptor_limit() -> int:
    """Return how many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def find_shortages(config: Config, machine: Machine) -> list[Shortage]:
    """Return what is less than ``config`` needs. Raises LocalError if that is too little to start."""
    least = MIN_DESCRIPTORS + len(config.listeners)
    least += DESCRIPTORS_PER_WORKER * config.workers if config.workers > 1 else 0
    if machine.descriptors < least:
        raise LocalError(
            f"RLIMIT_NOFILE is {machine.descriptors}, and at least {least} descriptors are needed (ulimit -n)"
        )
    check_consumers(config, machine.descriptors)
    found = []
    most, needed = config.quotas.max_connections, _descriptors(config)
    if most < UNLIMITED and machine.descriptors < needed:
        found.append(
            Shortage(
                "descriptors_low",
                {"wanted": needed, "allowed": machine.descriptors, "max_connections": most, "setting": "RLIMIT_NOFILE"},
            )
        )
    wanted = config.socket_listen_backlog_size
    if machine.backlog is not None and machine.backlog < wanted:
        # Linux shortens it silently, and a burst of connects then waits for retransmissions.
        fields = {"wanted": wanted, "allowed": machine.backlog, "setting": "net.core.somaxconn"}
        found.append(Shortage("backlog_cut", fields))
    memory = _memory_needed(config)
    if machine.memory is not None and machine.memory < memory:
        fields = {"wanted_bytes": memory, "allowed_bytes": machine.memory, "workers": config.workers}
        found.append(Shortage("memory_low", fields))
    return found


def check_consumers(config: Config, descriptors: int) -> None:
    """Raise LocalError if ``coordinator.max.consumers`` is more than a third of this process's ``descriptors``."""
    most = config.coordinator.max_consumers
    if config.coordinator.enabled and descriptors < DESCRIPTORS_PER_CONSUMER * most:
        raise LocalError(
            f"coordinator.max.consumers: {most} needs RLIMIT_NOFILE {DESCRIPTORS_PER_CONSUMER * most} (ulimit -n), "
            f"which is {descriptors} (allowed: up to {descriptors // DESCRIPTORS_PER_CONSUMER} consumers)"
        )


def _descriptors(config: Config) -> int:
    """Return how many descriptors a process needs for ``max.connections`` connections."""
    most = config.quotas.max_connections
    main = RESERVED_DESCRIPTORS + MIN_DESCRIPTORS + 2 * descriptors_of_groups(config)
    if config.workers == 1:
        return DESCRIPTORS_PER_CONNECTION * most + main
    return max(DESCRIPTORS_PER_CONNECTION * -(-most // config.workers) + RESERVED_WORKER_DESCRIPTORS, main)


def _memory_needed(config: Config) -> int:
    """Return the bytes that all processes need while clients make each of them hold as much as they can."""
    carrying = PROCESS_BYTES + MAX_CHARGED + EVENTS_BYTES
    return carrying if config.workers == 1 else PROCESS_BYTES + config.workers * carrying


def _backlog() -> int | None:
    return _number("/proc/sys/net/core/somaxconn")


def _memory() -> int | None:
    """Return the limit of this process's cgroup, else the memory of the machine."""
    limits = [limit for limit in map(_number, MEMORY_FILES) if limit is not None]
    try:
        kib = next(line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    except (OSError, StopIteration, IndexError):
        return min(limits, default=None)
    return min([*limits, int(kib) * 1024])


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # cgroups v2 write "max" for no limit
        return None
