"""How fast a listener with a rate limit admits what its window lets in at once."""

import pytest

from proxy.limits.admission_pace import ADMISSION_COST, ARRIVAL_COST, FIRST, AdmissionPace
from proxy.limits.model import Limits, ListenerLimits, Quota


def pace(own: int | None = None, broker: int | None = None, *, protected: bool = False, action="enforce") -> Limits:
    rates = [Quota(limit, action) if limit else Quota() for limit in (own, broker)]
    listeners = {"CLIENT": ListenerLimits(rate=rates[0], protected=protected), "OTHER": ListenerLimits()}
    return Limits(listeners=listeners, rate=rates[1])


def admit_at(pace: AdmissionPace, now: int, *, costs=(ARRIVAL_COST, ADMISSION_COST), listener="CLIENT", most=50) -> int:
    """Take what may pass at ``now``, and return how many connections that are."""
    for count in range(most):
        if pace.next_at(listener) > now:
            return count
        for cost in costs:
            pace.record(listener, cost, now)
    return most


@pytest.mark.promise(
    "limits.md",
    "On a listener with a rate, at most two connections per millisecond are admitted, "
    "and 1,000 per second after the first hundred.",
)
def test_a_burst_passes_in_steps():
    for limits, per_ms, per_second in [
        (pace(100), 2, 1000),
        (pace(100, 20), 2, 1000),
        (pace(None, 100), 2, 1000),
        (pace(1500), 3, 3000),
        (pace(1500, 2000), 3, 3000),
        (pace(1250), 3, 2500),
        (pace(2000, protected=True, broker=10), 4, 4000),
    ]:
        paced = AdmissionPace(limits)
        passed = [admit_at(paced, now) for now in range(1000, 2000)]
        assert passed[:50] == [per_ms] * 50, (limits, per_ms, per_second)
        assert max(passed) == per_ms, (limits, per_ms, per_second)
        assert sum(passed) == pytest.approx(per_second + min(FIRST, 1000 * per_ms - per_second), abs=2), limits


def test_refused_connections_cost_a_quarter():
    paced = AdmissionPace(pace(100))
    passed = [admit_at(paced, now, costs=(ARRIVAL_COST,)) for now in range(1000, 2000)]
    assert passed[:50] == [8] * 50
    assert sum(passed) == pytest.approx(4 * (1000 + FIRST), abs=4)


def test_a_late_step_admits_no_more_than_any_other():
    paced = AdmissionPace(pace(100))
    admit_at(paced, 1000)
    assert [admit_at(paced, 1010), admit_at(paced, 5000)] == [2, 2]


def test_without_an_enforced_limit_there_is_no_pace():
    for limits in [pace(), pace(None, 10, protected=True), pace(10, action="observe")]:
        paced = AdmissionPace(limits)
        assert admit_at(paced, 1000) == 50, limits
        assert paced.next_timer(1000) is None, limits


def test_each_listener_has_its_own_pace():
    paced = AdmissionPace(pace(100))
    assert (admit_at(paced, 1000), admit_at(paced, 1000, listener="OTHER")) == (2, 50)
    assert paced.next_at("CLIENT") == paced.next_timer(1000) == 1001
    assert paced.next_timer(1001) is None


def test_a_removed_limit_ends_the_pace():
    paced = AdmissionPace(pace(100))
    admit_at(paced, 1000)
    paced.update_limits(pace())
    assert admit_at(paced, 1000) == 50
