"""Brings encoded events to their destination, by way of blocks, the disk and a sender, and accounts for each event.

With a spool every block is written to disk first, and then sent. While the sender has no room, blocks stay on disk
alone and are read back later, in order. Without a spool, or while the disk fails, blocks wait in memory, up to what
the sender may hold. There are two threads: the one that adds events, and a pump, which does everything else.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import structlog
from msgspec import Struct

from observers.delivery_accounting import DeliveryAccounting, Gap
from observers.event import ROLLUP_LEVEL, SCHEMA_LEVEL
from observers.event_blocks import MAX_BLOCK_BYTES, Block, BlockBuilder, Chunk, RecordWriter, parse_record, split_events
from observers.observed_counter import ObservedCounter
from observers.record_sender import FIRST_RETRY_DELAY, LAST_RETRY_DELAY, DeliveryCallback, RecordSender
from observers.spool import StoredBlock
from observers.spool_runs import SpoolRun, SpoolSettings
from observers.spool_store import SpoolStore

PUMP_INTERVAL = 0.1
"""Seconds between two rounds of the pump while any event waits."""

OUTBOX_TICK_INTERVAL = 0.5
"""Seconds between two calls of ``tick`` while any event waits."""

IDLE_INTERVAL = 2.0
"""Seconds between two rounds of the pump while no event waits. Each round also handles librdkafka's log lines."""

READ_BACK_SHARE = 0.5
"""Part of the sender's queue for blocks that are read back from disk. New blocks have the rest."""

CLOSE_DELIVERY_SHARE = 0.8
"""Part of the time to close in which events are delivered. The rest is for purging the sender and for the disk."""

MAX_ENVELOPE_BYTES = 1024
"""Upper bound in bytes of a record without its events."""

log = structlog.get_logger("observers")


class OutboxStats(Struct, frozen=True):
    """Counts since the start, in events unless said otherwise.

    Emitted = delivered + sum of dropped + spooled + queued.
    """

    emitted: int
    """Sequence numbers given, to events and to events that were lost before they were encoded."""
    delivered: int
    """Acknowledged by the destination: the audit topic, or the OpenTelemetry collector."""
    dropped: Mapping[str, int]
    """Lost, by reason; see ``observers.account_events.LOSS_REASONS``."""
    spooled: int
    """On disk, including those that the sender holds as well."""
    queued: int
    """In memory alone."""
    undelivered: Mapping[int, int]
    """What is spooled or queued, and what dead runs left on disk, by schema level; of each level of this release."""
    queued_bytes: int
    """Bytes of records that wait in memory, before compression."""
    spool_bytes: int
    """Bytes on disk, including those of dead runs."""
    spool_problem: str
    """Why the last use of the disk failed, in one sentence; empty if it did not. Events then wait in memory alone."""
    replayed: int
    """Events of dead runs, acknowledged by the destination."""
    replay_lost: int
    """Events of dead runs that could not be delivered."""
    records_delivered: int
    bytes_delivered: int
    """Before compression."""
    observed: int
    """Requests, changes of connections and throttle reports seen."""
    taken: int
    """How many of the observed items were added, lost or hidden."""
    hidden: int
    """Observed items that give no event: excluded topics and principals."""
    problems: Mapping[str, str]
    """Problems of the destination, by a short name."""

    @property
    def spool_failed(self) -> bool:
        """Whether the last use of the disk failed."""
        return bool(self.spool_problem)


class OutgoingRecord(Struct, frozen=True, gc=False):
    """One record that is being sent. ``run`` and ``stored``: its block on disk, or None if it is in memory alone."""

    first: int
    last: int
    level: int
    run: SpoolRun | None = None
    stored: StoredBlock | None = None

    def __len__(self) -> int:
        return self.last - self.first + 1


class WaitingBlock(NamedTuple):
    """A block that is in memory alone, and was not sent yet."""

    first: int
    last: int
    level: int
    json: bytes


class Outbox:
    """Delivers numbered events, and counts what becomes of each of them."""

    def __init__(
        self,
        make_sender: Callable[[DeliveryCallback], RecordSender],
        *,
        broker_id: int,
        boot_id: str,
        sidecar_version: str,
        schema_level: int,
        spool: SpoolSettings | None = None,
        observed: ObservedCounter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``make_sender``: makes the sender, given the callback. ``observed``: of this process; by default a new one.
        ``schema_level``: see ``set_schema_level``.

        A disk that fails raises nothing: events then wait in memory.
        """
        self._sender = make_sender(self._handle_delivery)
        self._observed = ObservedCounter(boot_id) if observed is None else observed
        self.sequence_lock = threading.Lock()
        """A thread that numbers events holds it from reading ``seq`` until ``add_events`` has returned."""
        self._block_builder = BlockBuilder(
            max(1, min(MAX_BLOCK_BYTES, self._sender.max_record_bytes - MAX_ENVELOPE_BYTES)), schema_level
        )
        self._accounting = DeliveryAccounting(boot_id)
        self._store = SpoolStore(
            spool,
            self._accounting,
            self._observed,
            broker_id=broker_id,
            boot_id=boot_id,
            sidecar_version=sidecar_version,
            clock=clock,
        )
        self._broker_id = broker_id
        self._boot_id = boot_id
        self._sidecar_version = sidecar_version
        self._clock = clock
        self._memory: deque[WaitingBlock] = deque()
        self._memory_bytes = 0
        self._retries: deque[OutgoingRecord] = deque()  # on disk; their delivery failed and is tried again
        self._resume_at = 0.0
        self._retry_delay = 0.0  # seconds without reading back from disk after a failed delivery; then one is tried
        self._replayed = 0
        self._replay_lost = 0
        self._tick_at = 0.0
        self._busy = threading.Event()  # set while an event waits for others, or for its delivery
        self._closing = threading.Event()
        self._pump: threading.Thread | None = None

    @property
    def seq(self) -> int:
        """The last number given."""
        return self._block_builder.seq

    @property
    def schema_level(self) -> int:
        """The level of the events that are added; 0: they are lost."""
        return self._block_builder.level

    @property
    def observed(self) -> memoryview:
        """A counter of 64 bits that the data path increments. With a spool it outlives this process."""
        return self._observed.memory

    @property
    def spool_problem(self) -> str:
        """Why the last use of the disk failed, in one sentence; empty if it did not. Waits for nothing."""
        return self._store.problem

    @property
    def searched_at(self) -> float:
        """See ``SpoolStore.searched_at``. Read it before ``stats``. Waits for nothing."""
        return self._store.searched_at

    def start(self, tick: Callable[[], None]) -> None:
        """Start the threads. The pump calls ``tick`` every 0.5 s, or every 2 s while no event waits."""
        self._sender.start()
        self._busy.set()  # so that what dead runs left is found at once
        self._pump = threading.Thread(target=self._run, args=(tick,), name="audit pump", daemon=True)
        self._pump.start()

    def add_events(self, chunks: Sequence[Chunk], last: int, lost: Mapping[str, int], taken: int, hidden: int) -> None:
        """Add the events of ``chunks``. Numbers up to ``last`` that no chunk has are lost. Needs ``sequence_lock``.

        ``lost``: lost events by reason, in the order of their numbers as far as it is known. ``taken``: how many
        observed items this call accounts for, of which ``hidden`` give no event. Never waits for the network.
        """
        level = self.schema_level
        if chunks and not level:
            lost = {**lost, "schema_level": sum(chunk.count for chunk in chunks)}
            chunks = ()
        self._accounting.record_numbered(chunks, last, lost, taken, hidden, level=level)
        self._store.write_ledger()
        self._store_and_send(self._block_builder.add_chunks(chunks, last, self._clock()))
        if chunks:
            self._busy.set()

    def set_schema_level(self, level: int) -> None:
        """Let the events that are added from now on have this level, in records of their own. Needs ``sequence_lock``.

        With 0 they are lost (``schema_level``). What was added before is delivered at its own level.
        """
        self._store_and_send(self._block_builder.complete())
        self._block_builder.level = level

    def drain_gaps(self, *, ending: bool = False) -> list[Gap]:
        """Return and remove the gaps that were not reported, and at the end all. Needs ``sequence_lock``.

        The caller must give the next numbers to their events, in this order. There are none while events are lost.
        """
        return self._accounting.drain_gaps(ending=ending) if self.schema_level else []

    def stats(self) -> OutboxStats:
        """Current counts. Never waits for disk or network."""
        counts = self._accounting.counts()
        sender = self._sender
        undelivered = Counter({SCHEMA_LEVEL: 0, ROLLUP_LEVEL: 0})
        undelivered.update(counts.undelivered)
        undelivered.update(self._store.undelivered_of_dead_runs())
        return OutboxStats(
            emitted=counts.emitted,
            delivered=counts.delivered,
            dropped=counts.dropped,
            spooled=counts.spooled,
            queued=counts.queued,
            undelivered=dict(undelivered),
            queued_bytes=sender.queued_bytes + self._memory_bytes,
            spool_bytes=self._store.size,
            spool_problem=self._store.problem,
            replayed=self._replayed,
            replay_lost=self._replay_lost,
            records_delivered=sender.records_delivered,
            bytes_delivered=sender.bytes_delivered,
            observed=self.observed[0],
            taken=counts.taken,
            hidden=counts.hidden,
            problems=sender.problems,
        )

    def close(self, timeout: float) -> None:
        """Deliver within ``timeout`` seconds. The rest waits on disk for the next run, or is lost without a spool."""
        timeout *= CLOSE_DELIVERY_SHARE
        deadline = self._clock() + timeout
        self._closing.set()
        self._busy.set()
        if self._pump is not None:
            self._pump.join(max(2 * PUMP_INTERVAL, timeout))
        if not self.sequence_lock.acquire(timeout=max(PUMP_INTERVAL, deadline - self._clock())):
            return
        self._store_and_send(self._block_builder.complete())
        self.sequence_lock.release()
        while (left := deadline - self._clock()) > 0:
            self._send_waiting()
            if self._store.done and not self._memory and not self._sender.queued:
                break
            self._sender.poll(min(left, PUMP_INTERVAL))
        self._sender.close(max(0.0, deadline - self._clock()))
        while self._memory:
            block = self._memory.popleft()
            reason = "closed" if self._sender.ready.is_set() else "no_cluster"
            self._accounting.record_lost(reason, block.first, block.last, level=block.level, spooled=False)
        self._memory_bytes = 0
        if self._pump is None or not self._pump.is_alive():  # otherwise the disk hangs
            self._store.replace_deleted_folder()
            for outgoing in self._retries:
                if outgoing.run is not None and outgoing.run.spool.is_abandoned:
                    self._handle_delivery(outgoing, "spool_torn", False)
            self._store.maintain(self._clock())
            self._store.close()

    def _run(self, tick: Callable[[], None]) -> None:
        while not self._closing.is_set():
            try:
                self._sender.poll(PUMP_INTERVAL if self._busy.wait(IDLE_INTERVAL) else 0)
                now = self._clock()
                with self.sequence_lock:
                    self._store_and_send(self._block_builder.complete_expired(now))
                self._store.maintain(now)
                self._send_waiting()
                if now >= self._tick_at:
                    self._tick_at = now + OUTBOX_TICK_INTERVAL
                    tick()
                if self._idle:
                    self._busy.clear()
            except Exception:
                log.exception("audit_pump_failed")
                self._closing.wait(PUMP_INTERVAL)

    @property
    def _idle(self) -> bool:
        return not (self._block_builder.open_events or self._memory or self._sender.queued) and self._store.idle

    def _store_and_send(self, blocks: Sequence[Block]) -> None:
        """Store ``blocks``, and send them if the sender has room. Needs ``sequence_lock``."""
        for block in blocks:
            json = block.json()
            direct = self._has_room(len(json)) and not self._retry_delay and self._store.caught_up
            put = self._store.store_block(block.first, block.last, block.level, json, direct=direct)
            if isinstance(put, tuple):
                self._send(OutgoingRecord(block.first, block.last, block.level, *put), json)
            elif put != "stored":
                waiting = WaitingBlock(block.first, block.last, block.level, json)
                self._keep_in_memory(waiting, "spool_full" if put == "full" else "queue_full")

    def _has_room(self, size: int) -> bool:
        """Whether the sender has room for a record of ``size`` bytes."""
        room = self._sender.max_bytes - self._sender.queued_bytes - self._memory_bytes
        return self._sender.ready.is_set() and size + MAX_ENVELOPE_BYTES <= room

    def _keep_in_memory(self, block: WaitingBlock, reason: str) -> None:
        if self._sender.queued_bytes + self._memory_bytes + len(block.json) > self._sender.max_bytes:
            if reason == "queue_full" and not self._sender.ready.is_set():
                reason = "no_cluster"
            self._accounting.record_lost(reason, block.first, block.last, level=block.level, spooled=False)
            return
        self._memory.append(block)
        self._memory_bytes += len(block.json)
        self._send_memory()

    def _send_memory(self) -> None:
        """Send the blocks that wait in memory. Needs ``sequence_lock``."""
        while self._memory and self._sender.ready.is_set():
            block = self._memory.popleft()
            self._memory_bytes -= len(block.json)
            self._send(OutgoingRecord(block.first, block.last, block.level), block.json)

    def _send_waiting(self) -> None:
        """Send the blocks that wait: first those in memory, then those on disk."""
        if not self._sender.ready.is_set():
            return
        with self.sequence_lock:
            self._send_memory()
        if self._retry_delay and (self._clock() < self._resume_at or self._sender.queued):
            return
        while self._sender.queued_bytes < READ_BACK_SHARE * self._sender.max_bytes:
            if self._retries:
                self._send_again(self._retries.popleft())
            elif (taken := self._store.read_next_block()) is not None:
                run, stored, json = taken
                self._send(OutgoingRecord(stored.first, stored.last, stored.level, run, stored), json)
            else:
                return
            if self._retry_delay:
                return

    def _send_again(self, outgoing: OutgoingRecord) -> None:
        assert outgoing.run is not None
        assert outgoing.stored is not None
        json = outgoing.run.spool.read_again(outgoing.stored)
        if json is None:
            self._handle_delivery(outgoing, "spool_torn", False)
            return
        if len(outgoing) < len(outgoing.stored):
            at = outgoing.first - outgoing.stored.first
            json = b",".join(split_events(json)[at : at + len(outgoing)])
        self._send(outgoing, json)

    def _send(self, outgoing: OutgoingRecord, json: bytes) -> None:
        dead = outgoing.run if outgoing.run is not None and outgoing.run.boot_id != self._boot_id else None
        boot_id = self._boot_id if dead is None else dead.boot_id
        version = self._sidecar_version if dead is None else dead.entry.sidecar_version
        dropped = self._accounting.counts().lost if dead is None else dead.entry.lost
        writer = RecordWriter(self._sender.cluster_id, self._broker_id, boot_id, version)
        sent_at = time.time_ns() // 1000
        value = writer.encode_record(
            outgoing.first, outgoing.last, json, level=outgoing.level, dropped=dropped, sent_at=sent_at
        )
        if not self._sender.send(value, outgoing):
            fits = self._sender.queued > 0  # once other records are delivered
            self._handle_delivery(outgoing, "queue_full" if fits else "too_large", fits, None if fits else value)

    def _send_halves(self, outgoing: OutgoingRecord, value: bytes) -> None:
        """Send a record that was too large as two halves, and make new blocks smaller.

        A block is always divided at the same numbers, so that the first number identifies a duplicate after a kill.
        """
        events = parse_record(value)
        size = sum(map(len, events))
        self._block_builder.max_size = max(1, min(self._block_builder.max_size, size // 2))
        middle = len(events) // 2
        for first, part in ((outgoing.first, events[:middle]), (outgoing.first + middle, events[middle:])):
            half = OutgoingRecord(first, first + len(part) - 1, outgoing.level, outgoing.run, outgoing.stored)
            self._send(half, b",".join(part))

    def _handle_delivery(
        self,
        outgoing: OutgoingRecord,
        reason: str | None,
        retriable: bool,
        too_large: bytes | None = None,
        lost: int | None = None,
    ) -> None:
        """Implement ``DeliveryCallback``. Retriable blocks on disk are sent again, too large ones in halves."""
        if too_large is not None and len(outgoing) > 1:
            self._send_halves(outgoing, too_large)
            return
        run, stored = outgoing.run, outgoing.stored
        if run is not None and not run.spool.is_abandoned and reason is not None and retriable:
            self._retry_later(outgoing, reason)
            return
        if reason is None and self._retry_delay:
            self._retry_delay = 0.0
            log.info("audit_delivery_works_again")
        if run is not None and stored is not None:
            self._store.settle_block(run, stored, len(outgoing))
        if reason is None:
            lost = 0
        elif lost is None or lost > len(outgoing):
            lost = len(outgoing)
        delivered = len(outgoing) - lost
        if run is not None and run.boot_id != self._boot_id:
            self._replayed += delivered
            if reason is not None and lost:
                self._replay_lost += lost
                self._accounting.add_gap(Gap(reason, run.boot_id, outgoing.first, outgoing.last))
            return
        first, last, level = outgoing.first, outgoing.last, outgoing.level
        if delivered:
            self._accounting.record_delivered(first, last, level=level, spooled=run is not None, events=delivered)
        if reason is not None and lost:
            self._accounting.record_lost(reason, first, last, level=level, spooled=run is not None, events=lost)

    def _retry_later(self, outgoing: OutgoingRecord, reason: str) -> None:
        self._retries.append(outgoing)
        now = self._clock()
        if not self._retry_delay and not self._closing.is_set():
            log.warning("audit_delivery_failed", reason=reason)
        if now >= self._resume_at:
            self._retry_delay = min(max(FIRST_RETRY_DELAY, 2 * self._retry_delay), LAST_RETRY_DELAY)
            self._resume_at = now + self._retry_delay
