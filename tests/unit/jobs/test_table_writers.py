"""Batches, compactions and replacements of one table at the same time, and writers that are killed: every row once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable, Schema

from spark_jobs import compaction, stored_table
from spark_jobs.compaction import maintain_table
from spark_jobs.definitions import Definitions
from spark_jobs.schemas import TRAFFIC
from spark_jobs.storage_options import storage_options
from spark_jobs.stored_table import StoredTable, repeat
from tests.spark.object_store import KEY, object_store, of_spark
from tests.spark.stored import rows

DAY, NEXT = date(2026, 9, 22), date(2026, 9, 23)
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
    stored_table.create_table(path, options, Schema.from_arrow(rows(TRAFFIC).schema), "Traffic.")
    return path, options


def _append(place: tuple[str, Options], writer: str, number: int) -> None:
    row = {"day": DAY, "principal": writer, "client_id": str(number), "requests": 1}
    stored_table.append_once(rows(TRAFFIC, row), *place, writer, number)


def _compact(place: tuple[str, Options]) -> None:
    compaction.MIN_FILES_TO_COMPACT = 2
    maintain_table(lambda: StoredTable(*place), TRAFFIC, Definitions(), vacuum=False)


def _replace_next_day(place: tuple[str, Options], generation: int) -> None:
    """Replace the rows of NEXT, as a derived table is: by three rows that all have this number."""
    some = rows(TRAFFIC, *({"day": NEXT, "principal": who, "requests": generation} for who in "abc"))
    stored = StoredTable(*place)
    new = stored.write_file(pyarrow.RecordBatchReader.from_batches(some.schema, some.to_batches()), NEXT)
    stored.replace_files([file for file in stored.files if file.day == NEXT], [new])


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
def test_nothing_is_lost_or_doubled_while_batches_compactions_and_replacements_meet(
    place: tuple[str, Options], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    while True:
        number = StoredTable(*place).last_batch("job") + 1
        _append(place, "job", number)
        said.send(number)
        repeat(partial(_compact, place), ATTEMPTS)
        repeat(partial(_replace_next_day, place, number), ATTEMPTS)


@pytest.mark.promise("jobs.md", "A job that is killed while it writes leaves no row out and none twice.")
def test_a_writer_that_is_killed_leaves_nothing_out_and_nothing_twice(place: tuple[str, Options]) -> None:
    """At any instant, in the middle of a file, of a commit or of a compaction; 50 of them: JOBS_FULL=1."""
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
