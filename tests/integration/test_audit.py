"""The audit observer against a real broker: what it emits arrives, and what does not arrive is counted."""

import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64decode
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from observers.account_events import GapEvent, StatusEvent
from observers.audit import AuditObserver
from observers.cluster_events import EndOffsetsEvent, InventoryEvent
from observers.event import (
    ROLLUP_BUCKETS,
    ConnectionEvent,
    Envelope,
    RequestEvent,
    RollupEvent,
    ThrottleEvent,
    decoder,
)
from observers.event import TopicPartition as PartitionOfEvent
from observers.kafka_admin import AUDIT_PARTITIONS, KafkaAdmin, client_id_of
from observers.topic_names import TopicNames
from proxy.core.apis import APIS
from proxy.core.exchange import ConnectionTransition
from proxy.core.response_errors import FAILURE, severity
from proxy.local.workload import create_topics
from proxy.telemetry.request_metrics import BUCKET_ENDS
from tests.integration import librdkafka
from tests.integration.metrics import sample
from tests.integration.quotas import Asker
from tests.integration.sidecars import config_of, running, until
from tests.integration.topics import described, new_topic
from tests.tools.topic import create, messages
from tests.unit.observers.samples import connection, exchange, produce, report

pytestmark = pytest.mark.kafka


def configs(bootstrap: str, topic: str, **audit: Any) -> dict[str, Any]:
    """Of a second worker, which emits no inventory."""
    return {
        "worker": 2,
        "broker.id": 1,
        "boot.id": f"boot-{topic}",
        "sidecar.version": "0.1.0",
        "internal": {"bootstrap.servers": bootstrap},
        "topic.names": TopicNames(KafkaAdmin({"bootstrap.servers": bootstrap}, "test").list_topic_names),
        "audit": {"topic": topic, **audit},
        "api.names": {key: api.name for key, api in APIS.items()},
    }


def auditing(bootstrap: str, topic: str, **audit: Any) -> AuditObserver:
    observer = AuditObserver()
    observer.configure(configs(bootstrap, topic, **audit))
    return observer


def envelopes(bootstrap: str, topic: str) -> list[Envelope]:
    """Every record of ``topic``, by first number."""
    read: list[Envelope] = []
    for message in messages(bootstrap, topic):
        assert message.key() is None
        read.append(decoder.decode(message.value() or b""))
    return sorted(read, key=lambda e: e.first_seq)


def events(read: list[Envelope], kind: Any = object) -> list[Any]:
    """Events of this kind but for statuses in between, by number."""
    reported = [event for e in read for event in e.events]
    return [
        event
        for event in reported
        if isinstance(event, kind) and not (isinstance(event, StatusEvent) and not event.last)
    ]


def touched(read: list[Envelope]) -> list[PartitionOfEvent]:
    return [part for e in read for event in e.events if isinstance(event, RequestEvent) for part in event.topics]


def gaps(read: list[Envelope]) -> int:
    """Sum of the gaps between records; fails on an overlap or on a record that is not what it says."""
    missing, expected = 0, 1
    for envelope in read:
        assert envelope.first_seq >= expected
        assert [e.seq for e in envelope.events] == list(range(envelope.first_seq, envelope.last_seq + 1))
        missing += envelope.first_seq - expected
        expected = envelope.last_seq + 1
    return missing


@pytest.fixture(autouse=True)
def _few_statuses(monkeypatch):
    """There is one at the end alone, however long a test takes."""
    monkeypatch.setattr("observers.event_observer.STATUS_INTERVAL", 3600.0)


@pytest.fixture
def bootstrap(cluster):
    return cluster.internal_bootstrap


class TestDelivery:
    @pytest.mark.promise("audit-event.md", "Events are on the topic once and in sequence, in each mode.")
    def test_every_event_arrives_once_and_in_sequence(self, bootstrap):
        for mode, level in (("event", 1), ("rollup", 2)):
            topic = f"audit-{mode}"
            observer = auditing(bootstrap, topic, **{"mode": mode, "rollup.interval.ms": 200})
            for n in range(50):
                observer.record_exchanges([produce([(b"orders", 0, 100, 3)], correlation_id=n) for _ in range(61)], 0)
            observer.close(60)
            stats = observer.stats()
            assert (stats.emitted, stats.dropped, stats.queued) == (stats.delivered, {}, 0)
            read = envelopes(bootstrap, topic)
            assert gaps(read) == 0
            assert (events(read)[-1].last, events(read)[-1].seq) == (True, stats.emitted)
            assert len(read) == stats.records_delivered
            assert {(e.schema_level, e.broker_id, e.boot_id, e.dropped) for e in read} == {
                (level, 1, f"boot-{topic}", 0)
            }
            assert {len(e.cluster_id) for e in read} == {22}
            if mode == "event":
                assert len(events(read, RequestEvent)) == 3050
                assert sum(part.records for part in touched(read)) == 3 * 3050
            else:
                rollups = events(read, RollupEvent)
                assert (len(rollups) < 50, events(read, RequestEvent)) == (True, [])
                assert sum(event.requests for event in rollups) == 3050
                assert sum(part.records for event in rollups for part in event.per_topic) == 3 * 3050

    @pytest.mark.promise("audit-event.md", "A gap in the numbers is a loss, and a gap event says why.")
    def test_a_loss_shows_as_a_gap_and_in_dropped_and_has_its_reason(self, bootstrap):
        observer = auditing(bootstrap, "audit-gap")
        observer.record_exchanges([exchange()] * 5, 0)
        observer.record_exchanges([exchange()] * 5, 40)
        until(lambda: observer.stats().delivered >= 11)  # without further traffic
        observer.close(60)
        stats = observer.stats()
        assert (stats.emitted - stats.delivered, stats.dropped) == (40, {"observer_queue": 40})
        read = envelopes(bootstrap, "audit-gap")
        assert [event.seq for event in events(read, RequestEvent)] == [1, 2, 3, 4, 5, 46, 47, 48, 49, 50]
        assert gaps(read) == read[-1].dropped == 40
        (gap,) = events(read, GapEvent)
        assert (gap.reason, gap.lost_boot_id) == ("observer_queue", "boot-audit-gap")
        assert (gap.lost_first_seq, gap.lost_last_seq, gap.seq) == (6, 45, 51)

    @pytest.mark.promise("audit-event.md", "The last status of a run balances what was seen and emitted.")
    def test_each_kind_arrives_and_the_last_status_balances(self, bootstrap, cluster):
        observer, topic, kinds = AuditObserver(), "audit-kinds", new_topic(cluster)
        with Asker(cluster.nodes[0].upstream) as asker:
            topic_id = urlsafe_b64decode(described(asker, kinds)["TopicId"] + "==")
        known = produce([(topic_id, 0, 10, 1)], ids=True)
        observer.configure(
            {**configs(bootstrap, topic, **{"inventory.interval.ms": 100, "exclude.topics": ["secret"]}), "worker": 1}
        )
        observer.observed[0] = 5
        observer.record_exchanges([exchange(), produce([(b"secret", 0, 10, 1)]), known], 0)
        observer.record_changes([ConnectionTransition(connection(), "closed", 1.0)], 0)
        observer.record_throttles([report()], 0)
        until(lambda: observer.stats().delivered >= 5)
        observer.close(60)
        read = envelopes(bootstrap, topic)
        assert {type(event) for event in events(read)} - {EndOffsetsEvent} == {
            RequestEvent, ConnectionEvent, ThrottleEvent, InventoryEvent, StatusEvent,
        }  # fmt: skip
        assert [part.topic for part in touched(read)] == [kinds], "an id is resolved to its name"
        listed = {topic.topic: topic for topic in events(read, InventoryEvent)[-1].inventory}
        assert listed[kinds].partitions == 3
        assert topic not in listed
        (status,) = events(read, StatusEvent)
        assert (status.seen, status.hidden, status.waiting, status.last) == (5, 1, 0, True)
        assert status.emitted == status.seq - 1 == len(events(read)) - 1


@pytest.mark.promise("audit-delivery.md", "A sidecar creates the audit topic with its settings.")
def test_the_topic_is_created_once_with_its_settings_even_by_two_sidecars_at_once(bootstrap):
    observers = [auditing(bootstrap, "audit-created") for _ in range(2)]
    for observer in observers:
        observer.record_exchanges([exchange()], 0)
    for observer in observers:
        observer.close(60)
        assert observer.stats().delivered == observer.stats().emitted
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_topics(timeout=20).topics["audit-created"].partitions
    assert len(listed) == AUDIT_PARTITIONS
    assert {len(p.replicas) for p in listed.values()} == {1}
    resource = ConfigResource(ConfigResource.Type.TOPIC, "audit-created")
    config = admin.describe_configs([resource])[resource].result()
    settings = {
        name: config[name].value for name in ("cleanup.policy", "message.timestamp.type", "min.insync.replicas")
    }
    assert settings == {
        "cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime", "min.insync.replicas": "1",
    }  # fmt: skip


@pytest.mark.promise("audit-delivery.md", "Without a cluster nothing blocks, and losses are no_cluster.")
def test_without_a_cluster_nothing_blocks_and_every_loss_has_its_reason():
    begun = time.monotonic()
    observer = auditing("127.0.0.1:1", "audit-nobody")
    for _ in range(300):
        observer.record_exchanges([exchange()] * 100, 0)
    assert time.monotonic() - begun < 60, "each of the calls would wait for a cluster"
    stats = observer.stats()
    assert stats.emitted == stats.delivered + sum(stats.dropped.values()) + stats.spooled + stats.queued
    assert stats.queued == stats.emitted
    begun = time.monotonic()
    observer.close(0.5)
    assert time.monotonic() - begun < 60
    stats = observer.stats()
    assert (stats.delivered, stats.dropped, stats.queued) == (0, {"no_cluster": stats.emitted}, 0)


@pytest.mark.promise("audit-event.md", "Requests on the audit topic or by the sidecar's client id have events.")
def test_every_request_has_its_event(cluster, tmp_path):
    """Also under the sidecar's own client id, on the audit topic, and those that the sidecar answers itself."""
    node = cluster.nodes[0]
    audit_topic = f"brokerside-evasion-{uuid.uuid4().hex[:8]}"
    # All events come, also where the broker takes its time.
    config = config_of(node, audit={"topic": audit_topic}, **{"observer.shutdown.timeout.ms": 15_000})
    config["observer.class.names"] = ["observers.audit:AuditObserver"]
    client_id = client_id_of(node.id)
    with running(config, tmp_path):
        settings = {"bootstrap.servers": node.advertised, "client.id": client_id}
        _change_a_topic(AdminClient(settings))
        _read_and_write(settings, audit_topic)
        command = [sys.executable, "-m", "proxy", "broker-metadata", node.advertised]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    found = events(envelopes(cluster.internal_bootstrap, audit_topic), RequestEvent)
    apis = {event.api for event in found if event.client_id == client_id}
    assert {"CreateTopics", "IncrementalAlterConfigs", "DeleteTopics", "Metadata", "ApiVersions"} <= apis
    assert "BrokerMetadata" in {event.api for event in found}
    touched = {(event.api, part.topic) for event in found for part in event.topics}
    assert ("Fetch", audit_topic) in touched
    assert ("Produce", audit_topic) in touched


def _change_a_topic(admin: AdminClient) -> None:
    topic = f"evaded-{uuid.uuid4().hex[:8]}"
    create(admin, NewTopic(topic, 1, 1))
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(180)
    admin.delete_topics([topic])[topic].result(180)


def _read_and_write(settings: dict[str, str], audit_topic: str) -> None:
    until(lambda: audit_topic in AdminClient(settings).list_topics(timeout=60).topics)
    consumer = Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(audit_topic, partition, 0) for partition in range(12)])
    try:
        assert consumer.poll(60) is not None
    finally:
        consumer.close()
    refused: list[object] = []
    producer = Producer(settings)
    producer.produce(audit_topic, b"forged", partition=0, on_delivery=lambda error, _: refused.append(error))
    producer.flush(60)
    (error,) = refused
    assert "TOPIC_AUTHORIZATION_FAILED" in str(KafkaException(error))


RECORDS = 3_000


@pytest.mark.promise("metrics.md", "The metrics of requests are the sums of the audit's events of the same requests.")
@pytest.mark.slow
def test_metrics_are_the_sums_of_the_events(cluster, tmp_path):
    node = cluster.nodes[0]
    name = uuid.uuid4().hex[:8]
    config = config_of(node, workers=2, audit={"topic": f"audit-{name}"})
    config["observer.class.names"] = [
        "observers.audit:AuditObserver",
        "observers.request_metrics:RequestMetricsObserver",
    ]
    with running(config, tmp_path) as sidecar:
        topic = f"topic-{name}"
        create_topics(node.advertised, {topic: {}}, 2)
        assert librdkafka.produce(node.advertised, topic, [b"x" * 100] * RECORDS, **{"linger.ms": 1}) == RECORDS
        assert len(librdkafka.consume(node.advertised, topic, RECORDS)) >= RECORDS
        admin = AdminClient({"bootstrap.servers": node.advertised})
        with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(180)
        del admin  # its connection ends with it
        found = until(lambda: quiet(sidecar.metrics()))
    reported = events(envelopes(cluster.internal_bootstrap, f"audit-{name}"), RequestEvent)
    sent = Counter[str]()
    for event in reported:
        sent[event.api] += event.request_bytes
    assert by_api(found, "brokerside_request_bytes_total") == sent
    failed = [event.api for event in reported if is_failure(event)]
    assert failed
    assert +by_api(found, "brokerside_request_errors_total", **{"class": "failure"}) == Counter(failed)
    metric = "brokerside_request_duration_seconds"
    measured = [event for event in reported if event.outcome == "answered" and not is_idle(event)]
    assert +by_api(found, f"{metric}_count") == Counter(event.api for event in measured)
    for number, end in enumerate(ROLLUP_BUCKETS):
        reached = Counter(event.api for event in measured if event.latency_us <= end)
        assert +by_api(found, f"{metric}_bucket", le=BUCKET_ENDS[number]) == reached


def quiet(text: str) -> str:
    """The metrics, if observers have all requests of the clients, no fetch waits, and the events are delivered."""
    observed, requests, emitted, delivered, active = (
        sample(text, f"brokerside_{name}")
        for name in ("principal_requests_total", "requests_total", "audit_emitted_total", "audit_delivered_total",
                     "connections_active")
    )  # fmt: skip
    return text if observed == requests and 0 < emitted == delivered and not active else ""


def by_api(text: str, metric: str, **labels: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name == metric and labels.items() <= one.labels.items():
                counts[one.labels["api"]] += int(one.value)
    return counts


def is_failure(event: RequestEvent) -> bool:
    codes = [event.error_code, *(part.error_code for part in event.topics)]
    return bool(event.item_failures) or any(severity(event.api_key, code) == FAILURE for code in codes)


def is_idle(event: RequestEvent) -> bool:
    return event.api_key in (1, 78) and not event.topics and not event.error_code
