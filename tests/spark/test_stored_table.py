"""Tables and their commits, without a JVM: each batch once, whoever else writes, and whatever was there before."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable, Schema
from deltalake.schema import Field
from deltalake.transaction import AddAction
from pyarrow import parquet
from pyspark.sql import SparkSession

from spark_jobs import io, stored_table
from spark_jobs.errors import JobError
from spark_jobs.storage_options import storage_options
from spark_jobs.stored_table import DELTA_PROPERTIES, REPLACEMENT, ConcurrentChange, StoredTable
from tests.spark.frames import kept
from tests.spark.object_store import KEY, object_store, of_spark

DAY, NEXT = date(2026, 9, 22), date(2026, 9, 23)
SCHEMA = pyarrow.schema([("day", pyarrow.date32()), ("n", pyarrow.int64())])
COMMITS_OF_A_CHECKPOINT = 10


def rows(*values: int, day: date | None = DAY) -> pyarrow.Table:
    return pyarrow.table({"day": [day] * len(values), "n": list(values)}, SCHEMA)


def numbers(path: str) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["n"].to_pylist())


def numbers_of_day(stored: StoredTable, day: date) -> list[int]:
    return stored.dataset([day]).to_table()["n"].to_pylist()


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "table")
    stored_table.create_table(path, {}, Schema.from_arrow(SCHEMA), "Numbers.")
    return path


def append(path: str, batch: int, *values: int, writer: str = "job", day: date | None = DAY) -> None:
    stored_table.append_once(rows(*values, day=day), path, {}, writer, batch)


def file(path: str, value: int) -> AddAction:
    """Write a file of DAY that the table does not have yet."""
    name = f"day={DAY}/{value}.parquet"
    Path(path, name).parent.mkdir(exist_ok=True)
    parquet.write_table(rows(value).drop_columns(["day"]), f"{path}/{name}")
    return AddAction(name, Path(path, name).stat().st_size, {"day": str(DAY)}, 0, True, '{"numRecords": 1}')


def test_there_may_be_no_table(tmp_path: Path) -> None:
    nothing = StoredTable(str(tmp_path), {})
    assert (nothing.version, nothing.files, nothing.writers, nothing.last_batch("job")) == (-1, [], {}, -1)
    with pytest.raises(JobError, match="there is no table at"):
        nothing.replace_files([], [])


def test_a_table_is_created_once_and_kept(path: str) -> None:
    first = StoredTable(path, {})
    append(path, 0, 1)
    stored_table.create_table(path, {}, Schema.from_arrow(SCHEMA), "Other numbers.")
    again = StoredTable(path, {})
    assert (first.id, again.version, again.properties) == (again.id, 1, DELTA_PROPERTIES)
    assert numbers(path) == [1]


def test_each_batch_of_each_writer_is_written_once(path: str) -> None:
    for batch, writer in ((0, "job"), (0, "job"), (0, "other"), (2, "job"), (1, "job"), (2, "job")):
        append(path, batch, batch, writer=writer)
    append(path, 3)
    assert numbers(path) == [0, 0, 2]
    stored = StoredTable(path, {})
    assert stored.writers == {"job": 3, "other": 0}
    assert (stored.last_batch("job"), stored.last_batch("none")) == (3, -1)


def test_a_batch_is_written_once_by_processes_that_do_not_know_of_each_other(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them looks whether the batch is there before any has written it."""
    looked, tries = threading.Barrier(8), itertools.count()
    write = stored_table.write_deltalake

    def together(*given: object, **options: object) -> None:
        if next(tries) < looked.parties:
            looked.wait(120)
        write(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(stored_table, "write_deltalake", together)
    writers = ["job"] * 4 + [f"other {number}" for number in range(4)]
    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(lambda writer: append(path, 0, 1 if writer == "job" else 10, writer=writer), writers))
    assert numbers(path) == [1, 10, 10, 10, 10]


def test_writers_are_known_when_their_commits_are_no_longer_in_the_log(path: str) -> None:
    StoredTable(path, {}).set_properties({"delta.checkpointInterval": str(COMMITS_OF_A_CHECKPOINT)})
    for batch in range(COMMITS_OF_A_CHECKPOINT + 2):
        append(path, batch, 1, writer=f"job {batch % 3}")
    for version in range(COMMITS_OF_A_CHECKPOINT):
        Path(path, "_delta_log", f"{version:020d}.json").unlink()
    stored = StoredTable(path, {})
    assert stored.writers == {"job 0": 9, "job 1": 10, "job 2": 11}
    assert stored.days_changed(5) is None
    assert stored.days_changed(COMMITS_OF_A_CHECKPOINT) == {DAY}


def test_files_are_replaced_and_those_that_came_meanwhile_stay(path: str) -> None:
    append(path, 0, 1)
    append(path, 1, 2)
    stored = StoredTable(path, {})
    append(path, 2, 4)
    stored.replace_files(stored.files, [file(path, 3)], data_change=False)
    assert numbers(path) == [3, 4]
    assert StoredTable(path, {}).writers == {"job": 2}


def test_a_batch_is_written_while_rows_are_replaced(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(path, 0, 1)
    write = stored_table.write_deltalake
    values = [9, 8]

    def late(*given: object, **options: object) -> None:
        if values:
            stored = StoredTable(path, {})
            stored.replace_files(stored.files, [file(path, values.pop())])
        write(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(stored_table, "write_deltalake", late)
    append(path, 1, 2)
    assert numbers(path) == [2, 9]


@pytest.mark.parametrize("first_changes", [True, False])
@pytest.mark.parametrize("second_changes", [True, False])
def test_of_two_that_replace_files_of_one_version_the_later_is_rejected(
    path: str, first_changes: bool, second_changes: bool
) -> None:
    append(path, 0, 1)
    first, second = StoredTable(path, {}), StoredTable(path, {})
    first.replace_files(first.files, [file(path, 2)], data_change=first_changes)
    with pytest.raises(ConcurrentChange):
        second.replace_files(second.files, [file(path, 3)], data_change=second_changes)
    assert numbers(path) == [2]


@pytest.mark.parametrize("filled", [True, False])
def test_of_two_that_replace_rows_of_one_version_the_later_is_rejected(path: str, filled: bool) -> None:
    if filled:
        append(path, 0, 1)
    first, second = StoredTable(path, {}), StoredTable(path, {})
    first.replace_files(first.files, [file(path, 2)], metadata="first")
    with pytest.raises(ConcurrentChange, match=r"another job changed the same rows of .* at the same time; run thi"):
        second.replace_files(second.files, [file(path, 3)], metadata="second")
    assert numbers(path) == [2]
    now = StoredTable(path, {})
    assert (now.last_metadata(100), now.last_batch(REPLACEMENT)) == ("first", 0)
    assert now.writers == ({"job": 0} if filled else {})


def test_the_days_whose_rows_changed(path: str) -> None:
    append(path, 0, 1, day=NEXT)
    append(path, 1, 1)
    append(path, 2)
    append(path, 3, 1, day=None)
    stored = StoredTable(path, {})
    assert stored.files_by_day == {DAY: 1, NEXT: 1}
    assert [stored.days_changed(after) for after in range(5)] == [{DAY, NEXT}, {DAY}, set(), set(), set()]
    stored.replace_files([each for each in stored.files if each.day == DAY], [], data_change=False)
    stored = StoredTable(path, {})
    assert stored.days_changed(4) == set()
    stored.replace_files([each for each in stored.files if each.day == NEXT], [])
    assert StoredTable(path, {}).days_changed(4) == {NEXT}


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_file_of_a_day_is_written_and_read(path: str, prefix: str) -> None:
    append(path, 0, 1)
    stored = StoredTable(prefix + path, {})
    for day, number in ((NEXT, 2), (None, 3)):
        stored.replace_files([], [stored.write_file(rows(number, day=day).to_reader(), day)])
        stored = StoredTable(prefix + path, {})
    read = {day: stored.dataset(days).to_table()["n"].to_pylist() for day, days in ((DAY, [DAY]), (NEXT, {NEXT}))}
    assert (read, numbers(path)) == ({DAY: [1], NEXT: [2]}, [1, 2, 3])
    assert stored.dataset([]).to_table().num_rows == 0


def test_times_that_python_does_not_have_are_written_without_their_range(path: str) -> None:
    """As ``quota_advice`` of earlier releases may have: of a connection that says it was open for 30,000 years."""
    instants = {"early": [-(10**18), 0], "known": [0, 10**15]}
    times = [pyarrow.array(each, pyarrow.timestamp("us", "UTC")) for each in instants.values()]
    some = rows(1, 2).append_column("early", times[0]).append_column("known", times[1])
    written = json.loads(StoredTable(path, {}).write_file(some.to_reader(), DAY).stats)
    assert (written["numRecords"], list(written["minValues"])) == (2, ["known"])


def test_no_commit_is_lost_on_an_object_store(tmp_path: Path) -> None:
    """Six writers of one table, two of them of the same batches: each batch is there once."""
    with object_store(tmp_path / "store.log", "tables") as address:
        options = storage_options("s3a://tables/numbers", of_spark(address, prefix="").get)
        options |= {"aws_access_key_id": KEY["access.key"], "aws_secret_access_key": KEY["secret.key"]}
        path = "s3a://tables/numbers"
        stored_table.create_table(path, options, Schema.from_arrow(SCHEMA), "Numbers.")

        def fill(writer: str) -> None:
            for batch in range(5):
                stored_table.append_once(rows(batch), path, options, writer, batch)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(fill, "aabcde"))
        stored = StoredTable(path, options)
        writers, days = stored.writers, stored.days_changed(0)
        stored.replace_files([], [stored.write_file(rows(9).to_reader(), DAY)])
        assert StoredTable(path, options).dataset([DAY]).to_table().num_rows == 26
        found = sorted(DeltaTable(path, storage_options=options).to_pyarrow_table()["n"].to_pylist())
    assert (writers, days) == (dict.fromkeys("abcde", 4), {DAY})
    assert (found, stored.version) == (sorted([*[*range(5)] * 5, 9]), 25)


@pytest.mark.spark
def test_a_table_is_continued_from_spark_and_read_by_it(spark: SparkSession, tmp_path: Path) -> None:
    """What an older release wrote with Spark's writer has its batches, and Spark reads what is written here."""
    path = str(tmp_path / "table")
    frame = kept(spark.createDataFrame([(DAY, 1), (NEXT, 2)], "day date, n bigint"))
    for batch in range(12):  # Spark writes a checkpoint with each tenth
        as_before = frame.write.format("delta").mode("append").partitionBy("day")
        as_before.option("txnAppId", "job").option("txnVersion", batch).save(path)
    assert StoredTable(path, {}).writers == {"job": 11}
    append(path, 11, 5)
    append(path, 12, 7)
    read = spark.read.format("delta").load(path)
    assert sorted(row["n"] for row in read.collect()) == numbers(path) == [*[1] * 12, *[2] * 12, 7]
    frame.write.format("delta").mode("append").option("txnAppId", "job").option("txnVersion", 12).save(path)
    assert StoredTable(path, {}).writers == {"job": 12}
    assert len(numbers(path)) == 25, "also a job that is set back to the older release does not write it again"


@pytest.mark.spark
def test_tasks_write_a_file_for_each_day_which_no_other_attempt_writes(spark: SparkSession, path: str) -> None:
    many = spark.range(300).selectExpr(
        "CASE id % 3 WHEN 0 THEN DATE'2026-09-22' WHEN 1 THEN DATE'2026-09-23' END", "id"
    )
    frame = many.toDF("day", "n").repartition(4)
    first, again = (io.write_files(frame, StoredTable(path, {})) for _ in range(2))
    assert not {file.path for file in first} & {file.path for file in again}
    StoredTable(path, {}).replace_files([], again)
    stored = StoredTable(path, {})
    assert (len(stored.files), stored.files_by_day) == (3, {DAY: 1, NEXT: 1})
    assert numbers(path) == [*range(300)]
    assert set(numbers_of_day(stored, NEXT)) == set(range(1, 300, 3))
    for file in stored.files:
        written = parquet.ParquetFile(f"{path}/{file.path}").metadata
        assert (written.num_rows, written.num_row_groups, file.size) == (100, 1, Path(path, file.path).stat().st_size)


@pytest.mark.spark
def test_tasks_read_files_of_a_snapshot_with_columns_that_they_lack(spark: SparkSession, path: str) -> None:
    append(path, 0, 1, 2)
    append(path, 1, 3, day=NEXT)
    append(path, 2, 4, day=None)
    StoredTable(path, {}).add_columns([Field("more", "string")])
    stored = StoredTable(path, {})
    append(path, 3, 5)
    StoredTable(path, {}).replace_files(StoredTable(path, {}).files, [])  # what another job does meanwhile
    read = io.read_rows(spark, stored, [file for file in stored.files if file.day != NEXT])
    assert read.columns == ["day", "n", "more"]
    assert sorted(map(tuple, read.collect()), key=str) == [(None, 4, None), (DAY, 1, None), (DAY, 2, None)]
    assert io.read_rows(spark, stored, []).collect() == []


def test_small_batches_become_large_ones() -> None:
    [batch] = rows(*range(8)).to_batches()
    assert [some.num_rows for some in io.in_row_groups([batch] * 5, 2 * batch.nbytes)] == [16, 16, 8]
    assert list(io.in_row_groups([], 1)) == []
