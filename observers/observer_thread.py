"""One observer's own thread: its bounded queue, its containment, its counts.

The data path only ever offers a batch, which never waits. Everything an observer does wrong (raise, exit, hang, use up
its stack) happens on this thread and ends here.
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
    ObservedExchange,
    Observer,
    ThrottleObserver,
    ThrottleReport,
)
from observers.circuit_breaker import CircuitBreaker
from observers.observer_loader import LoadedObserver
from observers.subscription import Subscription
from observers.topic_id_learner import TopicIdBatch
from observers.views import NameOf, request_view, response_view

MAX_QUEUED_WEIGHT = 100_000
"""Exchanges, partitions in them, changes of connections and throttle reports, each counted as one, and as one more for
each 256 bytes of names in them, that may wait for one observer (besides those it is being told of): some tens of MiB,
or some seconds of heavy traffic. A batch that does not fit is dropped for it, and counted."""

MAX_LIGHT_WEIGHT = 10_000
"""The heaviest batch of more than one exchange. Single ones above it wait on an account of their own of
``MAX_QUEUED_WEIGHT``, or of one exchange: however heavy a client's requests are, they do not take the place of others'."""

MAX_KEPT_BYTES = 33_554_432
"""Bytes of kept bodies that may wait for one observer, likewise; or those of one batch, where nothing else waits."""

SLOW_CALL = 0.005
"""Seconds after which a call counts as slow. It is not ended: nothing can end a thread's call."""

SLOW_CALL_PER_ITEM = 0.0001
"""The same for each exchange, change or report, where many are told of at a time and that makes more."""

CLOSE_DELIVERY_SHARE = 0.5
"""Part of the time to close that is spent on feeding what is queued; the rest belongs to the observer's own close."""

FAILURE_LOG_INTERVAL = 10.0
"""Seconds between two log lines about failures of one observer."""

log = structlog.get_logger("observers")


class ObserverBatch(Struct, frozen=True, gc=False):
    """What is handed over at once: exchanges, changes or throttle reports. ``weight``: see ``MAX_QUEUED_WEIGHT``."""

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
    """What was dropped right before these, for this observer."""


class ObserverStats(Struct, frozen=True):
    """Counts of one observer, in exchanges, changes of connections and throttle reports that it wants to be told of.

    At rest: handed over = delivered + sum of dropped + failed + queued.
    """

    name: str
    delivered: int
    dropped: Mapping[str, int]
    """Lost without a call, by reason: ``queue_full``, ``breaker_open``, ``closing`` (the time to close was over)."""
    failed: int
    """Told, but a call raised."""
    queued: int
    slow: int
    """Calls that took longer than ``SLOW_CALL``."""
    breaker_open: bool
    errors: Mapping[str, int]
    """Calls that raised, by method."""


class ObserverThread:
    """Feeds one configured observer. ``enqueue`` and ``request_close`` belong to one thread, the calls to the thread's own."""

    def __init__(
        self,
        loaded: LoadedObserver,
        subscription: Subscription,
        *,
        clock: Callable[[], float],
        name_of: NameOf,
        broker_id: int,
    ) -> None:
        self.name = loaded.name
        self._loaded = loaded
        self._observer = loaded.observer
        self._subscription = subscription
        self._breaker = CircuitBreaker(clock)
        self._name_of = name_of
        self._broker_id = broker_id
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
        self._deliver_until: float | None = None
        self._close_until = 0.0
        self._abandoned = False
        self._logged_at = float("-inf")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def count_wanted(self, batch: ObserverBatch) -> int:
        """Return how many of ``batch`` the observer is to be told of."""
        if batch.reports:
            return len(batch.reports) if isinstance(self._observer, ThrottleObserver) else 0
        if batch.changes:
            return len(batch.changes) if isinstance(self._observer, ConnectionObserver) else 0
        if self._subscription.includes_all:
            return len(batch.exchanges)
        may_want = self._subscription.may_want
        return sum([may_want(one.api_key, one.api_version) for one in batch.exchanges])

    def enqueue(self, batch: ObserverBatch, count: int) -> None:
        """Queue ``batch``, or drop and count it where it does not fit. Never waits."""
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

    def request_close(self, deadline: float) -> None:
        """Ask the thread to feed what is queued and to close the observer by ``deadline`` (``time.monotonic``)."""
        now = time.monotonic()
        self._close_until = deadline
        self._deliver_until = now + max(0.0, deadline - now) * CLOSE_DELIVERY_SHARE
        if self._unreported_overflow:
            self._queue.put((ObserverBatch(0, dropped=self._unreported_overflow), 0))
        self._queue.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the thread until ``deadline``; abandon it then, so that it makes no further call."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._abandoned = True
            log.warning("observer_abandoned", observer=self.name, queued=self.stats().queued)

    def stats(self) -> ObserverStats:
        """Current counts; while the thread works they may be a batch apart from each other."""
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

    # ---- on the observer's own thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._queue.get()) is not None:
            batch, count = taken
            self._dequeued_weight[batch.weight > MAX_LIGHT_WEIGHT] += batch.weight
            self._dequeued_kept += batch.kept
            self._unreported_loss += batch.dropped
            before = self._finished()
            try:
                if batch.topic_ids is not None:
                    batch.topic_ids.learn()
                self._deliver(batch, count)
            except BaseException as error:  # another observer has changed what all of them share
                self._record_failure("shared", error)
                self._failed += count - (self._finished() - before)
            del batch, taken  # else an idle thread would keep its last exchanges alive
        if not self._abandoned:
            self._call("close", self._loaded.close, max(0.0, self._close_until - time.monotonic()))

    def _reason_to_skip(self) -> str | None:
        """Why no call may be made now, if none may."""
        if self._abandoned or (self._deliver_until is not None and time.monotonic() >= self._deliver_until):
            return "closing"
        return None if self._breaker.allows_call() else "breaker_open"

    def _deliver(self, batch: ObserverBatch, count: int) -> None:
        observer = self._observer
        if batch.reports:
            assert isinstance(observer, ThrottleObserver)
            self._deliver_batch(batch.reports, "record_throttles", observer.record_throttles)
        elif batch.changes:
            assert isinstance(observer, ConnectionObserver)
            self._deliver_batch(batch.changes, "record_changes", observer.record_changes)
        else:
            exchanges = batch.exchanges
            numbers: Iterator[int] = counted(batch.first)
            if not self._subscription.includes_all:
                wanted = [self._wants(one) for one in exchanges]
                exchanges, numbers = tuple(compress(exchanges, wanted)), compress(numbers, wanted)
                self._unwanted += count - len(exchanges)
            if not isinstance(observer, ExchangeObserver):
                self._deliver_one_by_one(zip(numbers, exchanges, strict=False))
            elif exchanges or self._unreported_loss:
                self._deliver_batch(exchanges, "record_exchanges", observer.record_exchanges)

    def _wants(self, exchange: ObservedExchange) -> bool:
        try:
            return self._subscription.wants(exchange.api_key, exchange.api_version)
        except BaseException as error:
            self._record_failure("wants", error)
            return False

    def _deliver_batch(self, told: Sequence[Any], method: str, function: Callable[[Sequence[Any], int], None]) -> None:
        """Tell of many at a time; a loss that could not be told of is told again with the next call."""
        if (reason := self._reason_to_skip()) is not None:
            self._count_skipped(len(told), reason)
        elif self._call(
            method, function, told, self._unreported_loss, slow_after=max(SLOW_CALL, SLOW_CALL_PER_ITEM * len(told))
        ):
            self._delivered += len(told)
            self._unreported_loss = 0
        else:
            self._failed += len(told)

    def _count_skipped(self, count: int, reason: str) -> None:
        self._skipped[reason] += count
        self._unreported_loss += count

    def _deliver_one_by_one(self, numbered: Iterable[tuple[int, ObservedExchange]]) -> None:
        """Tell a KIP-388 observer of each request, and of its response where there was one."""
        wall_offset = time.time() - time.monotonic()
        for number, exchange in numbered:
            if (reason := self._reason_to_skip()) is not None:
                self._count_skipped(1, reason)
            elif self._call_for_exchange(exchange, f"{exchange.connection.id}:{number}", wall_offset):
                self._delivered += 1
            else:
                self._failed += 1

    def _call_for_exchange(self, exchange: ObservedExchange, correlation_id: str, wall_offset: float) -> bool:
        told = self._call("record_request", self._record_request, exchange, correlation_id, wall_offset)
        if exchange.outcome != "answered":
            return told
        return self._call("record_response", self._record_response, exchange, correlation_id, wall_offset) and told

    def _record_request(self, exchange: ObservedExchange, correlation_id: str, wall_offset: float) -> None:
        assert isinstance(self._observer, Observer)
        self._observer.record_request(
            request_view(exchange, self._name_of),
            exchange.connection.client_ip,
            exchange.connection.principal,
            exchange.api_key,
            exchange.api_version,
            correlation_id,
            **self._context("record_request", exchange, wall_offset),
        )

    def _record_response(self, exchange: ObservedExchange, correlation_id: str, wall_offset: float) -> None:
        assert isinstance(self._observer, Observer)
        self._observer.record_response(
            response_view(exchange, self._name_of),
            exchange.api_version,
            correlation_id,
            **self._context("record_response", exchange, wall_offset),
        )

    def _context(self, method: str, exchange: ObservedExchange, wall_offset: float) -> dict[str, Any]:
        if method not in self._loaded.extra_keyword_methods:
            return {}
        return {"context": Context.of(exchange, self._broker_id, wall_offset)}

    def _call(self, method: str, function: Callable[..., Any], *args: Any, slow_after: float = SLOW_CALL) -> bool:
        """Call the observer; whatever it raises, SystemExit and the like included, is counted and goes no further."""
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


def raised_at(error: BaseException) -> str:
    """Return ``file:line`` where ``error`` was raised. Its text is left out: an observer may put anything into it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "unknown" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def queue_weight_of_changes(changes: Sequence[ConnectionChange]) -> int:
    """Return what ``changes`` count for in ``MAX_QUEUED_WEIGHT``."""
    return len(changes) + sum([len(one.connection.principal) + len(one.client_id or "") >> 8 for one in changes])
