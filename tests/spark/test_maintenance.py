"""What a job does beside its batches, and when."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import maintenance
from spark_jobs.definitions import Definitions
from spark_jobs.maintenance import MaintainedTables, MaintenanceScheduler
from spark_jobs.table_root import TableRoot

pytestmark = pytest.mark.spark

DAY = 86_400


Start = Callable[..., MaintenanceScheduler]


class Clocks:
    """Time that a test moves: of this machine, and since it was started."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.done: list[str] = []

    def time(self) -> float:
        return self.now

    monotonic = time

    def compute_derived_tables(self, *given: Any) -> tuple[str, ...]:
        self.done.append("derive")
        return ("slo",)

    def maintain_tables(self, *given: Any, vacuum: bool) -> None:
        self.done.append("vacuum" if vacuum else "maintain")

    def did(self) -> list[str]:
        done, self.done = self.done, []
        return done


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    for name in ("time", "compute_derived_tables", "maintain_tables"):
        monkeypatch.setattr(maintenance, name, clocks if name == "time" else getattr(clocks, name))
    return clocks


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path, clocks: Clocks) -> Callable[..., MaintenanceScheduler]:
    def make(*names: str, continuous: bool, say: Callable[..., None] = lambda note: None) -> MaintenanceScheduler:
        target = TableRoot(str(tmp_path), str(tmp_path / "checkpoint"))
        tables = MaintainedTables(spark, target, names or ("traffic", "topics"), Definitions(), say)
        return MaintenanceScheduler(tables, continuous=continuous)

    return make


@pytest.mark.promise(
    "jobs.md", "Derived tables are computed five minutes after the previous computation, while batches go on."
)
def test_tables_are_computed_by_the_time_and_not_by_the_number_of_batches(start: Start, clocks: Clocks) -> None:
    said: list[str] = []
    job = start(continuous=True, say=lambda note: said.append(str(note)))
    job.run_due_tasks()
    assert clocks.did() == ["derive"], "what an earlier run left undone"
    for _ in range(100):
        job.batch_written()
        job.run_due_tasks()
    assert clocks.did() == []
    assert job.run_at_end() == ()
    assert said == ["the last batches are not in topics yet; the next run computes them"]
    clocks.now += 300
    job.run_due_tasks()
    assert clocks.did() == ["derive"], "also if nothing comes any more"
    clocks.now += 300
    job.run_due_tasks()
    assert clocks.did() == []
    assert job.run_at_end() == ()
    assert len(said) == 1


@pytest.mark.promise("jobs.md", "A job maintains its tables every hour, and vacuums them once a day.")
def test_tables_are_maintained_each_hour_and_vacuumed_once_a_day(start: Start, clocks: Clocks) -> None:
    job = start("traffic", continuous=True)
    done = []
    for _ in range(49):
        job.batch_written()
        job.run_due_tasks()
        done += clocks.did()
        clocks.now += 3_600
    assert done == [*["maintain"] * 23, "vacuum", *["maintain"] * 23, "vacuum"]


@pytest.mark.promise(
    "jobs.md", "A job with `--available-now` computes at its end, and maintains if the last vacuum was a day ago."
)
def test_runs_that_end_by_themselves_vacuum_when_a_day_has_passed(start: Start, clocks: Clocks) -> None:
    for passed, expected in ((0, []), (DAY - 1, []), (1, ["vacuum"]), (1, []), (DAY, ["vacuum"]), (-1, ["vacuum"])):
        clocks.now += passed
        job = start(continuous=False)
        job.batch_written()
        job.run_due_tasks()
        assert clocks.did() == []
        assert job.run_at_end() == ("slo",)
        assert clocks.did() == ["derive", *expected]
