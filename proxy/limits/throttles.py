"""What was throttled, gathered: one report a second for each address and kind, however many connections there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from proxy.limits.model import Done, Scope, Throttle, What

MAX_REPORTS = 1_000
"""Reports gathered until they are taken; throttles of further addresses are told together."""

MANY = "*"
"""Address in a report of more addresses than are told one by one."""


class ThrottleReport(Struct, gc=False):
    """``count`` connections that met the same limit in the same way. Times are seconds of the monotonic clock."""

    listener: str
    address: str
    """Of the client; ``MANY`` where it stands for several."""
    scope: Scope
    quota: What
    action: Done
    count: int
    limit: int
    """Connections per second, or connections; of the last one."""
    observed: float
    """The highest."""
    delay_ms: int
    """The longest."""
    first_at: float
    last_at: float


class Throttles:
    """Gathers throttles until they are taken. Bounded: by ``MAX_REPORTS`` and one for each kind beyond."""

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str, Scope, What, Done], ThrottleReport] = {}

    def add(self, throttle: Throttle, now: float) -> None:
        """Gather one. ``now``: seconds, monotonic."""
        kind = (throttle.listener, throttle.scope, throttle.quota, throttle.action)
        key = (throttle.address, *kind)
        report = self._reports.get(key)
        if report is None and len(self._reports) >= MAX_REPORTS:
            key = (MANY, *kind)
            report = self._reports.get(key)
        if report is None:
            self._reports[key] = ThrottleReport(
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
            )
            return
        report.count += 1
        report.limit = throttle.limit
        report.observed = max(report.observed, throttle.observed)
        report.delay_ms = max(report.delay_ms, throttle.delay_ms)
        report.last_at = now

    def take(self) -> list[ThrottleReport]:
        """Return what was gathered, and begin anew."""
        reports, self._reports = list(self._reports.values()), {}
        return reports


class Summary(Struct):
    """All reports of one kind, for one line of a log."""

    listener: str
    scope: Scope
    quota: What
    action: Done
    connections: int = 0
    limit: int = 0
    observed: float = 0.0
    delay_ms: int = 0
    addresses: Counter[str] = field(default_factory=Counter)
    """Connections by address; of more than ``MAX_REPORTS`` the rest is at ``MANY``."""

    def add(self, report: ThrottleReport) -> None:
        """Take in one more."""
        self.connections += report.count
        self.limit = report.limit
        self.observed = max(self.observed, report.observed)
        self.delay_ms = max(self.delay_ms, report.delay_ms)
        known = report.address in self.addresses or len(self.addresses) < MAX_REPORTS
        self.addresses[report.address if known else MANY] += report.count


def summarise(summaries: dict[tuple[str, ...], Summary], reports: Iterable[ThrottleReport]) -> None:
    """Add ``reports`` to ``summaries``, which has one for each kind of throttle."""
    for report in reports:
        kind = (report.listener, report.scope, report.quota, report.action)
        if kind not in summaries:
            summaries[kind] = Summary(*kind)
        summaries[kind].add(report)
