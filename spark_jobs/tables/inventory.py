"""The table ``inventory``: which topics existed, by hour. Pure."""

from __future__ import annotations

from typing import Any

from spark_jobs.events import DAY_US, HOUR_US
from spark_jobs.partial_rows import PartialRows


def add_inventory(rows: PartialRows, envelope: Any, event: Any) -> None:
    """Add a row for each topic of a list. Most of its columns have the value of the last list with the topic."""
    at = event.ts
    of_list = (at // DAY_US, at - at % HOUR_US, envelope.cluster_id)
    part, parts = (at, event.part), (at, event.parts)
    for one in event.inventory:
        topic_id = None if one.topic_id is None else (at, one.topic_id)
        rows.add(
            "inventory", (*of_list, one.topic), [topic_id, one.partitions, (at, one.internal), part, parts, at, at, 1]
        )
