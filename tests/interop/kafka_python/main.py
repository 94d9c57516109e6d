"""kafka-python: see ``tests.interop`` for what every client program does."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import TopicAlreadyExistsError

POLL = 30_000
"""Milliseconds for one poll, in which joining the group has to fit: interrupted at the wrong moment of it, kafka-python
3.0.12 holds itself for a member with no partitions, for ever."""

CODECS: tuple[str | None, ...] = (None, "gzip")
"""The others need packages that kafka-python does not bring."""


def main() -> None:
    bootstrap, topic, group, client_id, partitions = sys.argv[1:]
    lines = sys.stdin.read().splitlines()
    common = {"bootstrap_servers": bootstrap, "client_id": client_id}
    if ca := os.environ.get("TLS_CA"):
        common |= {"security_protocol": "SSL", "ssl_cafile": ca}
    admin = KafkaAdminClient(**common)
    with suppress(TopicAlreadyExistsError):
        new = {topic: {"num_partitions": int(partitions), "replication_factor": 1}}
        admin.create_topics(new, wait_for_metadata=True)
    assert topic in admin.list_topics()
    (described,) = admin.describe_topics([topic])
    produced = 0
    for n, codec in enumerate(CODECS):
        with KafkaProducer(**common, acks="all", compression_type=codec) as producer:
            pairs = (line.split("\t") for line in lines[n :: len(CODECS)])
            sent = [producer.send(topic, key=key.encode(), value=value.encode()) for key, value in pairs]
            produced += len([future.get(timeout=120) for future in sent])
    consumed: list[str] = []
    with KafkaConsumer(
        topic, **common, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        while len(consumed) < len(lines):
            for records in consumer.poll(timeout_ms=POLL).values():
                consumed += [f"{record.key.decode()}\t{record.value.decode()}" for record in records]
        consumer.commit()
    committed = sum(offset.offset for offset in admin.list_group_offsets(group)[group].values())
    admin.close()
    report = {
        "client": "kafka-python",
        "version": kafka.__version__,
        "codecs": [codec or "none" for codec in CODECS],
        "partitions": len(described["partitions"]),
        "produced": produced,
        "consumed": len(consumed),
        "committed": committed,
        "sha256": hashlib.sha256("\n".join(sorted(consumed)).encode()).hexdigest(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
