"""Writes a topic as its only writer: Kafka fences every other one that has begun before (KIP-98).

A writer has one life: it begins, which fences its predecessor, writes, and ends when it is fenced itself or closed.
librdkafka's calls block, so all of them are made on a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from proxy.core.authentication import Authenticator
from proxy.errors import BrokersideError
from proxy.fleet.topic_spec import TopicSpec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

TRANSACTION_TIMEOUT_MS = 10_000
"""Milliseconds after which Kafka aborts a transaction of a writer that does not end it itself."""

DELIVERY_TIMEOUT_MS = 5000
"""Milliseconds that the broker has to acknowledge a record."""

BEGIN_TIMEOUT = 15.0
"""Seconds within which the predecessor has to be fenced. The first transaction of a cluster takes some."""

CALL_TIMEOUT = 5.0
"""Seconds that a call to end a transaction may take. The same call is made again then."""

COMMIT_RETRY = 0.5
"""Seconds until a commit is asked for again whose outcome is not known."""

Records = Mapping[bytes, bytes | None]
"""Values by key, in order; None for a tombstone."""

log = structlog.get_logger(__name__)


class WriterLost(BrokersideError):
    """The writer has ended: another one has fenced it, or the transaction cannot go on."""


class FencedWriter:
    """One writer of ``spec``'s partition, from ``start`` to ``stop``. For the event loop's thread.

    Callbacks are called on the loop; none after ``stop``.
    """

    def __init__(
        self,
        spec: TopicSpec,
        transactional_id: str,
        settings: Mapping[str, Any],
        authenticator: Authenticator | None,
        on_lost: Callable[[str], None],
    ) -> None:
        """``settings``: librdkafka's, ``client.id`` among them. ``transactional_id``: of all writers of this partition.

        ``on_lost``: gets why nothing can be written any more; what is under way may become committed or not.
        """
        self._spec = spec
        self._transactional_id = transactional_id
        self._settings = settings
        self._authenticator = authenticator
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[tuple[Records, Callable[[str | None], None]] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_begun: Callable[[], None]) -> None:
        """Begin. All earlier writers are fenced when ``on_begun`` is called."""
        self._thread = threading.Thread(target=self._run, args=[on_begun], name="fenced-writer", daemon=True)
        self._thread.start()

    def write(self, records: Records, done: Callable[[str | None], None]) -> None:
        """Write the records in one transaction. ``done`` gets None when it is committed, else why it was aborted."""
        self._jobs.put((dict(records), done))

    def stop(self) -> None:
        """End the writer, and wait for nothing. What is being written may become committed or not."""
        self._stop.set()
        self._jobs.put(None)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        def call() -> None:
            if not self._stop.is_set():
                callback(*args)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    def _run(self, on_begun: Callable[[], None]) -> None:
        try:
            producer = self._begin()
            self._call(on_begun)
            while (job := self._jobs.get()) is not None and not self._stop.is_set():
                records, done = job
                self._call(done, self._write(producer, records))
        except WriterLost as lost:
            self._call(self._on_lost, str(lost))
        except Exception as error:
            log.exception("fenced_writer_failed")  # a mistake of ours
            self._call(self._on_lost, repr(error))

    def _begin(self) -> Producer:
        """Fence all earlier writers. Raises WriterLost."""
        from confluent_kafka import KafkaException, Producer

        from observers.kafka_admin import RdkafkaLog
        from proxy.fleet.compacted_topic import common_settings

        settings = {
            **common_settings(self._settings),
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        }
        try:
            producer = Producer(settings, logger=RdkafkaLog())
            producer.init_transactions(BEGIN_TIMEOUT)
        except KafkaException as error:
            raise self._lost(error) from None
        return producer

    def _write(self, producer: Producer, records: Records) -> str | None:
        """Write the records in one transaction. Return None, or why it was aborted. Raises WriterLost."""
        from confluent_kafka import KafkaException

        from proxy.fleet.compacted_topic import signature

        try:
            producer.begin_transaction()
        except KafkaException as error:
            raise self._lost(error) from None
        try:
            for key, value in records.items():
                headers = signature(self._authenticator, key, value)
                producer.produce(self._spec.name, key=key, value=value, partition=0, headers=headers)
            self._end(lambda: producer.commit_transaction(CALL_TIMEOUT))
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            if failure.fatal():
                raise self._lost(error) from None
            try:
                self._end(lambda: producer.abort_transaction(CALL_TIMEOUT))
            except KafkaException as worse:
                raise self._lost(worse) from None
            return f"{self._spec.name}: {failure.str()}"
        return None

    def _end(self, call: Callable[[], None]) -> None:
        """End the transaction. Whether it is committed is known only when the same call has returned."""
        from confluent_kafka import KafkaException

        while True:
            try:
                return call()
            except KafkaException as error:
                failure: KafkaError = error.args[0]
                if not failure.retriable() or failure.txn_requires_abort():
                    raise
            if self._stop.wait(COMMIT_RETRY):
                raise WriterLost("closed")

    def _lost(self, error: Any) -> WriterLost:
        return WriterLost(f"{self._spec.name}: {error.args[0].str()}")
