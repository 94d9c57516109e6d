"""Tables and queries without a JVM, over Delta tables written by delta-rs."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import write_deltalake

from spark_jobs import query
from spark_jobs.errors import QueryError
from spark_jobs.schemas import TRAFFIC

ARROW: dict[str, Any] = {
    "string": pyarrow.string(),
    "int": pyarrow.int32(),
    "bigint": pyarrow.int64(),
    "date": pyarrow.date32(),
    "timestamp": pyarrow.timestamp("us", tz="UTC"),
}
MINUTE = datetime(2026, 9, 22, 12, tzinfo=UTC)


def traffic_rows(*rows: dict[str, Any]) -> pyarrow.Table:
    base: dict[str, Any] = {column.name: 0 for column in TRAFFIC.columns}
    base |= {"day": MINUTE.date(), "minute": MINUTE, "cluster_id": "c", "broker_id": 1, "listener": "CLIENT"}
    base |= {"api": "Produce", "topic": None, "principal": "User:a", "client_id": None, "client_ip": "10.0.0.7"}
    fields = [
        pyarrow.field(c.name, ARROW[c.type], metadata={"comment": c.meaning, "unit": c.unit}) for c in TRAFFIC.columns
    ]
    return pyarrow.Table.from_pylist([{**base, **row} for row in rows], schema=pyarrow.schema(fields))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The table traffic, written in two batches with a key in common, and a table of somebody else."""
    for rows in (traffic_rows({"requests": 1}, {"topic": "t", "bytes": 5}), traffic_rows({"requests": 2})):
        write_deltalake(tmp_path / "traffic", rows, mode="append", partition_by=["day"], description="Who did.")
    write_deltalake(tmp_path / "notes", pyarrow.table({"note": ["a", "b\x1b[31m", None]}))
    (tmp_path / "_checkpoints").mkdir()
    return tmp_path


def test_rows_with_equal_keys_are_shown_summed(root: Path) -> None:
    columns, rows = query.query(root, "SELECT topic, requests, bytes FROM traffic ORDER BY topic")
    assert (columns, rows) == (["topic", "requests", "bytes"], [("t", 0, 5), (None, 3, 0)])
    assert query.query(root, "FROM traffic LIMIT 0")[0] == [column.name for column in TRAFFIC.columns]


def test_other_tables_are_shown_as_they_are(root: Path) -> None:
    assert query.query(root, "SELECT count(*) FROM notes")[1] == [(3,)]


def test_times_are_utc(root: Path) -> None:
    assert query.query(root, "SELECT DISTINCT minute, minute::VARCHAR FROM traffic")[1] == [
        (MINUTE, "2026-09-22 12:00:00+00")
    ]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM nothing", "nothing does not exist; the tables are: notes, traffic"),
        ("SELECT nothing FROM notes", r'"nothing" not found.*the columns are: notes \(note\)'),
        ("SELECT notes.nothing FROM notes", r"nothing.*the columns are: notes \(note\)"),
        ("SELEC 1", "syntax error"),
        ("SELECT 'a'::INT", "Could not convert string 'a' to INT32"),
        ("", "one SELECT is allowed"),
        ("SELECT 1; SELECT 2", "one SELECT is allowed"),
        ("DROP VIEW traffic", "one SELECT is allowed"),
        ("COPY traffic TO 'out.csv'", "one SELECT is allowed"),
        ("SET enable_external_access = true", "one SELECT is allowed"),
        ("SELECT * FROM read_text('{file}')", "Cannot access file"),
        ("SELECT * FROM '{file}'", "does not exist"),
        ("SELECT * FROM glob('/*')", "Cannot access file"),
        ("SELECT * FROM root", "root does not exist"),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_sentence(root: Path, sql: str, message: str) -> None:
    file = root / "secret.txt"
    file.write_text("secret")
    with pytest.raises(QueryError, match=message) as raised:
        query.query(root, sql.format(file=file))
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value).replace(str(file), "")


def test_a_folder_without_tables_says_how_to_fill_it(tmp_path: Path) -> None:
    assert query.tables(tmp_path / "missing") == []
    assert "jobs run traffic" in query.render_tables([], "table")
    with pytest.raises(QueryError, match=r"there are no tables in .* `brokerside jobs run traffic` fills them"):
        query.query(tmp_path, "SELECT 1")


def test_tables_are_listed_with_their_columns(root: Path) -> None:
    notes, traffic = query.tables(root)
    assert (notes.name, notes.rows, notes.files) == ("notes", 3, 1)
    assert (traffic.name, traffic.description, traffic.rows, traffic.files) == ("traffic", "Who did.", 3, 2)
    assert traffic.bytes == sum(file.stat().st_size for file in (root / "traffic").glob("*/*.parquet"))
    ours = [(column.name, column.meaning, column.unit) for column in TRAFFIC.columns]
    assert [(column.name, column.description, column.unit) for column in traffic.columns] == ours
    assert json.loads(query.render_tables([notes], "json"))[0]["columns"][0]["name"] == "note"
    assert query.render_tables([notes], "csv").splitlines() == [
        "table,column,type,unit,description",
        "notes,note,string,,",
    ]
    assert query.render_tables([traffic], "table").startswith("traffic: 3 rows stored, 2 files, ")


VALUES: list[tuple[Any, ...]] = [(1234567, "a", date(2026, 9, 22), None, 0.5), (-1, 'b,"c"', None, MINUTE, 1e21)]
NAMES = ["n", "text", "day", "at", "x"]


def test_a_table_is_aligned_and_its_numbers_are_readable() -> None:
    assert query.render(NAMES, VALUES, "table").splitlines() == [
        '        n  text   day         at                    x',
        '1,234,567  a      2026-09-22  NULL                0.5',
        '       -1  b,"c"  NULL        2026-09-22 12:00  1e+21',
    ]  # fmt: skip


def test_json_and_csv_can_be_read_back() -> None:
    assert json.loads(query.render(NAMES, VALUES, "json")) == [
        {"n": 1234567, "text": "a", "day": "2026-09-22", "at": None, "x": 0.5},
        {"n": -1, "text": 'b,"c"', "day": None, "at": "2026-09-22T12:00:00+00:00", "x": 1e21},
    ]
    assert list(csv.reader(query.render(NAMES, VALUES, "csv").splitlines())) == [
        NAMES,
        ["1234567", "a", "2026-09-22", "", "0.5"],
        ["-1", 'b,"c"', "", "2026-09-22T12:00:00+00:00", "1e+21"],
    ]


def test_a_hostile_client_id_cannot_command_the_terminal(root: Path) -> None:
    shown = query.render(*query.query(root, "SELECT note FROM notes ORDER BY note NULLS LAST"), "table")
    assert shown.splitlines() == ["note", "a", "b\\x1b[31m", "NULL"]


def test_nothing_of_spark_is_imported() -> None:
    code = "import sys, spark_jobs.query, spark_jobs.run; print('pyspark' in sys.modules, 'py4j' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
