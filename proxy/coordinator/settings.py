"""The settings of the coordinator (section ``coordinator`` of the configuration), as the machine uses them."""

from __future__ import annotations

from typing import NamedTuple


class CoordinatorSettings(NamedTuple):
    """Times in milliseconds. Defaults: those of the configuration."""

    broker_id: int = 0
    partition_count: int = 12
    """Partitions of the groups' topic that groups are spread over: the number that is written down once, for ever."""
    min_session_timeout_ms: int = 3000
    """A session timeout must be above it."""
    max_ping_retries: int = 2
    max_rebalance_retries: int = 4
    rebalance_backoff_ms: int = 2000
    rebalance_delay_ms: int = 200
    rebalance_threadpool_size: int = 16
    offset_commit_interval_ms: int = 10_000
    state_write_timeout_ms: int = 5000
    max_consumers: int = 10_000
    frozen_groups: frozenset[str] = frozenset()
    """Groups with ``rebalance.enabled: false``."""
    level: int = 1
    """The finalized maximum of ``brokerside.coordinator.protocol``; 0: not finalized."""
