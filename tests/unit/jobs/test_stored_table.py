"""Tables and their commits, without a JVM: each batch once, whoever else writes, and whatever was there before."""

import itertools
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyarrow import parquet

from spark_jobs import compaction, stored_table
from spark_jobs.compaction import maintain_table
from spark_jobs.definitions import Definitions
from spark_jobs.schemas import TRAFFIC
from spark_jobs.storage_options import storage_options
from spark_jobs.stored_table import ConcurrentChange, StoredTable, repeat
from tests.spark import stored
from tests.spark.object_store import KEY, object_store, of_spark
from tests.tools.fragments import blocks

DAY, NEXT = date(2026, 9, 22), date(2026, 9, 23)
SCHEMA = pyarrow.schema([("day", pyarrow.date32()), ("n", pyarrow.int64())])
COMMITS_OF_A_CHECKPOINT = 10


def rows(*values: int, day: date | None = DAY) -> pyarrow.Table:
    return pyarrow.table({"day": [day] * len(values), "n": list(values)}, SCHEMA)


def numbers(path: str) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["n"].to_pylist())


def made(folder: Path) -> str:
    path = str(folder / "table")
    stored_table.create_table(path, {}, Schema.from_arrow(SCHEMA), "Numbers.")
    return path


@pytest.fixture
def path(tmp_path: Path) -> str:
    return made(tmp_path)


def append(path: str, batch: int, *values: int, writer: str = "job", day: date | None = DAY) -> None:
    stored_table.append_once(rows(*values, day=day), path, {}, writer, batch)


def file(path: str, value: int) -> AddAction:
    name = f"day={DAY}/{value}.parquet"
    Path(path, name).parent.mkdir(exist_ok=True)
    parquet.write_table(rows(value).drop_columns(["day"]), f"{path}/{name}")
    return AddAction(name, Path(path, name).stat().st_size, {"day": str(DAY)}, 0, True, '{"numRecords": 1}')


@pytest.mark.promise("jobs.md", "A batch that is repeated after a crash is skipped by the tables that already have it.")
def test_each_batch_of_each_writer_is_written_once(path: str) -> None:
    for batch, writer in ((0, "job"), (0, "job"), (0, "other"), (2, "job"), (1, "job"), (2, "job")):
        append(path, batch, batch, writer=writer)
    append(path, 3)
    assert numbers(path) == [0, 0, 2]
    stored = StoredTable(path, {})
    assert stored.writers == {"job": 3, "other": 0}
    assert (stored.last_batch("job"), stored.last_batch("none")) == (3, -1)


@pytest.mark.promise("jobs.md", "Any number of jobs may write below one root at the same time.")
def test_a_batch_is_written_once_by_processes_at_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.promise(
    "jobs.md", "Of two processes that replace files of a table at the same time the later one is rejected."
)
def test_of_two_that_replace_files_of_one_version_the_later_is_rejected(tmp_path: Path) -> None:
    """Also of two that both find the table empty, and change its rows."""
    cases = [(*changes, True) for changes in itertools.product((True, False), repeat=2)]
    for number, (first_changes, second_changes, filled) in enumerate([*cases, (True, True, False)]):
        path = made(tmp_path / str(number))
        if filled:
            append(path, 0, 1)
        first, second = StoredTable(path, {}), StoredTable(path, {})
        first.replace_files(first.files, [file(path, 2)], data_change=first_changes, metadata="first")
        with pytest.raises(ConcurrentChange):
            second.replace_files(second.files, [file(path, 3)], data_change=second_changes)
        assert numbers(path) == [2], (first_changes, second_changes, filled)
        assert StoredTable(path, {}).last_metadata(100) == "first"


@pytest.mark.promise("jobs.md", "The rows of one principal can be deleted while a job maintains the table.")
def test_rows_of_a_person_are_deleted_beside_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the program of jobs.md. A compaction that has read the rows before does not bring them back."""
    program = next(one.text for one in blocks("python", page="docs/jobs.md"))
    path = str(tmp_path / "traffic")
    stored_table.create_table(path, {}, Schema.from_arrow(stored.schema(TRAFFIC)), "Traffic.")
    for batch, principal in enumerate(("User:alice", "User:o'neil", "User:bob")):
        given = {"day": DAY, "minute": datetime(2026, 9, 22, tzinfo=UTC), "principal": principal}
        stored_table.append_once(stored.rows(TRAFFIC, given), path, {}, "job", batch)
    stored_table.create_table(str(tmp_path / "other"), {}, Schema.from_arrow(SCHEMA), "Numbers.")
    opened = {"day": DAY, "boot_id": "b", "opened_at": datetime(2026, 9, 22, tzinfo=UTC)}
    for number, principal in ((1, "User:o'neil"), (2, "User:bob")):
        stored.write(tmp_path, "connections", {**opened, "connection_id": f"c-{number}"})
        stored.write(
            tmp_path,
            "connections",
            {"day": DAY, "boot_id": "b", "connection_id": f"c-{number}", "principal": principal},
        )
    monkeypatch.setattr(sys, "argv", ["delete", str(tmp_path), "User:o'neil"])
    before = StoredTable(path, {})
    every = before.dataset().to_table()
    exec(program, {})
    with pytest.raises(ConcurrentChange):
        before.replace_files(before.files, [before.write_file(reader_of(every), DAY)], data_change=False)
    assert {row["principal"] for row in stored.read(tmp_path, "traffic")} == {"User:alice", "User:bob"}
    assert {row["connection_id"] for row in stored.read(tmp_path, "connections")} == {"c-2"}
    early = DeltaTable(path)
    now = StoredTable(path, {})
    now.replace_files(now.files, [now.write_file(reader_of(now.dataset().to_table()), DAY)], data_change=False)
    number = early.transaction_version(stored_table.REPLACEMENT) + 1
    with pytest.raises(CommitFailedError):
        early.delete(
            "principal = 'User:bob'",
            commit_properties=CommitProperties(app_transactions=[Transaction(stored_table.REPLACEMENT, number)]),
        )


def reader_of(rows: pyarrow.Table) -> pyarrow.RecordBatchReader:
    return pyarrow.RecordBatchReader.from_batches(rows.schema, rows.to_batches())


KILLS = 50 if os.environ.get("JOBS_FULL") else 2
BATCHES = 6
GENERATIONS = 5

ATTEMPTS = 1_000
"""Of a change that others may come before again and again."""

Options = dict[str, str]


@pytest.fixture(params=["disk", pytest.param("object store", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Options]]:
    """An empty table ``traffic``: its path and the options of its storage."""
    if request.param == "disk":
        yield _created(str(tmp_path / "traffic"), {})
        return
    with object_store(tmp_path / "store.log", "tables") as address:
        path = "s3a://tables/traffic"
        options = storage_options(path, of_spark(address, prefix="").get)
        options |= {"aws_access_key_id": KEY["access.key"], "aws_secret_access_key": KEY["secret.key"]}
        yield _created(path, options)


def _created(path: str, options: Options) -> tuple[str, Options]:
    stored_table.create_table(path, options, Schema.from_arrow(stored.rows(TRAFFIC).schema), "Traffic.")
    return path, options


def _append(place: tuple[str, Options], writer: str, number: int) -> None:
    row = {"day": DAY, "principal": writer, "client_id": str(number), "requests": 1}
    stored_table.append_once(stored.rows(TRAFFIC, row), *place, writer, number)


def _compact(place: tuple[str, Options]) -> None:
    maintain_table(lambda: StoredTable(*place), TRAFFIC, Definitions(), vacuum=False)


def _replace_next_day(place: tuple[str, Options], generation: int) -> None:
    """Replace the rows of NEXT, as a derived table is: by three rows that all have this number."""
    some = stored.rows(TRAFFIC, *({"day": NEXT, "principal": who, "requests": generation} for who in "abc"))
    there = StoredTable(*place)
    new = there.write_file(some.to_reader(), NEXT)
    there.replace_files([file for file in there.files if file.day == NEXT], [new])


def _written(place: tuple[str, Options], day: date) -> list[tuple[str, str | None, int]]:
    path, options = place
    found = DeltaTable(path, storage_options=options).to_pyarrow_table(
        columns=["day", "principal", "client_id", "requests"]
    )
    return sorted(
        (row["principal"], row["client_id"], row["requests"]) for row in found.to_pylist() if row["day"] == day
    )


@pytest.mark.promise(
    "jobs.md", "Batches, maintenance and derived tables may meet on one table, and no row is lost or doubled."
)
def test_nothing_is_lost_where_writers_meet(place: tuple[str, Options], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MIN_FILES_TO_COMPACT", 2)
    done = threading.Event()

    def write(writer: str) -> None:
        for number in range(BATCHES):
            _append(place, writer, number)

    def compact() -> None:
        while not done.is_set():
            repeat(partial(_compact, place), ATTEMPTS)

    def replace() -> None:
        for generation in range(GENERATIONS):
            repeat(partial(_replace_next_day, place, generation), ATTEMPTS)

    with ThreadPoolExecutor(5) as pool:
        compacting = [pool.submit(compact) for _ in range(2)]
        try:
            for writing in [pool.submit(write, "job"), pool.submit(write, "other"), pool.submit(replace)]:
                writing.result()
        finally:
            done.set()
        for each in compacting:
            each.result()
    assert _written(place, DAY) == sorted((who, str(n), 1) for who in ("job", "other") for n in range(BATCHES))
    assert _written(place, NEXT) == [(who, None, GENERATIONS - 1) for who in "abc"]


def _write_until_killed(place: tuple[str, Options], said: Connection) -> None:
    compaction.MIN_FILES_TO_COMPACT = 2  # in a process of its own
    while True:
        number = StoredTable(*place).last_batch("job") + 1
        _append(place, "job", number)
        said.send(number)
        repeat(partial(_compact, place), ATTEMPTS)
        repeat(partial(_replace_next_day, place, number), ATTEMPTS)


@pytest.mark.promise("jobs.md", "A job that is killed while it writes leaves no row out and none twice.")
def test_what_a_killed_writer_leaves(place: tuple[str, Options], monkeypatch: pytest.MonkeyPatch) -> None:
    """At any instant, in the middle of a file, of a commit or of a compaction; 50 of them: JOBS_FULL=1."""
    monkeypatch.setattr(compaction, "MIN_FILES_TO_COMPACT", 2)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    chance = random.Random(22)
    for _ in range(KILLS):
        here, there = context.Pipe(duplex=False)
        writer = context.Process(target=_write_until_killed, args=(place, there))
        writer.start()
        there.close()
        for _ in range(chance.randrange(1, 3)):
            last = here.recv()
        writer.join(chance.random() / 2)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    last = StoredTable(*place).last_batch("job")
    assert last >= KILLS - 1
    assert _written(place, DAY) == sorted(("job", str(number), 1) for number in range(last + 1))
    assert len({requests for *_, requests in _written(place, NEXT)}) == 1
    assert len(_written(place, NEXT)) == 3
    _compact(place)
    _append(place, "job", last + 1)
    assert len(_written(place, DAY)) == last + 2
