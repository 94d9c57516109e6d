"""The table ``throttles``: which connections met which quota, by minute. Pure."""

from __future__ import annotations

from typing import Any

from spark_jobs.events import DAY_US, MINUTE_US
from spark_jobs.partial_rows import PartialRows


def add_throttle(rows: PartialRows, envelope: Any, event: Any) -> None:
    """Add the row of one event."""
    first = event.ts_first
    about = (event.listener, event.client_ip, event.scope, event.principal or None, event.quota, event.action)
    key = (first // DAY_US, first - first % MINUTE_US, envelope.cluster_id, envelope.broker_id, *about)
    rows.add("throttles", key, [event.count, event.limit, event.observed, event.delay_ms, first, event.ts_last])
