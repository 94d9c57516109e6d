"""The Kafka producer of the audit: idempotent, bounded, with a report of what became of every record.

No method blocks its caller on the network. While the cluster is away, records wait in librdkafka's queue; once it is
full, no more are accepted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from observers.errors import ObserverError
from observers.event_blocks import MAX_BLOCK_BYTES
from observers.kafka_admin import RECONNECT_SETTINGS, AuditTopicState, KafkaAdmin, RdkafkaLog
from observers.record_sender import FIRST_RETRY_DELAY, LAST_RETRY_DELAY, DeliveryCallback
from proxy.core.authentication import Authenticator

PRODUCER_QUEUE_KIB = 16 * 1024
"""KiB of records that wait for delivery (``queue.buffering.max.kbytes``)."""

MAX_RECORD_BYTES = 8 * 1024 * 1024
"""Bytes of one record before compression; only a single request with tens of thousands of partitions comes near."""

RESERVED_SETTINGS = {
    "bootstrap.servers": "set internal.bootstrap.servers",
    "client.id": "it marks the sidecar's own traffic",
    "transactional.id": "the audit is at-least-once and readers remove duplicates",
    "allow.auto.create.topics": "the sidecar creates the topic itself",
    "batch.num.messages": "records share batches until the topic refuses one",
}
"""librdkafka settings that ``audit.producer`` may not change, with the reason."""

DEFAULT_SETTINGS: Mapping[str, Any] = {
    "compression.type": "zstd",
    # Less CPU than zstd's default of 3, and fewer bytes: see docs/audit-format.md.
    "compression.level": 1,
    # What a request to a broker costs does not depend on how many records it has: those of this time go in one, to one
    # partition. Both numbers are milliseconds.
    "linger.ms": 100,
    "sticky.partitioning.linger.ms": 100,
    "queue.buffering.max.kbytes": PRODUCER_QUEUE_KIB,
    "message.max.bytes": MAX_RECORD_BYTES,
    # Records wait for the cluster however long it is away: what bounds them is memory, not time.
    "message.timeout.ms": 0,
    # How long a topic may be missing before its records fail and it is made again: somebody deleted it.
    "topic.metadata.propagation.max.ms": 5000,
    **RECONNECT_SETTINGS,
}

TOPIC_CHECK_INTERVAL = 300.0
"""Seconds between two checks of the topic, whose configuration may change."""

TOPIC_MISSING_ERRORS = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
"""Errors of a delivery after which the topic is checked, and created if it is gone."""

PURGE_ERRORS = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""Errors of records that this process itself purged."""

TOO_LARGE_ERRORS = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
"""Errors of a record that would be accepted if it were smaller."""

RETRIABLE_ERRORS = (
    *TOPIC_MISSING_ERRORS,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._DESTROY,  # its partition went with its topic
    KafkaError._INVALID_DIFFERENT_RECORD,  # of the same batch
    KafkaError._FATAL,
)
"""Errors of a delivery that are not the record's fault: the same record may be taken later. (What librdkafka can try
again itself, it does for ever.)"""

log = structlog.get_logger("observers")


def producer_settings(internal: Mapping[str, Any], user_settings: Mapping[str, Any], client_id: str) -> dict[str, Any]:
    """Return librdkafka's settings: how to reach the cluster, the defaults, what the user chose, what must hold.

    Raises ObserverError for a choice that would break what the audit promises.
    """
    for key, reason in RESERVED_SETTINGS.items():
        if key in user_settings:
            raise ObserverError(f"audit.producer: {key} cannot be set ({reason})")
    if str(user_settings.get("enable.idempotence", True)).lower() != "true":
        raise ObserverError("audit.producer: enable.idempotence must stay true (retries would write events twice)")
    return {
        **internal,
        **DEFAULT_SETTINGS,
        **user_settings,
        "client.id": client_id,
        "enable.idempotence": True,
        "allow.auto.create.topics": False,
    }


def check_producer_settings(settings: Mapping[str, Any]) -> None:
    """Raise ObserverError where librdkafka refuses ``settings``. Connects to nothing."""
    _producer({name: value for name, value in settings.items() if name != "bootstrap.servers"})


def _producer(settings: Mapping[str, Any]) -> Producer:
    try:
        return Producer(dict(settings), logger=RdkafkaLog())
    except KafkaException as error:
        raise ObserverError(f"the audit producer's settings are refused: {error.args[0].str()}") from error


class AuditProducer:
    """The ``RecordSender`` of one topic. ``send`` queues a record in librdkafka."""

    def __init__(
        self,
        admin: KafkaAdmin,
        settings: Mapping[str, Any],
        topic: str,
        on_settled: DeliveryCallback,
        authenticator: Authenticator | None = None,
    ) -> None:
        """``settings``: of ``producer_settings``; ``authenticator``: signs each record, where there is one.

        Raises ObserverError where librdkafka refuses the settings.
        """
        self.ready = threading.Event()
        """Set once the cluster was reached and the topic exists."""
        self.queued = 0
        self.queued_bytes = 0
        self.records_delivered = 0
        self.bytes_delivered = 0
        self._topic_state = AuditTopicState("")
        self._settings = dict(settings)
        self._producer = self._create_producer()
        self._shares_batches = True  # until the topic refuses a batch
        self._former: Producer | None = None  # of shared batches, while it holds any
        self.max_bytes = int(settings["queue.buffering.max.kbytes"]) * 1024
        self.max_record_bytes = int(settings["message.max.bytes"])
        self._admin = admin
        self._topic = topic
        self._on_settled = on_settled
        self._authenticator = authenticator
        self._lock = threading.Lock()  # of the counts, and of which producer takes the next record
        self._topic_thread = threading.Thread(target=self._ensure_topic, name="audit topic", daemon=True)
        self._topic_missing = threading.Event()
        self._closing = threading.Event()
        self._producer_failed = False
        self._purge_reason = ""
        self._ended = False

    @property
    def cluster_id(self) -> str:
        """Id of the cluster, once ``ready``."""
        return self._topic_state.cluster_id

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong with the topic."""
        return self._topic_state.problems

    def start(self) -> None:
        """Start the thread that connects to the cluster and ensures that the topic exists."""
        self._topic_thread.start()

    def send(self, value: bytes, load: object) -> bool:
        """Queue one record. Never waits and never raises. Return False if there is no room; then nothing is reported.

        Records have no key: sequence numbers give the order, and partitions fill evenly.
        """
        size = len(value)
        headers: list[tuple[str, str | bytes | None]] = []
        if self._authenticator is not None:
            headers.append(self._authenticator.header(None, value))
        self._count_queued(1, size)
        try:
            with self._lock:  # a former producer gets no record: it may have been polled for the last time
                report = partial(self._handle_report, load, size, shared=self._shares_batches)
                self._producer.produce(self._topic, value, headers=headers, on_delivery=report)
        except BufferError:
            self._count_queued(-1, -size)
            return False
        except KafkaException as error:
            self._settle(load, size, error.args[0], value)
        return True

    def poll(self, timeout: float) -> None:
        """Handle delivery reports, and wait up to ``timeout`` seconds for the first."""
        if self._former is not None:
            self._former.poll(0)
            if not len(self._former):
                self._former = None
        self._producer.poll(timeout)
        if self._producer_failed:
            self._replace_producer()

    def close(self, timeout: float) -> None:
        """Deliver queued records within ``timeout`` seconds. Those left then are reported as ``closed``."""
        self._closing.set()
        self._topic_missing.set()
        deadline = time.monotonic() + timeout
        if sum([producer.flush(max(0.0, deadline - time.monotonic())) for producer in self._producers]):
            self._ended = True
            self._purge(self._producers, "closed")

    @property
    def _producers(self) -> list[Producer]:
        """All that may hold records. A record of the first may be sent again by the last."""
        return [self._producer] if self._former is None else [self._former, self._producer]

    def _create_producer(self) -> Producer:
        return _producer(self._settings)

    def _count_queued(self, records: int, size: int) -> None:
        with self._lock:
            self.queued += records
            self.queued_bytes += size

    def _handle_report(
        self, load: object, size: int, error: KafkaError | None, message: Message, *, shared: bool = False
    ) -> None:
        value = message.value() or b""
        if shared and error is not None and _is_refusal(error) and not self._ended:
            self._stop_sharing()
            self._send_again(value, load, size)
            return
        if error is None and message.offset() is None and not self._ended:
            # The broker called it a duplicate, which librdkafka takes for delivered. But where a partition is new, and
            # the first record failed while the next was taken, the first is called that when it is tried again.
            self._send_again(value, load, size)
            return
        self._settle(load, size, error, value)

    def _send_again(self, value: bytes, load: object, size: int) -> None:
        self._count_queued(-1, -size)
        if not self.send(value, load):
            self._on_settled(load, "queue_full", True, None)

    def _stop_sharing(self) -> None:
        """The topic refused a batch: which of its records it does not take shows when each has a batch of its own."""
        if self._shares_batches:
            self._settings |= {"batch.num.messages": 1}
            created = self._create_producer()
            with self._lock:
                self._former, self._producer, self._shares_batches = self._producer, created, False
            log.info("audit_batch_refused", topic=self._topic)

    def _settle(self, load: object, size: int, error: KafkaError | None, value: bytes | None) -> None:
        self._count_queued(-1, -size)
        if error is None:
            self.records_delivered += 1
            self.bytes_delivered += size
            self._on_settled(load, None, False, None)
            return
        code = error.code()
        if code in PURGE_ERRORS or self._ended:
            self._on_settled(load, self._purge_reason, True, None)
            return
        if code in TOO_LARGE_ERRORS:
            self._on_settled(load, "too_large", False, value)
            return
        fatal = code == KafkaError._FATAL or error.fatal()
        if code in TOPIC_MISSING_ERRORS:
            self._topic_missing.set()
        if fatal:
            self._producer_failed = True
        self._on_settled(load, error.name().strip("_").lower(), fatal or code in RETRIABLE_ERRORS, None)

    def _purge(self, producers: list[Producer], reason: str) -> None:
        """Purge the records that ``producers`` still hold, and report each with ``reason``."""
        self._purge_reason = reason
        for producer in producers:
            producer.purge()
            producer.flush(FIRST_RETRY_DELAY)

    def _replace_producer(self) -> None:
        """Replace a producer that failed for good (fenced, or its right to write was revoked)."""
        failed, created = self._producers, self._create_producer()
        with self._lock:
            self._former, self._producer = None, created
        self._purge(failed, "producer_failed")
        self._producer_failed = False
        self._closing.wait(FIRST_RETRY_DELAY)
        log.warning("audit_producer_reopened", topic=self._topic)

    def _ensure_topic(self) -> None:
        """Ensure that the topic exists: at the start, periodically, and after a delivery that did not find it."""
        pause = FIRST_RETRY_DELAY
        while not self._closing.is_set():
            try:
                topic_state = self._admin.ensure_audit_topic(self._topic, MAX_BLOCK_BYTES)
            except Exception as error:
                if self._closing.is_set():
                    return
                log.warning("audit_topic_unavailable", topic=self._topic, error=_error_name(error), retry_in=pause)
                self._closing.wait(pause)
                pause = min(pause * 2, LAST_RETRY_DELAY)
                continue
            for name, problem in topic_state.problems.items():
                if name not in self._topic_state.problems:
                    log.warning("audit_topic_problem", topic=self._topic, problem=problem)
            self._topic_state = topic_state
            self.ready.set()
            pause = FIRST_RETRY_DELAY
            self._topic_missing.wait(TOPIC_CHECK_INTERVAL)
            self._topic_missing.clear()


def _is_refusal(error: KafkaError) -> bool:
    """Whether the same batch would be refused again."""
    return not (error.fatal() or error.code() in (KafkaError._FATAL, *RETRIABLE_ERRORS, *PURGE_ERRORS))


def _error_name(error: Exception) -> str:
    if isinstance(error, KafkaException):
        return str(error.args[0].name())
    return type(error).__name__
