"""What the observers of the audit share: exchanges, connection changes and throttle reports in, numbered events out.

Three threads: the observer's own, which encodes events; the outbox's pump, which sends them and calls
``_emit_scheduled``; and the inventory's. Each of them numbers events under ``Outbox.sequence_lock``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import asdict

from observers.account_events import GapEvent, StatusEvent
from observers.api import ConnectionChange, ObservedExchange, ThrottleReport
from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.cluster_events import InventoryEvent
from observers.connection_writer import encode_connection_changes
from observers.errors import ObserverError
from observers.event import ROLLUP_LEVEL, SCHEMA_LEVEL
from observers.event_blocks import EncodedEvents
from observers.fetch_sessions import FETCH_API_KEYS
from observers.inventory import Inventory
from observers.kafka_admin import KafkaAdmin, client_id_of
from observers.numbered_events import encode_numbered, encode_throttle_reports
from observers.offset_tracker import OffsetTracker
from observers.outbox import Outbox, OutboxStats
from observers.record_counter import count_compressed_records
from observers.record_sender import DeliveryCallback, RecordSender
from observers.rollup_writer import ExchangeDivider, RollupAggregator
from observers.spool_runs import SpoolSettings, check_path
from observers.topic_names import TopicNames

DEFAULT_TOPIC = "brokerside-audit"
"""The audit topic. No inventory has it."""

STATUS_INTERVAL = 10.0
"""Seconds between two ``sidecar_status`` events."""

MIN_CLOCK_STEP = 1.0
"""Seconds that the wall clock must step against the monotonic clock, between two statuses, to be reported."""

PRODUCE = 0

LAST_MESSAGE_SET_PRODUCE = 2
"""Newest version of Produce that may carry message sets of magic 0 and 1. A fetch of any version may return them, as
they were stored."""

log = structlog.get_logger("observers")


class AuditStats(OutboxStats, frozen=True):
    """The outbox's counts, and the observer's own."""

    partly_hidden: int
    """Events of requests, and requests in rollups, that lack excluded topics."""
    topic_look_ups: int
    """Times the names of all topics were asked for."""
    levels: Mapping[int, int]
    """Processes, which is one, by the schema level in use: new records have none above it. 0: there are none."""
    searched: Mapping[float, int]
    """The same by the time, in monotonic seconds, at which their last search for dead runs on disk began:
    ``undelivered`` has what these had left by then. 0: there was none yet; infinite: there is no spool."""


class Destination(Struct, frozen=True):
    """Where the events of an observer go, and which there are."""

    make_sender: Callable[[DeliveryCallback], RecordSender]
    settings: Mapping[str, Any]
    """``mode``, ``exclude.topics``, ``exclude.principals``, ``rollup.interval.ms``, ``offsets.interval.ms``,
    ``inventory.interval.ms``, ``spool.path`` and ``spool.max.bytes``, all optional."""
    level: int = ROLLUP_LEVEL
    """The schema level in use at the start."""

    @property
    def spool(self) -> SpoolSettings | None:
        """The spool, if there is one."""
        path = self.settings.get("spool.path")
        return SpoolSettings(path, self.settings["spool.max.bytes"]) if path else None


class EventObserver(ABC):
    """Implements ``ExchangeObserver``, ``ConnectionObserver`` and ``ThrottleObserver``. Subclasses say where to."""

    spool_setting: str
    """Name of the setting with the path of the spool, for errors."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Start with ``broker.id``, ``boot.id``, ``sidecar.version``, ``internal``, ``audit``, ``api.names`` and more.

        ``internal``: librdkafka's client settings, ``bootstrap.servers`` among them. ``topic.names``: a ``TopicNames``.
        ``observed``: the ``ObservedCounter`` of this process; by default a new one. ``worker``: number of this process;
        worker 1 emits the inventory. ``observer.records.deep``: whether to count the records in compressed sets of old
        clients. ``dry.run``: check these and the settings of the destination, and start nothing.

        Does not wait for the cluster. Raises ObserverError for settings it cannot work with.
        """
        internal: Mapping[str, Any] = configs["internal"]
        if not internal.get("bootstrap.servers"):
            raise ObserverError("internal.bootstrap.servers is not set; the audit asks the cluster through it")
        admin = KafkaAdmin(internal, client_id_of(configs["broker.id"]))
        destination = self._find_destination(configs, admin)
        settings = destination.settings
        rolls_up = settings.get("mode") == "rollup"
        self._level_of_mode = ROLLUP_LEVEL if rolls_up else SCHEMA_LEVEL
        self._level_in_use = destination.level
        self._names: TopicNames = configs["topic.names"]
        self._filter = AuditFilter(
            self._names,
            topics=settings.get("exclude.topics", ()),
            principals=settings.get("exclude.principals", ()),
        )
        self._counts_compressed_records = bool(configs.get("observer.records.deep"))
        self._dry = bool(configs.get("dry.run"))
        self._request_encoder = RequestEventEncoder(configs["api.names"], self._names, self._filter)
        self._rollup = RollupAggregator(configs["api.names"], self._names, self._filter) if rolls_up else None
        self._divider = ExchangeDivider()
        self._rollup_interval = settings.get("rollup.interval.ms", 1000) / 1000
        self._offsets = OffsetTracker(self._names, self._filter)
        self._offsets_interval = settings.get("offsets.interval.ms", 30_000) / 1000
        if self._dry:
            if destination.spool is not None:
                check_path(destination.spool, self.spool_setting)
            return
        self._outbox = Outbox(
            destination.make_sender,
            broker_id=configs["broker.id"],
            boot_id=configs["boot.id"],
            sidecar_version=configs["sidecar.version"],
            schema_level=min(self._level_of_mode, self._level_in_use),
            spool=destination.spool,
            observed=configs.get("observed"),
        )
        self._started_at = _now_us()
        self._last_wall_offset = _wall_offset()
        # Guarded by ``Outbox.sequence_lock``.
        self._next_rollup_at = self._next_status_at = time.monotonic()
        self._next_status_at += STATUS_INTERVAL
        self._next_offsets_at = time.monotonic() + self._offsets_interval
        self._closed = False
        self._last_dropped: Mapping[str, int] = {}  # as of the last status
        topic = configs["audit"].get("topic", DEFAULT_TOPIC)
        self._inventory = Inventory(
            admin.list_topics,
            lambda name: name == topic or self._filter.hides_topic(name),
            self._emit_inventory,
            interval=settings.get("inventory.interval.ms", 60_000) / 1000,
        )
        self._outbox.start(self._emit_scheduled)
        if configs.get("worker", 1) == 1:
            self._inventory.start()

    @abstractmethod
    def _find_destination(self, configs: Mapping[str, Any], admin: KafkaAdmin) -> Destination:
        """Return where the events go. ``configs``: as of ``configure``. Raises ObserverError for wrong settings."""

    @property
    def observed(self) -> memoryview:
        """The counter of this process."""
        return self._outbox.observed

    def keeps(self, api_key: int, api_version: int) -> bool:
        """Whether bodies are needed to count records that no header counts (``observer.records.deep``)."""
        return self._counts_compressed_records and (
            api_key in FETCH_API_KEYS or (api_key == PRODUCE and api_version <= LAST_MESSAGE_SET_PRODUCE)
        )

    def record_exchanges(self, exchanges: Sequence[ObservedExchange], dropped: int) -> None:
        """Turn ``exchanges`` into events; ``dropped`` were lost before them and leave a gap of that size."""
        if self._counts_compressed_records:
            exchanges = [
                _with_exact_records(one) if self.keeps(one.api_key, one.api_version) else one for one in exchanges
            ]
        if self._rollup is None or self._outbox.schema_level < ROLLUP_LEVEL:
            self._emit_observations(exchanges, dropped, self._request_encoder.encode_exchanges)
        else:
            # In their order: fetch sessions and muted connections, which both encoders share, depend on it.
            for alone, some in self._divider.divide(exchanges):
                if alone:
                    self._emit_observations(some, dropped, self._request_encoder.encode_exchanges)
                else:
                    self._add_to_rollup(some, dropped, self._rollup)
                dropped = 0
        with self._outbox.sequence_lock:
            self._offsets.record_exchanges(exchanges, _wall_offset())

    def record_changes(self, changes: Sequence[ConnectionChange], dropped: int) -> None:
        """Turn each of ``changes`` into an event; ``dropped`` as in ``record_exchanges``."""
        self._emit_observations(
            changes, dropped, lambda some, first, offset: encode_connection_changes(some, first, offset, self._filter)
        )

    def record_throttles(self, reports: Sequence[ThrottleReport], dropped: int) -> None:
        """Turn each of ``reports`` into an event; ``dropped`` as in ``record_exchanges``. No exclusion hides one."""
        self._emit_observations(reports, dropped, encode_throttle_reports)

    def close(self, timeout: float) -> None:
        """Emit what is left and the last status, and wait up to ``timeout`` seconds until all of it is delivered.

        Undelivered events then stay on disk for the next run, or are lost if there is no spool.
        """
        if self._dry:
            return
        self._inventory.close()
        with self._outbox.sequence_lock:
            self._emit_rollups()
            self._emit_offsets()
            self._emit_gaps(ending=True)
            self._emit(self._make_status(last=True))
            self._closed = True
        self._outbox.close(timeout)

    @property
    def degradation(self) -> str:
        """Why the audit works in part only, in one sentence; empty if it does not. Waits for nothing."""
        return self._outbox.spool_problem

    def stats(self) -> AuditStats:
        """Current counts. ``undelivered`` has all there was before ``levels`` and ``searched`` had their values."""
        levels, searched = {self._level_in_use: 1}, {self._outbox.searched_at: 1}
        counts = asdict(self._outbox.stats())
        return AuditStats(
            **counts,
            partly_hidden=self._filter.partly_hidden,
            topic_look_ups=self._names.look_ups,
            levels=levels,
            searched=searched,
        )

    def _use_level(self, level: int) -> None:
        """Add further events at ``level`` or, where the mode needs a lower one, at that. Without any (0) they are lost.

        What was gathered for rollups is added at the level before. On the observer's own thread.
        """
        with self._outbox.sequence_lock:
            schema_level = min(self._level_of_mode, level)
            if schema_level != self._outbox.schema_level:
                self._emit_rollups()
                self._outbox.set_schema_level(schema_level)
            self._level_in_use = level

    def _emit_observations(
        self, observations: Sequence[Any], dropped: int, encode: Callable[[Sequence[Any], int, float], EncodedEvents]
    ) -> None:
        """Encode ``observations`` and add their events. The ``dropped`` ones before them take the first numbers."""
        with self._outbox.sequence_lock:
            encoded = encode(observations, self._outbox.seq + dropped + 1, _wall_offset())
            self._add_to_outbox(encoded, dropped + len(observations), {"observer_queue": dropped})

    def _add_to_rollup(self, exchanges: Sequence[ObservedExchange], dropped: int, rollup: RollupAggregator) -> None:
        """Add ``exchanges`` to the rollup. Each exchange that is lost has a sequence number."""
        with self._outbox.sequence_lock:
            if time.monotonic() >= self._next_rollup_at:
                self._emit_rollups()
            encoded = EncodedEvents(last=0)
            at = 0
            while at < len(exchanges):
                added = rollup.add_exchanges(exchanges, at, _wall_offset())
                at = added.until
                encoded.hidden += added.hidden
                encoded.failed += added.failed
                encoded.not_encodable += added.not_encodable
                if rollup.full:
                    self._emit_rollups()
            lost = dropped + encoded.failed + encoded.not_encodable
            encoded.last = self._outbox.seq + lost
            self._add_to_outbox(encoded, lost + encoded.hidden, {"observer_queue": dropped})

    def _emit_scheduled(self) -> None:
        """Emit rollups, offsets, gaps and statuses whose time has come. The pump calls this."""
        with self._outbox.sequence_lock:
            if self._closed:
                return
            now = time.monotonic()
            if now >= self._next_rollup_at:
                self._emit_rollups()
            self._emit_gaps()
            if now >= self._next_offsets_at:
                self._emit_offsets()
            if now >= self._next_status_at:
                self._emit(self._make_status())
                self._next_status_at = now + STATUS_INTERVAL

    def _emit_inventory(self, parts: Sequence[InventoryEvent]) -> None:
        with self._outbox.sequence_lock:
            if not self._closed:
                self._emit(*parts)

    # ---- under the sequence lock ------------------------------------------------------------------------------------

    def _emit_rollups(self) -> None:
        self._next_rollup_at = time.monotonic() + self._rollup_interval
        if self._rollup is not None and (requests := self._rollup.requests):
            self._emit(*self._rollup.drain(), taken=requests)

    def _emit_offsets(self) -> None:
        self._next_offsets_at = time.monotonic() + self._offsets_interval
        left_out = self._offsets.left_out
        encoded = encode_numbered(self._offsets.drain(_now_us()), self._outbox.seq + left_out + 1)
        self._add_to_outbox(encoded, 0, {"interval_full": left_out})

    def _emit_gaps(self, *, ending: bool = False) -> None:
        gaps = self._outbox.drain_gaps(ending=ending)  # the next numbers have to be theirs
        self._emit(
            *[
                GapEvent(
                    seq=0,
                    reason=gap.reason,
                    lost_boot_id=gap.boot_id,
                    lost_first_seq=gap.first,
                    lost_last_seq=gap.last,
                )
                for gap in gaps
            ]
        )

    def _emit(self, *events: Any, taken: int = 0) -> None:
        if events:
            self._add_to_outbox(encode_numbered(events, self._outbox.seq + 1), taken, {})

    def _add_to_outbox(self, encoded: EncodedEvents, taken: int, lost: Mapping[str, int]) -> None:
        reasons = {
            **lost,
            "failed": encoded.failed,
            "not_encodable": encoded.not_encodable,
            "too_large": encoded.too_large,
        }
        losses = {reason: count for reason, count in reasons.items() if count}
        if taken or encoded.chunks or losses:
            self._outbox.add_events(encoded.chunks, encoded.last, losses, taken, encoded.hidden)

    def _make_status(self, *, last: bool = False) -> StatusEvent:
        """Make a status event. Its counts do not include the event itself."""
        stats = self._outbox.stats()
        self._log_new_losses(stats.dropped)
        offset = _wall_offset()
        step, self._last_wall_offset = offset - self._last_wall_offset, offset
        return StatusEvent(
            seq=0,
            ts=_now_us(),
            started_at=self._started_at,
            seen=stats.observed,
            emitted=stats.emitted,
            delivered=stats.delivered,
            waiting=max(0, stats.observed - stats.taken),
            hidden=stats.hidden,
            hidden_by=self._filter.hidden_by(),
            partly_hidden=self._filter.partly_hidden,
            partly_hidden_by=self._filter.partly_hidden_by(),
            queued=stats.queued,
            spooled=stats.spooled,
            dropped=dict(stats.dropped),
            spool_bytes=stats.spool_bytes,
            clock_step_ms=round(step * 1000) if abs(step) > MIN_CLOCK_STEP else 0,
            last=last,
        )

    def _log_new_losses(self, dropped: Mapping[str, int]) -> None:
        """Log the losses since the last status, by reason."""
        lost = {
            reason: more for reason, count in dropped.items() if (more := count - self._last_dropped.get(reason, 0))
        }
        if lost:
            log.warning("audit_events_lost", observer=type(self).__name__, lost=lost, in_total=sum(dropped.values()))
        self._last_dropped = dict(dropped)


def _with_exact_records(exchange: Any) -> Any:
    """Return ``exchange``, or one like it with exact records."""
    request, response = count_compressed_records(exchange)
    if request is exchange.request and response is exchange.response:
        return exchange
    return type(exchange)(
        exchange.connection,
        exchange.api_key,
        exchange.api_version,
        exchange.correlation_id,
        exchange.client_id,
        exchange.received_at,
        exchange.request_bytes,
        exchange.answered_at,
        exchange.response_bytes,
        exchange.outcome,
        exchange.decode,
        request,
        response,
        exchange.forwarded_at,
        exchange.responded_at,
        exchange.throttle_ms,
        exchange.error_code,
        exchange.request_raw,
        exchange.response_raw,
        exchange.synthesized,
    )


def _now_us() -> int:
    return time.time_ns() // 1000


def _wall_offset() -> float:
    """Return the difference of wall clock and monotonic clock, in seconds."""
    return time.time() - time.monotonic()
