"""Everything between encoded events and their topic: blocks, the disk, the producer, and the accounts of all of it.

With a spool every block is written to disk first, and then sent; while the producer has no room, blocks stay on disk
alone and are read back later, in order. Without one, or while the disk fails, blocks wait in memory, up to what the
producer may hold. Two threads: whoever adds events, and a pump, which does everything else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from msgspec import Struct

from observers.accounts import Accounts, Gap
from observers.audit_producer import FIRST_RETRY_DELAY, LAST_RETRY_DELAY, AuditProducer
from observers.batch import MAX_BLOCK_BYTES, Batcher, Block, Chunk, Writer, apart, events_of
from observers.boots import Boot, SpoolSettings
from observers.errors import ObserverError
from observers.kafka_admin import KafkaAdmin
from observers.spool import Parcel
from observers.store import Store
from proxy.core.authentication import Authenticator

PUMP = 0.1
"""Seconds between two looks at what is due, while an event waits for anything."""

TICK = 0.5
"""Seconds between two calls of ``tick``, while an event waits for anything."""

REST = 2.0
"""Seconds between two looks while none does; librdkafka's log lines are then taken in."""

READ_BACK = 0.5
"""Part of the producer's room that is used for what is read back from disk: what is new has the rest."""

DELIVER = 0.8
"""Part of the time to close in which events are delivered; the rest is for taking back what is left, and the disk."""

ENVELOPE = 1024
"""Bytes of a record besides its events, more than there can be."""

log = structlog.get_logger("observers")


class OutboxStats(Struct, frozen=True):
    """Counts since the start, in events unless said otherwise.

    Emitted = delivered + sum of dropped + spooled + queued.
    """

    emitted: int
    """Sequence numbers given: events that are, or would have been."""
    delivered: int
    """Acknowledged by the audit topic."""
    dropped: Mapping[str, int]
    """Lost, by reason; see ``observers.event.LOSSES``."""
    spooled: int
    """On disk, those included that the producer has besides."""
    queued: int
    """In memory alone."""
    queued_bytes: int
    """Bytes of records that wait for the cluster in memory, before compression."""
    spool_bytes: int
    """Bytes on disk, those of dead runs included."""
    spool_failed: bool
    """Whether the disk failed when it was last used: events wait in memory alone."""
    replayed: int
    """Events of dead runs, acknowledged by the audit topic."""
    replay_lost: int
    """Events of dead runs that could not be delivered."""
    records_delivered: int
    bytes_delivered: int
    """Before compression."""
    observed: int
    """Requests, changes of connections and throttle reports seen."""
    taken: int
    """How much of it was added, lost or hidden."""
    hidden: int
    """Those that give no event: excluded topics and principals, the sidecar's own traffic."""
    problems: Mapping[str, str]
    """What is wrong with the audit topic, by a short name."""


class Load(Struct, frozen=True, gc=False):
    """One record on its way. ``boot`` and ``parcel``: the block on disk that it is (a part of); None: memory alone."""

    first: int
    last: int
    boot: Boot | None = None
    parcel: Parcel | None = None

    def __len__(self) -> int:
        return self.last - self.first + 1


class Outbox:
    """Takes numbered events and answers for every one of them."""

    def __init__(
        self,
        admin: KafkaAdmin,
        producer_settings: Mapping[str, Any],
        topic: str,
        *,
        broker_id: int,
        boot_id: str,
        sidecar_version: str,
        schema_level: int,
        spool: SpoolSettings | None = None,
        authenticator: Authenticator | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``producer_settings``: of ``audit_producer.producer_settings``. ``authenticator``: signs records; None: nobody does.

        Raises ObserverError for settings that cannot work.

        A disk that fails is none of them: events then wait in memory.
        """
        self._producer = AuditProducer(admin, producer_settings, topic, self._handle_delivery, authenticator)
        record = int(producer_settings["message.max.bytes"])
        if spool is not None and record > spool.max_bytes:
            allowed = f"up to audit.spool.max.bytes, {spool.max_bytes}"
            raise ObserverError(f"audit.producer: message.max.bytes is {record} (allowed: {allowed})")
        self.numbers = threading.Lock()
        """Held by whoever numbers events, from reading ``seq`` until ``add`` has returned."""
        self._batcher = Batcher(max(1, min(MAX_BLOCK_BYTES, record - ENVELOPE)))
        self._accounts = Accounts(boot_id)
        self._store = Store(
            spool,
            self._accounts,
            broker_id=broker_id,
            boot_id=boot_id,
            sidecar_version=sidecar_version,
            clock=clock,
        )
        self._broker_id = broker_id
        self._boot_id = boot_id
        self._sidecar_version = sidecar_version
        self._level = schema_level
        self._clock = clock
        self._memory: deque[tuple[int, int, bytes]] = deque()
        self._memory_bytes = 0
        self._again: deque[Load] = deque()  # on disk, and the topic did not take them
        self._resume_at = 0.0
        self._pause = 0.0  # how long nothing is read back from disk, after a delivery failed; then one is tried
        self._replayed = 0
        self._replay_lost = 0
        self._tick_at = 0.0
        self._busy = threading.Event()  # an event waits: for others, for the cluster or for its delivery
        self._closing = threading.Event()
        self._pump: threading.Thread | None = None

    @property
    def seq(self) -> int:
        """The last number given."""
        return self._batcher.seq

    @property
    def observed(self) -> memoryview:
        """One number of 64 bits, which whoever observes counts up; it outlives this process where there is a spool."""
        return self._store.observed

    def start(self, tick: Callable[[], None]) -> None:
        """Begin to deliver. ``tick`` is called every half a second, or every two where nothing waits."""
        self._producer.start()
        self._pump = threading.Thread(target=self._run, args=(tick,), name="audit pump", daemon=True)
        self._pump.start()

    def add(self, chunks: Sequence[Chunk], last: int, lost: Mapping[str, int], taken: int, hidden: int) -> None:
        """Take the events of ``chunks``; numbers up to ``last`` that no chunk has are lost. Needs ``numbers``.

        ``lost``: how many, by reason, in the order of their numbers as far as it is known. ``taken``: how many observed
        things all of these were, ``hidden`` of which give no event. Never waits for the network.
        """
        self._accounts.give(chunks, last, lost, taken, hidden)
        self._store.record()
        self._put(self._batcher.add(chunks, last, self._clock()))
        if chunks:
            self._busy.set()

    def take_gaps(self) -> list[Gap]:
        """Return runs of lost numbers that were not told of. Needs ``numbers``: the next are those of their events."""
        return self._accounts.take_gaps()

    def stats(self) -> OutboxStats:
        """Current counts. Never waits for disk or network."""
        counts = self._accounts.counts()
        producer = self._producer
        return OutboxStats(
            emitted=counts.emitted,
            delivered=counts.delivered,
            dropped=counts.dropped,
            spooled=counts.spooled,
            queued=counts.queued,
            queued_bytes=producer.queued_bytes + self._memory_bytes,
            spool_bytes=self._store.size,
            spool_failed=self._store.failed,
            replayed=self._replayed,
            replay_lost=self._replay_lost,
            records_delivered=producer.records_delivered,
            bytes_delivered=producer.bytes_delivered,
            observed=self.observed[0],
            taken=counts.taken,
            hidden=counts.hidden,
            problems=producer.topic_state.problems,
        )

    def close(self, timeout: float) -> None:
        """Deliver within ``timeout`` seconds. What is left then waits on disk for the next run, or is lost."""
        timeout *= DELIVER
        deadline = self._clock() + timeout
        self._closing.set()
        self._busy.set()
        if self._pump is not None:
            self._pump.join(max(2 * PUMP, timeout))
        if not self.numbers.acquire(timeout=max(PUMP, deadline - self._clock())):
            return
        self._put(self._batcher.take())
        self.numbers.release()
        while (left := deadline - self._clock()) > 0:
            self._fill()
            if self._store.done and not self._memory and not self._producer.queued:
                break
            self._producer.poll(min(left, PUMP))
        self._producer.close(max(0.0, deadline - self._clock()))
        while self._memory:
            first, last, _ = self._memory.popleft()
            self._accounts.lose("closed" if self._producer.ready.is_set() else "no_cluster", first, last, spooled=False)
        self._memory_bytes = 0
        if self._pump is None or not self._pump.is_alive():  # else the disk hangs
            self._store.look()
            for load in self._again:
                if load.boot is not None and load.boot.spool.gone:
                    self._handle_delivery(load, "spool_torn", False)
            self._store.keep(self._clock())
            self._store.close()

    def _run(self, tick: Callable[[], None]) -> None:
        while not self._closing.is_set():
            try:
                self._producer.poll(PUMP if self._busy.wait(REST) else 0)
                now = self._clock()
                with self.numbers:
                    self._put(self._batcher.take_due(now))
                self._store.keep(now)
                self._fill()
                if now >= self._tick_at:
                    self._tick_at = now + TICK
                    tick()
                if self._idle:
                    self._busy.clear()
            except Exception:
                log.exception("audit_pump_failed")
                self._closing.wait(PUMP)

    @property
    def _idle(self) -> bool:
        return not (self._batcher.waiting or self._memory or self._producer.queued) and self._store.idle

    def _put(self, blocks: Sequence[Block]) -> None:
        """Store ``blocks`` and send them, or let them wait. Needs ``numbers``."""
        for block in blocks:
            json = block.json()
            direct = self._takes(len(json)) and not self._pause and self._store.caught_up
            put = self._store.put(block.first, block.last, self._level, json, direct=direct)
            if isinstance(put, tuple):
                self._send(Load(block.first, block.last, *put), self._level, json)
            elif put != "stored":
                self._keep_in_memory(block, json, "spool_full" if put == "full" else "queue_full")

    def _takes(self, size: int) -> bool:
        """Whether the producer would take a record of ``size`` now."""
        room = self._producer.max_bytes - self._producer.queued_bytes - self._memory_bytes
        return self._producer.ready.is_set() and size + ENVELOPE <= room

    def _keep_in_memory(self, block: Block, json: bytes, reason: str) -> None:
        if self._producer.queued_bytes + self._memory_bytes + len(json) > self._producer.max_bytes:
            if reason == "queue_full" and not self._producer.ready.is_set():
                reason = "no_cluster"
            self._accounts.lose(reason, block.first, block.last, spooled=False)
            return
        self._memory.append((block.first, block.last, json))
        self._memory_bytes += len(json)
        self._send_memory()

    def _send_memory(self) -> None:
        """Send what waits in memory. Needs ``numbers``."""
        while self._memory and self._producer.ready.is_set():
            first, last, json = self._memory.popleft()
            self._memory_bytes -= len(json)
            self._send(Load(first, last), self._level, json)

    def _fill(self) -> None:
        """Send what waits: in memory, then on disk."""
        if not self._producer.ready.is_set():
            return
        with self.numbers:
            self._send_memory()
        if self._pause and (self._clock() < self._resume_at or self._producer.queued):
            return
        while self._producer.queued_bytes < READ_BACK * self._producer.max_bytes:
            if self._again:
                self._send_again(self._again.popleft())
            elif (taken := self._store.take()) is not None:
                boot, parcel, json = taken
                self._send(Load(parcel.first, parcel.last, boot, parcel), parcel.level, json)
            else:
                return
            if self._pause:
                return

    def _send_again(self, load: Load) -> None:
        assert load.boot is not None
        assert load.parcel is not None
        json = load.boot.spool.read(load.parcel)
        if json is None:
            self._handle_delivery(load, "spool_torn", False)
            return
        if len(load) < len(load.parcel):
            at = load.first - load.parcel.first
            json = b",".join(apart(json)[at : at + len(load)])
        self._send(load, load.parcel.level, json)

    def _send(self, load: Load, level: int, json: bytes) -> None:
        dead = load.boot if load.boot is not None and load.boot.boot_id != self._boot_id else None
        boot_id = self._boot_id if dead is None else dead.boot_id
        version = self._sidecar_version if dead is None else dead.account.sidecar_version
        dropped = self._accounts.counts().lost if dead is None else dead.account.lost
        writer = Writer(self._producer.topic_state.cluster_id, self._broker_id, boot_id, version)
        sent_at = time.time_ns() // 1000
        value = writer.value(load.first, load.last, json, level=level, dropped=dropped, sent_at=sent_at)
        if not self._producer.send(value, load):
            fits = self._producer.queued > 0  # once the others are gone
            self._handle_delivery(load, "queue_full" if fits else "too_large", fits, None if fits else value)

    def _halve(self, load: Load, value: bytes) -> None:
        """Send a record that was too large as two. What is new then comes in smaller blocks.

        A block is always divided at the same numbers, so what comes twice after a kill is told by its first number.
        """
        level, events = events_of(value)
        size = sum(map(len, events))
        self._batcher.max_size = max(1, min(self._batcher.max_size, size // 2))
        middle = len(events) // 2
        for first, part in ((load.first, events[:middle]), (load.first + middle, events[middle:])):
            half = Load(first, first + len(part) - 1, load.boot, load.parcel)
            self._send(half, level, b",".join(part))

    def _handle_delivery(self, load: Load, reason: str | None, retriable: bool, refused: bytes | None = None) -> None:
        """Take note of what became of a record; what is on disk is sent again, if that may help.

        ``refused``: the record, where it was too large.
        """
        if refused is not None and len(load) > 1:
            self._halve(load, refused)
            return
        boot, parcel = load.boot, load.parcel
        if boot is not None and not boot.spool.gone and reason is not None and retriable:
            self._again.append(load)
            now = self._clock()
            if not self._pause and not self._closing.is_set():
                log.warning("audit_delivery_failed", reason=reason)
            if now >= self._resume_at:
                self._pause = min(max(FIRST_RETRY_DELAY, 2 * self._pause), LAST_RETRY_DELAY)
                self._resume_at = now + self._pause
            return
        if reason is None and self._pause:
            self._pause = 0.0
            log.info("audit_delivery_works_again")
        if boot is not None and parcel is not None:
            self._store.settle(boot, parcel, len(load))
        if boot is None or boot.boot_id == self._boot_id:
            if reason is None:
                self._accounts.deliver(load.first, load.last, spooled=boot is not None)
            else:
                self._accounts.lose(reason, load.first, load.last, spooled=boot is not None)
        elif reason is None:
            self._replayed += len(load)
        else:
            self._replay_lost += len(load)
            self._accounts.add_gap(Gap(reason, boot.boot_id, load.first, load.last))
