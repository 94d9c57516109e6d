"""A process that observes and numbers events as a sidecar does, and keeps its own count of them, until it is killed.

``python -m tests.faults.emitter <bootstrap> <spool> <boot id> <truth> <events a second>``. ``truth``: a file of pairs
of eight bytes, one each time: when (monotonic nanoseconds), and how many were observed by then.
"""

import struct
import sys
import time
from pathlib import Path

from observers.audit_producer import AuditProducer, producer_settings
from observers.event import RequestEvent, encoder
from observers.event_blocks import Chunk
from observers.kafka_admin import KafkaAdmin
from observers.outbox import Outbox
from observers.spool_runs import SpoolSettings

BROKER = 7
TOPIC = "brokerside-audit"
TICK_INTERVAL = 0.02
EVENT = RequestEvent(0, "CLIENT", "c1", 5, 3, "Metadata", 12, "User:somebody", "10.0.0.7", 1, 2, 50)


def outbox(bootstrap: str, spool: Path | None, boot_id: str, *, max_bytes: int = 1 << 30) -> Outbox:
    """One of broker 7."""
    client = {"bootstrap.servers": bootstrap}
    admin = KafkaAdmin(client, "brokerside-audit-7")
    settings = producer_settings(client, {"topic.metadata.propagation.max.ms": 500}, "brokerside-audit-7")
    return Outbox(
        lambda on_settled: AuditProducer(admin, settings, TOPIC, on_settled),
        broker_id=BROKER,
        boot_id=boot_id,
        sidecar_version="0",
        schema_level=1,
        spool=None if spool is None else SpoolSettings(str(spool), max_bytes),
    )


def emit(box: Outbox, count: int) -> None:
    """Number ``count`` events, which were observed just before."""
    with box.sequence_lock:
        first = box.seq + 1
        events = []
        for seq in range(first, first + count):
            EVENT.seq = EVENT.correlation_id = seq
            EVENT.connection_id = f"c{seq * 7919 % 1000}"
            EVENT.latency_us = seq * 7919 % 10_007
            events.append(encoder.encode(EVENT))
        chunks = [
            Chunk(first + at, len(part), b",".join(part))
            for at in range(0, count, 50)
            if (part := events[at : at + 50])
        ]
        box.add_events(chunks, first + count - 1, {}, count, 0)


def main(bootstrap: str, spool: str, boot_id: str, truth: str, rate: str) -> None:
    box = outbox(bootstrap, Path(spool), boot_id)
    box.start(lambda: None)
    with Path(truth).open("ab", buffering=0) as counts:
        begun = time.monotonic()
        observed = 0
        while True:
            due = int((time.monotonic() - begun) * float(rate)) - observed
            if due > 0:
                observed += due
                counts.write(struct.pack("<qq", time.monotonic_ns(), observed))
                box.observed[0] += due
                emit(box, due)
            time.sleep(TICK_INTERVAL)


if __name__ == "__main__":
    main(*sys.argv[1:])
