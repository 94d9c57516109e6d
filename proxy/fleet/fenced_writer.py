"""Writes a partition as its only writer: Kafka fences every other one that has begun before (KIP-98).

A writer has one life: it begins, which fences its predecessor, writes, and ends when it is fenced itself or closed.
With the records of a transaction it commits offsets of groups (KIP-447), which are fenced with them. librdkafka's calls
block, so all of them are made on a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from proxy.core.authentication import Authenticator
from proxy.errors import BrokersideError
from proxy.fleet.boottime import boottime_ms
from proxy.fleet.topic_spec import TopicSpec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

TRANSACTION_TIMEOUT_MS = 10_000
"""Milliseconds after which Kafka aborts a transaction of a writer that does not end it itself."""

DELIVERY_TIMEOUT_MS = 5000
"""Milliseconds that the broker has to acknowledge a record."""

BEGIN_TIMEOUT = 15.0
"""Seconds within which the predecessor has to be fenced. The first transaction of a cluster takes some."""

CONNECTING_CALLS = 2
"""Questions that connect to a broker before the transactions begin: while there is no connection, librdkafka looks for
their coordinator again after 500 ms. The first one is asked of the bootstrap server, whose connection it then ends."""

CALL_TIMEOUT = 5.0
"""Seconds that a call for a transaction may take. A call to end one is made again then."""

OFFSETS_TIMEOUT = 2.0
"""Seconds that the offsets of one group may take: so long librdkafka asks again for those of a topic that was deleted,
while all other groups wait."""

RETRY_BACKOFF_MS = 10
"""Milliseconds until librdkafka repeats a request of a writer with offsets: of a transaction that follows another one
at once, Kafka refuses them until it has written the end of the one before, which takes some milliseconds. By default it
waits for 100."""

COMMIT_RETRY = 0.5
"""Seconds until a commit is asked for again whose outcome is not known."""

MAX_BATCH_RECORDS = 1000
"""Records of one transaction; a single write may have more."""

MAX_BATCH_BYTES = 900_000
"""Bytes of records of one transaction; a single write may have more."""

Records = Mapping[bytes, bytes | None]
"""Values by key, in order; None for a tombstone."""

GroupOffsets = Mapping[str, Mapping[tuple[str, int], int]]
"""By group, then by topic and partition: the next offset to consume."""

OnWritten = Callable[[str | None, int], None]
"""Gets None when a write is committed, else why it was aborted; and when its transaction began (``boottime_ms``)."""

log = structlog.get_logger(__name__)


class WriterLost(BrokersideError):
    """The writer has ended: another one has fenced it, or the transaction cannot go on."""


class Write(NamedTuple):
    """What is written in one transaction, perhaps with other writes."""

    records: Records
    offsets: GroupOffsets
    done: OnWritten

    @property
    def size(self) -> int:
        """Bytes of the records."""
        return sum(len(key) + len(value or b"") for key, value in self.records.items())


class FencedWriter:
    """One writer of a partition of ``spec``'s topic, from ``start`` to ``stop``. For the event loop's thread.

    Callbacks are called on the loop; none after ``stop``.
    """

    def __init__(
        self,
        spec: TopicSpec,
        transactional_id: str,
        settings: Mapping[str, Any],
        authenticator: Authenticator | None,
        on_lost: Callable[[str], None],
        *,
        partition: int = 0,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        group_metadata: Callable[[str], bytes] | None = None,
    ) -> None:
        """``settings``: librdkafka's, ``client.id`` among them. ``transactional_id``: of all writers of this partition.

        ``on_lost``: gets why nothing can be written any more; what is under way may become committed or not.
        ``group_metadata``: see ``proxy.fleet.group_metadata``; needed for writes with offsets.
        """
        self._spec = spec
        self._partition = partition
        self._transactional_id = transactional_id
        self._settings = settings
        self._authenticator = authenticator
        self._on_lost = on_lost
        self._delivery_timeout_ms = delivery_timeout_ms
        self._group_metadata = group_metadata
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._next: Write | None = None  # it did not fit into the last transaction
        self._is_last = False  # nothing comes after what was taken
        self._blamed: Sequence[Write] = ()  # of a transaction, what to blame if it is aborted now
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_begun: Callable[[], None]) -> None:
        """Begin. All earlier writers are fenced when ``on_begun`` is called."""
        self._thread = threading.Thread(target=self._run, args=[on_begun], name="fenced-writer", daemon=True)
        self._thread.start()

    def write(self, records: Records, done: OnWritten, offsets: GroupOffsets | None = None) -> None:
        """Write the records and commit the offsets in one transaction. What is written meanwhile goes into the next
        one, so that a transaction may have many writes; each is committed whole or not at all."""
        self._jobs.put(Write(dict(records), offsets or {}, done))

    def finish(self) -> None:
        """End the writer after what was given to ``write`` so far, and wait for nothing; see ``join``."""
        self._jobs.put(None)

    def join(self, seconds: float) -> None:
        """Wait until the writer has ended, for ``seconds`` at most. Blocks."""
        if self._thread is not None:
            self._thread.join(seconds)

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
            while writes := self._take():
                self._commit(producer, writes)
        except WriterLost as lost:
            self._call(self._on_lost, str(lost))
        except Exception as error:
            log.exception("fenced_writer_failed")  # a mistake of ours
            self._call(self._on_lost, repr(error))

    def _take(self) -> list[Write]:
        """Return the writes of the next transaction: all that wait, as far as they fit. Empty at the end."""
        first = self._next or (None if self._is_last else self._jobs.get())
        self._next = None
        if first is None or self._stop.is_set():
            return []
        writes, records, size = [first], len(first.records), first.size
        with contextlib.suppress(queue.Empty):
            while True:
                one = self._jobs.get_nowait()
                if one is None:
                    self._is_last = True
                    break
                records, size = records + len(one.records), size + one.size
                if records > MAX_BATCH_RECORDS or size > MAX_BATCH_BYTES:
                    self._next = one
                    break
                writes.append(one)
        return writes

    def _commit(self, producer: Producer, writes: Sequence[Write]) -> None:
        """Write all in one transaction; where it is aborted, what is not to blame in another one. Raises WriterLost."""
        while writes:
            began = boottime_ms()
            error = self._write(producer, writes)
            reported = self._blamed if error is not None else writes
            for one in reported:
                self._call(one.done, error, began)
            known = {id(one) for one in reported}
            writes = [one for one in writes if id(one) not in known]

    def _begin(self) -> Producer:
        """Fence all earlier writers. Raises WriterLost."""
        from confluent_kafka import KafkaException, Producer

        from observers.kafka_admin import RdkafkaLog
        from proxy.fleet.topic_client import common_settings

        settings = {
            **common_settings(self._settings),
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": self._delivery_timeout_ms,
        }
        if self._group_metadata is not None:
            settings["retry.backoff.ms"] = RETRY_BACKOFF_MS
        try:
            producer = Producer(settings, logger=RdkafkaLog())
            for _ in range(CONNECTING_CALLS):
                producer.list_topics(self._spec.name, timeout=BEGIN_TIMEOUT)
            producer.init_transactions(BEGIN_TIMEOUT)
        except KafkaException as error:
            raise self._lost(error) from None
        return producer

    def _write(self, producer: Producer, writes: Sequence[Write]) -> str | None:
        """Write all in one transaction. Return None, or why it was aborted. Raises WriterLost."""
        from confluent_kafka import KafkaException

        try:
            producer.begin_transaction()
        except KafkaException as error:
            raise self._lost(error) from None
        try:
            self._send(producer, writes)
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

    def _send(self, producer: Producer, writes: Sequence[Write]) -> None:
        """Send all of a transaction. Raises KafkaException."""
        from confluent_kafka import TopicPartition

        from proxy.fleet.topic_client import signature

        offsets: dict[str, dict[tuple[str, int], int]] = {}
        for one in writes:
            self._blamed = [one]
            for key, value in one.records.items():
                headers = signature(self._authenticator, key, value)
                producer.produce(self._spec.name, key=key, value=value, partition=self._partition, headers=headers)
            for group, of_group in one.offsets.items():
                offsets.setdefault(group, {}).update(of_group)
        for group, of_group in offsets.items():
            assert self._group_metadata is not None
            self._blamed = [one for one in writes if group in one.offsets]
            consumed = [TopicPartition(topic, partition, offset) for (topic, partition), offset in of_group.items()]
            producer.send_offsets_to_transaction(consumed, self._group_metadata(group), OFFSETS_TIMEOUT)
        self._blamed = writes

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
