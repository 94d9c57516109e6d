"""What a table is after weeks of minute batches.

A batch each minute, maintenance each hour and a vacuum each day, as a continuous job does them, as fast as the disk is.
The rows of a minute come in two batches.

The simulated clock begins so many days ago and ends now. The commits and the files are dated by it. delta-rs compares
them with the real time: so what it removes is right at the end, and only then.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pyarrow
from deltalake import Schema

from spark_jobs import stored_table
from spark_jobs.compaction import maintain_table
from spark_jobs.definitions import Definitions
from spark_jobs.schemas import TRAFFIC
from spark_jobs.stored_table import StoredTable
from tests.spark.stored import rows

MINUTE, HOUR, DAY = 60, 3_600, 86_400


class Growth:
    """The table ``traffic`` after ``days`` of so many ``batches``, each with new rows of ``keys`` clients."""

    def __init__(self, root: Path, *, days: int, batches: int, keys: int) -> None:
        self._root, self.path = root, root / TRAFFIC.name
        self._log = self.path / "_delta_log"
        self._keys = rows(TRAFFIC, *({"client_id": f"client {key}", "requests": 1} for key in range(keys)))
        schema = Schema.from_arrow(self._keys.schema)
        stored_table.create_table(str(self.path), {}, schema, TRAFFIC.meaning)
        self.requests = self._dated = 0
        self._step = DAY // batches
        self._now = int(time.time()) - days * DAY
        with mock.patch.object(stored_table, "_now_ms", side_effect=lambda: 1_000 * self._now):
            for _ in range(days):
                self._add_day()

    def describe(self) -> dict[str, float]:
        """Return what the table is now."""
        stored = StoredTable(str(self.path), {})
        data, log = list(self.path.glob("day=*/*")), list(self._log.iterdir())
        return {
            "files of the table": len(stored.files), "of the day with the most": max(stored.files_by_day.values()),
            "files on the disk": len(data), "bytes of the table": sum(file.size for file in stored.files),
            "bytes on the disk": _bytes(data), "commits in the log": sum(file.suffix == ".json" for file in log),
            "checkpoints": sum(".checkpoint." in file.name for file in log), "bytes of the log": _bytes(log),
        }  # fmt: skip

    def _add_day(self) -> None:
        before = self._now
        for second in range(self._step, DAY + 1, self._step):
            self._now = before + second
            self._append()
            if second % HOUR < self._step:
                self._maintain(vacuum=second == DAY)
            self._date_commits()

    def _append(self) -> None:
        batch = []
        for ago in (MINUTE, 2 * MINUTE):
            minute = datetime.fromtimestamp(self._now - ago, UTC)
            part = self._keys
            for number, value in enumerate((minute.date(), minute)):
                field = part.schema.field(number)
                part = part.set_column(number, field, pyarrow.array([value] * len(part), field.type))
            batch.append(part)
        rows = pyarrow.concat_tables(batch)
        stored_table.append_once(rows, str(self.path), {}, "job", self._now)
        self.requests += len(rows)

    def _maintain(self, *, vacuum: bool) -> None:
        maintain_table(lambda: StoredTable(str(self.path), {}), TRAFFIC, Definitions(), vacuum=vacuum)

    def _date_commits(self) -> None:
        while (commit := self._log / f"{self._dated:020d}.json").exists():
            actions = map(json.loads, commit.read_text().splitlines())
            added = [self.path / action["add"]["path"] for action in actions if "add" in action]
            for file in (*self._log.glob(f"{commit.stem}.*"), *(file for file in added if file.exists())):
                os.utime(file, (self._now, self._now))
            self._dated += 1


def _bytes(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)
