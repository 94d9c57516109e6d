"""The Kafka producer behind the audit: idempotent, bounded, and what became of every record is reported.

Nothing here ever blocks its caller on the network: while the cluster is away records wait in librdkafka's queue, and
once that is full it takes no more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from observers.batch import MAX_RECORD
from observers.cluster import RECONNECT, Cluster, Prepared, RdkafkaLog
from observers.errors import ObserverError
from proxy.core.authentication import Authenticator

QUEUE_KIB = 16 * 1024
"""KiB of records that wait for delivery (``queue.buffering.max.kbytes``)."""

MAX_MESSAGE = 8 * 1024 * 1024
"""Bytes of one record before compression; only a single request with tens of thousands of partitions comes near."""

RETRY_FIRST, RETRY_LAST = 0.25, 5.0
"""Seconds between attempts to reach the cluster and create the topic: doubled from the first to the last, for ever."""

OWN_SETTINGS = {
    "bootstrap.servers": "set internal.bootstrap.servers",
    "client.id": "it marks the sidecar's own traffic",
    "transactional.id": "the audit is at-least-once and readers remove duplicates",
    "allow.auto.create.topics": "the sidecar creates the topic itself",
    "batch.num.messages": "a record that is too large would take others with it",
}
"""librdkafka settings that ``audit.producer`` may not change, with the reason."""

DEFAULTS: Mapping[str, Any] = {
    "compression.type": "zstd",
    # Less CPU than zstd's default of 3, and fewer bytes: see docs/audit-format.md.
    "compression.level": 1,
    # A record is a batch of its own: one that is too large takes no other with it.
    "batch.num.messages": 1,
    "queue.buffering.max.kbytes": QUEUE_KIB,
    "message.max.bytes": MAX_MESSAGE,
    # Records wait for the cluster however long it is away: what bounds them is memory, not time.
    "message.timeout.ms": 0,
    # How long a topic may be missing before its records fail and it is made again: somebody deleted it.
    "topic.metadata.propagation.max.ms": 5000,
    **RECONNECT,
}

LOOK_AGAIN = 300.0
"""Seconds after which the topic is looked at again: somebody may have changed it."""

TOPIC_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
"""Errors of a delivery after which the topic is looked for, and made if it is gone."""

PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""Errors of records that this process itself took back."""

TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
"""Errors of a record that the topic, or this process, would take if it were smaller."""

PASSING = (
    *TOPIC_MISSING,
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


Settled = Callable[[Any, str | None, bool, bytes | None], None]
"""Told what became of a load: why the topic does not have it (None: it has), whether it may be sent again, and the
record if it was too large. Called by whichever thread calls ``send``, ``poll`` or ``close``."""


def producer_settings(internal: Mapping[str, Any], chosen: Mapping[str, Any], client_id: str) -> dict[str, Any]:
    """Return librdkafka's settings: how to reach the cluster, the defaults, what the user chose, what must hold.

    Raises ObserverError for a choice that would break what the audit promises.
    """
    for key, reason in OWN_SETTINGS.items():
        if key in chosen:
            raise ObserverError(f"audit.producer: {key} cannot be set ({reason})")
    if str(chosen.get("enable.idempotence", True)).lower() != "true":
        raise ObserverError("audit.producer: enable.idempotence must stay true (retries would write events twice)")
    return {
        **internal,
        **DEFAULTS,
        **chosen,
        "client.id": client_id,
        "enable.idempotence": True,
        "allow.auto.create.topics": False,
    }


class Sink:
    """Sends records to one topic. ``send`` may be called by any thread, ``poll`` by one at a time, ``close`` once."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Mapping[str, Any],
        topic: str,
        settled: Settled,
        authenticator: Authenticator | None = None,
    ) -> None:
        """``settings``: of ``producer_settings``; ``authenticator``: signs each record, where there is one.

        Raises ObserverError where librdkafka refuses the settings.
        """
        self.ready = threading.Event()
        """Set once the cluster was reached and the topic exists: only then records may be sent."""
        self.found = Prepared("")
        """What was found of cluster and topic, once ``ready``."""
        self.queued = 0
        """Records that wait for their delivery."""
        self.queued_bytes = 0
        self.records_delivered = 0
        self.bytes_delivered = 0
        """Before compression."""
        self._settings = dict(settings)
        self._producer = self._open()
        self.max_bytes = int(settings["queue.buffering.max.kbytes"]) * 1024
        """Bytes that may wait for their delivery."""
        self._cluster = cluster
        self._topic = topic
        self._settled = settled
        self._authenticator = authenticator
        self._lock = threading.Lock()
        self._keeper = threading.Thread(target=self._keep_topic, name="audit topic", daemon=True)
        self._topic_missing = threading.Event()
        self._closing = threading.Event()
        self._producer_failed = False
        self._purge_reason = ""
        self._ended = False

    def start(self) -> None:
        """Begin to look for the cluster and its topic, in the background."""
        self._keeper.start()

    def send(self, value: bytes, load: object) -> bool:
        """Queue one record. Never waits and never raises. False: there is no room, and nothing will be reported.

        Records have no key: order does not matter, sequence numbers tell it, and partitions fill evenly.
        """
        size = len(value)
        headers: list[tuple[str, str | bytes | None]] = []
        if self._authenticator is not None:
            headers.append(self._authenticator.header(None, value))
        self._count(1, size)
        try:
            self._producer.produce(
                self._topic, value, headers=headers, on_delivery=partial(self._delivered, load, size)
            )
        except BufferError:
            self._count(-1, -size)
            return False
        except KafkaException as error:
            self._reported(load, size, error.args[0], value)
        return True

    def poll(self, timeout: float) -> None:
        """Take in delivery reports, waiting up to ``timeout`` seconds for one."""
        self._producer.poll(timeout)
        if self._producer_failed:
            self._reopen()

    def close(self, timeout: float) -> None:
        """Deliver what is queued within ``timeout`` seconds; what is left then is reported as ``closed``."""
        self._closing.set()
        self._topic_missing.set()
        if self._producer.flush(max(0.0, timeout)):
            self._ended = True
            self._take_back("closed")

    def _open(self) -> Producer:
        try:
            return Producer(self._settings, logger=RdkafkaLog())
        except KafkaException as error:
            raise ObserverError(f"the audit producer's settings are refused: {error.args[0].str()}") from error

    def _count(self, records: int, size: int) -> None:
        with self._lock:
            self.queued += records
            self.queued_bytes += size

    def _delivered(self, load: object, size: int, error: KafkaError | None, message: Message) -> None:
        value = message.value() or b""
        if error is None and message.offset() is None and not self._ended:
            # The broker called it a duplicate, which librdkafka takes for delivered. But where a partition is new, and
            # the first record failed while the next was taken, the first is called that when it is tried again.
            self._count(-1, -size)
            if not self.send(value, load):
                self._settled(load, "queue_full", True, None)
            return
        self._reported(load, size, error, value)

    def _reported(self, load: object, size: int, error: KafkaError | None, value: bytes | None) -> None:
        self._count(-1, -size)
        if error is None:
            self.records_delivered += 1
            self.bytes_delivered += size
            self._settled(load, None, False, None)
            return
        code = error.code()
        if code in PURGED or self._ended:
            self._settled(load, self._purge_reason, True, None)
            return
        if code in TOO_LARGE:
            self._settled(load, "too_large", False, value)
            return
        fatal = code == KafkaError._FATAL or error.fatal()
        if code in TOPIC_MISSING:
            self._topic_missing.set()
        if fatal:
            self._producer_failed = True
        self._settled(load, error.name().strip("_").lower(), fatal or code in PASSING, None)

    def _take_back(self, reason: str) -> None:
        """Take back what the producer still holds, for ``reason``, and take in the reports that say so."""
        self._purge_reason = reason
        self._producer.purge()
        self._producer.flush(RETRY_FIRST)

    def _reopen(self) -> None:
        """Replace a producer that failed for good (fenced, or its right to write was revoked)."""
        self._take_back("producer_failed")
        self._closing.wait(RETRY_FIRST)
        self._producer = self._open()
        self._producer_failed = False
        log.warning("audit_producer_reopened", topic=self._topic)

    def _keep_topic(self) -> None:
        """Make sure the topic exists: at the start, now and then, and whenever a delivery says that it does not."""
        pause = RETRY_FIRST
        while not self._closing.is_set():
            try:
                found = self._cluster.prepare(self._topic, MAX_RECORD)
            except Exception as error:
                if self._closing.is_set():
                    return
                log.warning("audit_topic_unavailable", topic=self._topic, error=_reason(error), retry_in=pause)
                self._closing.wait(pause)
                pause = min(pause * 2, RETRY_LAST)
                continue
            for name, problem in found.problems.items():
                if name not in self.found.problems:
                    log.warning("audit_topic_problem", topic=self._topic, problem=problem)
            self.found = found
            self.ready.set()
            pause = RETRY_FIRST
            self._topic_missing.wait(LOOK_AGAIN)
            self._topic_missing.clear()


def _reason(error: Exception) -> str:
    if isinstance(error, KafkaException):
        return str(error.args[0].name())
    return type(error).__name__
