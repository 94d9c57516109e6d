"""What sidecars observe of groups: the tables ``group_members``, ``committed_offsets`` and ``end_offsets``. Pure."""

from __future__ import annotations

from typing import Any

from spark_jobs.events import DAY_US, MINUTE_US
from spark_jobs.partial_rows import PartialRows

SECOND_US = 1_000_000


def add_group(rows: PartialRows, envelope: Any, event: Any) -> None:
    """Add a row of a member, rows of its topics, and of the offsets that it committed."""
    last, cluster_id = event.ts_last, envelope.cluster_id
    before = (last // DAY_US, cluster_id, envelope.broker_id, event.listener, event.group_id)
    after = (event.member_id, event.group_instance_id, event.principal, event.client_id, event.client_ip)
    kind = None if event.group_type is None else (last, event.group_type)
    generation = None if event.generation_id < 0 else (last, event.generation_id)
    counts = [event.requests, event.commits, event.offsets_not_listed]
    seen = [event.ts_first, last]
    rows.add("group_members", (*before, None, *after), [kind, generation, *counts, *seen, None])
    topics = [(one.topic, one.ts) for one in event.committed] + [(name, None) for name in event.fetched]
    for topic, committed_at in topics:
        rows.add("group_members", (*before, topic, *after), [kind, generation, 0, 0, 0, *seen, committed_at])
    for one in event.committed:
        at = one.ts
        key = (at // DAY_US, at - at % MINUTE_US, cluster_id, event.group_id, one.topic, one.partition)
        rows.add("committed_offsets", key, [(at, one.offset), (at, one.transactional), at])


def add_end_offsets(rows: PartialRows, envelope: Any, event: Any) -> None:
    """Add a row for each partition of which the event has the end."""
    for one in event.end_offsets:
        at = one.ts
        second = at - at % SECOND_US  # within it the highest holds, as in the sidecars
        key = (at // DAY_US, at - at % MINUTE_US, envelope.cluster_id, one.topic, one.partition)
        rows.add("end_offsets", key, [(second, one.offset), second])
