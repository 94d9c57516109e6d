"""The cluster as observers reach it: admin calls over the INTERNAL listener, and librdkafka's log lines tamed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

AUDIT_PARTITIONS = 12
"""Partitions of an audit topic made here: enough for as many Spark tasks; a sidecar needs only one to write."""

MAX_REPLICATION = 3
"""Replicas of an audit topic made here, where there are as many brokers; all but one of two must be in sync."""

TIMEOUT = 2.0
"""Seconds one admin call may take. It bounds how long a look-up of a topic's name holds an observer's thread up."""

LOG_EVERY = 10.0
"""Seconds between two log lines of librdkafka; those in between are counted."""

log = structlog.get_logger("observers")


def client_id_of(broker_id: int) -> str:
    """Return the ``client.id`` of everything this sidecar itself says to Kafka."""
    return f"brokerside-audit-{broker_id}"


class RdkafkaLog:
    """Takes librdkafka's log lines (it only ever calls ``log``): one in ``LOG_EVERY`` seconds, the rest counted."""

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
        self._next_at = now + LOG_EVERY
        write = log.warning if level >= logging.WARNING else log.info
        write("librdkafka", line=template % args, suppressed=self._suppressed)
        self._suppressed = 0


class Cluster:
    """Admin calls. Nothing connects before the first one; each raises KafkaException where it fails. Thread-safe."""

    def __init__(self, internal: Mapping[str, Any], client_id: str) -> None:
        """``internal``: librdkafka's client settings, ``bootstrap.servers`` among them."""
        self._settings = {**internal, "client.id": client_id}
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None

    def prepare(self, topic: str) -> str:
        """Create ``topic`` unless it exists, and return the cluster's id. An existing topic stays as it is."""
        admin = self._client()
        listed = admin.list_topics(timeout=TIMEOUT)
        if topic not in listed.topics:
            replicas = min(MAX_REPLICATION, len(listed.brokers))
            self._create(admin, topic, replicas)
        return listed.cluster_id or ""

    def topic_names(self) -> dict[bytes, str]:
        """Names of all topics this client may see, by topic id (16 raw bytes)."""
        admin = self._client()
        names = list(admin.list_topics(timeout=TIMEOUT).topics)
        if not names:
            return {}
        described = admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT)
        found = {}
        for name, future in described.items():
            try:
                topic_id = future.result().topic_id
            except KafkaException:
                continue  # deleted since it was listed, or not ours to see
            found[_raw(topic_id)] = name
        return found

    def _client(self) -> AdminClient:
        with self._lock:
            if self._admin is None:
                self._admin = AdminClient(self._settings, logger=RdkafkaLog())
            return self._admin

    @staticmethod
    def _create(admin: AdminClient, topic: str, replicas: int) -> None:
        config = {"cleanup.policy": "delete", "min.insync.replicas": str(min(2, replicas))}
        new = NewTopic(topic, num_partitions=AUDIT_PARTITIONS, replication_factor=replicas, config=config)
        try:
            admin.create_topics([new], request_timeout=TIMEOUT, operation_timeout=TIMEOUT)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            log.info("audit_topic_created", topic=topic, partitions=AUDIT_PARTITIONS, replicas=replicas)


def _raw(topic_id: Any) -> bytes:
    """Return the 16 bytes of librdkafka's ``Uuid``, which has its halves as signed 64-bit numbers."""
    high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return bytes(high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True))
