"""Real clients through the sidecar: what they do, and that they read back what they wrote; and throttle
times of events, with real quotas."""

import hashlib
import time
import uuid

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from kafka.record.default_records import DefaultRecordBatchBuilder

from observers.event import RequestEvent
from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.core.struct import view
from proxy.local.cluster import ClusterState
from tests.integration.librdkafka import LARGE, consume, produce
from tests.integration.logins import Own
from tests.integration.quotas import ALTER, Peer, alter, error_of
from tests.integration.sidecars import until
from tests.integration.test_audit import envelopes, events
from tests.integration.topics import committed

pytestmark = pytest.mark.kafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.promise(
    "README.md", "Clients stay as they are: through the sidecar they read back what they produced, with every codec."
)
@pytest.mark.promise(
    "supported-versions.md", "Consumer groups of both protocols work through a sidecar, and their offsets are kept."
)
def test_groups_of_both_protocols_read_back_what_was_produced_with_every_codec(cluster, sidecar, topic):
    values = [[f"{codec} {n} ".encode() * (n % 50 + 1) for n in range(200)] for codec in CODECS]
    for codec, some in zip(CODECS, values, strict=True):
        assert produce(cluster.bootstrap, topic, some, **{"compression.type": codec}) == 200
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for protocol in ("classic", "consumer"):
        group = f"{protocol}-{topic}"
        read = consume(cluster.bootstrap, topic, 1000, **{"group.id": group, "group.protocol": protocol})
        assert sorted(read) == sorted(value for some in values for value in some), protocol
        assert sum(committed(admin, group).values()) == 1000
        assert group in {listed.group_id for listed in admin.list_consumer_groups().result(180).valid}


@pytest.mark.promise("supported-versions.md", "Transactions commit and abort through a sidecar.")
def test_transactions_commit_and_abort(cluster, sidecar, topic):
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"x-{topic}"})
    producer.init_transactions(60)
    for kind in ("aborted", "committed"):
        producer.begin_transaction()
        for n in range(50):
            producer.produce(topic, f"{kind} {n}".encode())
        (producer.commit_transaction if kind == "committed" else producer.abort_transaction)(60)
    read = consume(cluster.bootstrap, topic, 50, **{"isolation.level": "read_committed"})
    assert sorted(read) == sorted(f"committed {n}".encode() for n in range(50))


@pytest.mark.promise("supported-versions.md", "Administration of topics and settings works through a sidecar.")
def test_admin_calls(cluster, sidecar):
    """The broker hears from the controller later what has been created, or deleted."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    name = f"a-{uuid.uuid4().hex[:8]}"
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)

    def is_deleted():
        try:
            admin.describe_configs([resource])[resource].result(180)
        except KafkaException as error:
            return error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        return False

    admin.create_topics([NewTopic(name, 1, 1)])[name].result(180)
    admin.create_partitions([NewPartitions(name, 3)])[name].result(180)
    until(lambda: len(admin.list_topics(name, timeout=30).topics[name].partitions) == 3)
    assert admin.describe_configs([resource])[resource].result(180)["cleanup.policy"].value == "delete"
    assert admin.describe_cluster().result(180).nodes[0].id == 1
    admin.delete_topics([name])[name].result(180)
    until(is_deleted)


@pytest.mark.promise("architecture.md", "A record of 50 MB passes the sidecar unchanged.")
def test_a_50_mb_record(cluster, sidecar, topic):
    value = hashlib.sha256(b"seed").digest() * (LARGE // 32)
    assert produce(cluster.bootstrap, topic, [value], **{"message.max.bytes": 2 * LARGE}) == 1
    limits = {
        "fetch.message.max.bytes": 2 * LARGE,
        "fetch.max.bytes": 2 * LARGE,
        "receive.message.max.bytes": 3 * LARGE,
    }
    (read,) = consume(cluster.bootstrap, topic, 1, **limits)
    assert hashlib.sha256(read).digest() == hashlib.sha256(value).digest()


PRODUCE, FETCH = 0, 1
RATE = 20_000
"""Bytes a second of the quotas. Kafka looks at some ten seconds: what exceeds them at once is throttled then."""

SIZE = 25_000
"""Bytes of a request or response: a second and a quarter of the quota."""


@pytest.fixture
def limited(cluster):
    client_id = f"limited-{uuid.uuid4().hex[:8]}"
    keys = ("producer_byte_rate", "consumer_byte_rate")
    with Peer(cluster.internal_bootstrap) as peer:
        for remove in (False, True):
            body = alter([("client-id", client_id)], *((key, RATE, remove) for key in keys))
            assert error_of(ALTER, 0, peer.ask(ALTER, 0, body)) == (0, "")
            if not remove:
                yield client_id


def produced(client: Own, topic: str) -> tuple[int, int]:
    """Produce a record: the error, and how many ms the broker asks to wait."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2 * SIZE)
    builder.append(0, None, None, b"x" * SIZE, [])
    part = {"Index": 0, "Records": bytes(builder.build())}
    asked = {"Acks": 1, "TimeoutMs": 10_000, "TopicData": [{"Name": topic, "PartitionData": [part]}]}
    answer = client.ask(PRODUCE, 7, encode(layout(PRODUCE, 7, response=False), asked))
    read = view(PRODUCE, 7, answer, response=True)
    return read.get("Responses")[0].get("PartitionResponses")[0].get("ErrorCode"), read.get("ThrottleTimeMs")


def fetched(client: Own, topic: str) -> tuple[int, int]:
    """The same of one batch."""
    part = {"CurrentLeaderEpoch": -1, "LogStartOffset": -1, "PartitionMaxBytes": 1}
    asked = {"ReplicaId": -1, "MaxWaitMs": 100, "MinBytes": 1, "MaxBytes": 1 << 20, "SessionEpoch": -1}
    asked["Topics"] = [{"Topic": topic, "Partitions": [part]}]
    answer = client.ask(FETCH, 11, encode(layout(FETCH, 11, response=False), asked))
    read = view(FETCH, 11, answer, response=True)
    return read.get("ErrorCode"), read.get("ThrottleTimeMs")


@pytest.mark.slow
@pytest.mark.promise("audit-event.md", "The throttle time of an event is that of the broker's response.")
def test_they_are_those_of_the_wire(cluster, sidecar, topic, limited):
    read: list[tuple[int, int]] = []
    with Own(cluster.bootstrap, "unlimited") as client:
        until(lambda: produced(client, topic)[0] == 0)
    with Own(cluster.bootstrap, limited) as client:
        for key, ask in ((PRODUCE, produced), (FETCH, fetched)):
            throttled = 0
            while throttled < 3:  # some moments after it was set the quota acts, and then goes on to
                assert len(read) < 100, "the quota never acted"
                error_code, throttle_ms = ask(client, topic)
                assert error_code == 0
                read.append((key, throttle_ms))
                throttled += throttled > 0 or throttle_ms > 0
                time.sleep(0.0 if throttled else 0.2)
    reported = until(lambda: events_of(cluster, limited, len(read)))
    assert [(event.api_key, event.throttle_ms) for event in reported] == read
    assert [event.correlation_id for event in reported] == list(range(1, len(read) + 1))


def events_of(cluster: ClusterState, client_id: str, count: int) -> list[RequestEvent]:
    every = events(envelopes(cluster.internal_bootstrap, "brokerside-audit"), RequestEvent)
    found = [event for event in every if event.client_id == client_id]
    return found if len(found) == count else []
