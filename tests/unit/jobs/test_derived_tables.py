"""Tables that are computed from others: when, which days, and what happens when one cannot be."""

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.schema import Field

from spark_jobs import derived_tables, io, stored_table
from spark_jobs.compaction import maintain_table
from spark_jobs.definitions import Definitions, load
from spark_jobs.schemas import COMPLETENESS, DERIVED, INVENTORY, LATENCY, SLO, TABLES, TOPICS, TRAFFIC, Table
from spark_jobs.stored_table import StoredTable
from spark_jobs.table_root import TableRoot
from spark_jobs.tables.registry import tables_without_definitions
from tests.spark import stored

FIRST = date(2026, 3, 1)
NO_SPARK: Any = None  # a table on a disk needs none

DEFINITIONS = """
apiVersion: openslo/v1
kind: SLO
metadata: {name: quick}
spec:
  service: shop
  indicator: {spec: {thresholdMetric: {metricSource: {type: brokerside, spec: {by: [principal]}}}}}
  timeWindow: [{duration: 5d, isRolling: true}]
  budgetingMethod: Occurrences
  objectives: [{displayName: o, op: lte, value: 8.192, target: TARGET}]
---
apiVersion: brokerside/v1
kind: Prices
metadata: {name: p}
spec:
  currency: EUR
  account: {id: a, name: A}
  provider: us
  prices:
    - {name: in, dimension: data_in_gb, price: "0.0713", validFrom: 2026-01-01}
    - {name: sessions, dimension: connection_hours, price: "0.1", validFrom: 2026-01-01}
    - {name: parts, dimension: partition_hours, price: "0.0015", validFrom: 2026-01-01}
    - {name: all, dimension: fixed_daily, price: "10", validFrom: 2026-01-01, split: {by: requests}}
---
apiVersion: brokerside/v1
kind: Mirror
metadata: {name: m}
spec: {sourceClusterId: one, targetClusterId: two, prefix: one.}
"""


class Root:
    def __init__(self, folder: Path) -> None:
        self.table_root = TableRoot(str(folder), str(folder / "checkpoint"))
        self.said: list[str] = []
        self._number = 0

    def path(self, table: Table) -> str:
        return self.table_root.table_path(table.name)

    def open(self, table: Table) -> StoredTable:
        return StoredTable(self.path(table), {})

    def append(self, table: Table, *rows: dict[str, Any]) -> None:
        self._number += 1
        io.create_table(NO_SPARK, table, self.path(table))
        stored_table.append_once(stored.rows(table, *rows), self.path(table), {}, "writer", self._number)

    def requests(self, *days: int, requests: int = 5) -> None:
        self.append(TRAFFIC, *({"day": FIRST + timedelta(days=day), "requests": requests} for day in days))

    def remove(self, table: Table, *days: int) -> None:
        """Delete days, as at the end of their retention."""
        there = self.open(table)
        there.replace_files([file for file in there.files if file.day and (file.day - FIRST).days in days], [])

    def derive(self, *names: str, since: date | None = None, **definitions: Any) -> tuple[str, ...]:
        given = Definitions(**{"objectives": ("any",), **definitions})
        say: Callable[[Any], None] = lambda notice: self.said.append(str(notice))  # noqa: E731
        return derived_tables.compute_derived_tables(NO_SPARK, self.table_root, names, given, say, since)

    def rows(self, table: Table) -> Counter[str]:
        return Counter(str(sorted(row.items())) for row in self.open(table).dataset().to_table().to_pylist())

    def values(self, table: Table, column: str) -> dict[int, int]:
        rows = self.open(table).dataset().to_table().to_pylist()
        return {(row["day"] - FIRST).days: row[column] for row in rows}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    made: list[list[int]] = []
    compute = derived_tables.compute_rows

    def recorded(database: Any, query: str, days: list[date], **options: Any) -> None:
        made.append([(day - FIRST).days for day in days])
        compute(database, query, days, **options)

    monkeypatch.setattr(derived_tables, "compute_rows", recorded)
    return made


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """A root whose tables ``slo`` and ``topics`` are requests by day. A day of ``slo`` is made of its ``traffic``, and
    of that and the next day of its ``latency``."""
    by_day = "SELECT day, sum(requests) AS {} FROM traffic GROUP BY day"
    queries = {"slo": lambda _: by_day.format("total"), "topics": lambda _: by_day.format("produced_bytes")}
    monkeypatch.setattr(derived_tables, "DERIVED_QUERIES", queries)
    monkeypatch.setattr(derived_tables, "DAYS_READ", {"slo": lambda _: {"traffic": (0,), "latency": (0, 1)}})
    monkeypatch.setattr(derived_tables, "SUMMED_BY_DAY", ())
    monkeypatch.setattr(derived_tables, "UNMATCHED_FUNCTIONS", {})  # what is declared here are no objectives
    root = Root(tmp_path)
    for table in (TRAFFIC, LATENCY, INVENTORY, COMPLETENESS):
        io.create_table(NO_SPARK, table, root.path(table))
    return root


@pytest.mark.promise(
    "jobs.md", "Only days whose inputs changed are computed again, with the days that they are part of."
)
def test_changed_days_are_computed_again(
    root: Root, computed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root.requests(0, 1, 2)
    assert root.derive("slo") == (), root.said
    assert root.values(SLO, "total") == {0: 5, 1: 5, 2: 5}
    root.derive("slo")
    assert computed == [[0, 1, 2]], "nothing changed"

    root.requests(0, 3, requests=1)
    root.append(LATENCY, {"day": FIRST + timedelta(days=2)})
    assert root.derive("slo") == (), root.said
    assert root.values(SLO, "total") == {0: 6, 1: 5, 2: 5, 3: 1}
    assert computed[1:] == [[0, 2, 3]]

    root.requests(3, requests=2)
    for table in (TRAFFIC, LATENCY):
        DeltaTable(root.path(table)).optimize.compact()
        DeltaTable(root.path(table)).vacuum(0, enforce_retention_duration=False, dry_run=False)
    root.derive("slo")
    root.remove(TRAFFIC, 1)
    root.derive("slo")
    assert computed[2:] == [[3], [1]], "of files that were joined nothing changed"
    assert root.values(SLO, "total") == {0: 6, 2: 5, 3: 3}

    root.derive("slo", since=FIRST + timedelta(days=2))
    root.derive("slo", objectives=("other",))
    monkeypatch.setitem(derived_tables.COMPUTATION_VERSIONS, "slo", derived_tables.COMPUTATION_VERSIONS["slo"] + 1)
    root.derive("slo", objectives=("other",))
    assert computed[4:] == [[2, 3], *[[0, 2, 3]] * 2], "a backfill: its days, other definitions or values: every day"
    said = [re.fullmatch(r"table slo: computed(?: from (.+) on)?, \d+\.\d s", said) for said in root.said]
    days = [None, 0, 3, 1, 2, None, None]
    assert [one and one[1] for one in said] == [day if day is None else f"2026-03-{day + 1:02}" for day in days]


def test_commits_that_the_log_no_longer_has_may_have_changed_any_day(root: Root, computed: list[list[int]]) -> None:
    root.requests(0, 1)
    root.derive("slo")
    root.requests(0)
    root.requests(0)
    DeltaTable(root.path(TRAFFIC)).create_checkpoint()
    Path(root.path(TRAFFIC), "_delta_log", f"{2:020}.json").unlink()
    root.derive("slo")
    assert computed == [[0, 1]] * 2
    assert root.values(SLO, "total") == {0: 15, 1: 5}


@pytest.mark.promise("cost.md", "Days whose inputs are no longer kept stay as they were, also when definitions change.")
def test_days_whose_inputs_are_gone_stay(
    root: Root, computed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing says any more what was computed."""
    root.requests(0, 4)
    root.derive("slo")
    kept = {"retention": {"traffic": timedelta(days=2)}}
    root.remove(TRAFFIC, 0)
    root.requests(4, 5)
    root.derive("slo", objectives=("other",), **kept)
    assert root.values(SLO, "total") == {0: 5, 4: 10, 5: 5}
    monkeypatch.setattr(derived_tables, "HISTORY_COMMITS", 1)
    root.open(SLO).replace_files([], [])  # without saying what it was computed from
    root.requests(4)
    root.derive("slo", objectives=("other",), **kept)
    assert root.values(SLO, "total") == {0: 5, 4: 15, 5: 5}
    assert computed == [[0, 4], [4, 5], [4, 5]]


def test_what_nothing_is_declared_for_is_not_made(root: Root) -> None:
    assert tables_without_definitions(["traffic", "slo", "topics"], Definitions()) == ["slo"]
    assert root.derive("slo", objectives=()) == ()
    assert not Path(root.path(SLO)).exists()


@pytest.mark.promise("jobs.md", "Columns that a release does not have are NULL in the rows that it writes or merges.")
def test_columns_that_this_release_does_not_have_are_null_in_what_it_writes(root: Root) -> None:
    """Those of a later release, after which an earlier one runs again; or of an earlier one, if they were renamed."""
    io.create_table(NO_SPARK, SLO, root.path(SLO))
    for table in (TRAFFIC, SLO):
        root.open(table).add_columns([Field("other", "long")])
    root.requests(0)
    root.requests(0)
    maintain_table(lambda: root.open(TRAFFIC), TRAFFIC, Definitions(), vacuum=False)
    root.requests(0)
    assert root.derive("slo") == ()
    assert root.values(SLO, "total") == {0: 15}
    assert [root.values(table, "other") for table in (TRAFFIC, SLO)] == [{0: None}] * 2


@pytest.mark.promise("jobs.md", "A derived table that cannot be computed is reported, and does not stop the others.")
def test_one_that_fails_is_said_and_does_not_stop_the_others(root: Root) -> None:
    root.requests(0)
    root.derive("topics")
    derived_tables.DERIVED_QUERIES["slo"] = lambda _: "SELECT too_many_cooks FROM traffic"
    root.requests(0, 1)
    assert root.derive("slo", "topics") == ("slo",)
    (said,) = [said for said in root.said if "slo" in said]
    assert said.startswith("table slo could not be computed: BinderException: Binder Error:")
    assert "too_many_cooks" in said
    assert root.values(TOPICS, "produced_bytes") == {0: 10, 1: 5}, "what is made as a whole is replaced as a whole"


@pytest.mark.promise("jobs.md", "Rows that come while derived tables are computed are in the next computation.")
def test_rows_that_come_while_tables_are_computed_are_not_missed(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = derived_tables.compute_rows

    def disturbed(*given: Any, **options: Any) -> None:
        compute(*given, **options)
        root.requests(1, requests=7)

    root.requests(0)
    with monkeypatch.context() as patched:
        patched.setattr(derived_tables, "compute_rows", disturbed)
        assert root.derive("slo") == (), root.said
    assert root.values(SLO, "total") == {0: 5}
    assert root.derive("slo", "topics") == ()
    assert (root.values(SLO, "total"), root.values(TOPICS, "produced_bytes")) == ({0: 5, 1: 7}, {0: 5, 1: 7})


class Load:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def at(self, day: int) -> datetime:
        return datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC) + timedelta(
            days=day, minutes=self.chance.randrange(1_440)
        )

    def rows(self, day: int, count: int = 4) -> dict[str, list[dict[str, Any]]]:
        made: dict[str, list[dict[str, Any]]] = {}
        for _ in range(count):
            at, choose = self.at(day), self.chance.choice
            key = {"day": at.date(), "minute": at, "cluster_id": choose(("one", "two")), "broker_id": 1}
            who = {"principal": choose(("User:a", "User:b", "m")), "client_id": "app", "client_ip": "10.0.0.1"}
            topic = choose(("orders", "clicks"))
            boot = {**{name: key[name] for name in ("day", "cluster_id", "broker_id")}, "boot_id": key["cluster_id"]}
            counts = [0] * 40
            counts[self.chance.randrange(40)] = 3
            value = {"requests": 3, "idle": 0, "service_latencies": counts}
            closed_at = choose((None, at + timedelta(hours=1)))
            closed = {
                "connection_id": f"c{self.chance.random()}", "opened_at": at, "closed_at": closed_at, "last_seq": 1,
            }  # fmt: skip
            batch = {"records": 5, "outcome": "acknowledged", "partition": 0, "producer_id": 7, "producer_epoch": 0}
            # A batch whose copies are of several days is counted on the first one, when that is computed.
            number = {"base_sequence": 100 * day + self.chance.randrange(40), "base_offset": 1}
            side = "one." if key["cluster_id"] == "two" else ""
            offset = {"topic": topic, "partition": 0}
            group = {"group_id": "g", "member_id": "m", "listener": "CLIENT", "first_seen": at, "last_seen": at}
            for name, row in {
                "traffic": {**key, **who, "api": "Produce", "topic": choose((topic, None)), "requests": 3,
                            "bytes": self.chance.randrange(10**9), "errors": 1},
                "latency": {**key, **who, "api": "Produce", **value},
                "connections": {**boot, **who, **closed},
                "inventory": {**boot, "hour": at.replace(minute=0), "topic": topic, "partitions": 3, "last_seen": at},
                "completeness": {**boot, "minute": at, "last_status": at, "statuses": 1, "emitted": 1, "events": 1},
                "produced": {"day": at.date(), "at": at, "cluster_id": key["cluster_id"], "topic": side + topic,
                             "principal": "m", **batch, **number},
                "group_members": {**boot, **who, **group, "topic": choose((topic, None))},
                "committed_offsets": {**key, **offset, "group_id": "g", "committed_offset": 5, "committed_at": at},
                "end_offsets": {**key, **offset, "end_offset": self.chance.randrange(99), "end_offset_at": at},
            }.items():  # fmt: skip
                names = {column.name for column in TABLES[name].columns}
                made.setdefault(name, []).append({each: value for each, value in row.items() if each in names})
        return made


FULL = bool(os.environ.get("FAULTS_FULL"))
DAILY = [name for name in DERIVED if not DERIVED[name].whole and (FULL or name not in ("groups", "lag"))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20 if FULL else 1))
@pytest.mark.promise("jobs.md", "An interruption at any step of a computation loses and doubles nothing.")
def test_computed_day_by_day_or_at_once_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Late rows, days replaced and removed, files joined, tables created anew, other definitions, interruptions."""
    load_of_days, chance = Load(seed), random.Random(seed)
    root = Root(tmp_path / "tables")
    target = "0.9"

    def append(*days: int) -> None:
        for day in days:
            for name, rows in load_of_days.rows(day).items():
                if chance.random() < 0.7 or len(days) > 1:
                    root.append(TABLES[name], *rows)

    def replace_day(day: int) -> None:
        for name, rows in load_of_days.rows(day).items():
            there = root.open(TABLES[name])
            gone = [file for file in there.files if file.day and (file.day - FIRST).days == day]
            reader = stored.rows(TABLES[name], *rows).to_reader()
            added = [there.write_file(reader, FIRST + timedelta(days=day))] if chance.random() < 0.7 else []
            there.replace_files(gone, added)

    def create_anew(day: int) -> None:
        name = chance.choice(("traffic", "completeness", "produced"))
        shutil.rmtree(root.path(TABLES[name]))
        root.append(TABLES[name], *load_of_days.rows(day)[name])

    def derive(into: Root) -> None:
        (tmp_path / "definitions.yaml").write_text(DEFINITIONS.replace("TARGET", target))
        assert into.derive(*DAILY, **vars(load([tmp_path / "definitions.yaml"]))) == (), into.said[-1]

    def interrupted(self: StoredTable, *given: Any, **options: Any) -> None:
        if chance.random() < 0.5:
            commit(self, *given, **options)
        raise KeyboardInterrupt

    commit = StoredTable.replace_files
    append(*range(9))
    derive(root)
    for step in range(3):
        for case in (2 * step, 2 * step + 1) if seed == 0 else chance.choices(range(6), k=2):
            day = chance.randrange(10)
            match case:
                case 0:
                    append(day)
                case 1:
                    append(9)
                    root.remove(SLO, chance.randrange(9))  # as at the end of its retention
                case 2:
                    replace_day(day)
                case 3:
                    for name in load_of_days.rows(0):
                        DeltaTable(root.path(TABLES[name])).optimize.compact()
                    append(day)
                case 4:
                    create_anew(day)
                case 5:
                    target = f"0.9{step}"
        if chance.random() < 0.4:
            with monkeypatch.context() as broken, suppress(KeyboardInterrupt):
                broken.setattr(StoredTable, "replace_files", interrupted)
                derive(root)
        derive(root)
        anew = Root(tmp_path / f"anew-{step}")
        for name in load_of_days.rows(0):
            shutil.copytree(root.path(TABLES[name]), anew.path(TABLES[name]))
        with monkeypatch.context() as sliced:
            sliced.setattr(derived_tables, "SLICE_BYTES", chance.choice((1, 10**9)))
            derive(anew)
        for name in DAILY:
            found, expected = root.rows(TABLES[name]), anew.rows(TABLES[name])
            assert found, name
            assert not found - expected, name
            assert name == "slo" or not expected - found, name  # of slo days were removed
