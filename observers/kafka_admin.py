"""Admin calls over the INTERNAL listener, and a rate limit on librdkafka's log lines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, without __all__
    AdminClient,
    ConfigResource,
    TopicMetadata,
)
from confluent_kafka.cimpl import NewTopic
from msgspec import Struct

AUDIT_PARTITIONS = 12
"""Partitions of an audit topic that the sidecar creates: one for each of as many Spark tasks."""

MAX_AUDIT_REPLICATION = 3
"""Most replicas of an audit topic that the sidecar creates; there are never more replicas than brokers."""

DAY_MS = 24 * 3600 * 1000

AUDIT_TOPIC_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * DAY_MS),
    "compression.type": "producer",
    "message.timestamp.type": "LogAppendTime",
}
"""Configuration of an audit topic that the sidecar creates. Timestamps are of the broker's clock, since records of a
sidecar with a wrong clock would be refused, or deleted at once."""

ADMIN_CALL_TIMEOUT = 2.0
"""Seconds that one admin call may take. It bounds how long a lookup of topic names blocks an observer's thread."""

LISTING_INTERVAL = 0.1
"""Seconds between two requests for the list of topics, while a topic that exists is not listed yet."""

RDKAFKA_LOG_INTERVAL = 10.0
"""Seconds between two log lines of librdkafka. Lines in between are counted, and not logged."""

RETRIED = "Coordinator load in progress: retrying"
"""How librdkafka's warnings end that the first producers of a new cluster cause: no problem."""

RECONNECT_SETTINGS: Mapping[str, Any] = {"reconnect.backoff.ms": 2000, "reconnect.backoff.max.ms": 4000}
"""How long librdkafka waits before it connects to a broker again. It waits half of that: a client reconnects once a
second."""

log = structlog.get_logger("observers")


AUTHORIZATION_ERRORS = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
"""Errors that say that this client is not authorized."""


class TopicDescription(Struct, frozen=True, gc=False):
    """One topic of the cluster. ``id``: 16 raw bytes."""

    name: str
    id: bytes
    partitions: int
    internal: bool


class AuditTopicState(Struct, frozen=True, gc=False):
    """State of the cluster and the audit topic. ``problems``: texts by a short name, of a topic that existed."""

    cluster_id: str
    problems: Mapping[str, str] = {}


def client_id_of(broker_id: int) -> str:
    """Return the ``client.id`` of the sidecar's own requests to Kafka."""
    return f"brokerside-audit-{broker_id}"


class RdkafkaLog:
    """Logs one line of librdkafka in ``RDKAFKA_LOG_INTERVAL`` seconds, and counts the rest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_at = float("-inf")
        self._suppressed = 0

    def log(self, level: int, template: str, *args: Any) -> None:
        """Log one line with the standard library's ``level``, unless one was logged just before."""
        now = self._clock()
        if now < self._next_at:
            self._suppressed += 1
            return
        self._next_at = now + RDKAFKA_LOG_INTERVAL
        line = template % args
        write = log.warning if level >= logging.WARNING and not line.endswith(RETRIED) else log.info
        write("librdkafka", line=line, suppressed=self._suppressed)
        self._suppressed = 0


class KafkaAdmin:
    """Admin calls. Nothing connects before the first one; each raises KafkaException where it fails. Thread-safe."""

    def __init__(self, internal: Mapping[str, Any], client_id: str) -> None:
        """``internal``: librdkafka's client settings, ``bootstrap.servers`` among them."""
        self._settings = {**RECONNECT_SETTINGS, **internal, "client.id": client_id}
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None

    def ensure_audit_topic(self, topic: str, record: int) -> AuditTopicState:
        """Create ``topic`` unless it exists. Return the problems of an existing topic, which is not changed.

        ``record``: bytes of a usual record, which the topic should accept.
        """
        admin = self._connected_admin()
        listed = admin.list_topics(timeout=ADMIN_CALL_TIMEOUT)
        brokers = len(listed.brokers)
        found = listed.topics.get(topic)
        cluster_id = listed.cluster_id or ""
        if found is None:
            if self._create_topic(admin, topic, min(MAX_AUDIT_REPLICATION, brokers)):
                return AuditTopicState(cluster_id)
            found = self._wait_until_listed(admin, topic)
        replicas = min((len(one.replicas) for one in found.partitions.values()), default=0)
        return AuditTopicState(
            cluster_id, find_topic_problems(self._describe_config(admin, topic), replicas, brokers, record)
        )

    def fetch_cluster_id(self) -> str:
        """Return the cluster's own id."""
        described = self._connected_admin().describe_cluster(request_timeout=ADMIN_CALL_TIMEOUT)
        return str(described.result().cluster_id)

    def list_topics(self) -> dict[str, TopicDescription]:
        """Return all topics that this client may see, by name."""
        admin = self._connected_admin()
        names = list(admin.list_topics(timeout=ADMIN_CALL_TIMEOUT).topics)
        if not names:
            return {}
        described = admin.describe_topics(TopicCollection(names), request_timeout=ADMIN_CALL_TIMEOUT)
        found = {}
        for name, future in described.items():
            try:
                one = future.result()
            except KafkaException:
                continue  # deleted since it was listed, or not visible to this client
            found[name] = TopicDescription(name, _raw_topic_id(one.topic_id), len(one.partitions), one.is_internal)
        return found

    def list_topic_names(self) -> dict[bytes, str]:
        """Return the names of all topics that this client may see, by topic id (16 raw bytes)."""
        return {topic.id: topic.name for topic in self.list_topics().values()}

    @staticmethod
    def _describe_config(admin: AdminClient, topic: str) -> dict[str, str]:
        """Return the topic's configuration, empty if this client may not read it."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            entries = admin.describe_configs([resource], request_timeout=ADMIN_CALL_TIMEOUT)[resource].result()
        except KafkaException as error:
            if error.args[0].code() in AUTHORIZATION_ERRORS:
                return {}
            raise
        return {name: str(entry.value) for name, entry in entries.items()}

    def _connected_admin(self) -> AdminClient:
        with self._lock:
            if self._admin is None:
                self._admin = AdminClient(self._settings, logger=RdkafkaLog())
            return self._admin

    @staticmethod
    def _wait_until_listed(admin: AdminClient, topic: str) -> TopicMetadata:
        """Return a topic that exists although a broker did not list it: a broker may lag behind the controller."""
        deadline = time.monotonic() + ADMIN_CALL_TIMEOUT
        while (found := admin.list_topics(timeout=ADMIN_CALL_TIMEOUT).topics.get(topic)) is None:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            time.sleep(LISTING_INTERVAL)
        return found

    @staticmethod
    def _create_topic(admin: AdminClient, topic: str, replicas: int) -> bool:
        """Create the topic. Return False where it exists already."""
        config = {**AUDIT_TOPIC_CONFIG, "min.insync.replicas": str(min(2, replicas))}
        new = NewTopic(topic, num_partitions=AUDIT_PARTITIONS, replication_factor=replicas, config=config)
        try:
            admin.create_topics([new], request_timeout=ADMIN_CALL_TIMEOUT, operation_timeout=ADMIN_CALL_TIMEOUT)[
                topic
            ].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        log.info("audit_topic_created", topic=topic, partitions=AUDIT_PARTITIONS, replicas=replicas)
        return True


def find_topic_problems(config: Mapping[str, str], replicas: int, brokers: int, record: int) -> dict[str, str]:
    """Return why a topic does not suit the audit, as texts by a short name; see ``KafkaAdmin.ensure_audit_topic``."""
    problems = {}
    if "compact" in config.get("cleanup.policy", ""):
        problems["compacted"] = "cleanup.policy holds compact, which deletes or refuses records without a key"
    if 0 <= int(config.get("retention.ms", -1)) < DAY_MS:
        problems["short_retention"] = f"retention.ms is {config['retention.ms']}, less than a day"
    if int(config.get("max.message.bytes", record)) < record:
        problems["small_messages"] = f"max.message.bytes is {config['max.message.bytes']}, less than {record}"
    if config.get("message.timestamp.type") == "CreateTime":
        problems["create_time"] = "message.timestamp.type is CreateTime, by which a clock that is wrong loses records"
    if replicas == 1 and brokers >= MAX_AUDIT_REPLICATION:
        problems["one_replica"] = f"it has one replica, in a cluster of {brokers} brokers"
    return problems


def _raw_topic_id(topic_id: Any) -> bytes:
    """Return the 16 bytes of librdkafka's ``Uuid``, which has its halves as signed 64-bit numbers."""
    high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return bytes(high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True))
