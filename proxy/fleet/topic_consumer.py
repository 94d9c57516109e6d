"""Reads a partition of one of the sidecars' topics, committed records only. Every call may block.

Imported when it is first used, as all that needs librdkafka.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # public, without __all__

from observers.kafka_admin import RdkafkaLog
from proxy.core.authentication import HEADER, Authenticator
from proxy.fleet.topic_client import ADMIN_TIMEOUT, TopicError, common_settings, raising
from proxy.fleet.topic_spec import TopicRecord

MAX_READ_RECORDS = 1000
"""Records read at a time."""

MAX_READ_BYTES = 1_048_576
"""Bytes of records read at a time, or one record."""

MAX_FETCH_BYTES = 1_048_576
"""Bytes of one Fetch response, or of one batch of records."""

QUICK_WAIT_MS = 10
"""Milliseconds that a broker waits for records until the end was reached once, which librdkafka reports with the next
response that has none. Later it waits for librdkafka's 500, which cost less."""

STALE_LEADER = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""What a broker answers where the leader has changed since librdkafka has asked for it. Its admin client does not ask
again by itself (2.16)."""

STALE_LEADER_PAUSES = (0.0, 0.2, 1.0)
"""Seconds until the leader is asked for again: the first broker may not know it yet, either."""

FATAL_ERRORS = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)
"""Errors that librdkafka's own retries do not end."""


class TopicConsumer:
    """Reads one partition from its beginning. For one thread at a time."""

    def __init__(
        self, topic: str, partition: int, settings: Mapping[str, Any], authenticator: Authenticator | None
    ) -> None:
        """``authenticator``: records must be signed then. Raises KafkaException."""
        self._name = topic
        self._authenticator = authenticator
        self.dropped: Counter[str] = Counter()
        """Numbers of records without a valid signature, by what is wrong with them."""
        self.position = 0
        """The offset of the next record to read."""
        self.has_signatures = False
        """Whether a record that was read is signed. Only known without an authenticator."""
        self._settings = {
            **common_settings(settings),
            "group.id": settings["client.id"],  # librdkafka wants one; nothing is ever committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": 1024,
            "fetch.message.max.bytes": MAX_FETCH_BYTES,
            "fetch.max.bytes": MAX_FETCH_BYTES,
        }
        self._partition = partition
        self._has_ended = False
        self._is_quick = True
        self._consumer = self._open({"fetch.wait.max.ms": QUICK_WAIT_MS}, OFFSET_BEGINNING)

    def _open(self, settings: Mapping[str, Any], offset: int) -> Consumer:
        consumer = Consumer({**self._settings, **settings}, logger=RdkafkaLog())
        consumer.list_topics(self._name, timeout=ADMIN_TIMEOUT)  # it looks for the leader a second later else
        consumer.assign([TopicPartition(self._name, self._partition, offset)])
        return consumer

    def read(self, seconds: float) -> tuple[list[TopicRecord], bool]:
        """Return the records that have arrived, and whether the end was reached. Raises TopicError.

        Without any, it waits for ``seconds``.

        It also raises it for a topic that was deleted and created again: then it has to be read from its beginning.
        """
        records: list[TopicRecord] = []
        size, until = 0, time.monotonic() + seconds
        with raising(self._name):
            if self._has_ended and self._is_quick:
                patient = self._open({}, self.position)
                self._consumer.close()
                self._consumer, self._is_quick = patient, False
            while len(records) < MAX_READ_RECORDS and size < MAX_READ_BYTES and (left := until - time.monotonic()) > 0:
                message = self._consumer.poll(0 if records else left)
                if message is None:
                    break
                error = message.error()
                if error is None:
                    self._advance(message, 1)
                    key, value = message.key() or b"", message.value()
                    size += len(key) + len(value or b"")
                    if self._is_authentic(message):
                        records.append(to_topic_record(key, value, message.timestamp()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._has_ended = True
                    self._advance(message, 0)  # also over the ends of transactions, which take offsets, too
                    return records, True
                elif error.code() in FATAL_ERRORS:
                    raise KafkaException(error)
        return records, False

    def close(self) -> None:
        """End reading; while another thread reads, this is only for that thread."""
        self._consumer.close()

    def _advance(self, message: Message, count: int) -> None:
        offset = message.offset() or 0
        if offset < self.position:
            raise TopicError(f"{self._name}: was deleted and created again")
        self.position = offset + count

    def _is_authentic(self, message: Message) -> bool:
        headers: Any = message.headers()  # pairs, as far as a consumer has them
        if self._authenticator is None:
            self.has_signatures = self.has_signatures or any(name == HEADER for name, _ in headers or ())
            return True
        verdict = self._authenticator.verify(message.key(), message.value(), headers)
        if verdict != "authentic":
            self.dropped[verdict] += 1
        return verdict == "authentic"


def end_offset(admin: AdminClient, topic: str, partition: int) -> int:
    """Return the offset behind the last committed record. Raises TopicError.

    Asked by an admin client: on the consumer's connection the question waits for the end of a Fetch.
    """
    with raising(topic):
        for pause in STALE_LEADER_PAUSES:
            try:
                return _ask_end_offset(admin, topic, partition)
            except KafkaException as error:
                if error.args[0].code() not in STALE_LEADER:
                    raise
            time.sleep(pause)
            admin.list_topics(topic, timeout=ADMIN_TIMEOUT)
        return _ask_end_offset(admin, topic, partition)


def _ask_end_offset(admin: AdminClient, topic: str, partition: int) -> int:
    asked = TopicPartition(topic, partition)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    committed = IsolationLevel.READ_COMMITTED
    found = admin.list_offsets({asked: latest}, isolation_level=committed, request_timeout=ADMIN_TIMEOUT)
    offset = int(found[asked].result().offset)
    if offset < 0:  # librdkafka's -1001, without an error: the leader has not answered
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "the leader has not answered"))
    return offset


def to_topic_record(key: bytes, value: bytes | None, timestamp: tuple[int, int]) -> TopicRecord:
    """Make a record. ``timestamp``: its type and milliseconds since 1970, as librdkafka gives them."""
    clock, at = timestamp
    return TopicRecord(key, value, at if clock == TIMESTAMP_LOG_APPEND_TIME else None)
