"""Aggregates throttled connections: one report a second for each client and kind of throttle.

A client is an address, for limits of principals together with the principal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from proxy.limits.model import QuotaKind, QuotaScope, Throttle, ThrottleAction, ThrottleKind

MAX_REPORTS = 1_000
"""Reports kept until they are taken. Throttles of further clients share one report for each kind."""

MANY = "*"
"""The address in a report about more clients than have a report of their own; also their principal."""


class AggregatedThrottle(Struct, gc=False):
    """``count`` connections that met the same limit in the same way. Times are seconds of the monotonic clock."""

    listener: str
    address: str
    """The client's address, or ``MANY``."""
    scope: QuotaScope
    quota: QuotaKind
    action: ThrottleAction
    count: int
    limit: int
    """Connections per second, or connections; that of the last throttle."""
    observed: float
    """The highest rate or number of connections that was compared with the limit."""
    delay_ms: int
    """The longest delay or hold."""
    first_at: float
    last_at: float
    principal: str = ""
    """Of the scope ``principal``: such as ``User:alice``, or ``MANY``; else empty."""


class ThrottleAggregator:
    """Aggregates throttles until they are taken. Holds at most ``MAX_REPORTS`` and one for each kind beyond."""

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str, ThrottleKind], AggregatedThrottle] = {}

    def add(self, throttle: Throttle, now: float) -> None:
        """Add one throttle. ``now``: monotonic seconds."""
        kind = ThrottleKind(throttle.listener, throttle.scope, throttle.quota, throttle.action)
        key = (throttle.address, throttle.principal, kind)
        report = self._reports.get(key)
        if report is None and len(self._reports) >= MAX_REPORTS:
            key = (MANY, MANY if throttle.principal else "", kind)
            report = self._reports.get(key)
        if report is None:
            self._reports[key] = AggregatedThrottle(
                throttle.listener,
                key[0],
                throttle.scope,
                throttle.quota,
                throttle.action,
                1,
                throttle.limit,
                throttle.observed,
                throttle.delay_ms,
                now,
                now,
                key[1],
            )
            return
        report.count += 1
        report.limit = throttle.limit
        report.observed = max(report.observed, throttle.observed)
        report.delay_ms = max(report.delay_ms, throttle.delay_ms)
        report.last_at = now

    def take_reports(self) -> list[AggregatedThrottle]:
        """Return the reports and start again without any."""
        reports, self._reports = list(self._reports.values()), {}
        return reports


class ThrottleSummary(Struct):
    """All reports of one kind, for one line of the log."""

    listener: str
    scope: QuotaScope
    quota: QuotaKind
    action: ThrottleAction
    connections: int = 0
    limit: int = 0
    observed: float = 0.0
    delay_ms: int = 0
    addresses: Counter[str] = field(default_factory=Counter)
    """Connections by address. Beyond ``MAX_REPORTS`` addresses the rest is counted under ``MANY``."""
    principals: Counter[str] = field(default_factory=Counter)
    """The same by principal; empty but for the scope ``principal``."""

    def add(self, report: AggregatedThrottle) -> None:
        """Add one report."""
        self.connections += report.count
        self.limit = report.limit
        self.observed = max(self.observed, report.observed)
        self.delay_ms = max(self.delay_ms, report.delay_ms)
        _add(self.addresses, report.address, report.count)
        if report.principal:
            _add(self.principals, report.principal, report.count)


def _add(counts: Counter[str], name: str, count: int) -> None:
    counts[name if name in counts or len(counts) < MAX_REPORTS else MANY] += count


def add_to_summaries(summaries: dict[ThrottleKind, ThrottleSummary], reports: Iterable[AggregatedThrottle]) -> None:
    """Add ``reports`` to ``summaries``, which have one entry for each kind of throttle."""
    for report in reports:
        kind = ThrottleKind(report.listener, report.scope, report.quota, report.action)
        if kind not in summaries:
            summaries[kind] = ThrottleSummary(*kind)
        summaries[kind].add(report)
