from __future__ import annotations

import pytest

from proxy.fleet.schedule import Schedule


def looks(schedule: Schedule, until: float, *, took: float = 0.0, fails: bool = False) -> list[float]:
    """When it polls until then, each poll taking that long."""
    times = []
    while (at := schedule.next_at()) <= until:
        times.append(round(at, 3))
        (schedule.failed if fails else schedule.succeeded)(at, at + took)
    return times


@pytest.mark.promise(
    "limits.md", "A rate that is stored in the cluster acts on every sidecar within 11 seconds: each looks every ten."
)
def test_it_looks_at_once_and_then_every_ten_seconds() -> None:
    assert looks(Schedule(5.0), 40.0) == [5.0, 15.0, 25.0, 35.0]


def test_after_a_poke_it_looks_at_once_and_a_few_times_more() -> None:
    schedule = Schedule(0.0)
    assert looks(schedule, 4.0) == [0.0]
    schedule.refresh(4.0)
    assert looks(schedule, 20.0) == [4.0, 4.2, 4.5, 5.0, 6.0, 16.0]


def test_many_pokes_are_no_more_than_five_looks_a_second() -> None:
    schedule = Schedule(0.0)
    times = []
    for step in range(1024):
        now = step / 1024
        schedule.refresh(now)
        if schedule.next_at() <= now:
            times.append(now)
            schedule.succeeded(now, now)
    assert times == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8], abs=0.01)
    assert looks(schedule, 20.0) == pytest.approx([1.0, 1.2, 1.5, 2.0, 3.0, 13.0], abs=0.01)


def test_slow_answers_leave_out_what_is_due_meanwhile() -> None:
    schedule = Schedule(0.0)
    schedule.refresh(0.0)
    assert looks(schedule, 15.0, took=1.5) == [0.0, 1.7, 3.4, 14.9]


def test_a_poke_during_a_look_counts() -> None:
    schedule = Schedule(0.0)
    schedule.refresh(0.5)
    schedule.succeeded(0.0, 1.0)
    assert schedule.next_at() == 1.2


def test_failures_are_tried_again_soon_and_then_less_often() -> None:
    schedule = Schedule(0.0)
    assert looks(schedule, 45.0, fails=True) == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0, 35.0, 45.0]
    schedule.succeeded(50.0, 50.0)
    schedule.failed(60.0, 60.0)
    assert schedule.next_at() == 61.0
