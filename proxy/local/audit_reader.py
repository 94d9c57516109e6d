"""Reads a sidecar's events from the audit topic, until its status event says that none is still to be delivered."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from observers.account_events import StatusEvent
from observers.event import ConnectionEvent, Envelope, decoder
from proxy.errors import LocalError

STATUS_TIMEOUT = 180.0
"""Seconds until there has to be such a status event; a sidecar writes one every ten seconds."""

SETTLING_US = 2_000_000
"""µs after which a sidecar has seen the end of connections that clients have just closed."""

SETTLE_TIMEOUT = 60.0
"""Seconds from that status event until all events before it have to be read."""


@dataclass(frozen=True)
class AuditTotals:
    """Totals of the events of one run of one sidecar, up to a status event."""

    status: StatusEvent
    kinds: Counter[str]
    """Events before the status, by kind."""
    requests: int
    """Requests of all connections, by their ``closed`` events."""

    @property
    def lost(self) -> int:
        """Events that were lost, by the status event."""
        return sum(self.status.dropped.values())


def read_totals(bootstrap: str, topic: str) -> AuditTotals:
    """Read ``topic`` until a status event from soon after this call says that nothing waits.

    Raises LocalError without one. If events before it are missing in the topic, the totals are of those that are there.
    """
    since = time.time_ns() // 1000 + SETTLING_US
    deadline = time.monotonic() + STATUS_TIMEOUT
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    found: dict[int, Envelope] = {}
    last: StatusEvent | None = None
    try:
        partitions = consumer.list_topics(topic, timeout=STATUS_TIMEOUT).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        while (last is None or _count_missing(found, last)) and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                value = message.value()
                if message.error() is None and value is not None:
                    envelope = decoder.decode(value)
                    found[envelope.first_seq] = envelope
                    if last is None and (last := _settled_status(envelope, since)) is not None:
                        deadline = min(deadline, time.monotonic() + SETTLE_TIMEOUT)
    finally:
        consumer.close()
    if last is None:
        raise LocalError(f"no status in {topic} within {STATUS_TIMEOUT:.0f} s that leaves nothing to wait for")
    return _count(found, last)


def _settled_status(envelope: Envelope, since: int) -> StatusEvent | None:
    """Return the status event in ``envelope`` from after ``since`` by which nothing waits; None if there is none."""
    for event in envelope.events:
        if isinstance(event, StatusEvent) and event.ts > since and not (event.waiting or event.queued or event.spooled):
            return event
    return None


def _count_missing(found: dict[int, Envelope], last: StatusEvent) -> int:
    """Return the number of events that ``last`` counts as emitted, and not as lost, and that were not found."""
    there = sum(event.seq <= last.emitted for envelope in found.values() for event in envelope.events)
    return last.emitted - sum(last.dropped.values()) - there


def _count(found: dict[int, Envelope], last: StatusEvent) -> AuditTotals:
    events = [event for envelope in found.values() for event in envelope.events if event.seq <= last.emitted]
    return AuditTotals(
        last,
        Counter(str(event.__struct_config__.tag) for event in events),
        sum(event.requests for event in events if isinstance(event, ConnectionEvent)),
    )
