"""Upkeep: what every reader sees stays the same, in fewer rows and files, and no longer than it is kept."""

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable, Schema

from spark_jobs import compaction, io, stored_table
from spark_jobs.compaction import maintain_table
from spark_jobs.definitions import Definitions
from spark_jobs.progress import Notice
from spark_jobs.schemas import TRAFFIC
from spark_jobs.stored_table import ConcurrentChange, StoredTable
from spark_jobs.table_root import TableRoot
from tests.spark.stored import rows

FIRST = date(2024, 3, 1)

Append = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "traffic")


@pytest.fixture
def append(path: str) -> Append:
    """Creates the table ``traffic``; adds a file for each day: a row with two requests, one with 10."""
    stored_table.create_table(path, {}, Schema.from_arrow(rows(TRAFFIC).schema), "Traffic.")
    number = itertools.count()

    def append(*days: int) -> None:
        made = [
            {"day": FIRST + timedelta(days=day), "principal": who, "requests": requests}
            for day in days
            for who, requests in (("a", 2), ("b", 10))
        ]
        stored_table.append_once(rows(TRAFFIC, *made), path, {}, "writer", next(number))

    return append


def maintain(path: str, definitions: Definitions | None = None, *, vacuum: bool = False) -> None:
    maintain_table(lambda: StoredTable(path, {}), TRAFFIC, definitions or Definitions(), vacuum=vacuum)


def files(path: str) -> dict[int, int]:
    return {(day - FIRST).days: count for day, count in StoredTable(path, {}).files_by_day.items()}


def stored_rows(path: str) -> list[dict[str, Any]]:
    return DeltaTable(path).to_pyarrow_table(columns=["day", "principal", "requests"]).to_pylist()


def requests(path: str) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for row in stored_rows(path):
        found[(row["day"] - FIRST).days, row["principal"]] += row["requests"]
    return found


@pytest.mark.promise(
    "jobs.md", "Days that are over are merged into one file with one row for each key, and no reader sees a difference."
)
def test_days_that_are_over_have_a_row_for_each_key(path: str, append: Append, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MIN_FILES_TO_COMPACT", 4)
    for days in ([0, 3], [0, 1, 3], [0, 3], [2], [2]):
        append(*days)
    before = requests(path)
    maintain(path)
    assert files(path) == {0: 1, 1: 1, 2: 2, 3: 3}
    expected = {
        (day, who): times * each
        for day, times in ((0, 3), (1, 1), (2, 2), (3, 3))
        for who, each in (("a", 2), ("b", 10))
    }
    assert requests(path) == before == Counter(expected)
    assert sum(row["day"] == FIRST for row in stored_rows(path)) == 2
    version = StoredTable(path, {}).version
    maintain(path)
    assert StoredTable(path, {}).version == version
    append(0, 3)
    maintain(path)
    assert files(path) == {0: 1, 1: 1, 2: 2, 3: 1}
    assert requests(path) == before + Counter({(0, "a"): 2, (0, "b"): 10, (3, "a"): 2, (3, "b"): 10})
    assert StoredTable(path, {}).writers == {"writer": 5}
    assert StoredTable(path, {}).days_changed(version + 1) == set(), "no row was added by it"


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None], int], None]:
    """Has something done between the writing of a compacted file and its commit, so many times."""
    replace = StoredTable.replace_files

    def install(change: Callable[[], None], times: int) -> None:
        left = iter([change] * times)

        def late(self: StoredTable, *given: Any, **options: Any) -> None:
            next(left, lambda: None)()
            replace(self, *given, **options)

        monkeypatch.setattr(StoredTable, "replace_files", late)

    return install


@pytest.mark.promise("jobs.md", "Maintenance beside batches and other jobs loses and doubles no row.")
def test_two_that_compact_one_day_double_and_lose_nothing(path: str, append: Append, meanwhile: Any) -> None:
    append(0, 5)
    append(0)
    before = StoredTable(path, {})
    meanwhile(lambda: append(0), 1)
    maintain(path)
    assert (files(path)[0], requests(path)[0, "a"]) == (2, 6)
    meanwhile(lambda: maintain(path), 1)
    maintain(path)
    assert (files(path)[0], requests(path)[0, "a"]) == (1, 6)
    with pytest.raises(ConcurrentChange):
        before.replace_files(before.files, [])  # rows of before the compaction
    assert requests(path)[0, "a"] == 6


@pytest.mark.promise("jobs.md", "A rejected maintenance is done again, up to five times.")
def test_a_compaction_is_repeated_after_its_files_were_replaced(path: str, append: Append, meanwhile: Any) -> None:
    """As often as others replace them, up to a bound: then the next maintenance does it."""

    def replaced() -> None:
        stored = StoredTable(path, {})
        with compaction._merged_rows(stored, TRAFFIC, stored.files[:1]) as merged:
            new = [stored.write_file(merged, FIRST)]
        commit(stored, stored.files, new)
        append(0)
        append(5)

    commit = StoredTable.replace_files
    append(0)
    append(0)
    append(5)
    meanwhile(replaced, stored_table.MAX_ATTEMPTS - 1)
    maintain(path)
    assert requests(path) == Counter({(0, "a"): 4, (0, "b"): 20, (5, "a"): 2, (5, "b"): 10})
    assert files(path) == {0: 1, 5: 1}
    append(0)
    meanwhile(replaced, stored_table.MAX_ATTEMPTS)
    with pytest.raises(ConcurrentChange):
        maintain(path)


@pytest.mark.promise("jobs.md", "Days beyond the retention of their table are deleted.")
def test_days_are_kept_as_long_as_their_table_says(path: str, append: Append) -> None:
    append(0, 10, 399, 400)
    maintain(path)
    assert set(files(path)) == {10, 399, 400}
    maintain(path, Definitions(retention={"traffic": timedelta(days=2)}))
    assert set(files(path)) == {399, 400}


@pytest.mark.promise("jobs.md", "A vacuum removes replaced files only when no reader can need them any more.")
def test_files_that_nothing_needs_any_more_are_removed(path: str, append: Append) -> None:
    append(0, 5)
    append(0)
    maintain(path)
    data = Path(path, f"day={FIRST}")
    Path(data, "part-of-an-attempt-that-failed.zstd.parquet").touch()
    maintain(path, vacuum=True)
    assert len([*data.iterdir()]) == 4, "a reader or a writer may be at it"
    StoredTable(path, {}).set_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    maintain(path)
    assert len([*data.iterdir()]) == 4
    maintain(path, vacuum=True)
    assert [file.name for file in data.iterdir()] == [
        Path(f.path).name for f in StoredTable(path, {}).files if f.day == FIRST
    ]
    assert {file.suffix for file in Path(path, "_delta_log").iterdir()} == {".json"}
    assert requests(path)[0, "a"] == 4


@pytest.mark.promise("jobs.md", "Files and commits of a table stay in bounds, however long a job runs.")
def test_a_table_stays_small_however_long(path: str, append: Append, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for each day that is over, and half a day of the log, of which commits and files are dated by a clock that
    begins four days ago and ends now: delta-rs compares them with the real time."""
    monkeypatch.setattr(compaction, "MIN_FILES_TO_COMPACT", 4)
    days, batches = 4, 12
    log, dated = Path(path, "_delta_log"), 0
    began = int(time.time()) - days * 86_400
    first = (datetime.fromtimestamp(began, UTC).date() - FIRST).days
    for number in range(1, days * batches + 1):
        now = began + number * 86_400 // batches
        monkeypatch.setattr(stored_table, "_now_ms", lambda now=now: 1_000 * now)
        append(first + (number - 1) // batches)
        maintain(path, vacuum=number % batches == 0)
        while (commit := log / f"{dated:020d}.json").exists():
            actions = map(json.loads, commit.read_text().splitlines())
            added = [Path(path, action["add"]["path"]) for action in actions if "add" in action]
            for file in (*log.glob(f"{commit.stem}.*"), *(file for file in added if file.exists())):
                os.utime(file, (now, now))
            dated += 1
    per_day = [count for _, count in sorted(files(path).items())]
    closed = len(per_day) - compaction.CLOSED_AFTER_DAYS
    assert per_day[:closed] == [1] * closed
    assert max(per_day) <= 4 + 2
    half_a_day = 1.5 * batches / 2 + 20  # of batches, of what maintains the table, and up to the checkpoint before
    assert batches / 2 < len([*log.glob("*.json")]) <= half_a_day
    assert len([*log.glob("*.checkpoint.*")]) <= half_a_day / 20 + 1
    assert len([*Path(path).glob("day=*/*")]) <= sum(per_day) + half_a_day
    assert requests(path).total() == days * batches * (2 + 10)


def test_a_clock_years_ahead_deletes_nothing(path: str, append: Append, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    monkeypatch.setattr(compaction, "datetime", SimpleNamespace(now=lambda _: now))  # no midnight in between
    today = (now.date() - FIRST).days
    append(today - 1, today, 700_000)
    append(today)
    maintain(path, Definitions(retention={"traffic": timedelta(days=2)}))
    assert files(path) == {today - 1: 1, today: 2, 700_000: 1}


def test_a_table_that_cannot_be_looked_after_is_said_and_does_not_stop_the_others(
    tmp_path: Path, path: str, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    for days in ((0,), (0,), (5,)):
        append(*days)
    look = io.open_table

    def failing(spark: Any, path: str) -> StoredTable:
        if path.endswith("dead_letters"):
            raise OSError("the disk is away")
        return look(spark, path)

    monkeypatch.setattr(io, "open_table", failing)
    said: list[Notice] = []
    root = TableRoot(str(tmp_path), str(tmp_path / "checkpoint"))
    names = ["dead_letters", "traffic", "slo"]
    compaction.maintain_tables(None, root, names, Definitions(), said.append, vacuum=False)
    assert list(map(str, said)) == [
        "table dead_letters: maintenance failed and is retried later: OSError: the disk is away"
    ]
    assert files(path) == {0: 1, 5: 1}
