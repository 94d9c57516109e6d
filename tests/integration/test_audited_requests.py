"""Requests that are easily overlooked have their events: under the sidecar's own client id, on the audit topic, and
those that the sidecar answers itself."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from observers.event import RequestEvent
from observers.kafka_admin import client_id_of
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.test_audit import envelopes, events, until

pytestmark = pytest.mark.kafka


@pytest.mark.promise("audit-event.md", "Requests on the audit topic or by the sidecar's client id have events.")
def test_every_request_has_its_event(cluster: ClusterState) -> None:
    node = cluster.nodes[0]
    folder = node.home.parent
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    audit_topic = f"brokerside-evasion-{uuid.uuid4().hex[:8]}"
    config["observer.class.names"] = ["observers.audit:AuditObserver"]
    config["audit"] = {"topic": audit_topic}
    config["observer.shutdown.timeout.ms"] = 15_000  # all events come, also where the broker takes its time
    path = folder / "evasion.yaml"
    path.write_text(yaml.safe_dump(config))
    process = SidecarProcess.start(path, path.with_suffix(".log"), node.admin)
    try:
        client_id = client_id_of(config["broker.id"])
        settings = {"bootstrap.servers": node.advertised, "client.id": client_id}
        _change_a_topic(AdminClient(settings))
        _read_and_write(settings, audit_topic)
        command = [sys.executable, "-m", "proxy", "broker-metadata", node.advertised]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    finally:
        assert process.stop()
    found = events(envelopes(cluster.internal_bootstrap, audit_topic), RequestEvent)
    apis = {event.api for event in found if event.client_id == client_id}
    assert {"CreateTopics", "IncrementalAlterConfigs", "DeleteTopics", "Metadata", "ApiVersions"} <= apis
    assert "BrokerMetadata" in {event.api for event in found}
    touched = {(event.api, part.topic) for event in found for part in event.topics}
    assert ("Fetch", audit_topic) in touched
    assert ("Produce", audit_topic) in touched


def _change_a_topic(admin: AdminClient) -> None:
    topic = f"evaded-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
    admin.delete_topics([topic])[topic].result(30)


def _read_and_write(settings: dict[str, str], audit_topic: str) -> None:
    """Read the audit topic through the sidecar, and try to write to it."""
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
