"""Throttles gathered: how few reports there are, and that nothing is lost in them."""

from __future__ import annotations

from collections import Counter

import pytest

from proxy.limits import throttle_reports as module
from proxy.limits.model import Throttle, ThrottleAction
from proxy.limits.throttle_reports import (
    MANY,
    AggregatedThrottle,
    ThrottleAggregator,
    ThrottleSummary,
    add_to_summaries,
)
from tests.unit.limits.simulation import A, B


def throttle(address: str = A, done: ThrottleAction = "hold", observed: float = 3.0, delay_ms: int = 500) -> Throttle:
    return Throttle("CLIENT", address, "ip", "connection_creation_rate", done, 2, observed, delay_ms)


def test_one_report_for_all_of_an_address_that_met_the_same() -> None:
    gathered = ThrottleAggregator()
    gathered.add(throttle(observed=2.5, delay_ms=250), 1.0)
    gathered.add(throttle(observed=4.0, delay_ms=1_000), 1.5)
    gathered.add(throttle(observed=3.0, delay_ms=500), 1.75)
    (report,) = gathered.take_reports()
    assert gathered.take_reports() == [], "what was taken is not reported again"
    assert report == AggregatedThrottle(
        "CLIENT", A, "ip", "connection_creation_rate", "hold", 3, 2, 4.0, 1_000, first_at=1.0, last_at=1.75
    )


def test_what_came_of_it_and_who_it_was_are_distinguished() -> None:
    gathered = ThrottleAggregator()
    for one in (throttle(), throttle(done="drop"), throttle(B), throttle()):
        gathered.add(one, 1.0)
    assert [(report.address, report.action, report.count) for report in gathered.take_reports()] == [
        (A, "hold", 2),
        (A, "drop", 1),
        (B, "hold", 1),
    ]


@pytest.mark.promise(
    "limits-operation.md", "Throttled connections are reported in a bounded number of groups, and no count is lost."
)
def test_of_more_addresses_than_are_reported_the_rest_is_reported_together() -> None:
    gathered = ThrottleAggregator()
    for i in range(3_000):
        gathered.add(throttle(f"10.{i // 256}.0.{i % 256}", done="hold" if i % 3 else "drop"), float(i))
    gathered.add(throttle("10.0.0.1"), 3_000.0)  # among the first, and still reported by name
    reports = gathered.take_reports()
    named = [report for report in reports if report.address != MANY]
    assert len(named) == module.MAX_REPORTS
    assert {report.action: report.count for report in reports if report.address == MANY} == {
        "hold": 1_334,
        "drop": 666,
    }
    assert sum(report.count for report in reports) == 3_001
    assert max(report.last_at for report in named) == 3_000.0


def test_summaries_keep_every_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPORTS", 2)
    gathered, found, reported = ThrottleAggregator(), dict[tuple[str, ...], ThrottleSummary](), Counter[str]()
    for second in range(3):
        for address in (A, B, "10.0.0.3", f"10.0.1.{second}", A):
            gathered.add(throttle(address, observed=float(second), delay_ms=100 * second), float(second))
            reported[address] += 1
        add_to_summaries(found, gathered.take_reports())
    (summary,) = found.values()
    assert (summary.listener, summary.scope, summary.action) == ("CLIENT", "ip", "hold")
    assert (summary.connections, summary.limit, summary.observed, summary.delay_ms) == (15, 2, 2.0, 200)
    assert summary.addresses == {A: reported[A], B: reported[B], MANY: 6}
