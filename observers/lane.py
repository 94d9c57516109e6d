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
from observers.breaker import Breaker
from observers.interest import Wishes
from observers.learn import Lesson
from observers.shape import Shaped
from observers.views import NameOf, request_view, response_view

MAX_QUEUED = 100_000
"""Exchanges, partitions in them, changes of connections and throttle reports, each counted as one, and as one more for
each 256 bytes of names in them, that may wait for one observer (besides those it is being told of): some tens of MiB,
or some seconds of heavy traffic. A batch that does not fit is dropped for it, and counted."""

MAX_LIGHT = 10_000
"""The heaviest batch of more than one exchange. Single ones above it wait on an account of their own of
``MAX_QUEUED``, or of one exchange: however heavy a client's requests are, they do not take the place of others'."""

MAX_KEPT = 33_554_432
"""Bytes of kept bodies that may wait for one observer, likewise; or those of one batch, where nothing else waits."""

SLOW = 0.005
"""Seconds after which a call counts as slow. It is not ended: nothing can end a thread's call."""

SLOW_EACH = 0.0001
"""The same for each exchange, change or report, where many are told of at a time and that makes more."""

FEED_SHARE = 0.5
"""Part of the time to close that is spent on feeding what is queued; the rest belongs to the observer's own close."""

LOG_EVERY = 10.0
"""Seconds between two log lines about failures of one observer."""

log = structlog.get_logger("observers")


class Batch(Struct, frozen=True, gc=False):
    """What is handed over at once: exchanges, changes or throttle reports. ``weight``: see ``MAX_QUEUED``."""

    weight: int
    exchanges: tuple[ObservedExchange, ...] = ()
    first: int = 0
    """Number of the first exchange."""
    changes: tuple[ConnectionChange, ...] = ()
    reports: tuple[ThrottleReport, ...] = ()
    kept: int = 0
    """Bytes of kept bodies."""
    lesson: Lesson | None = None
    """What the exchanges say of topics' names."""
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
    """Calls that took longer than ``SLOW``."""
    breaker_open: bool
    errors: Mapping[str, int]
    """Calls that raised, by method."""


class Lane:
    """Feeds one configured observer. ``offer`` and ``stop`` belong to one thread, the calls to the lane's own."""

    def __init__(
        self, shaped: Shaped, wishes: Wishes, *, clock: Callable[[], float], name_of: NameOf, broker_id: int
    ) -> None:
        self.name = shaped.name
        self._shaped = shaped
        self._observer = shaped.observer
        self._wishes = wishes
        self._breaker = Breaker(clock)
        self._name_of = name_of
        self._broker_id = broker_id
        self._queue: SimpleQueue[tuple[Batch, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"observer {self.name}", daemon=True)
        # Each of these numbers is written by one thread only, so none needs a lock.
        self._offered = 0
        self._offered_weight = [0, 0]  # light ones, heavy ones
        self._offered_kept = 0
        self._overflowed = 0
        self._untold_overflow = 0
        self._taken_weight = [0, 0]
        self._taken_kept = 0
        self._delivered = 0
        self._failed = 0
        self._declined = 0
        self._skipped = {"breaker_open": 0, "closing": 0}
        self._untold = 0
        self._slow = 0
        self._errors: dict[str, int] = {}
        self._feed_until: float | None = None
        self._close_until = 0.0
        self._abandoned = False
        self._logged_at = float("-inf")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def count(self, batch: Batch) -> int:
        """Return how many of ``batch`` the observer is to be told of."""
        if batch.reports:
            return len(batch.reports) if isinstance(self._observer, ThrottleObserver) else 0
        if batch.changes:
            return len(batch.changes) if isinstance(self._observer, ConnectionObserver) else 0
        if self._wishes.everything:
            return len(batch.exchanges)
        may_include = self._wishes.may_include
        return sum([may_include(one.api_key, one.api_version) for one in batch.exchanges])

    def offer(self, batch: Batch, count: int) -> None:
        """Queue ``batch``, or drop and count it where it does not fit. Never waits."""
        if not count and batch.lesson is None:
            return
        heavy = batch.weight > MAX_LIGHT
        waiting = self._offered_weight[heavy] - self._taken_weight[heavy]
        waiting_kept = self._offered_kept - self._taken_kept
        if (waiting and waiting + batch.weight > MAX_QUEUED) or (waiting_kept and waiting_kept + batch.kept > MAX_KEPT):
            self._overflowed += count
            self._untold_overflow += count
            return
        self._offered += count
        self._offered_weight[heavy] += batch.weight
        self._offered_kept += batch.kept
        if self._untold_overflow:
            batch = replace(batch, dropped=self._untold_overflow)
            self._untold_overflow = 0
        self._queue.put((batch, count))

    def stop(self, deadline: float) -> None:
        """Ask the thread to feed what is queued and to close the observer by ``deadline`` (``time.monotonic``)."""
        now = time.monotonic()
        self._close_until = deadline
        self._feed_until = now + max(0.0, deadline - now) * FEED_SHARE
        if self._untold_overflow:
            self._queue.put((Batch(0, dropped=self._untold_overflow), 0))
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
            queued=max(0, self._offered - self._done()),
            slow=self._slow,
            breaker_open=self._breaker.is_open,
            errors=dict(self._errors),
        )

    def _done(self) -> int:
        return self._delivered + self._failed + self._declined + sum(self._skipped.values())

    # ---- on the lane's own thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._queue.get()) is not None:
            batch, count = taken
            self._taken_weight[batch.weight > MAX_LIGHT] += batch.weight
            self._taken_kept += batch.kept
            self._untold += batch.dropped
            before = self._done()
            try:
                if batch.lesson is not None:
                    batch.lesson.learn()
                self._feed(batch, count)
            except BaseException as error:  # another observer has changed what all of them share
                self._fail("shared", error)
                self._failed += count - (self._done() - before)
            del batch, taken  # else an idle lane would keep its last exchanges alive
        if not self._abandoned:
            self._call("close", self._shaped.close, max(0.0, self._close_until - time.monotonic()))

    def _barred(self) -> str | None:
        """Why no call may be made now, if none may."""
        if self._abandoned or (self._feed_until is not None and time.monotonic() >= self._feed_until):
            return "closing"
        return None if self._breaker.allows() else "breaker_open"

    def _feed(self, batch: Batch, count: int) -> None:
        observer = self._observer
        if batch.reports:
            assert isinstance(observer, ThrottleObserver)
            self._tell_all(batch.reports, "record_throttles", observer.record_throttles)
        elif batch.changes:
            assert isinstance(observer, ConnectionObserver)
            self._tell_all(batch.changes, "record_changes", observer.record_changes)
        else:
            exchanges = batch.exchanges
            numbers: Iterator[int] = counted(batch.first)
            if not self._wishes.everything:
                wanted = [self._wants(one) for one in exchanges]
                exchanges, numbers = tuple(compress(exchanges, wanted)), compress(numbers, wanted)
                self._declined += count - len(exchanges)
            if not isinstance(observer, ExchangeObserver):
                self._feed_apart(zip(numbers, exchanges, strict=False))
            elif exchanges or self._untold:
                self._tell_all(exchanges, "record_exchanges", observer.record_exchanges)

    def _wants(self, exchange: ObservedExchange) -> bool:
        try:
            return self._wishes.include(exchange.api_key, exchange.api_version)
        except BaseException as error:
            self._fail("wants", error)
            return False

    def _tell_all(self, told: Sequence[Any], method: str, function: Callable[[Sequence[Any], int], None]) -> None:
        """Tell of many at a time; a loss that could not be told of is told again with the next call."""
        if (reason := self._barred()) is not None:
            self._skip(len(told), reason)
        elif self._call(method, function, told, self._untold, patience=max(SLOW, SLOW_EACH * len(told))):
            self._delivered += len(told)
            self._untold = 0
        else:
            self._failed += len(told)

    def _skip(self, count: int, reason: str) -> None:
        self._skipped[reason] += count
        self._untold += count

    def _feed_apart(self, numbered: Iterable[tuple[int, ObservedExchange]]) -> None:
        """Tell a KIP-388 observer of each request, and of its response where there was one."""
        wall_offset = time.time() - time.monotonic()
        for number, exchange in numbered:
            if (reason := self._barred()) is not None:
                self._skip(1, reason)
            elif self._tell(exchange, f"{exchange.connection.id}:{number}", wall_offset):
                self._delivered += 1
            else:
                self._failed += 1

    def _tell(self, exchange: ObservedExchange, correlation_id: str, wall_offset: float) -> bool:
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
        if method not in self._shaped.takes_extra:
            return {}
        return {"context": Context.of(exchange, self._broker_id, wall_offset)}

    def _call(self, method: str, function: Callable[..., Any], *args: Any, patience: float = SLOW) -> bool:
        """Call the observer; whatever it raises, SystemExit and the like included, is counted and goes no further."""
        began = time.monotonic()
        try:
            function(*args)
        except BaseException as error:
            self._fail(method, error)
            return False
        finally:
            if method != "close" and time.monotonic() - began > patience:
                self._slow += 1
        self._breaker.succeeded()
        return True

    def _fail(self, method: str, error: BaseException) -> None:
        self._errors[method] = self._errors.get(method, 0) + 1
        self._breaker.failed()
        now = time.monotonic()
        if now - self._logged_at < LOG_EVERY:
            return
        self._logged_at = now
        log.warning(
            "observer_failed",
            observer=self.name,
            method=method,
            error=type(error).__name__,
            at=origin(error),
            failures=sum(self._errors.values()),
            breaker_open=self._breaker.is_open,
        )


def origin(error: BaseException) -> str:
    """Return ``file:line`` where ``error`` was raised. Its text is left out: an observer may put anything into it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "unknown" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def weight_of_changes(changes: Sequence[ConnectionChange]) -> int:
    """Return what ``changes`` count for in ``MAX_QUEUED``."""
    return len(changes) + sum([len(one.connection.principal) + len(one.client_id or "") >> 8 for one in changes])
