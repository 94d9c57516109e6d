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
def test_it_looks_at_once_and_then_every_ten_seconds_and_sooner_after_a_poke_or_a_failure() -> None:
    assert looks(Schedule(5.0), 40.0) == [5.0, 15.0, 25.0, 35.0]
    schedule = Schedule(0.0)
    assert looks(schedule, 4.0) == [0.0]
    schedule.refresh(4.0)
    assert looks(schedule, 20.0) == [4.0, 4.2, 4.5, 5.0, 6.0, 16.0]
    schedule = Schedule(0.0)
    schedule.refresh(0.0)
    assert looks(schedule, 15.0, took=1.5) == [0.0, 1.7, 3.4, 14.9], "slow answers leave out what is due meanwhile"
    schedule = Schedule(0.0)
    schedule.refresh(0.5)
    schedule.succeeded(0.0, 1.0)
    assert schedule.next_at() == 1.2, "a poke during a look counts"
    schedule = Schedule(0.0)
    assert looks(schedule, 45.0, fails=True) == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0, 35.0, 45.0]
    schedule.succeeded(50.0, 50.0)
    schedule.failed(60.0, 60.0)
    assert schedule.next_at() == 61.0


def test_many_pokes_are_no_more_than_five_looks_a_second() -> None:
    schedule, times = Schedule(0.0), []
    for step in range(1024):
        now = step / 1024
        schedule.refresh(now)
        if schedule.next_at() <= now:
            times.append(now)
            schedule.succeeded(now, now)
    assert times == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8], abs=0.01)
