"""One of the sidecars' topics, by librdkafka. Every call may block: never call one on the event loop.

Imported when it is first used: librdkafka is large, and the start does not wait for it.
"""

from __future__ import annotations

import contextlib
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
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # public, without __all__
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from observers.kafka_admin import RECONNECT_SETTINGS, RdkafkaLog
from proxy.core.authentication import HEADER, Authenticator
from proxy.errors import BrokersideError
from proxy.fleet.topic_spec import BOUNDED_BY, CREATED_WITH, MAX_REPLICATION, TopicRecord, TopicSpec

ADMIN_TIMEOUT = 5.0
"""Seconds one call to the cluster may take."""

DELIVERY_TIMEOUT_MS = 3000
"""Milliseconds until a record that the cluster has not acknowledged is given up."""

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


class TopicMissing(TopicError):
    """There is no such topic."""


class CompactedTopic:
    """Reads the topic from its beginning, committed records only, and writes to it.

    For one thread, or for one that reads and another one that does all else.
    """

    def __init__(
        self,
        spec: TopicSpec,
        settings: Mapping[str, Any],
        authenticator: Authenticator | None = None,
        *,
        create: bool = True,
    ) -> None:
        """Create the topic if it does not exist; without ``create`` raise TopicMissing then. Raises TopicError.

        ``authenticator``: signs written records; records that are read must be signed then.
        """
        self._name = spec.name
        self._partition = TopicPartition(spec.name, 0, OFFSET_BEGINNING)
        self._authenticator = authenticator
        self.dropped: Counter[str] = Counter()
        """Numbers of records without a valid signature, by what is wrong with them."""
        self.position = 0
        """The offset of the next record to read."""
        self.has_signatures = False
        """Whether a record that was read is signed. Only known without an authenticator."""
        common = common_settings(settings)
        reading = {
            "group.id": settings["client.id"],  # librdkafka wants one; nothing is ever committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": 1024,
            "fetch.message.max.bytes": MAX_FETCH_BYTES,
            "fetch.max.bytes": MAX_FETCH_BYTES,
        }
        writing = {"acks": "all", "linger.ms": 0, "message.timeout.ms": DELIVERY_TIMEOUT_MS}
        with raising(self._name):
            self._admin = AdminClient({**common}, logger=RdkafkaLog())
            if create:
                _create(self._name, self._admin)
            else:
                _require(self._name, self._admin)
            self._consumer = Consumer({**common, **reading}, logger=RdkafkaLog())
            self._consumer.list_topics(self._name, timeout=ADMIN_TIMEOUT)  # it looks for the leader a second later else
            self._consumer.assign([self._partition])
            self._producer = Producer({**common, **writing}, logger=RdkafkaLog())

    def read(self, seconds: float) -> tuple[list[TopicRecord], bool]:
        """Return the records that have arrived, and whether the end was reached. Raises TopicError.

        Without any, it waits for ``seconds``.

        It also raises it for a topic that was deleted and created again: then it has to be read from its beginning.
        """
        records: list[TopicRecord] = []
        size, until = 0, time.monotonic() + seconds
        with raising(self._name):
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
                    self._advance(message, 0)  # also over the ends of transactions, which take offsets, too
                    return records, True
                elif error.code() in FATAL_ERRORS:
                    raise KafkaException(error)
        return records, False

    def end(self) -> int:
        """Return the offset behind the last committed record. Raises TopicError.

        Asked by the admin client: on the consumer's connection the question waits for the end of a Fetch.
        """
        partition = TopicPartition(self._name, 0)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        committed = IsolationLevel.READ_COMMITTED
        with raising(self._name):
            found = self._admin.list_offsets(
                {partition: latest}, isolation_level=committed, request_timeout=ADMIN_TIMEOUT
            )
            return int(found[partition].result().offset)

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

    def write(self, key: bytes, value: bytes | None, done: Callable[[str | None], None]) -> None:
        """Send a record. This or a later call calls ``done`` with the error, or None if the topic has the record.

        Raises TopicError if nothing can be written any more; ``done`` is then called by ``close`` at the latest.
        """

        def delivered(error: KafkaError | None, message: Message) -> None:
            done(None if error is None else error.str())

        try:
            headers = signature(self._authenticator, key, value)
            self._producer.produce(
                self._name, key=key, value=value, partition=0, headers=headers, on_delivery=delivered
            )
        except BufferError:
            done("too much waits to be sent")
        except KafkaException as error:  # it is too large, the topic was deleted, or the producer has failed for good
            done(error.args[0].str())
        self.report_delivered()

    def report_delivered(self) -> None:
        """Call ``done`` of written records that the topic has, or that were given up.

        Raises TopicError if nothing can be written any more: the producer has had a fatal error, which is possible with
        ``enable.idempotence``.
        """
        try:
            self._producer.poll(0)
        except (KafkaException, SystemError) as error:  # SystemError: if the same poll has called a ``done``
            raise TopicError(f"{self._name}: {error.__cause__ or error}") from None

    def close(self, seconds: float) -> None:
        """Close both clients; see ``close_producer``."""
        self.close_consumer()
        self.close_producer(seconds)

    def close_consumer(self) -> None:
        """End reading; while another thread reads, this is only for that thread."""
        self._consumer.close()

    def close_producer(self, seconds: float) -> None:
        """End writing. Records that the topic does not have within ``seconds`` are dropped."""
        with contextlib.suppress(KafkaException, SystemError):  # as above
            self._producer.flush(seconds)
        self._producer.purge()
        with contextlib.suppress(TopicError):
            self.report_delivered()


def common_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka's settings of every client of these topics. ``settings``: those of the INTERNAL listeners."""
    return {
        **RECONNECT_SETTINGS,
        # A first connection to the leader counts as another attempt, which should not wait. Later ones double the time.
        "reconnect.backoff.ms": 50,
        # How long a topic may be missing before reading and writing fail and it is made again: somebody deleted it.
        "topic.metadata.propagation.max.ms": 5000,
        **settings,
        "allow.auto.create.topics": False,
    }


def signature(authenticator: Authenticator | None, key: bytes, value: bytes | None) -> Any:
    """Return the headers of a record, as librdkafka wants them."""
    return [] if authenticator is None else [authenticator.header(key, value)]


def to_topic_record(key: bytes, value: bytes | None, timestamp: tuple[int, int]) -> TopicRecord:
    """Make a record. ``timestamp``: its type and milliseconds since 1970, as librdkafka gives them."""
    clock, at = timestamp
    return TopicRecord(key, value, at if clock == TIMESTAMP_LOG_APPEND_TIME else None)


def _require(topic: str, admin: AdminClient) -> None:
    """Raise TopicMissing for a topic that does not exist, and KafkaException for one that cannot be seen."""
    error = admin.list_topics(topic, timeout=ADMIN_TIMEOUT).topics[topic].error
    if error is None:
        return
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise TopicMissing(f"{topic}: there is no such topic")
    raise KafkaException(error)


def _create(topic: str, admin: AdminClient) -> None:
    listed = admin.list_topics(timeout=ADMIN_TIMEOUT)
    if topic in listed.topics:
        _bound(topic, admin)
        return
    replicas = min(MAX_REPLICATION, len(listed.brokers))
    config = {**CREATED_WITH, "min.insync.replicas": str(min(2, replicas))}
    new = NewTopic(topic, num_partitions=1, replication_factor=replicas, config=config)
    try:
        admin.create_topics([new], request_timeout=ADMIN_TIMEOUT, operation_timeout=ADMIN_TIMEOUT)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    else:
        log.info("topic_created", topic=topic, replicas=replicas)


def _bound(topic: str, admin: AdminClient) -> None:
    """Set ``BOUNDED_BY`` on an existing topic. If that is not permitted, the log asks the operator to."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        found = admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT)[resource].result()
        wrong = {name: value for name, value in BOUNDED_BY.items() if found[name].value != value}
        if wrong:
            entries = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wrong.items()
            ]
            altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            admin.incremental_alter_configs([altered], request_timeout=ADMIN_TIMEOUT)[altered].result()
            log.info("topic_bounded", topic=topic, **wrong)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return  # another sidecar has just created it, with these; not every broker knows it yet
        advice = ", ".join(f"{name}={value}" for name, value in BOUNDED_BY.items())
        log.warning("topic_not_bounded", topic=topic, error=error.args[0].str(), advice=f"set {advice}")


@contextmanager
def raising(topic: str) -> Iterator[None]:
    """Raise TopicError in place of KafkaException."""
    try:
        yield
    except KafkaException as error:
        raise TopicError(f"{topic}: {error.args[0].str()}") from None
