"""The Kafka producer behind the audit: idempotent, bounded, every event accounted for.

An event handed over is either delivered, or lost for a reason that is counted, or still queued. Nothing here ever
blocks its caller on the network: while the cluster is away events wait in librdkafka's queue, and once that is full
new ones are lost.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from msgspec import Struct

from observers.batch import MAX_RECORD
from observers.cluster import Cluster, RdkafkaLog
from observers.errors import ObserverError

QUEUE_KIB = 16 * 1024
"""KiB of records that wait for delivery (``queue.buffering.max.kbytes``); above it new events are lost, and counted."""

MAX_MESSAGE = 8 * 1024 * 1024
"""Bytes of one record before compression; only a single request with tens of thousands of partitions comes near."""

RETRY_FIRST, RETRY_LAST = 0.25, 5.0
"""Seconds between attempts to reach the cluster and create the topic: doubled from the first to the last, for ever."""

OWN_SETTINGS = {
    "bootstrap.servers": "set internal.bootstrap.servers",
    "client.id": "it marks the sidecar's own traffic",
    "transactional.id": "the audit is at-least-once and readers remove duplicates",
    "allow.auto.create.topics": "the sidecar creates the topic itself",
}
"""librdkafka settings that ``audit.producer`` may not change, with the reason."""

DEFAULTS: Mapping[str, Any] = {
    "compression.type": "zstd",
    # Less CPU than zstd's default of 3, and fewer bytes: see docs/audit-format.md.
    "compression.level": 1,
    "linger.ms": 50,
    "queue.buffering.max.kbytes": QUEUE_KIB,
    "message.max.bytes": MAX_MESSAGE,
    # Records wait for the cluster however long it is away: what bounds them is memory, not time.
    "message.timeout.ms": 0,
    # How long a topic may be missing before its records fail and it is made again: somebody deleted it.
    "topic.metadata.propagation.max.ms": 5000,
    "reconnect.backoff.ms": 250,
    "reconnect.backoff.max.ms": 1000,
}

TOPIC_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
"""Errors of a delivery after which the topic is looked for, and made if it is gone."""

log = structlog.get_logger("observers")


class SinkStats(Struct, frozen=True):
    """Counts of one sink. Events handed over = delivered + sum of lost + queued."""

    records_delivered: int
    events_delivered: int
    bytes_delivered: int
    """Before compression."""
    events_queued: int
    bytes_queued: int
    lost: Mapping[str, int]
    """Events lost, by reason: ``queue_full``, ``too_large``, ``closed``, ``producer_failed``, or librdkafka's name of
    the error."""


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
    """Sends records to one topic. ``send`` and ``poll`` may be called by any thread, ``close`` once."""

    def __init__(self, cluster: Cluster, settings: Mapping[str, Any], topic: str) -> None:
        """``settings``: of ``producer_settings``. Raises ObserverError where librdkafka refuses them."""
        self.ready = threading.Event()
        """Set once the cluster was reached and the topic exists: only then records may be sent."""
        self.cluster_id = ""
        self._cluster = cluster
        self._settings = dict(settings)
        self._topic = topic
        self._lock = threading.Lock()
        self._producer = self._open()
        self._keeper = threading.Thread(target=self._keep_topic, name="audit topic", daemon=True)
        self._topic_missing = threading.Event()
        self._closing = threading.Event()
        self._producer_failed = False
        self._purge_reason = ""
        self._records_delivered = 0
        self._events_delivered = 0
        self._bytes_delivered = 0
        self._events_queued = 0
        self._bytes_queued = 0
        self._lost: dict[str, int] = {}

    def start(self) -> None:
        """Begin to look for the cluster and its topic, in the background."""
        self._keeper.start()

    @property
    def events_lost(self) -> int:
        """Events lost so far, for whatever reason."""
        with self._lock:
            return sum(self._lost.values())

    @property
    def idle(self) -> bool:
        """Whether nothing waits for its delivery."""
        return not self._events_queued

    def send(self, value: bytes, events: int) -> None:
        """Queue one record that holds ``events`` events. Never waits and never raises: what does not go is lost.

        Records have no key: order does not matter, sequence numbers tell it, and partitions fill evenly.
        """
        size = len(value)
        with self._lock:
            self._events_queued += events
            self._bytes_queued += size
        try:
            self._producer.produce(self._topic, value, on_delivery=partial(self._reported, events, size))
        except BufferError:
            self._settle(events, size, "queue_full")
        except KafkaException as error:
            self._failed(events, size, error.args[0])

    def poll(self, timeout: float) -> None:
        """Take in delivery reports, waiting up to ``timeout`` seconds for one."""
        self._producer.poll(timeout)
        if self._producer_failed:
            self._reopen()

    def close(self, timeout: float) -> None:
        """Deliver what is queued within ``timeout`` seconds; what is left then is lost as ``closed``."""
        self._closing.set()
        self._topic_missing.set()
        if self._producer.flush(max(0.0, timeout)):
            self._discard("closed")

    def stats(self) -> SinkStats:
        """Current counts, consistent with each other."""
        with self._lock:
            return SinkStats(
                records_delivered=self._records_delivered,
                events_delivered=self._events_delivered,
                bytes_delivered=self._bytes_delivered,
                events_queued=self._events_queued,
                bytes_queued=self._bytes_queued,
                lost=dict(self._lost),
            )

    def _open(self) -> Producer:
        try:
            return Producer(self._settings, logger=RdkafkaLog())
        except KafkaException as error:
            raise ObserverError(f"the audit producer's settings are refused: {error.args[0].str()}") from error

    def _reported(self, events: int, size: int, error: KafkaError | None, _message: object) -> None:
        if error is None:
            self._settle(events, size, None)
        else:
            self._failed(events, size, error)

    def _failed(self, events: int, size: int, error: KafkaError) -> None:
        code = error.code()
        if code in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            reason = self._purge_reason
        elif code == KafkaError.MSG_SIZE_TOO_LARGE:
            reason = "too_large"
        else:
            reason = error.name().strip("_").lower()
        self._settle(events, size, reason)
        if code in TOPIC_MISSING:
            self._topic_missing.set()
        if code == KafkaError._FATAL or error.fatal():
            self._producer_failed = True

    def _settle(self, events: int, size: int, lost: str | None) -> None:
        with self._lock:
            self._events_queued -= events
            self._bytes_queued -= size
            if lost is None:
                self._records_delivered += 1
                self._events_delivered += events
                self._bytes_delivered += size
            else:
                self._lost[lost] = self._lost.get(lost, 0) + events

    def _discard(self, reason: str) -> None:
        """Give up what the producer still holds, as lost for ``reason``, and take in the reports that say so."""
        self._purge_reason = reason
        self._producer.purge()
        self._producer.flush(RETRY_FIRST)

    def _reopen(self) -> None:
        """Replace a producer that failed for good (fenced, or its right to write was revoked)."""
        self._discard("producer_failed")
        self._closing.wait(RETRY_FIRST)
        self._producer = self._open()
        self._producer_failed = False
        log.warning("audit_producer_reopened", topic=self._topic)

    def _keep_topic(self) -> None:
        """Make sure the topic exists: at the start, and again whenever a delivery says that it does not."""
        pause = RETRY_FIRST
        while not self._closing.is_set():
            try:
                self.cluster_id = self._cluster.prepare(self._topic, MAX_RECORD).cluster_id
            except Exception as error:
                log.warning("audit_topic_unavailable", topic=self._topic, error=_reason(error), retry_in=pause)
                self._closing.wait(pause)
                pause = min(pause * 2, RETRY_LAST)
                continue
            self.ready.set()
            pause = RETRY_FIRST
            self._topic_missing.wait()
            self._topic_missing.clear()


def _reason(error: Exception) -> str:
    if isinstance(error, KafkaException):
        return str(error.args[0].name())
    return type(error).__name__
