"""Many requests in one event (``audit.mode: rollup``): the bounds of a rollup, and its division into events."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from observers.event import RollupEvent, RollupTopic

MAX_ROLLUPS = 10_000
"""Rollups held at a time, about 1 KiB each. With more, all are emitted before the interval ends."""

MAX_ROLLUP_TOPICS = 50_000
"""Topics in all rollups together, about 0.6 KiB each. With more, all are emitted before the interval ends."""

TOPICS_PER_ROLLUP_EVENT = 1_000


class RollupProgress(Struct, frozen=True):
    """How many exchanges were processed, and counts of those that are in no rollup."""

    until: int
    """Index in the sequence of the first exchange that was not processed."""
    hidden: int
    failed: int
    not_encodable: int


def split_rollup(event: RollupEvent, topics: Sequence[RollupTopic], polled: Sequence[str]) -> list[RollupEvent]:
    """Return ``event`` with the first of ``topics`` and ``polled``, and as many of its key as the others need."""
    events = [event]
    for at in range(0, max(len(topics), len(polled)), TOPICS_PER_ROLLUP_EVENT):
        if at:
            events.append(_rollup_without_sums(event))
        events[-1].per_topic = tuple(topics[at : at + TOPICS_PER_ROLLUP_EVENT])
        events[-1].polled = tuple(polled[at : at + TOPICS_PER_ROLLUP_EVENT])
    return events


def _rollup_without_sums(first: RollupEvent) -> RollupEvent:
    return RollupEvent(
        seq=0,
        minute=first.minute,
        listener=first.listener,
        api_key=first.api_key,
        api=first.api,
        principal=first.principal,
        client_ip=first.client_ip,
        requests=0,
        request_bytes=0,
        client_id=first.client_id,
        principal_source=first.principal_source,
        api_version=first.api_version,
        client_software_name=first.client_software_name,
        client_software_version=first.client_software_version,
    )


def trim_trailing_zeros(counts: Sequence[int]) -> tuple[int, ...]:
    """Return ``counts`` without the zeros at their end."""
    used = len(counts)
    while used and not counts[used - 1]:
        used -= 1
    return tuple(counts[:used])
