"""What a job does beside its batches, and when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import maintenance
from spark_jobs.definitions import Definitions
from spark_jobs.maintenance import MaintenanceScheduler
from spark_jobs.table_root import TableRoot

pytestmark = pytest.mark.spark

DAY = 86_400


class Clocks:
    """Time that a test moves: of this machine, and since it was started."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.done: list[str] = []

    def time(self) -> float:
        return self.now

    monotonic = time

    def derive(self, *given: Any) -> tuple[str, ...]:
        self.done.append("derive")
        return ("slo",)

    def upkeep(self, *given: Any, clean: bool) -> None:
        self.done.append("clean" if clean else "upkeep")

    def did(self) -> list[str]:
        done, self.done = self.done, []
        return done


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    for name in ("time", "derive", "upkeep"):
        monkeypatch.setattr(maintenance, name, clocks if name == "time" else getattr(clocks, name))
    return clocks


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path, clocks: Clocks) -> Callable[..., MaintenanceScheduler]:
    def make(*names: str, continuous: bool, say: Callable[..., None] = lambda note: None) -> MaintenanceScheduler:
        target = TableRoot(str(tmp_path), str(tmp_path / "checkpoint"))
        of = (spark, target, names or ("traffic", "topics"), Definitions(), say)
        return MaintenanceScheduler(*of, continuous=continuous)

    return make


def test_tables_are_computed_by_the_time_and_not_by_the_number_of_batches(
    start: Callable[..., MaintenanceScheduler], clocks: Clocks
) -> None:
    said: list[str] = []
    job = start(continuous=True, say=lambda note: said.append(str(note)))
    job.at_rest()
    assert clocks.did() == ["derive"], "what an earlier run left undone"
    for _ in range(100):
        job.after_batch()
    assert clocks.did() == []
    assert job.at_end() == ()
    assert said == ["the next run computes what the last batches changed in topics"]
    clocks.now += 300
    job.at_rest()
    assert clocks.did() == ["derive"], "also if nothing comes any more"
    clocks.now += 300
    job.at_rest()
    assert clocks.did() == []
    assert job.at_end() == ()
    assert len(said) == 1


def test_a_job_of_which_nothing_is_computed_is_never_behind(
    start: Callable[..., MaintenanceScheduler], clocks: Clocks
) -> None:
    said: list[str] = []
    job = start("traffic", "slo", continuous=True, say=lambda note: said.append(str(note)))
    job.after_batch()
    job.at_end()
    assert (clocks.did(), said) == ([], [])


def test_tables_are_looked_after_each_hour_and_cleaned_once_a_day(
    start: Callable[..., MaintenanceScheduler], clocks: Clocks
) -> None:
    job = start("traffic", continuous=True)
    done = []
    for _ in range(49):
        job.after_batch()
        done += clocks.did()
        clocks.now += 3_600
    assert done == [*["upkeep"] * 23, "clean", *["upkeep"] * 23, "clean"]


def test_runs_that_end_by_themselves_clean_when_a_day_has_passed(
    start: Callable[..., MaintenanceScheduler], clocks: Clocks
) -> None:
    for passed, expected in ((0, []), (DAY - 1, []), (1, ["clean"]), (1, []), (DAY, ["clean"]), (-1, ["clean"])):
        clocks.now += passed
        job = start(continuous=False)
        job.after_batch()
        assert clocks.did() == []
        assert job.at_end() == ("slo",)
        assert clocks.did() == ["derive", *expected]
