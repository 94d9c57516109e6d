"""The registry's topic, by librdkafka. Every call may block: never call one on the event loop.

Imported when it is first used: librdkafka is large, and the start does not wait for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from observers.kafka_admin import RECONNECT_SETTINGS, RdkafkaLog
from proxy.core.authentication import Authenticator
from proxy.core.protected_topics import REGISTRY
from proxy.errors import BrokersideError
from proxy.fleet.membership import HEARTBEAT_INTERVAL, RegistryRecord

TOPIC = REGISTRY

BOUNDED_BY: Mapping[str, str] = {
    # The broker decompresses the batches of writers, and holds them to its limit. A reader has no such limit:
    # librdkafka would decompress a batch of some kilobytes to any number of megabytes.
    "compression.type": "uncompressed",
    "max.message.bytes": "1048576",
}
"""Configurations that are also set on a topic that exists."""

CREATED_WITH: Mapping[str, str] = {
    **BOUNDED_BY,
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    # Each sidecar writes every 3 s, and reads all there is when it starts: what is old has to go soon.
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
}

MAX_REPLICATION = 3
"""Replicas of the topic, if there are as many brokers; two of them must be in sync."""

ADMIN_TIMEOUT = 5.0
"""Seconds one call to the cluster may take."""

MAX_READ_RECORDS = 1000
"""Records read at a time."""

MAX_READ_BYTES = 1_048_576
"""Bytes of records read at a time, or one record."""

MAX_FETCH_BYTES = 1_048_576
"""Bytes of one Fetch response, or of one batch of records."""

FATAL_ERRORS = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)
"""Errors that librdkafka's own retries do not end."""

log = structlog.get_logger(__name__)


class TopicError(BrokersideError):
    """The topic cannot be read or written now."""


class RegistryTopic:
    """Reads the topic from its beginning, and writes to it. For one thread."""

    def __init__(self, settings: Mapping[str, Any], authenticator: Authenticator | None = None) -> None:
        """Create the topic if it does not exist. Raises TopicError.

        ``authenticator``: signs written records; records that are read must be signed then.
        """
        self._authenticator = authenticator
        self.dropped: Counter[str] = Counter()
        """Numbers of records without a valid signature, by what is wrong with them."""
        common = {
            **RECONNECT_SETTINGS,
            # How long a topic may be missing before reading and writing fail and it is made again: somebody deleted it.
            "topic.metadata.propagation.max.ms": 5000,
            **settings,
            "allow.auto.create.topics": False,
        }
        reading = {
            "group.id": settings["client.id"],  # librdkafka wants one; nothing is ever committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 1024,
            "fetch.message.max.bytes": MAX_FETCH_BYTES,
            "fetch.max.bytes": MAX_FETCH_BYTES,
        }
        writing = {"acks": "all", "linger.ms": 0, "message.timeout.ms": int(HEARTBEAT_INTERVAL * 1000)}
        with _raising():
            _create(AdminClient({**common}, logger=RdkafkaLog()))
            self._consumer = Consumer({**common, **reading}, logger=RdkafkaLog())
            self._consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
            self._producer = Producer({**common, **writing}, logger=RdkafkaLog())

    def read(self, seconds: float) -> tuple[list[RegistryRecord], bool]:
        """Return the records that arrive within ``seconds``, and whether the end was reached. Raises TopicError."""
        records: list[RegistryRecord] = []
        size, until = 0, time.monotonic() + seconds
        with _raising():
            while len(records) < MAX_READ_RECORDS and size < MAX_READ_BYTES and (left := until - time.monotonic()) > 0:
                message = self._consumer.poll(left)
                if message is None:
                    break
                error = message.error()
                if error is None:
                    key, value = message.key() or b"", message.value()
                    size += len(key) + len(value or b"")
                    if self._is_authentic(message):
                        records.append(to_registry_record(key, value, message.timestamp()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return records, True
                elif error.code() in FATAL_ERRORS:
                    raise KafkaException(error)
        return records, False

    def _is_authentic(self, message: Message) -> bool:
        if self._authenticator is None:
            return True
        headers: Any = message.headers()  # pairs, as far as a consumer has them
        verdict = self._authenticator.verify(message.key(), message.value(), headers)
        if verdict != "authentic":
            self.dropped[verdict] += 1
        return verdict == "authentic"

    def write(self, key: bytes, value: bytes, done: Callable[[str | None], None]) -> None:
        """Send a record. A later call of this object calls ``done`` with the error, or None if the topic has it."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            done(None if error is None else error.str())

        self._producer.poll(0)
        try:
            headers: Any = [] if self._authenticator is None else [self._authenticator.header(key, value)]
            self._producer.produce(TOPIC, key=key, value=value, partition=0, headers=headers, on_delivery=delivered)
        except BufferError:
            done("too much waits to be sent")
        self._producer.poll(0)

    def close(self) -> None:
        """Close both clients; records that were not sent are dropped."""
        self._consumer.close()
        self._producer.purge()
        self._producer.poll(0)


def to_registry_record(key: bytes, value: bytes | None, timestamp: tuple[int, int]) -> RegistryRecord:
    """Make a record. ``timestamp``: its type and milliseconds since 1970, as librdkafka gives them."""
    clock, at = timestamp
    return RegistryRecord(key, value, at if clock == TIMESTAMP_LOG_APPEND_TIME else None)


def _create(admin: AdminClient) -> None:
    listed = admin.list_topics(timeout=ADMIN_TIMEOUT)
    if TOPIC in listed.topics:
        _bound(admin)
        return
    replicas = min(MAX_REPLICATION, len(listed.brokers))
    config = {**CREATED_WITH, "min.insync.replicas": str(min(2, replicas))}
    new = NewTopic(TOPIC, num_partitions=1, replication_factor=replicas, config=config)
    try:
        admin.create_topics([new], request_timeout=ADMIN_TIMEOUT, operation_timeout=ADMIN_TIMEOUT)[TOPIC].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    else:
        log.info("registry_created", topic=TOPIC, replicas=replicas)


def _bound(admin: AdminClient) -> None:
    """Set ``BOUNDED_BY`` on an existing topic. If that is not permitted, the log asks the operator to."""
    topic = ConfigResource(ResourceType.TOPIC, TOPIC)
    try:
        found = admin.describe_configs([topic], request_timeout=ADMIN_TIMEOUT)[topic].result()
        wrong = {name: value for name, value in BOUNDED_BY.items() if found[name].value != value}
        if wrong:
            entries = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wrong.items()
            ]
            altered = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
            admin.incremental_alter_configs([altered], request_timeout=ADMIN_TIMEOUT)[altered].result()
            log.info("registry_bounded", topic=TOPIC, **wrong)
    except KafkaException as error:
        advice = ", ".join(f"{name}={value}" for name, value in BOUNDED_BY.items())
        log.warning("registry_not_bounded", topic=TOPIC, error=error.args[0].str(), advice=f"set {advice}")


@contextmanager
def _raising() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise TopicError(f"{TOPIC}: {error.args[0].str()}") from None
