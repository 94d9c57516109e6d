"""The jobs: what an event costs from the topic to the tables, and what the tables cost that are computed from those.

The topics are written here; what is measured is a process of its own, ``tests.bench.jobs_process``, which then ends.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from confluent_kafka import Producer
from msgspec import json

from observers.event import EVENTS_PER_RECORD, Envelope, RequestEvent, TopicPartition, encoder
from proxy.errors import LocalError
from tests.bench.audit_workload import APIS, SOFTWARE
from tests.bench.contestants import Contestant
from tests.bench.kafka import create_topic
from tests.bench.scenarios import Measured
from tests.bench.stage import Sizes, Stage

EVERY_US = 200
"""Time between two events: a broker of 5,000 requests/s."""

PARTITIONS = 4
FLUSH_TIMEOUT = 180.0
TIMEOUT = 3_600.0


@dataclass(frozen=True)
class Jobs:
    """The job over topics of so many clients each, and the tables that are computed from others over large ones.

    A client has about nine rows in each minute of ``traffic``: five of its requests, four of its topics.
    """

    name: str = "jobs"

    def rounds(self, sizes: Sizes) -> int:
        return 1  # it has rounds of its own, in one warm process

    def impossible(self) -> str:
        return ""

    def takes(self, contestant: Contestant) -> bool:
        return contestant.name == "brokerside-audit"

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        sizes = stage.sizes
        bootstrap = stage.start_cluster().internal_bootstrap
        topics = [f"{self.name}-{clients}" for clients in sizes.job_clients]
        for topic, clients in zip(topics, sizes.job_clients, strict=True):
            _fill(bootstrap, topic, sizes.job_events, clients)
        numbers = map(str, (sizes.job_events, sizes.job_rounds, sizes.table_rows))
        command = [sys.executable, "-m", "tests.bench.jobs_process", bootstrap, str(stage.folder / self.name), *numbers]
        with stage.everywhere():
            try:
                done = subprocess.run([*command, *topics], stdout=subprocess.PIPE, timeout=TIMEOUT, check=True)
            except subprocess.SubprocessError as error:
                raise LocalError(f"{command[2]}: {error}") from None
        # All of it is CPU of its own processes, which others disturb little.
        return Measured(json.decode(done.stdout, type=dict[str, float]), 0.0)


def _fill(bootstrap: str, topic: str, count: int, clients: int) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 50})
    events = _events(count, clients)
    for first in range(1, count + 1, EVENTS_PER_RECORD):
        some = list(islice(events, EVENTS_PER_RECORD))
        last, sent_at = first + len(some) - 1, some[-1].ts_request
        envelope = Envelope(1, "ThK9ZFduS0ONy_eg3SRv7w", 1, "5f0c4c0d9a4b4e0f", "0.1.0", first, last, 0, sent_at, some)
        producer.produce(topic, encoder.encode(envelope), partition=first // EVENTS_PER_RECORD % PARTITIONS)
        producer.poll(0)
    if left := producer.flush(FLUSH_TIMEOUT):
        raise LocalError(f"{topic}: {left} records of events were not acknowledged within {FLUSH_TIMEOUT:.0f} s")


def _events(count: int, clients: int) -> Iterator[RequestEvent]:
    """Requests of ``clients`` of two topics each; a third of the fetches waits for data in vain."""
    chance = random.Random(1)
    weights = [weight for *_, weight in APIS]
    for seq, (key, api, version, _) in enumerate(chance.choices(APIS, weights, k=count), 1):
        client = chance.randrange(clients)
        waits = key == 1 and chance.random() < 0.33
        parts = 0 if key > 1 or waits else chance.choice((1, 1, 2, 3))
        latency = 500_000 if waits else int(chance.lognormvariate(7, 1))
        software, software_version = SOFTWARE[client % len(SOFTWARE)]
        yield RequestEvent(
            seq=seq,
            listener="CLIENT",
            connection_id=f"c{client}",
            correlation_id=seq % 1_000_000,
            api_key=key,
            api=api,
            api_version=version,
            principal=f"User:team-{client % 40}",
            client_ip=f"10.0.{client // 250}.{client % 250}",
            ts_request=1_795_260_000_000_000 + seq * EVERY_US,
            latency_us=latency,
            upstream_us=max(latency - 40, 1),
            request_bytes=300,
            response_bytes=60,
            decode="full" if key < 2 else "none",
            client_id=f"service-{client}",
            client_software_name=software,
            client_software_version=software_version,
            max_wait_ms=500 if key == 1 else 0,
            acks=-1 if key == 0 else None,
            topics=tuple(_part(chance, key, 2 * client + chance.randrange(2)) for _ in range(parts)),
        )


def _part(chance: random.Random, key: int, number: int) -> TopicPartition:
    records, produced = chance.randrange(1, 60), key == 0
    return TopicPartition(
        topic=f"team-{number % 5}.orders-{number}",
        partition=chance.randrange(12),
        topic_id=f"{number:_>20}AA",
        bytes=200 * records,
        records=records,
        producer_id=1_000 + number if produced else -1,
        producer_epoch=0 if produced else -1,
        base_sequence=chance.randrange(1_000_000) if produced else -1,
        base_offset=chance.randrange(10_000_000),
    )
