# cython: language_level=3, annotation_typing=False
"""Applies the connection quotas to accepted sockets, and to connections whose client has logged in.

A socket is neither read nor connected to the broker before the quotas admit it. This module gives ``ConnectionQuotas``
its clock, its timer and its sockets, and ``PrincipalQuotas`` the logins that the handler reports. It reports throttled
connections to the observers once a second. It logs at most one line for each kind of throttle in ``LOG_INTERVAL``
seconds, however many connections were throttled.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from time import monotonic, monotonic_ns

import cython
import structlog
from msgspec import Struct, structs

from proxy.config import Listener
from proxy.core.causes import Cause
from proxy.limits.admission_pace import ADMISSION_COST, ARRIVAL_COST, AdmissionPace
from proxy.limits.connection_quotas import ConnectionQuotas
from proxy.limits.inheritance import CountedConnection, PendingState
from proxy.limits.model import Limits, QuotasState, Throttle, ThrottleKind
from proxy.limits.principal_quotas import Logins, PrincipalQuotas
from proxy.limits.quotas_state import collect_state
from proxy.limits.rate_sensors import MAX_HOLD_MS, MeasuredRate
from proxy.limits.throttle_reports import (
    MANY,
    AggregatedThrottle,
    ThrottleAggregator,
    ThrottleSummary,
    add_to_summaries,
)
from proxy.net.connection_handler import ConnectionHandler
from proxy.net.sockets import AcceptedSocket

REPORT_INTERVAL = 1.0
"""Seconds between two reports to the observers."""

LOG_INTERVAL = 10.0
"""Seconds between two log lines about the same kind of throttle. The first line is written with the next report."""

MIN_TIMER_MS = 1
"""Shortest time between two calls of ``process_timers``, in ms. The traffic of open connections runs in between."""

DESCRIPTORS_PER_HELD = 20
"""At most one of this many descriptors is used for held connections, whatever ``max.held`` is."""

REFUSED_CAUSE: Cause = "quota_exceeded"
PRINCIPAL_CAUSE: Cause = "principal_quota_exceeded"
DRAINED_CAUSE: Cause = "drain_completed"
DISCONNECTED_CAUSE: Cause = "client_closed"

log = structlog.get_logger(__name__)


class AcceptedConnection(Struct):
    """An accepted connection that is not admitted yet.

    ``host``: the client's address in canonical form; ``port``: the client's port; ``quota_key``: the address or network
    that the limits of addresses apply to.
    """

    listener: Listener
    sock: AcceptedSocket
    host: str
    port: int
    quota_key: str
    disconnected: bool = False
    """Whether the client has closed the connection."""


@cython.cclass
class AdmissionControl:
    """Applies all limits of one sidecar before ``handler`` gets a connection.

    ``on_unblocked()`` is called when a listener may accept again.
    """

    def __init__(self, limits: Limits, handler: ConnectionHandler, on_unblocked: Callable[[], None]) -> None:
        self._handler = handler
        self._on_unblocked = on_unblocked
        self._loop = asyncio.get_running_loop()
        self._quotas = ConnectionQuotas(
            self._with_bounded_holds(limits),
            admit=self._admit,
            refuse=self._refuse,
            is_disconnected=_is_disconnected,
            evict=handler.close_idlest,
            on_throttle=self._on_throttle,
        )
        self._principals = PrincipalQuotas(
            limits,
            hold=lambda number: handler.hold_connection(number, 2 * MAX_HOLD_MS),  # it ends by an order before that
            resume=lambda number: handler.hold_connection(number, 0),
            close=lambda number: handler.close_connection(number, PRINCIPAL_CAUSE),
            on_throttle=self._on_throttle,
        )
        self._pace = AdmissionPace(limits)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self.last_number = 0
        """The number of the connection that was admitted last, here or by the predecessor."""
        self._inherited: set[int] = set()  # open connections that the predecessor serves
        self._on_ended: Callable[[int], None] | None = None
        self._open: dict[int, tuple[str, str]] = {}  # listener and quota key, by connection number
        self._throttles = ThrottleAggregator()
        self._next_report_at = 0.0
        self._summaries: dict[ThrottleKind, ThrottleSummary] = {}
        self._next_log_at: dict[ThrottleKind, float] = {}
        self._next_full_log_at = 0.0
        self._closing = False
        handler.on_connection_closed(self._on_closed)
        self._watch_logins(before=False)

    def submit(self, listener: Listener, sock: AcceptedSocket, host: str, port: int) -> None:
        """Take ownership of an accepted connection. ``host``: the client's address in canonical form."""
        now = _now_ms()
        name = listener.name
        quota_key = self.limits.quota_key(host)
        self._pace.record(name, ARRIVAL_COST, now)
        self._quotas.submit(name, quota_key, AcceptedConnection(listener, sock, host, port, quota_key), now)
        self._arm_timer(now)

    def is_blocked(self, listener: str) -> bool:
        """Return whether ``listener`` must not accept connections now."""
        return self._quotas.is_blocked(listener) or self._pace.next_at(listener) > _now_ms()

    @property
    def limits(self) -> Limits:
        """The limits that apply now."""
        return self._quotas.limits

    @property
    def waiting_connections(self) -> int:
        """Accepted connections that wait or are held, and so have no connection to the broker yet."""
        return len(self._quotas.held) + sum(map(len, self._quotas.queues.values()))

    def update_limits(self, limits: Limits) -> None:
        """Apply new limits and keep everything that was measured so far."""
        self._pace.update_limits(limits)
        self._quotas.update_limits(self._with_bounded_holds(limits), _now_ms())
        watched = self._principals.is_active
        self._principals.update_limits(limits)
        self._watch_logins(before=watched)
        self._after_change()

    def quotas_state(self) -> QuotasState:
        """Return the current limits, rates and counters."""
        return collect_state(self._quotas, self._principals, _now_ms())

    def on_tick(self) -> None:
        """Report throttles and forget idle addresses and principals. Called by the ticker."""
        self._quotas.sensors.addresses.forget_idle(_now_ms())
        self._principals.rates.forget_idle(_now_ms())
        now = monotonic()
        if now >= self._next_report_at:
            self._next_report_at = now + REPORT_INTERVAL
            self._report(self._throttles.take_reports(), now)

    def pause(self) -> None:
        """Admit and refuse nothing until ``resume``, so that limits and connections can be passed to a successor."""
        self._quotas.pause()
        self._arm_timer(_now_ms())

    def resume(self) -> None:
        """Continue after ``pause``."""
        self._quotas.resume(_now_ms())
        self._after_change()

    def measured_rates(self) -> Iterator[MeasuredRate]:
        """Yield all rates. Needs ``pause``."""
        return chain(self._quotas.sensors.measured(), self._principals.rates.measured())

    def counted_connections(self, numbers: Iterable[int]) -> list[CountedConnection]:
        """Return those of the connections with these numbers that are open."""
        return [
            CountedConnection(number, *self._open[number], self._principals.principal(number))
            for number in numbers
            if number in self._open
        ]

    def open_numbers(self) -> list[int]:
        """Return the numbers of all open connections that count in limits."""
        return list(self._open)

    def pending(self) -> list[tuple[PendingState, AcceptedConnection]]:
        """Return all connections that are not admitted yet. Needs ``pause``."""
        return self._quotas.pending()

    def forget_pending(self) -> None:
        """Close the sockets of ``pending``, which a successor has, too."""
        for _, accepted in self._quotas.pending():
            accepted.sock.close()
        self._quotas.forget_pending()

    def report_ended(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the number of each connection that ends from now on."""
        self._on_ended = callback

    def inherit_rates(self, rates: Iterable[MeasuredRate]) -> None:
        """Continue with rates that the predecessor has measured with the same windows."""
        for rate in rates:
            if rate.scope == "principal":
                self._principals.rates.restore(rate)
            else:
                self._quotas.sensors.restore(rate)

    def inherit_connections(self, connections: Iterable[CountedConnection]) -> None:
        """Count open connections of the predecessor, until ``release_inherited``."""
        for one in connections:
            self._open[one.number] = one.listener, one.address
            self._inherited.add(one.number)
            self._quotas.count_open(one.listener, one.address)
            if one.principal is not None:
                self._principals.add_earlier(one.number, one.principal)

    def inherit_pending(
        self, listener: Listener, sock: AcceptedSocket, host: str, port: int, state: PendingState
    ) -> None:
        """Take ownership of a connection that the predecessor has accepted and not admitted. See ``resume``."""
        quota_key = self.limits.quota_key(host)
        accepted = AcceptedConnection(listener, sock, host, port, quota_key)
        self._quotas.restore_pending(listener.name, quota_key, accepted, state)

    def release_inherited(self, numbers: Iterable[int] | None = None) -> None:
        """Count these connections of the predecessor as ended; without ``numbers`` all of them."""
        for number in list(self._inherited) if numbers is None else self._inherited.intersection(numbers):
            self._inherited.remove(number)
            self._on_closed(number)

    @property
    def inherited_connections(self) -> int:
        """Open connections of the predecessor."""
        return len(self._inherited)

    def close(self) -> None:
        """Close waiting connections and report throttles that were not reported yet."""
        self._closing = True
        self._quotas.close()
        if self._timer is not None:
            self._timer.cancel()
        self._next_log_at.clear()
        self._report(self._throttles.take_reports(), monotonic())

    @staticmethod
    def _with_bounded_holds(limits: Limits) -> Limits:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // DESCRIPTORS_PER_HELD
        return structs.replace(limits, max_held=min(limits.max_held, most))

    def _on_closed(self, number: int) -> None:
        listener, address = self._open.pop(number)
        self._principals.release(number)
        waited = self._quotas.has_queued()
        now = _now_ms()
        self._quotas.release(listener, address, now)
        if self._on_ended is not None:
            self._on_ended(number)
        self._arm_timer(now)
        if waited:
            self._on_unblocked()

    def _watch_logins(self, before: bool) -> None:
        """Let the handler report logins only while a principal has a limit. ``before``: whether it does now."""
        if self._principals.is_active != before:
            self._handler.report_logins(None if before else self._on_logins)

    def _on_logins(self, logins: Logins, earlier: bool) -> None:
        now = _now_ms()
        for number, principal in logins:
            known = self._open.get(number)
            if known is None:  # it has ended meanwhile
                continue
            if earlier:
                self._principals.add_earlier(number, principal)
            else:
                self._principals.add(number, principal, *known, now)
        self._arm_timer(now)

    def _advance(self) -> None:
        self._timer = self._timer_at = None
        self._quotas.process_timers(_now_ms())
        self._principals.process_timers(_now_ms())
        self._after_change()

    def _after_change(self) -> None:
        self._arm_timer(_now_ms())
        self._on_unblocked()

    def _arm_timer(self, now: int) -> None:
        if self._timer_at is not None and self._timer_at <= now:  # it is due, and lets listeners accept
            return
        deadline = _earlier(self._quotas.next_timer(), self._principals.next_timer())
        deadline = _earlier(deadline, self._pace.next_timer(now))
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        # A timer may fire a millisecond early. The quotas then have nothing to do, and the timer is set again.
        self._timer = (
            None if deadline is None else self._loop.call_later(max(deadline - now, MIN_TIMER_MS) / 1000, self._advance)
        )

    def _admit(self, listener: str, accepted: AcceptedConnection) -> None:
        self._pace.record(listener, ADMISSION_COST, _now_ms())
        self.last_number += 1
        number = self.last_number
        self._open[number] = (listener, accepted.quota_key)
        self._handler.handle_connection(accepted.listener, accepted.sock, (accepted.host, accepted.port), number)

    def _refuse(self, listener: str, accepted: AcceptedConnection) -> None:
        ends = self._closing or listener not in self.limits.listeners
        cause = DRAINED_CAUSE if ends else DISCONNECTED_CAUSE if accepted.disconnected else REFUSED_CAUSE
        self._handler.listener_counters[listener].closed[cause] += 1
        accepted.sock.close()

    def _on_throttle(self, throttle: Throttle) -> None:
        self._throttles.add(throttle, monotonic())

    def _report(self, reports: list[AggregatedThrottle], now: float) -> None:
        if reports:
            self._handler.report_throttles(reports)
            add_to_summaries(self._summaries, reports)
        for kind in [kind for kind in self._summaries if now >= self._next_log_at.get(kind, now)]:
            self._next_log_at[kind] = now + LOG_INTERVAL
            _log_summary(self._summaries.pop(kind))
        if now >= self._next_full_log_at and not self._closing:
            self._log_full_listeners(now)

    def _log_full_listeners(self, now: float) -> None:
        """Log which listeners wait for a connection to close. Such a wait is reported once, but may last for hours."""
        for name in self._quotas.queues:
            if (missing := self._quotas.missing_slot(name)) is not None:
                self._next_full_log_at = now + LOG_INTERVAL
                scope, quota, count = missing
                waiting_s = round(self._quotas.blocked_for(name, _now_ms()) / 1000, 1)
                log.warning(
                    "listener_full", listener=name, scope=scope, limit=quota.limit, open=count, waiting_s=waiting_s
                )


def _log_summary(summary: ThrottleSummary) -> None:
    (address, count), *_ = summary.addresses.most_common(1)
    principals = {}
    if summary.principals:
        ((principal, its_count),) = summary.principals.most_common(1)
        principals = {
            "principals": _format_number(summary.principals),
            "top_principal": principal,
            "top_principal_connections": its_count,
        }
    log.warning(
        "connections_throttled",
        listener=summary.listener,
        scope=summary.scope,
        quota=summary.quota,
        action=summary.action,
        connections=summary.connections,
        limit=summary.limit,
        observed=round(summary.observed, 3),
        delay_ms=summary.delay_ms,
        addresses=_format_number(summary.addresses),
        top_address=address,
        top_connections=count,
        **principals,
    )


def _format_number(clients: Counter[str]) -> str | int:
    return f"more than {len(clients) - 1}" if MANY in clients else len(clients)


def _now_ms() -> int:
    """Return milliseconds of the monotonic clock."""
    now: int = monotonic_ns()
    return now // 1_000_000


def _earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two times; None is never."""
    if one is None:
        return other
    return one if other is None or one < other else other


def _is_disconnected(accepted: AcceptedConnection) -> bool:
    accepted.disconnected = accepted.sock.is_closed_by_peer()
    return accepted.disconnected
