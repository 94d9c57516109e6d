"""What a job does beside its batches, and when; and Delta tables beside Spark, which reads what delta-rs writes."""

import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import Schema
from pyarrow import parquet
from pyspark.sql import SparkSession

from spark_jobs import io, maintenance, stored_table
from spark_jobs.compaction import maintain_table
from spark_jobs.definitions import Definitions
from spark_jobs.errors import JobError
from spark_jobs.maintenance import MaintainedTables, MaintenanceScheduler
from spark_jobs.schemas import TRAFFIC
from spark_jobs.stored_table import StoredTable
from spark_jobs.table_root import TableRoot
from tests.spark import stored as of_traffic

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


FIRST, NEXT = date(2026, 9, 22), date(2026, 9, 23)


@pytest.mark.promise(
    "jobs.md", "The tasks of a backfill write the files of a table, and no attempt overwrites those of another."
)
def test_tasks_write_a_file_for_each_day_which_no_other_attempt_writes(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    schema = pyarrow.schema([("day", pyarrow.date32()), ("n", pyarrow.int64())])
    stored_table.create_table(path, {}, Schema.from_arrow(schema), "Numbers.")
    many = spark.range(300).selectExpr(
        "CASE id % 3 WHEN 0 THEN DATE'2026-09-22' WHEN 1 THEN DATE'2026-09-23' END", "id"
    )
    frame = many.toDF("day", "n").repartition(4)
    first, again = (io.write_files(frame, StoredTable(path, {})) for _ in range(2))
    assert not {file.path for file in first} & {file.path for file in again}
    StoredTable(path, {}).replace_files([], again)
    stored = StoredTable(path, {})
    assert (len(stored.files), stored.files_by_day) == (3, {FIRST: 1, NEXT: 1})
    assert sorted(stored.dataset().to_table()["n"].to_pylist()) == [*range(300)]
    assert set(stored.dataset([NEXT]).to_table()["n"].to_pylist()) == set(range(1, 300, 3))
    for file in stored.files:
        written = parquet.ParquetFile(f"{path}/{file.path}").metadata
        assert (written.num_rows, written.num_row_groups, file.size) == (100, 1, Path(path, file.path).stat().st_size)


@pytest.mark.promise("tables.md", "Any engine that reads Delta can read the tables, Spark for example.")
def test_spark_reads_what_was_compacted(spark: SparkSession, tmp_path: Path) -> None:
    """And passes over files by their statistics."""
    path = str(tmp_path / "traffic")
    stored_table.create_table(path, {}, Schema.from_arrow(of_traffic.rows(TRAFFIC).schema), "Traffic.")
    minute, later = datetime(2024, 3, 1, 12, tzinfo=UTC), date(2024, 3, 6)
    key = {"day": minute.date(), "principal": "a"}
    batches = [[key | {"requests": 2}], [key | {"minute": minute, "requests": 5}], [{"day": later, "requests": 1}]]
    for number, batch in enumerate(batches):
        stored_table.append_once(of_traffic.rows(TRAFFIC, *batch), path, {}, "writer", number)
    maintain_table(lambda: StoredTable(path, {}), TRAFFIC, Definitions(), vacuum=False)
    assert StoredTable(path, {}).files_by_day == {minute.date(): 1, later: 1}
    found = spark.read.format("delta").load(path)
    assert {row["requests"] for row in found.where("day = '2024-03-01'").collect()} == {2, 5}
    assert [row["requests"] for row in found.where("minute = timestamp '2024-03-01 12:00:00+00:00'").collect()] == [5]
    assert found.where("minute > timestamp '2024-03-01 12:00:01+00:00'").count() == 0


@pytest.mark.promise(
    "jobs.md",
    "A table in which another program has turned on a table feature of Delta gets batches, and loses no file.",
)
def test_files_of_deletion_vectors_of_another_program_are_not_removed(
    start: Start, spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "traffic")

    def append(batch: int) -> None:
        given = {"day": FIRST, "minute": datetime(2026, 9, 22, tzinfo=UTC), "principal": str(batch)}
        stored_table.append_once(of_traffic.rows(TRAFFIC, given), path, {}, "writer", batch)

    stored_table.create_table(path, {}, Schema.from_arrow(of_traffic.rows(TRAFFIC).schema), "Traffic.")
    for batch in range(3):
        append(batch)
    assert StoredTable(path, {}).unknown_features == []
    maintain_table(lambda: StoredTable(path, {}), TRAFFIC, Definitions(), vacuum=True)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE principal = '1'")
    vectors = list(Path(path).glob("deletion_vector_*.bin"))
    assert vectors
    before = datetime.now(UTC).timestamp() - DAY
    for file in Path(path).rglob("*.*"):
        os.utime(file, (before, before))
    said: list[str] = []
    start("traffic", "topics", continuous=True, say=lambda note: said.append(str(note)))
    assert len(said) == 1
    assert said[0].startswith("table traffic: another program has turned on deletionVectors in ")
    stored = StoredTable(path, {})
    for change in (
        stored.vacuum,
        stored.remove_expired_commits,
        lambda: stored.replace_files(stored.files, []),
        lambda: maintain_table(lambda: StoredTable(path, {}), TRAFFIC, Definitions(), vacuum=True),
    ):
        with pytest.raises(JobError, match="turned on deletionVectors"):
            change()
    append(3)
    assert [file for file in vectors if not file.exists()] == []
    found = spark.read.format("delta").load(path).collect()
    assert {row["principal"] for row in found} == {"0", "2", "3"}


@pytest.mark.promise("jobs.md", "Tables with other settings get those of this release when a job starts.")
def test_tables_get_the_properties_of_this_release_also_those_of_before(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "traffic")
    io.create_table(spark, TRAFFIC, path)
    assert StoredTable(path, {}).properties == io.DELTA_PROPERTIES
    names = ", ".join(f"'{name}'" for name in io.DELTA_PROPERTIES)
    spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ({names})")
    io.create_table(spark, TRAFFIC, path)
    stored = StoredTable(path, {})
    assert stored.properties == io.DELTA_PROPERTIES
    io.create_table(spark, TRAFFIC, path)
    assert StoredTable(path, {}).version == stored.version
