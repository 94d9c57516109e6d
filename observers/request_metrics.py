"""The built-in observer of requests for ``/metrics``: how many, how large, how long, with which errors, and of whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from observers.api import ConnectionChange, ObservedExchange
from observers.channel_muting import ChannelMuting
from observers.request_counter import RequestCounter
from observers.request_metrics_stats import RequestStats

PUBLISH_INTERVAL = 10.0
"""Seconds until principals, topics and groups that have become busy get counts of their own."""


class RequestMetricsObserver:
    """Implements ``ExchangeObserver`` and ``ConnectionObserver``."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Start with ``topic.names``: a ``TopicNames``."""
        self._lock = threading.Lock()
        self._muting = ChannelMuting()
        self._counter = RequestCounter(configs["topic.names"], self._muting)
        self._next_publish_at = 0.0

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        """Count ``exchanges``; those that were dropped are in ``brokerside_observer_dropped_total``."""
        now = time.monotonic()
        with self._lock:
            self._counter.add_exchanges(exchanges)
            if now >= self._next_publish_at:
                self._counter.publish()
                self._next_publish_at = now + PUBLISH_INTERVAL

    def record_changes(self, changes: Sequence[ConnectionChange], dropped: int) -> None:
        """Forget connections that ended."""
        with self._lock:
            for change in changes:
                if change.change == "closed":
                    self._muting.forget_connection(change.connection.id)

    def stats(self) -> RequestStats:
        """Current counts. Any thread may call this."""
        wall_offset = time.time() - time.monotonic()
        with self._lock:
            counter = self._counter
            return RequestStats(counter.apis(wall_offset), counter.principals(), counter.topics(), counter.groups())

    def close(self, timeout: float) -> None:
        """Nothing is left to do."""
