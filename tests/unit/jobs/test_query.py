"""Tables, views of merged rows and queries without a JVM, over Delta tables written by delta-rs."""

import csv
import io
import json
import math
import os
import random
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import write_deltalake

from spark_jobs import query
from spark_jobs.errors import QueryError
from spark_jobs.schemas import TABLES, TRAFFIC
from spark_jobs.schemas.traffic import LATENCY_BUCKETS_US
from tests.spark.stored import write

MINUTE = datetime(2026, 9, 22, 12, tzinfo=UTC)
KEY = {"day": MINUTE.date(), "minute": MINUTE, "cluster_id": "c", "broker_id": 1, "listener": "CLIENT"}
KEY |= {"api": "Produce", "principal": "User:a"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """``traffic``, written in two batches with a key in common, and a table of somebody else."""
    write(tmp_path, "traffic", {**KEY, "requests": 1}, {**KEY, "topic": "t", "bytes": 5})
    write(tmp_path, "traffic", {**KEY, "requests": 2})
    write_deltalake(tmp_path / "notes", pyarrow.table({"note": ["a", "b\x1b[31m", None]}))
    (tmp_path / "_checkpoints").mkdir()
    return tmp_path


@pytest.mark.promise("queries.md", "Queries see merged rows, and times are UTC.")
def test_rows_with_equal_keys_are_shown_summed_and_times_are_utc(root: Path) -> None:
    columns, rows = query.query(root, "SELECT topic, requests, bytes FROM traffic ORDER BY topic")
    assert (columns, rows) == (["topic", "requests", "bytes"], [("t", 0, 5), (None, 3, 0)])
    assert query.query(root, "FROM traffic LIMIT 0")[0] == [column.name for column in TRAFFIC.columns]
    assert query.query(root, "SELECT count(*) FROM notes")[1] == [(3,)], "tables of others are shown as they are"
    assert query.query(root, "SELECT DISTINCT minute, minute::VARCHAR FROM traffic")[1] == [
        (MINUTE, "2026-09-22 12:00:00+00")
    ]
    url = root.as_uri()
    assert [table.name for table in query.describe_tables(url)] == ["traffic"]
    assert query.query(url, "SELECT sum(requests) FROM traffic")[1] == [(3,)]


@pytest.mark.promise("queries.md", "A condition on `day` reads the files of those days only.")
def test_a_condition_on_the_day_reads_the_files_of_that_day(root: Path) -> None:
    write(root, "traffic", {**KEY, "day": MINUTE.date() + timedelta(1), "requests": 4})
    sql = "SELECT sum(requests) FROM traffic WHERE day = $day"
    assert query.query(root, sql, {"day": MINUTE.date()})[1] == [(3,)]
    plan = query.query(root, f"EXPLAIN {sql}", {"day": MINUTE.date()})[1][0][1]
    assert "Filters: \"day\" = DATE '2026-09-22'" in " ".join(plan.replace("│", " ").split())


@pytest.mark.promise("queries.md", "From Python an answer keeps the types of its columns.")
def test_an_answer_keeps_its_types_for_programs(root: Path) -> None:
    answer = query.arrow(root, "SELECT day, minute, requests FROM traffic WHERE topic IS NULL")
    assert answer.to_pylist() == [{"day": MINUTE.date(), "minute": MINUTE, "requests": 3}]
    assert [str(kind) for kind in answer.schema.types] == ["date32[day]", "timestamp[us, tz=UTC]", "int64"]


REFUSED = {
    "SELECT * FROM nothing": "nothing does not exist; the tables are: notes, traffic",
    "SELECT * FROM Latency": "no table latency: `brokerside jobs run` creates it; the tables are: notes, traffic",
    "SELECT * FROM cost": "no table cost: .*--definitions PATH.* if PATH has a document of kind Prices; the",
    "SELECT nothing FROM Notes": r'"nothing" not found.*the columns are: notes \(note\)$',
    "SELECT nothing FROM (SELECT 1)": r'"nothing" not found in FROM clause$',
    "SELECT notes.nothing FROM notes": r"nothing.*the columns are: notes \(note\)", "SELEC 1": "syntax error",
    "SELECT 'a'::INT": "Could not convert string 'a' to INT32", "": "only one statement is allowed",
    "SELECT 1; SELECT 2": "only one statement is allowed", "DROP VIEW traffic": "only one statement is allowed",
    "COPY traffic TO 'out.csv'": "only one statement is allowed",
    "SET enable_external_access = true": "only one statement is allowed",
    "SELECT * FROM read_text('{file}')": "Cannot access file", "SELECT * FROM '{file}'": "does not exist",
    "SELECT * FROM glob('/*')": "Cannot access file", "SELECT * FROM root": "root does not exist",
}  # fmt: skip


@pytest.mark.promise("queries.md", "A query has no access to files or the network, and is one SELECT.")
def test_what_cannot_be_answered_is_said_in_one_sentence(root: Path) -> None:
    file = root / "secret.txt"
    file.write_text("secret")
    for sql, message in REFUSED.items():
        with pytest.raises(QueryError, match=message) as raised:
            query.query(root, sql.format(file=file))
        assert "\n" not in str(raised.value), sql
        assert "secret" not in str(raised.value).replace(str(file), ""), sql


@pytest.mark.promise("tables.md", "`brokerside tables` lists the existing tables, and with a NAME its stored columns.")
def test_tables_are_listed_with_their_columns(root: Path) -> None:
    notes, traffic = query.describe_tables(root)
    assert (notes.name, notes.rows, notes.files) == ("notes", 3, 1)
    assert (traffic.name, traffic.description, traffic.rows, traffic.files) == ("traffic", TRAFFIC.meaning, 3, 2)
    assert traffic.bytes == sum(file.stat().st_size for file in (root / "traffic").glob("*/*.parquet"))
    ours = [(column.name, column.meaning, column.unit) for column in TRAFFIC.columns]
    assert [(column.name, column.description, column.unit) for column in traffic.columns] == ours
    assert json.loads(query.render_tables([notes], "json"))[0]["columns"][0]["name"] == "note"
    assert query.render_tables([notes], "csv").splitlines() == [
        "table,column,type,unit,description",
        "notes,note,string,,",
    ]
    assert query.render_table(traffic).startswith("traffic: 3 rows stored, 2 files, ")
    lines = query.render_tables([notes, traffic], "table").splitlines()
    assert lines[0].split() == ["table", "rows", "stored", "bytes", "newest", "(UTC)"]
    assert lines[1].split()[:2] == ["notes", "3"]
    assert lines[2].split()[:2] == ["traffic", "3"]
    assert lines[2].endswith("2026-09-22 12:00")


VALUES: list[tuple[Any, ...]] = [(1234567, "a", date(2026, 9, 22), None, 0.5), (-1, 'b,"c"', None, MINUTE, 1e21)]
NAMES = ["n", "text", "day", "at", "x"]


@pytest.mark.promise("queries.md", "Answers as `json` and `csv` keep all values.")
def test_json_and_csv_can_be_read_back() -> None:
    assert json.loads(query.render(NAMES, VALUES, "json")) == [
        {"n": 1234567, "text": "a", "day": "2026-09-22", "at": None, "x": 0.5},
        {"n": -1, "text": 'b,"c"', "day": None, "at": "2026-09-22T12:00:00Z", "x": 1e21},
    ]
    assert list(csv.reader(query.render(NAMES, VALUES, "csv").splitlines())) == [
        NAMES, ["1234567", "a", "2026-09-22", "", "0.5"], ["-1", 'b,"c"', "", "2026-09-22T12:00:00Z", "1e+21"],
    ]  # fmt: skip


@pytest.mark.promise("queries.md", "The output `table` escapes control characters.")
def test_a_hostile_client_id_cannot_command_the_terminal(root: Path) -> None:
    shown = query.render(*query.query(root, "SELECT note FROM notes ORDER BY note NULLS LAST"), "table")
    assert shown.splitlines() == ["note", "a", "b\\x1b[31m", "NULL"]


DAMAGE = (
    ("_delta_log/*.json", "garbage", "Encountered unexpected 'g' whilst parsing value$"),
    ("day=*/*.parquet", None, "not found$"),
    ("day=*/*.parquet", "garbage", "corrupted|too small|footer"),
)
"""Which files of a table are damaged, with what (None: they are lost), and what is said of it."""


@pytest.mark.promise(
    "queries.md", "A query of a table that cannot be read fails with the cause; other tables are not affected."
)
def test_a_broken_table_is_named_and_others_are_answered(root: Path) -> None:
    for where, content, said in DAMAGE:
        shutil.rmtree(root / "latency", ignore_errors=True)
        write(root, "latency", {"day": MINUTE.date(), "minute": MINUTE, "requests": 7})
        for file in (root / "latency").glob(where):
            file.write_text(content) if content else file.unlink()
        assert query.query(root, "SELECT sum(requests) FROM traffic")[1] == [(3,)]
        for read in (query.query, query.arrow):
            with pytest.raises(QueryError, match=said) as raised:
                read(root, "SELECT sum(requests) FROM latency")
            assert str(raised.value).startswith(f"the table latency in {root} cannot be read: ")
            assert not {"<unknown>", "as stored", "registered"} & set(str(raised.value).split())
        found = {table.name: table for table in query.describe_tables(root)}
        assert list(found) == ["latency", "notes", "traffic"]
        assert (bool(found["latency"].broken), found["traffic"].broken, found["traffic"].rows) == (True, "", 3)
        shown = query.render_tables([found["latency"]], "table")
        assert f"the table latency in {root} cannot be read: " in shown


@pytest.mark.promise("queries.md", "`query` needs neither Spark nor a JVM.")
def test_nothing_of_spark_is_imported_and_no_warning_of_the_library_is_shown() -> None:
    code = (
        "import os, sys, spark_jobs.query, spark_jobs.run;"
        "print('pyspark' in sys.modules, 'py4j' in sys.modules, os.environ['RUST_LOG'])"
    )
    env = {name: value for name, value in os.environ.items() if name != "RUST_LOG"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.split() == ["False", "False", "error"]


FORMULAS = ["=cmd|' /C calc'!A0", "+1", "-1+2", "@SUM(1)", "\t=1", "\r=1", "\n=1"]


@pytest.mark.promise(
    "queries.md", "`csv` has an apostrophe before a text that a spreadsheet would evaluate as a formula."
)
def test_no_text_is_a_formula_to_a_spreadsheet() -> None:
    texts = [*FORMULAS, "a\r=1", "", "'=1"]
    answer = [(text, -1, Decimal(-1), -0.5, None) for text in texts]
    text = query.render(["=name", "n", "d", "x", "none"], answer, "csv")
    shown = list(csv.reader(io.StringIO(text, newline="")))
    assert shown[0][0] == "'=name"
    assert [row[0] for row in shown[1:]] == [*(f"'{text}" for text in FORMULAS), "a\r=1", "", "'=1"]
    assert {tuple(row[1:]) for row in shown[1:]} == {("-1", "-1", "-0.5", "")}
    assert [row["=name"] for row in json.loads(query.render(["=name"], [(text,) for text in texts], "json"))] == texts


@pytest.mark.promise(
    "queries.md", "The output `table` shows costs to the cent, and all other outputs keep every digit."
)
def test_people_see_costs_to_the_cent() -> None:
    values = ["101.8658246894", "12.474", "0.0001757445", "0.005", "-3", "0"]
    for name in ("cost", "BilledCost", "sum(BilledCost)"):
        shown = query.render([name], [(Decimal(value),) for value in values], "table").splitlines()[1:]
        assert [line.strip() for line in shown] == ["101.87", "12.47", "0.00018", "0.0050", "-3.00", "0.00"]
    assert query.render(["cost"], [(Decimal(values[0]),)], "csv").splitlines()[1] == values[0]


CONNECTION = {"cluster_id": "c", "broker_id": 1, "boot_id": "b", "connection_id": "1"}


def only(root: Path, sql: str) -> tuple[Any, ...]:
    (row,) = query.query(root, sql)[1]
    return row


def counts(*places: int) -> list[int]:
    return [places.count(place) for place in range(len(LATENCY_BUCKETS_US) + 1)]


@pytest.mark.promise(
    "tables.md", "Stored rows of one key are shown as one row, whose values are merged as each column says."
)
def test_first_last_and_greatest_pass_over_what_is_not_known(tmp_path: Path) -> None:
    reported = [
        {"last_seq": 7, "principal": "User:late", "opened_at": None, "requests": 9, "closed_at": MINUTE},
        {"last_seq": 9, "principal": None, "opened_at": None, "requests": None},
        {"last_seq": 2, "principal": "User:early", "opened_at": MINUTE, "requests": None, "client_port": 5},
    ]
    for row in reported:
        write(tmp_path, "connections", {**CONNECTION, "day": MINUTE.date(), "authentications": 1, **row})
    sql = "SELECT principal, client_port, opened_at, requests, closed_at, authentications, last_seq FROM connections"
    assert only(tmp_path, sql) == ("User:late", 5, MINUTE, 9, MINUTE, 3, 9)


@pytest.mark.promise("tables.md", "Of equally recent values the greatest one holds.")
def test_of_two_that_are_equally_late_the_greater_one_is_the_last(tmp_path: Path) -> None:
    reported = [{"last_seq": 7, "principal": who} for who in ("User:b", "User:c", "User:a", None)]
    for row in (*reported, {"last_seq": None, "principal": "User:z"}):
        write(tmp_path, "connections", {**CONNECTION, "day": MINUTE.date(), **row})
    assert only(tmp_path, "SELECT principal, client_id, last_seq FROM connections") == ("User:c", None, 7)


@pytest.mark.promise("queries.md", "`merge_counts` adds histograms, over any rows.")
def test_histograms_are_added_element_by_element(tmp_path: Path) -> None:
    key = {"day": MINUTE.date(), "minute": MINUTE, "cluster_id": "c", "broker_id": 1, "listener": "C", "api": "Fetch"}
    write(tmp_path, "latency", {**key, "latencies": counts(0, 39)}, {**key, "topic": "t", "latencies": counts(3)})
    write(tmp_path, "latency", {**key, "latencies": counts(0, 5)}, {**key})
    sql = "SELECT latencies, upstream_latencies FROM latency WHERE topic IS NULL"
    assert only(tmp_path, sql) == (counts(0, 0, 5, 39), None)
    assert only(tmp_path, "SELECT merge_counts(latencies) FROM latency") == (counts(0, 0, 3, 5, 39),)
    assert only(tmp_path, "SELECT merge_counts(latencies) FROM latency WHERE api = 'none'") == (None,)
    write(tmp_path / "none", "latency", {"day": MINUTE.date(), "latencies": counts()})
    sql = "SELECT quantile_ms(latencies, 0.5), quantile_ms(upstream_latencies, 0.5) FROM latency"
    assert only(tmp_path / "none", sql) == (None, None), "there is no percentile of nothing"


@pytest.mark.promise("queries.md", "`quantile_ms` is the upper end of the bucket that has the percentile.")
def test_a_percentile_is_the_end_of_the_bucket_it_is_in(tmp_path: Path) -> None:
    dice = random.Random(1)
    for size in (1, 7, 100, 333):
        places = sorted(dice.choices(range(len(LATENCY_BUCKETS_US) + 1), k=size))
        write(tmp_path / str(size), "latency", {"day": MINUTE.date(), "latencies": counts(*places)})
        shares = (0, 1, 7, 29, 50, 57, 95, 99, 100)
        asked = ", ".join(f"quantile_ms(latencies, {hundredths / 100})" for hundredths in shares)
        ranks = [max(1, math.ceil(hundredths * size / 100)) for hundredths in shares]
        ends = [LATENCY_BUCKETS_US[min(places[rank - 1], len(LATENCY_BUCKETS_US) - 1)] / 1000 for rank in ranks]
        assert only(tmp_path / str(size), f"SELECT {asked} FROM latency") == tuple(ends), size


def test_a_view_has_the_columns_and_types_of_its_table(tmp_path: Path) -> None:
    """Also where the table lacks columns that a release added."""
    for name, table in TABLES.items():
        root, older = tmp_path / "now" / name, tmp_path / "older" / name
        write(root, name, {"day": MINUTE.date()})
        shown = query.arrow(root, f"SELECT * FROM {name}").schema
        assert shown.names == [column.name for column in table.columns], name
        write_deltalake(older / name, pyarrow.table({"day": [MINUTE.date() + timedelta(1)]}))
        assert query.arrow(older, f"SELECT * FROM {name}").schema.equals(shown), name
        assert only(older, f"SELECT count(*) FROM {name}") == (1,), name
