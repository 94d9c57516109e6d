"""The built-in observer: exchanges and throttle reports in, audit events out.

Two threads: the lane's, which is told of them and encodes events, and a pump, which sends blocks that have waited
long enough and takes in delivery reports. At any time: emitted = delivered + sum of dropped + queued.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from msgspec import Struct

from observers.api import ObservedExchange, ThrottleReport
from observers.batch import Batcher, Block, Translation, Writer
from observers.cluster import Cluster, client_id_of
from observers.errors import ObserverError
from observers.incidents import translate_changes, translate_throttles
from observers.sink import Sink, producer_settings
from observers.topics import TopicNames
from observers.translate import Scope, Translator
from proxy.core.exchange import ConnectionChange

try:
    from observers.compiled import Translator as FastTranslator
except ImportError:  # installed without a compiler
    FastTranslator = Translator  # type: ignore[misc,assignment]

DEFAULT_TOPIC = "brokerside-audit"

MAX_WAITING = 20_000
"""Events kept until the cluster's id is known and the topic exists, about 0.6 KiB each; above it new ones are lost."""

PUMP = 0.1
"""Seconds between two looks at what is due, while an event waits for anything."""

REST = 2.0
"""Seconds between two looks while none does; librdkafka's log lines are then taken in."""

log = structlog.get_logger("observers")


class AuditStats(Struct, frozen=True):
    """Counts since the start, in events unless said otherwise. Emitted = delivered + sum of dropped + queued."""

    emitted: int
    """Sequence numbers given: events that are, or would have been."""
    delivered: int
    """Acknowledged by the audit topic."""
    dropped: Mapping[str, int]
    """Lost, by reason: ``observer_queue`` (before this observer was told), ``failed`` (no event could be
    built), ``not_encodable``, ``no_cluster`` (never reached since the start, and too many wait), ``queue_full``,
    ``too_large``, ``closed`` (not delivered in the time to close), ``producer_failed`` (queued in a producer that had
    to be replaced), or librdkafka's name of a delivery's error."""
    queued: int
    queued_bytes: int
    """Bytes in the producer's queue, before compression."""
    records_delivered: int
    bytes_delivered: int
    """Before compression."""
    hidden: int
    """Exchanges that give no event: excluded topics and principals, the sidecar's own traffic."""
    topic_look_ups: int


class AuditObserver:
    """Implements ``ExchangeObserver`` and ``ThrottleObserver``. See ``configure`` for what it needs."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Start with ``broker.id``, ``boot.id``, ``sidecar.version``, ``internal``, ``audit`` and ``api.names``.

        ``internal``: librdkafka's client settings, ``bootstrap.servers`` among them. ``audit``: ``topic``,
        ``exclude.topics``, ``exclude.principals``, ``producer`` (librdkafka settings), each of which may be missing.
        Does not wait for the cluster. Raises ObserverError for settings it cannot work with.
        """
        internal: Mapping[str, Any] = configs["internal"]
        if not internal.get("bootstrap.servers"):
            raise ObserverError("internal.bootstrap.servers is not set; the audit goes to the cluster through it")
        audit: Mapping[str, Any] = configs["audit"]
        topic = audit.get("topic", DEFAULT_TOPIC)
        self._broker_id: int = configs["broker.id"]
        self._boot_id: str = configs["boot.id"]
        self._sidecar_version: str = configs["sidecar.version"]
        client_id = client_id_of(self._broker_id)
        cluster = Cluster(internal, client_id)
        self._names = TopicNames(cluster.topic_names)
        self._scope = Scope(
            self._names,
            topics={topic, *audit.get("exclude.topics", ())},
            principals=audit.get("exclude.principals", ()),
            client_ids={client_id},
        )
        self._translator = FastTranslator(configs["api.names"], self._names, self._scope)
        self._sink = Sink(cluster, producer_settings(internal, audit.get("producer", {}), client_id), topic)
        self._clock: Callable[[], float] = time.monotonic
        # Guards everything below; never held while the network is waited for, nor while events are encoded.
        self._lock = threading.Lock()
        self._batcher = Batcher()
        self._waiting: deque[Block] = deque()
        self._waiting_events = 0
        self._dropped: dict[str, int] = {}
        self._hidden = 0
        self._busy = threading.Event()  # an event waits: for others, for the cluster or for its delivery
        self._closing = threading.Event()
        self._pump = threading.Thread(target=self._run_pump, name="audit pump", daemon=True)
        self._sink.start()
        self._pump.start()

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        """Turn ``exchanges`` into events; ``dropped`` were lost before them and leave a gap of that size."""
        self._take(self._translator.translate(exchanges, self._after(dropped), _wall_offset()), dropped)

    def record_throttles(self, reports: Sequence[ThrottleReport], dropped: int) -> None:
        """Turn each of ``reports`` into an event; ``dropped`` as in ``record_exchanges``. No exclusion hides one."""
        self._take(translate_throttles(reports, self._after(dropped), _wall_offset()), dropped)

    def record_changes(self, changes: Sequence[ConnectionChange], dropped: int) -> None:
        """Turn each of ``changes`` into an event; ``dropped`` as in ``record_exchanges``."""
        self._take(translate_changes(changes, self._after(dropped), _wall_offset(), self._scope), dropped)

    def close(self, timeout: float) -> None:
        """Send what is there and wait up to ``timeout`` seconds for its delivery; what is left then is lost."""
        deadline = self._clock() + timeout
        self._closing.set()
        self._busy.set()
        self._pump.join(max(0.0, timeout))
        with self._lock:
            self._send(self._batcher.take())
            waits = bool(self._waiting)
        if waits:
            self._sink.ready.wait(max(0.0, deadline - self._clock()))
        with self._lock:
            self._send(())
            self._drop("no_cluster", self._waiting_events)
            self._waiting.clear()
            self._waiting_events = 0
        self._sink.close(max(0.0, deadline - self._clock()))

    def stats(self) -> AuditStats:
        """Current counts."""
        with self._lock:
            sink = self._sink.stats()
            return AuditStats(
                emitted=self._batcher.seq,
                delivered=sink.events_delivered,
                dropped=dict(Counter(self._dropped) + Counter(sink.lost)),
                queued=self._batcher.waiting + self._waiting_events + sink.events_queued,
                queued_bytes=sink.bytes_queued,
                records_delivered=sink.records_delivered,
                bytes_delivered=sink.bytes_delivered,
                hidden=self._hidden,
                topic_look_ups=self._names.look_ups,
            )

    def _after(self, dropped: int) -> int:
        """Return the next number after ``dropped`` events. The lane's thread alone gives numbers: no lock is needed."""
        return self._batcher.seq + dropped + 1

    def _take(self, made: Translation, dropped: int) -> None:
        with self._lock:
            self._hidden += made.hidden
            self._drop("observer_queue", dropped)
            self._drop("failed", made.failed)
            self._drop("not_encodable", made.not_encodable)
            self._drop("too_large", made.too_large)
            self._send(self._batcher.add(made.chunks, made.last, self._clock()))
            if made.chunks:
                self._busy.set()

    def _run_pump(self) -> None:
        while not self._closing.is_set():
            try:
                self._sink.poll(PUMP if self._busy.wait(REST) else 0)
                with self._lock:
                    self._send(self._batcher.take_due(self._clock()))
                    if not (self._batcher.waiting or self._waiting) and self._sink.idle:
                        self._busy.clear()
            except Exception:
                log.exception("audit_pump_failed")
                self._closing.wait(PUMP)

    def _send(self, blocks: Sequence[Block]) -> None:
        """Send ``blocks`` after those that wait, or let them wait while there is no cluster. Needs the lock."""
        if not self._sink.ready.is_set():
            for block in blocks:
                self._wait(block)
            return
        writer = Writer(self._sink.cluster_id, self._broker_id, self._boot_id, self._sidecar_version)
        while self._waiting:
            self._send_block(self._waiting.popleft(), writer)
        self._waiting_events = 0
        for block in blocks:
            self._send_block(block, writer)

    def _wait(self, block: Block) -> None:
        if self._waiting_events + len(block) > MAX_WAITING:
            self._drop("no_cluster", len(block))
        else:
            self._waiting.append(block)
            self._waiting_events += len(block)

    def _send_block(self, block: Block, writer: Writer) -> None:
        dropped = sum(self._dropped.values()) + self._sink.events_lost
        self._sink.send(writer.record(block, dropped=dropped, sent_at=time.time_ns() // 1000), len(block))

    def _drop(self, reason: str, count: int) -> None:
        if count:
            self._dropped[reason] = self._dropped.get(reason, 0) + count


def _wall_offset() -> float:
    """Return what makes the monotonic clock's seconds those since 1970."""
    return time.time() - time.monotonic()
