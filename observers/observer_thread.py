"""The thread of one observer: its bounded queue, its error handling, its counts.

The data path only enqueues batches, which never waits. An observer that raises, exits, hangs or exhausts its stack
affects this thread alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from itertools import count as counted
from queue import SimpleQueue
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from observers.api import (
    ConnectionChange,
    ConnectionObserver,
    Context,
    ExchangeObserver,
    LevelObserver,
    ObservedExchange,
    ThrottleObserver,
    ThrottleReport,
)
from observers.circuit_breaker import CircuitBreaker
from observers.observer_loader import LoadedObserver
from observers.subscription import Subscription
from observers.topic_id_learner import TopicIdBatch
from observers.views import NameOf, request_view, response_view

MAX_QUEUED_WEIGHT = 100_000
"""Weight that may wait for one observer, besides the batch it is processing. Each exchange, partition in it, change of
a connection and throttle report weighs one, and one more for each 256 bytes of names: some tens of MiB, or seconds of
heavy traffic. A batch that does not fit is dropped for this observer, and counted."""

MAX_LIGHT_WEIGHT = 10_000
"""The heaviest batch of more than one exchange. Heavier single exchanges have a limit of their own, which is also
``MAX_QUEUED_WEIGHT``, so that one client's heavy requests do not displace those of others."""

MAX_KEPT_BYTES = 33_554_432
"""Bytes of kept bodies that may wait for one observer. A larger batch is queued only if no other bodies wait."""

SLOW_CALL = 0.005
"""Seconds after which a call counts as slow. It is not interrupted: Python cannot end a call of another thread."""

SLOW_CALL_PER_ITEM = 0.0001
"""Seconds per item after which a call with many exchanges, changes or reports counts as slow, if that is longer."""

QUEUE_DELIVERY_SHARE = 0.5
"""Part of the time to close in which queued batches are delivered; the rest is for the observer's ``close``."""

FAILURE_LOG_INTERVAL = 10.0
"""Seconds between two log lines about failures of one observer."""

log = structlog.get_logger("observers")


class ObserverBatch(Struct, frozen=True, gc=False):
    """Exchanges, connection changes or throttle reports that are enqueued at once.

    ``weight``: as ``MAX_QUEUED_WEIGHT`` counts.
    """

    weight: int
    exchanges: tuple[ObservedExchange, ...] = ()
    first: int = 0
    """Number of the first exchange."""
    changes: tuple[ConnectionChange, ...] = ()
    reports: tuple[ThrottleReport, ...] = ()
    kept: int = 0
    """Bytes of kept bodies."""
    topic_ids: TopicIdBatch | None = None
    """The responses among the exchanges that carry topic ids beside names."""
    dropped: int = 0
    """Exchanges, changes and reports that this observer lost right before this batch."""


_WAKE = (ObserverBatch(0), 0)
"""Queued for a thread that waits while there are new levels."""


class ObserverStats(Struct, frozen=True):
    """Counts of one observer, in exchanges, connection changes and throttle reports that it wants.

    When nothing is in progress: enqueued = delivered + sum of dropped + failed + queued.
    """

    name: str
    delivered: int
    dropped: Mapping[str, int]
    """Lost without a call, by reason: ``queue_full``, ``breaker_open``, ``closing`` (the time to close was over)."""
    failed: int
    """Delivered by a call that raised."""
    queued: int
    slow: int
    """Calls that took longer than ``SLOW_CALL``."""
    breaker_open: bool
    errors: Mapping[str, int]
    """Calls that raised, by method."""


class ObserverThread:
    """Calls one configured observer on a thread of its own.

    ``enqueue``, ``set_finalized_levels`` and ``request_close`` belong to the event loop's thread.
    """

    def __init__(
        self,
        loaded: LoadedObserver,
        subscription: Subscription,
        *,
        clock: Callable[[], float],
        name_of: NameOf,
        broker_id: int,
        private: Mapping[int, str],
    ) -> None:
        """``private``: the names of the sidecar's own apis, by api key."""
        self.name = loaded.name
        self._loaded = loaded
        self._observer: Any = loaded.observer
        # Asked once: to ask whether an object fits a protocol takes microseconds.
        self._takes_exchanges = isinstance(loaded.observer, ExchangeObserver)
        self._takes_changes = isinstance(loaded.observer, ConnectionObserver)
        self._takes_throttles = isinstance(loaded.observer, ThrottleObserver)
        self._takes_levels = isinstance(loaded.observer, LevelObserver)
        self._subscription = subscription
        self._breaker = CircuitBreaker(clock)
        self._name_of = name_of
        self._broker_id = broker_id
        self._private = private
        self._queue: SimpleQueue[tuple[ObserverBatch, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"observer {self.name}", daemon=True)
        # Each of these numbers is written by one thread only, so none needs a lock.
        self._enqueued = 0
        self._enqueued_weight = [0, 0]  # light ones, heavy ones
        self._enqueued_kept = 0
        self._overflowed = 0
        self._unreported_overflow = 0
        self._dequeued_weight = [0, 0]
        self._dequeued_kept = 0
        self._delivered = 0
        self._failed = 0
        self._unwanted = 0
        self._skipped = {"breaker_open": 0, "closing": 0}
        self._unreported_loss = 0
        self._slow = 0
        self._errors: dict[str, int] = {}
        self._levels: Mapping[str, int] | None = None  # the latest ones
        self._delivered_levels: Mapping[str, int] | None = None
        self._wakes = False  # whether ``_WAKE`` is queued
        self._deliver_until: float | None = None
        self._close_until = 0.0
        self._abandoned = False
        self._logged_at = float("-inf")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended, so that its counts change no more."""
        return not self._thread.is_alive()

    def count_wanted(self, batch: ObserverBatch) -> int:
        """Return how many items of ``batch`` the observer wants."""
        if batch.reports:
            return len(batch.reports) if self._takes_throttles else 0
        if batch.changes:
            return len(batch.changes) if self._takes_changes else 0
        if self._subscription.includes_all:
            return len(batch.exchanges)
        may_want = self._subscription.may_want
        return sum([may_want(one.api_key, one.api_version) for one in batch.exchanges])

    def enqueue(self, batch: ObserverBatch, count: int) -> None:
        """Queue ``batch``, or drop and count it if it does not fit. Never waits."""
        if not count and batch.topic_ids is None:
            return
        heavy = batch.weight > MAX_LIGHT_WEIGHT
        waiting = self._enqueued_weight[heavy] - self._dequeued_weight[heavy]
        waiting_kept = self._enqueued_kept - self._dequeued_kept
        if (waiting and waiting + batch.weight > MAX_QUEUED_WEIGHT) or (
            waiting_kept and waiting_kept + batch.kept > MAX_KEPT_BYTES
        ):
            self._overflowed += count
            self._unreported_overflow += count
            return
        self._enqueued += count
        self._enqueued_weight[heavy] += batch.weight
        self._enqueued_kept += batch.kept
        if self._unreported_overflow:
            batch = replace(batch, dropped=self._unreported_overflow)
            self._unreported_overflow = 0
        self._queue.put((batch, count))

    def set_finalized_levels(self, levels: Mapping[str, int]) -> None:
        """Deliver ``levels`` before the next batch, to an observer that has a method for them. Never waits."""
        if self._takes_levels:
            self._levels = levels
            if not self._wakes:
                self._wakes = True
                self._queue.put(_WAKE)

    def request_close(self, deadline: float) -> None:
        """Ask the thread to deliver what is queued and to close the observer by ``deadline`` (``time.monotonic``)."""
        now = time.monotonic()
        self._close_until = deadline
        self._deliver_until = now + max(0.0, deadline - now) * QUEUE_DELIVERY_SHARE
        if self._unreported_overflow:
            self._queue.put((ObserverBatch(0, dropped=self._unreported_overflow), 0))
        self._queue.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the thread until ``deadline``, then abandon it: it makes no further call."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._abandoned = True
            log.warning("observer_abandoned", observer=self.name, queued=self.stats().queued)

    def stats(self) -> ObserverStats:
        """Current counts. While the thread works they may differ from each other by a batch."""
        return ObserverStats(
            name=self.name,
            delivered=self._delivered,
            dropped={"queue_full": self._overflowed, **self._skipped},
            failed=self._failed,
            queued=max(0, self._enqueued - self._finished()),
            slow=self._slow,
            breaker_open=self._breaker.is_open,
            errors=dict(self._errors),
        )

    def _finished(self) -> int:
        return self._delivered + self._failed + self._unwanted + sum(self._skipped.values())

    # ---- on the observer's own thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._queue.get()) is not None:
            if taken is _WAKE:
                self._wakes = False  # first: levels that are set from now on queue it again
            if self._levels is not self._delivered_levels:
                self._deliver_levels()
            batch, count = taken
            self._dequeued_weight[batch.weight > MAX_LIGHT_WEIGHT] += batch.weight
            self._dequeued_kept += batch.kept
            self._unreported_loss += batch.dropped
            before = self._finished()
            try:
                if batch.topic_ids is not None:
                    batch.topic_ids.learn()
                self._deliver(batch, count)
            except BaseException as error:  # another observer has changed the shared exchanges
                self._record_failure("shared", error)
                self._failed += count - (self._finished() - before)
            del batch, taken  # an idle thread would keep its last exchanges alive
        if not self._abandoned:
            self._call("close", self._loaded.close, max(0.0, self._close_until - time.monotonic()))

    def _deliver_levels(self) -> None:
        """Deliver the latest levels. What failed, or could not be called now, is tried before the next batch."""
        levels = self._levels
        if self._reason_to_skip() is None and self._call("finalized_levels", self._observer.finalized_levels, levels):
            self._delivered_levels = levels

    def _reason_to_skip(self) -> str | None:
        """Return why no call may be made now, or None if one may."""
        if self._abandoned or (self._deliver_until is not None and time.monotonic() >= self._deliver_until):
            return "closing"
        return None if self._breaker.allows_call() else "breaker_open"

    def _deliver(self, batch: ObserverBatch, count: int) -> None:
        observer = self._observer
        if batch.reports:
            self._deliver_batch(batch.reports, "record_throttles", observer.record_throttles)
        elif batch.changes:
            self._deliver_batch(batch.changes, "record_changes", observer.record_changes)
        else:
            exchanges = batch.exchanges
            numbers: Iterator[int] = counted(batch.first)
            if not self._subscription.includes_all:
                wanted = [self._wants(one) for one in exchanges]
                exchanges, numbers = tuple(compress(exchanges, wanted)), compress(numbers, wanted)
                self._unwanted += count - len(exchanges)
            if not self._takes_exchanges:
                self._deliver_one_by_one(zip(numbers, exchanges, strict=False))
            elif exchanges or self._unreported_loss:
                self._deliver_batch(exchanges, "record_exchanges", observer.record_exchanges)

    def _wants(self, exchange: ObservedExchange) -> bool:
        try:
            return self._subscription.wants(exchange.api_key, exchange.api_version)
        except BaseException as error:
            self._record_failure("wants", error)
            return False

    def _deliver_batch(self, items: Sequence[Any], method: str, function: Callable[[Sequence[Any], int], None]) -> None:
        """Deliver many items with one call. A loss whose report failed is reported again with the next call."""
        if (reason := self._reason_to_skip()) is not None:
            self._count_skipped(len(items), reason)
        elif self._call(
            method, function, items, self._unreported_loss, slow_after=max(SLOW_CALL, SLOW_CALL_PER_ITEM * len(items))
        ):
            self._delivered += len(items)
            self._unreported_loss = 0
        else:
            self._failed += len(items)

    def _count_skipped(self, count: int, reason: str) -> None:
        self._skipped[reason] += count
        self._unreported_loss += count

    def _deliver_one_by_one(self, numbered: Iterable[tuple[int, ObservedExchange]]) -> None:
        """Deliver each request to a KIP-388 observer, and its response if there was one."""
        wall_offset = time.time() - time.monotonic()
        for number, exchange in numbered:
            if (reason := self._reason_to_skip()) is not None:
                self._count_skipped(1, reason)
            elif self._call_for_exchange(exchange, f"{exchange.connection.id}:{number}", wall_offset):
                self._delivered += 1
            else:
                self._failed += 1

    def _call_for_exchange(self, exchange: ObservedExchange, correlation_id: str, wall_offset: float) -> bool:
        succeeded = self._call("record_request", self._record_request, exchange, correlation_id, wall_offset)
        if exchange.outcome != "answered":
            return succeeded
        return self._call("record_response", self._record_response, exchange, correlation_id, wall_offset) and succeeded

    def _record_request(self, exchange: ObservedExchange, correlation_id: str, wall_offset: float) -> None:
        self._observer.record_request(
            request_view(exchange, self._name_of, self._private),
            exchange.connection.client_ip,
            exchange.connection.principal,
            exchange.api_key,
            exchange.api_version,
            correlation_id,
            **self._context("record_request", exchange, wall_offset),
        )

    def _record_response(self, exchange: ObservedExchange, correlation_id: str, wall_offset: float) -> None:
        self._observer.record_response(
            response_view(exchange, self._name_of, self._private),
            exchange.api_version,
            correlation_id,
            **self._context("record_response", exchange, wall_offset),
        )

    def _context(self, method: str, exchange: ObservedExchange, wall_offset: float) -> dict[str, Any]:
        if method not in self._loaded.extra_keyword_methods:
            return {}
        return {"context": Context.of(exchange, self._broker_id, wall_offset)}

    def _call(self, method: str, function: Callable[..., Any], *args: Any, slow_after: float = SLOW_CALL) -> bool:
        """Call the observer, and return whether it succeeded. Any exception, even SystemExit, is counted and logged."""
        began = time.monotonic()
        try:
            function(*args)
        except BaseException as error:
            self._record_failure(method, error)
            return False
        finally:
            if method != "close" and time.monotonic() - began > slow_after:
                self._slow += 1
        self._breaker.record_success()
        return True

    def _record_failure(self, method: str, error: BaseException) -> None:
        self._errors[method] = self._errors.get(method, 0) + 1
        self._breaker.record_failure()
        now = time.monotonic()
        if now - self._logged_at < FAILURE_LOG_INTERVAL:
            return
        self._logged_at = now
        log.warning(
            "observer_failed",
            observer=self.name,
            method=method,
            error=type(error).__name__,
            at=raised_at(error),
            failures=sum(self._errors.values()),
            breaker_open=self._breaker.is_open,
        )


def add_stats(earlier: ObserverStats, later: ObserverStats) -> ObserverStats:
    """Return the sum of the counts of an observer and of the one that has replaced it."""
    return ObserverStats(
        name=later.name,
        delivered=earlier.delivered + later.delivered,
        dropped={reason: count + later.dropped[reason] for reason, count in earlier.dropped.items()},
        failed=earlier.failed + later.failed,
        queued=earlier.queued + later.queued,
        slow=earlier.slow + later.slow,
        breaker_open=later.breaker_open,
        errors={
            method: earlier.errors.get(method, 0) + later.errors.get(method, 0)
            for method in {**earlier.errors, **later.errors}
        },
    )


def raised_at(error: BaseException) -> str:
    """Return ``file:line`` where ``error`` was raised. Its text is left out: an observer may put anything into it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "unknown" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def queue_weight_of_changes(changes: Sequence[ConnectionChange]) -> int:
    """Return the weight of ``changes`` in ``MAX_QUEUED_WEIGHT``."""
    return len(changes) + sum([len(one.connection.principal) + len(one.client_id or "") >> 8 for one in changes])
