"""What a sidecar told in the audit topic, read until its own account of it says that nothing is under way."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from observers.event import ConnectionEvent, Envelope, StatusEvent, decoder
from proxy.errors import LocalError

TIMEOUT = 60.0
"""Seconds until there has to be such an account; a sidecar gives one each ten seconds."""

PATIENCE = 10.0
"""Seconds in which all that is accounted for has to be found, then."""


@dataclass(frozen=True)
class Told:
    """The events of one run of one sidecar, up to a status."""

    status: StatusEvent
    kinds: Counter[str]
    """Events before the status, by kind."""
    requests: int
    """Requests that connections carried, as their ``closed`` events tell."""

    @property
    def lost(self) -> int:
        """Events that were lost, by the status."""
        return sum(self.status.dropped.values())


def read(bootstrap: str, topic: str) -> Told:
    """Read ``topic`` until a status from after this call leaves nothing to wait for. Raises LocalError without one.

    If it accounts for more than is there, the result is what is there.
    """
    since = time.time_ns() // 1000
    deadline = time.monotonic() + TIMEOUT
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    found: dict[int, Envelope] = {}
    last: StatusEvent | None = None
    try:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        while (last is None or _missing(found, last)) and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                value = message.value()
                if message.error() is None and value is not None:
                    envelope = decoder.decode(value)
                    found[envelope.first_seq] = envelope
                    if last is None and (last := _settled(envelope, since)) is not None:
                        deadline = min(deadline, time.monotonic() + PATIENCE)
    finally:
        consumer.close()
    if last is None:
        raise LocalError(f"no status in {topic} within {TIMEOUT:.0f} s that leaves nothing to wait for")
    return _told(found, last)


def _settled(envelope: Envelope, since: int) -> StatusEvent | None:
    """The status in ``envelope`` from after ``since`` by which nothing waits; None if there is none."""
    for event in envelope.events:
        if isinstance(event, StatusEvent) and event.ts > since and not (event.waiting or event.queued or event.spooled):
            return event
    return None


def _missing(found: dict[int, Envelope], last: StatusEvent) -> int:
    """Events that ``last`` accounts for, that were not lost, and that are not there."""
    there = sum(event.seq <= last.emitted for envelope in found.values() for event in envelope.events)
    return last.emitted - sum(last.dropped.values()) - there


def _told(found: dict[int, Envelope], last: StatusEvent) -> Told:
    events = [event for envelope in found.values() for event in envelope.events if event.seq <= last.emitted]
    return Told(
        last,
        Counter(str(event.__struct_config__.tag) for event in events),
        sum(event.requests for event in events if isinstance(event, ConnectionEvent)),
    )
