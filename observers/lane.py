"""One observer's own thread: its bounded queue, its containment, its counts.

The data path only ever offers a batch, which never waits. Everything an observer does wrong (raise, exit, hang, use up
its stack) happens on this thread and ends here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from observers.api import ExchangeObserver, ObservedExchange, Observer, ThrottleObserver, ThrottleReport
from observers.breaker import Breaker
from observers.views import NameOf, request_view, response_view

MAX_QUEUED = 100_000
"""Exchanges, partitions in them and throttle reports, each counted as one, that may wait for one observer (besides
those it is being told of): some tens of MiB, or some seconds of heavy traffic. A batch that does not fit is dropped for
it, and counted."""

FEED_SHARE = 0.5
"""Part of the time to close that is spent on feeding what is queued; the rest belongs to the observer's own close."""

LOG_EVERY = 10.0
"""Seconds between two log lines about failures of one observer."""

log = structlog.get_logger("observers")


class Batch(Struct, frozen=True, gc=False):
    """What is handed over at once: exchanges or throttle reports. ``weight``: see ``MAX_QUEUED``."""

    weight: int
    exchanges: tuple[ObservedExchange, ...] = ()
    first: int = 0
    """Number of the first exchange."""
    reports: tuple[ThrottleReport, ...] = ()
    dropped: int = 0
    """What was dropped right before these, for this observer: exchanges and reports."""

    def __len__(self) -> int:
        return len(self.exchanges) + len(self.reports)


class ObserverStats(Struct, frozen=True):
    """Counts of one observer, in exchanges and throttle reports. At rest: handed over = delivered + dropped + failed +
    queued."""

    name: str
    delivered: int
    dropped: int
    """Lost without a call: the queue was full, the breaker open, or the time to close was over."""
    failed: int
    """Told, but a call raised."""
    queued: int
    breaker_open: bool
    errors: Mapping[str, int]
    """Calls that raised, by method."""


class Lane:
    """Feeds one configured observer. ``offer`` and ``close`` belong to one thread, the calls to the lane's own."""

    def __init__(
        self,
        name: str,
        observer: Observer | ExchangeObserver,
        *,
        clock: Callable[[], float],
        name_of: NameOf,
    ) -> None:
        self.name = name
        self._observer = observer
        self._breaker = Breaker(clock)
        self._name_of = name_of
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"observer {name}", daemon=True)
        # Each of these numbers is written by one thread only, so none needs a lock.
        self._offered = 0
        self._offered_weight = 0
        self._overflowed = 0
        self._untold_overflow = 0
        self._taken_weight = 0
        self._delivered = 0
        self._failed = 0
        self._skipped = 0
        self._untold = 0
        self._errors: dict[str, int] = {}
        self._feed_until: float | None = None
        self._close_until = 0.0
        self._abandoned = False
        self._logged_at = float("-inf")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def offer(self, batch: Batch) -> None:
        """Queue ``batch``, or drop and count it where it does not fit. Never waits.

        An observer without ``record_throttles`` is not told of reports, and misses nothing.
        """
        if batch.reports and not isinstance(self._observer, ThrottleObserver):
            return
        count = len(batch)
        if self._offered_weight - self._taken_weight + batch.weight > MAX_QUEUED:
            self._overflowed += count
            self._untold_overflow += count
            return
        self._offered += count
        self._offered_weight += batch.weight
        if self._untold_overflow:
            batch = replace(batch, dropped=self._untold_overflow)
            self._untold_overflow = 0
        self._queue.put(batch)

    def stop(self, deadline: float) -> None:
        """Ask the thread to feed what is queued and to close the observer by ``deadline`` (``time.monotonic``)."""
        now = time.monotonic()
        self._close_until = deadline
        self._feed_until = now + max(0.0, deadline - now) * FEED_SHARE
        if self._untold_overflow:
            self._queue.put(Batch(0, dropped=self._untold_overflow))
        self._queue.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the thread until ``deadline``; abandon it then, so that it makes no further call."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._abandoned = True
            log.warning("observer_abandoned", observer=self.name, queued=self.stats().queued)

    def stats(self) -> ObserverStats:
        """Current counts; while the thread works they may be a batch apart from each other."""
        done = self._delivered + self._failed + self._skipped
        return ObserverStats(
            name=self.name,
            delivered=self._delivered,
            dropped=self._overflowed + self._skipped,
            failed=self._failed,
            queued=max(0, self._offered - done),
            breaker_open=self._breaker.is_open,
            errors=dict(self._errors),
        )

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            self._taken_weight += batch.weight
            self._untold += batch.dropped
            self._feed(batch)
            del batch  # else an idle lane would keep its last exchanges alive
        if not self._abandoned:
            self._call("close", self._observer.close, max(0.0, self._close_until - time.monotonic()))

    def _may_call(self) -> bool:
        in_time = self._feed_until is None or time.monotonic() < self._feed_until
        return in_time and not self._abandoned and self._breaker.allows()

    def _feed(self, batch: Batch) -> None:
        if batch.reports:
            assert isinstance(self._observer, ThrottleObserver)
            self._tell_all(batch.reports, "record_throttles", self._observer.record_throttles)
        elif isinstance(self._observer, ExchangeObserver):
            self._tell_all(batch.exchanges, "record_exchanges", self._observer.record_exchanges)
        else:
            self._feed_apart(batch)

    def _tell_all(self, told: Sequence[Any], method: str, function: Callable[[Sequence[Any], int], None]) -> None:
        """Tell of many at a time; a loss that could not be told of is told again with the next call."""
        if not self._may_call():
            self._skip(len(told))
        elif self._call(method, function, told, self._untold):
            self._delivered += len(told)
            self._untold = 0
        else:
            self._failed += len(told)

    def _skip(self, count: int) -> None:
        self._skipped += count
        self._untold += count

    def _feed_apart(self, batch: Batch) -> None:
        """Tell a KIP-388 observer of each request, and of its response where there was one."""
        for number, exchange in enumerate(batch.exchanges, batch.first):
            if not self._may_call():
                self._skip(1)
            elif self._tell(exchange, f"{exchange.connection.id}:{number}"):
                self._delivered += 1
            else:
                self._failed += 1

    def _tell(self, exchange: ObservedExchange, correlation_id: str) -> bool:
        told = self._call("record_request", self._record_request, exchange, correlation_id)
        if exchange.outcome != "answered":
            return told
        return self._call("record_response", self._record_response, exchange, correlation_id) and told

    def _record_request(self, exchange: ObservedExchange, correlation_id: str) -> None:
        assert isinstance(self._observer, Observer)
        self._observer.record_request(
            request_view(exchange.api_key, exchange.request_bytes, exchange.request, self._name_of),
            exchange.connection.client_ip,
            exchange.connection.principal,
            exchange.api_key,
            exchange.api_version,
            correlation_id,
        )

    def _record_response(self, exchange: ObservedExchange, correlation_id: str) -> None:
        assert isinstance(self._observer, Observer)
        self._observer.record_response(
            response_view(exchange.api_key, exchange.response_bytes, exchange.response, self._name_of),
            exchange.api_version,
            correlation_id,
        )

    def _call(self, method: str, function: Callable[..., Any], *args: Any) -> bool:
        """Call the observer; whatever it raises, SystemExit and the like included, is counted and goes no further."""
        try:
            function(*args)
        except BaseException as error:
            self._errors[method] = self._errors.get(method, 0) + 1
            self._breaker.failed()
            self._report(method, error)
            return False
        self._breaker.succeeded()
        return True

    def _report(self, method: str, error: BaseException) -> None:
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


def weight_of(exchanges: Sequence[ObservedExchange]) -> int:
    """Return what ``exchanges`` count for in ``MAX_QUEUED``."""
    weight = len(exchanges)
    for exchange in exchanges:
        if exchange.request is not None:
            weight += len(exchange.request.partitions)
        if exchange.response is not None:
            weight += len(exchange.response.partitions)
    return weight
