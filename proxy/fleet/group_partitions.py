"""The partitions of the topic of groups that this sidecar has open: it alone writes to them.

To open one, the writer before is fenced first; then the partition is read up to the end that is measured after that, so
that nothing can be missing; then the claim is written. The thread that reads exists only while a partition opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from proxy.coordinator.effects import WriteRecords
from proxy.coordinator.events import Event, PartitionOffsets, PartitionOpened, WriteAborted, WriteCommitted
from proxy.coordinator.records import ClaimRecord, GroupRecord, decode_record, encode_key, encode_value
from proxy.core.authentication import Authenticator
from proxy.errors import BrokersideError
from proxy.fleet.fenced_writer import FencedWriter
from proxy.fleet.topic_spec import GROUPS_TOPIC

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

READ_SECONDS = 0.5
"""Seconds that one read waits for records: a partition that is closed meanwhile ends its thread within this time."""

READ_TIMEOUT = 15.0
"""Seconds without a record after which a partition cannot be opened."""

MAX_LOADED_BYTES = 268_435_456
"""Bytes of the latest records of a partition, with which it is not opened any more: 10,000 groups have a tenth."""

CONFIRMATION = -1
"""The number of the write in ``WriteCommitted`` of a confirmed claim."""

MUTE_SECONDS = 5.0
"""Seconds after ``state.write.timeout.ms`` until a writer that commits nothing is given up: a call of librdkafka may
not return for minutes (decision 0037), or this sidecar is cut off from Kafka. Its groups are mute for as long, and
consumers that have a longer lease find a successor meanwhile."""

FENCED, OPEN_FAILED, STUCK = "fenced", "open_failed", "stuck"
"""Why a partition is lost (``PartitionLost``)."""

log = structlog.get_logger(__name__)


class GroupKafka(NamedTuple):
    """What all partitions are opened with.

    ``settings``: librdkafka's, ``client.id`` among them. ``authenticator``: signs and verifies records. ``admin``: used
    by many threads. ``metadata``: see ``group_metadata``.
    """

    settings: Mapping[str, Any]
    authenticator: Authenticator | None
    admin: AdminClient
    metadata: Callable[[str], bytes]
    broker_id: int
    boot_id: str
    write_timeout_ms: int


class GroupPartition:
    """One partition, from ``open`` to ``close``; after that nothing is reported. On the loop."""

    def __init__(
        self,
        partition: int,
        kafka: GroupKafka,
        on_event: Callable[[Event], None],
        on_lost: Callable[[int, str], None],
    ) -> None:
        """``on_lost``: gets the partition, and why nothing can be written any more; it is closed then."""
        self._partition = partition
        self._kafka = kafka
        self._on_event = on_event
        self._on_lost = on_lost
        self._claim = ClaimRecord(partition, 0, kafka.broker_id, kafka.boot_id)
        self._is_open = False
        self._closed = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._pending = 0  # writes that have not ended
        self._stuck: asyncio.TimerHandle | None = None
        self._writer = FencedWriter(
            GROUPS_TOPIC,
            f"brokerside-groups-{partition}",
            kafka.settings,
            kafka.authenticator,
            self._on_writer_lost,
            partition=partition,
            delivery_timeout_ms=kafka.write_timeout_ms,
            group_metadata=kafka.metadata,
        )

    def open(self) -> None:
        """Fence the writer before, read the partition, claim it; then PartitionOpened."""
        self._writer.start(self._start_reading)

    def write(self, effect: WriteRecords) -> None:
        """Write records and offsets; then WriteCommitted or WriteAborted."""
        records = {encode_key(record): encode_value(record) for record in effect.records}

        def written(error: str | None, began: int) -> None:
            self._report(effect.write, error, began)

        self._write(records, written, effect.offsets)

    def confirm(self) -> None:
        """Write the claim again; then WriteCommitted or WriteAborted."""
        self._write_claim(lambda error, began: self._report(CONFIRMATION, error, began))

    def close(self) -> None:
        """End, and wait for nothing. What was to be written before still is; see ``join``."""
        self._closed.set()
        self._writer.finish()

    def join(self, seconds: float) -> None:
        """Wait until all is written, for ``seconds`` at most. Blocks."""
        self._writer.join(seconds)

    def _report(self, write: int, error: str | None, began: int) -> None:
        if error is None:
            self._tell(WriteCommitted(self._partition, write, began))
        else:
            self._tell(WriteAborted(self._partition, write, error))

    def _tell(self, event: Event) -> None:
        """Report an event after all that were reported before, unless the partition is closed by then."""

        def report() -> None:
            if not self._closed.is_set():
                self._on_event(event)

        self._loop.call_soon(report)

    def _write_claim(self, done: Callable[[str | None, int], None]) -> None:
        self._write({encode_key(self._claim): encode_value(self._claim)}, done, {})

    def _write(
        self,
        records: Mapping[bytes, bytes | None],
        done: Callable[[str | None, int], None],
        offsets: Mapping[str, PartitionOffsets],
    ) -> None:
        def ended(error: str | None, began: int) -> None:
            self._pending -= 1
            if error is None:
                self._watch()
            done(error, began)

        self._pending += 1
        if self._stuck is None:
            self._watch()
        self._writer.write(records, ended, offsets)

    def _watch(self) -> None:
        """Wait for the next write to be committed."""
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        if self._pending and not self._closed.is_set():
            seconds = self._kafka.write_timeout_ms / 1000 + MUTE_SECONDS
            error = f"nothing was committed for {seconds:.0f} s"
            self._stuck = self._loop.call_later(seconds, self._lose, STUCK, error)

    def _on_writer_lost(self, reason: str) -> None:
        self._lose(FENCED if self._is_open else OPEN_FAILED, reason)

    def _lose(self, reason: str, error: str) -> None:
        if self._closed.is_set():
            return
        log.warning("group_partition_lost", partition=self._partition, reason=reason, error=error)
        self._closed.set()
        self._writer.stop()
        self._on_lost(self._partition, reason)

    def _start_reading(self) -> None:
        threading.Thread(target=self._read, name="group-partition", daemon=True).start()

    def _read(self) -> None:
        """Read the partition; on a thread of its own."""
        loaded: LoadedPartition | None = None
        failure = ""
        try:
            loaded = read_partition(self._kafka, self._partition, self._closed)
        except BrokersideError as error:
            failure = str(error)
        except Exception as error:
            log.exception("group_partition_failed")  # a mistake of ours
            failure = repr(error)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._on_read, loaded, failure)

    def _on_read(self, loaded: LoadedPartition | None, failure: str) -> None:
        if self._closed.is_set():
            return
        if loaded is None:
            self._lose(OPEN_FAILED, failure)
            return
        self._claim = self._claim._replace(claim=loaded.claim + 1)

        def claimed(error: str | None, began: int) -> None:
            if error is not None:
                self._lose(OPEN_FAILED, error)
                return
            self._is_open = True
            self._tell(PartitionOpened(self._partition, self._claim.claim, began, loaded.records))

        self._write_claim(claimed)


class LoadedPartition(NamedTuple):
    """What a partition has. ``claim``: the last one, 0 without any. ``records``: the last of each key that has one."""

    claim: int
    records: Sequence[GroupRecord]


def read_partition(kafka: GroupKafka, partition: int, stopped: threading.Event) -> LoadedPartition:
    """Read a partition up to the end that it has now. Blocks. Raises TopicError, and UnreadableRecord for a record that
    no sidecar of this release can have written: what is in it is not known, so that nobody may go on from there."""
    from proxy.fleet.topic_client import TopicError, raising
    from proxy.fleet.topic_consumer import TopicConsumer, end_offset

    name = GROUPS_TOPIC.name
    end = end_offset(kafka.admin, name, partition)
    latest: dict[bytes, bytes] = {}
    size = 0
    with raising(name):
        consumer = TopicConsumer(name, partition, kafka.settings, kafka.authenticator)
    try:
        heard = time.monotonic()
        while consumer.position < end and not stopped.is_set():
            records, _ = consumer.read(READ_SECONDS)
            for key, value, _ in records:
                size -= len(key) + len(before) if (before := latest.pop(key, None)) is not None else 0
                if value is not None:
                    latest[key] = value
                    size += len(key) + len(value)
            if size > MAX_LOADED_BYTES:
                raise TopicError(f"{name}: partition {partition} has more than {MAX_LOADED_BYTES} bytes of records")
            if records:
                heard = time.monotonic()
            elif time.monotonic() - heard > READ_TIMEOUT:
                raise TopicError(f"{name}: partition {partition} cannot be read to its end")
        if consumer.dropped:
            log.warning("group_records_dropped", partition=partition, **consumer.dropped)
    finally:
        consumer.close()
    return _decoded(latest, partition)


def _decoded(latest: Mapping[bytes, bytes], partition: int) -> LoadedPartition:
    claim = 0
    found: list[GroupRecord] = []
    for key, value in latest.items():
        record = decode_record(key, value)
        if not isinstance(record, ClaimRecord):
            found.append(record)
        elif record.partition == partition:
            claim = record.claim
    return LoadedPartition(claim, found)
