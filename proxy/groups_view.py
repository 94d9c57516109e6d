"""Groups of consumers as text for a person."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from proxy.coordinator.status import ConsumerStatus, GroupsListing, GroupStatus
from proxy.text_table import format_table, printable

GROUP_COLUMNS = ("GROUP", "STATE", "GENERATION", "LEVEL", "MEMBERS", "PARTITIONS", "UNOWNED", "LAST REBALANCE")
LEFT_OF_GROUPS = (0, 1, 7)
CONSUMER_COLUMNS = ("CONSUMER", "STATE", "PRINCIPAL", "ADDRESS", "TIMEOUT", "THREADS", "PARTITIONS", "LAST HEARD")
LEFT_OF_CONSUMERS = (0, 1, 2, 3)
PARTITION_COLUMNS = ("TOPIC", "PARTITION", "OFFSET", "THREAD")
LEFT_OF_PARTITIONS = (0, 3)

MAX_CELL = 40
"""Characters of a text in the table; longer ones are cut and end in ``…``."""

NO_GROUPS = "no groups are coordinated by this sidecar"


def format_groups(listing: GroupsListing, now: float) -> str:
    """Return the table of all groups. ``now``: seconds since 1970."""
    if listing.reason is not None:
        return f"{NO_GROUPS}: {listing.reason}"
    if not listing.groups:
        return NO_GROUPS
    rows = [_row(one, now) for one in sorted(listing.groups, key=lambda one: one.group_id)]
    return format_table(GROUP_COLUMNS, rows, left=LEFT_OF_GROUPS)


def format_group(group: GroupStatus, now: float) -> str:
    """Return one group with its consumers, and who reads each partition."""
    parts = [format_table(GROUP_COLUMNS, [_row(group, now)], left=LEFT_OF_GROUPS)]
    if group.failure is not None:
        parts.append(f"the last rebalance has failed: {printable(group.failure)}")
    consumers = sorted(group.consumers, key=lambda one: one.consumer_id)
    if consumers:
        rows = [_consumer_row(one, now) for one in consumers]
        parts.append(format_table(CONSUMER_COLUMNS, rows, left=LEFT_OF_CONSUMERS))
    owned = sorted(row for one in consumers for row in _owned(one))
    if owned:
        rows_of_partitions = [
            (_cell(topic), str(partition), "-" if offset is None else f"{offset:,}", _cell(thread))
            for topic, partition, thread, offset in owned
        ]
        parts.append(format_table(PARTITION_COLUMNS, rows_of_partitions, left=LEFT_OF_PARTITIONS))
    return "\n\n".join(parts)


def dump_paths(groups: Iterator[GroupStatus], broker_id: int) -> Iterator[str]:
    """Give the paths that Kafka's consumers once had in ZooKeeper, as seed 001 lists them in section 4."""
    yield f"/consumers/coordinator -> {broker_id}"
    for group in groups:
        root = f"/consumers/{quote(group.group_id, safe='')}"
        for one in sorted(group.consumers, key=lambda one: one.consumer_id):
            yield f"{root}/ids/{quote(one.consumer_id, safe='')} -> {printable(one.topic_count)}"
        for topic, partition, thread, _ in sorted(row for one in group.consumers for row in _owned(one)):
            yield f"{root}/owners/{topic}/{partition} -> {quote(thread, safe='')}"


def _owned(one: ConsumerStatus) -> Iterator[tuple[str, int, str, int | None]]:
    """Give topic, partition, thread, and the offset that was reported last."""
    for thread, topics in one.threads.items():
        for topic, partitions in topics.items():
            offsets = one.offsets.get(topic, {})
            for partition in partitions:
                yield topic, partition, thread, offsets.get(partition)


def _row(one: GroupStatus, now: float) -> tuple[str, ...]:
    last = one.last_rebalance
    return (
        _cell(one.group_id),
        f"{one.state}, frozen" if one.frozen else one.state,
        f"{one.generation:,}",
        str(one.level),
        f"{one.members:,}",
        f"{one.owned + one.unowned:,}",
        f"{one.unowned:,}",
        "-" if last is None else f"{last.reason}, {last.duration_ms:,} ms, {_ago(now - last.at)}",
    )


def _consumer_row(one: ConsumerStatus, now: float) -> tuple[str, ...]:
    partitions = sum(len(found) for topics in one.threads.values() for found in topics.values())
    return (
        _cell(one.consumer_id),
        one.state,
        _cell(one.principal),
        one.client_ip or "-",
        f"{one.session_timeout_ms:,} ms",
        f"{len(one.threads):,}",
        f"{partitions:,}",
        "-" if one.last_heard is None else _ago(now - one.last_heard),
    )


def _cell(text: str) -> str:
    shown = printable(text or "-")
    return shown if len(shown) <= MAX_CELL else shown[: MAX_CELL - 1] + "…"


def _ago(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.1f} s ago"
