"""Delta tables beside Spark: it reads what delta-rs writes, and its tasks read and write files of them."""

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow
import pytest
from deltalake import Schema
from pyarrow import parquet
from pyspark.sql import SparkSession

from spark_jobs import io, stored_table
from spark_jobs.compaction import maintain_table
from spark_jobs.definitions import Definitions
from spark_jobs.schemas import TRAFFIC
from spark_jobs.stored_table import StoredTable
from tests.spark import stored as of_traffic

pytestmark = pytest.mark.spark

DAY, NEXT = date(2026, 9, 22), date(2026, 9, 23)


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
    assert (len(stored.files), stored.files_by_day) == (3, {DAY: 1, NEXT: 1})
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
