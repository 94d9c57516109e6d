"""A reproducible mix of real audit events, as a busy broker makes them."""

from __future__ import annotations

import random

from observers.event import RequestEvent, TopicPartition

APIS = [
    (0, "Produce", 13, 45),
    (1, "Fetch", 18, 40),
    (3, "Metadata", 13, 3),
    (12, "Heartbeat", 4, 7),
    (8, "OffsetCommit", 9, 5),
]
TOPICS = [f"team-{n % 5}.orders-{n}" for n in range(20)]
SOFTWARE = [("apache-kafka-java", "4.3.1"), ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"), (None, None)]


def events(count: int, seed: int = 1) -> list[RequestEvent]:
    """Return ``count`` events with numbers from 1: 50 clients, 20 topics of 12 partitions, one to three a request."""
    rnd = random.Random(seed)
    clients = [
        (f"c{n}", f"service-{n % 17}", f"User:svc-{n % 9}", f"10.0.{n % 4}.{n}", *rnd.choice(SOFTWARE))
        for n in range(50)
    ]
    apis = rnd.choices(APIS, weights=[api[3] for api in APIS], k=count)
    now = 1_795_260_000_000_000
    made = []
    for seq, (key, api, version, _) in enumerate(apis, 1):
        connection, client_id, principal, ip, name, software = rnd.choice(clients)
        now += rnd.randrange(20, 400)
        topics = tuple(_part(rnd, key) for _ in range(rnd.choice((1, 1, 2, 3)))) if key < 2 else ()
        made.append(
            RequestEvent(
                seq=seq,
                listener="CLIENT",
                connection_id=connection,
                correlation_id=rnd.randrange(1_000_000),
                api_key=key,
                api=api,
                api_version=version,
                principal=principal,
                client_ip=ip,
                ts_request=now,
                latency_us=int(rnd.lognormvariate(7, 1)),
                request_bytes=90 + sum(t.bytes for t in topics if key == 0),
                response_bytes=60 + sum(t.bytes for t in topics if key == 1),
                decode="full" if key < 2 else "none",
                client_id=client_id,
                client_software_name=name,
                client_software_version=software,
                max_wait_ms=500 if key == 1 else 0,
                acks=-1 if key == 0 else None,
                topics=topics,
            )
        )
    return made


def _part(rnd: random.Random, key: int) -> TopicPartition:
    topic = rnd.choice(TOPICS)
    records = rnd.randrange(1, 60)
    produced = key == 0
    return TopicPartition(
        topic=topic,
        partition=rnd.randrange(12),
        topic_id=f"{topic:_<20}AA".replace(".", "-")[:22],
        bytes=records * rnd.randrange(60, 400),
        records=records,
        producer_id=rnd.randrange(1000, 1050) if produced else -1,
        producer_epoch=0 if produced else -1,
        base_sequence=rnd.randrange(1_000_000) if produced else -1,
        base_offset=rnd.randrange(10_000_000),
    )
