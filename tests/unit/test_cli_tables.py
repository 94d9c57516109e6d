"""Commands of the tables: what they hand to the jobs, what they print and write, what they refuse."""

import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml

from spark_jobs import render
from spark_jobs import run as jobs
from spark_jobs.errors import JobError
from spark_jobs.progress import RunSummary
from tests.spark.stored import write
from tests.unit.terminal import Terminal, brokerside

__all__ = ["brokerside"]

DEFINITIONS = """
apiVersion: brokerside/v1
kind: Mirror
metadata: {name: dr}
spec: {sourceClusterId: a, targetClusterId: b, prefix: a.}
---
apiVersion: brokerside/v1
kind: Retention
spec: {tables: {traffic: 90d}}
---
apiVersion: brokerside/v1
kind: Prices
metadata: {name: all}
spec:
  currency: EUR
  account: {id: "1"}
  provider: us
  prices:
    - {name: in, dimension: data_in_gb, price: "0.10", validFrom: 2026-01-01, validTo: 2026-02-01}
    - {name: in, dimension: data_in_gb, price: "0.12", validFrom: 2026-03-01}
    - {name: zones, dimension: cross_zone_gb, price: 1, validFrom: 2026-01-01, topics: ["o.*"]}
    - {name: calls, dimension: requests, price: 1, validFrom: 2026-01-01}
    - {name: rent, dimension: fixed_daily, price: 5, validFrom: 2026-01-01}
"""


@pytest.fixture
def root(tmp_path: Path) -> str:
    day = date(2026, 9, 22)
    row = {"day": day, "minute": datetime(2026, 9, 22, tzinfo=UTC), "api": "Fetch", "principal": "User:a"}
    write(tmp_path / "tables", "traffic", {**row, "requests": 3}, {**row, "topic": "t", "bytes": 7})
    return str(tmp_path / "tables")


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    for real in (jobs.run, jobs.backfill):
        takes = inspect.signature(real)

        def run(takes: inspect.Signature = takes, **arguments: Any) -> RunSummary:
            takes.bind(**arguments)
            calls.append(arguments)
            return RunSummary(1, 1, 0, 0, 0, 1, 1.0, ())

        monkeypatch.setattr(jobs, real.__name__, run)
    monkeypatch.setattr("proxy.local.jars.resolve", lambda name: [Path(name)])
    return calls


@pytest.mark.promise("jobs.md", "brokerside jobs run passes every option on to the job.")
def test_jobs_run_passes_its_options_on(brokerside: Terminal, called: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(DEFINITIONS)
    options = ["--tables", "s3a://bucket/tables", "--only", "traffic,latency", "--available-now", "--topic", "t"]
    options += ["--definitions", str(tmp_path), "--conf", "spark.a=b=c", "--kafka-option", "sasl.mechanism=PLAIN"]
    (tmp_path / "keys").write_text(f"new:{32 * 'n'}\nold:{32 * 'o'}\n")
    options += ["--hmac-keys", str(tmp_path / "keys"), "--reader", "eu"]
    (tmp_path / "registry").write_text(f"k1:{32 * 'r'}\n")
    options += ["--registry-hmac-keys", str(tmp_path / "registry")]
    done = brokerside("jobs", "run", *options)
    assert (done.code, done.out) == (0, "")
    assert done.err == "1 record, 1 event, 1 batch, 1.0 s\n"
    (given,) = called
    assert [mirror.name for mirror in given.pop("definitions").mirrors] == ["dr"]
    del given["progress"]
    assert given == {
        "bootstrap_servers": "127.0.0.1:19094",
        "topic": "t",
        "tables": "s3a://bucket/tables",
        "checkpoint": None,
        "only": ["traffic", "latency"],
        "conf": {"spark.a": "b=c"},
        "kafka_options": {"sasl.mechanism": "PLAIN"},
        "hmac_keys": {"new": 32 * b"n", "old": 32 * b"o"},
        "reader": "eu",
        "registry_hmac_keys": {"k1": 32 * b"r"},
        "available_now": True,
        "master": "local[*]",
        "jars": [Path("spark-4.2.0"), Path("hadoop-aws-3.5.0")],  # for s3a
    }
    called.clear()
    for days in (("--from", "2026-09-01", "--to", "2026-09-03"), ()):
        assert brokerside("jobs", "backfill", *days).code == 0
    assert [(each["first"], each["last"]) for each in called] == [(date(2026, 9, 1), date(2026, 9, 3)), (None, None)]

    path = tmp_path / "keys"
    path.write_text("k1:hunter2")
    for job, option in (("run", "--hmac-keys"), ("backfill", "--registry-hmac-keys")):
        for file, wrong in (
            (tmp_path / "none", "cannot be read: No such file or directory"),
            (path, "line 1: the key of 'k1' is too short (allowed: 32 bytes or more)"),
        ):
            done = brokerside("jobs", job, option, str(file))
            assert (done.code, done.err) == (1, f"brokerside: {option}: file '{file}' {wrong}\n")
    assert len(called) == 2


def test_what_a_job_could_not_do_fails_the_command_with_one_sentence(
    brokerside: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**_: Any) -> None:
        raise JobError("the topic is not there")

    monkeypatch.setattr("proxy.local.jars.resolve", lambda name: [])
    monkeypatch.setattr(jobs, "run", lambda **_: RunSummary(1, 1, 0, 0, 0, 1, 1.0, ("slo",)))
    done = brokerside("jobs", "run", "--available-now")
    assert (done.code, "slo" in done.err) == (1, True)
    monkeypatch.setattr(jobs, "run", run)
    done = brokerside("jobs", "run")
    assert (done.code, done.err) == (1, "brokerside: the topic is not there\n")


@pytest.mark.promise("commands.md", "The jobs take the file of Kafka's own tools, and never show a password of it.")
def test_passwords_are_given_in_a_file_and_never_shown(
    brokerside: Terminal, called: list[dict[str, Any]], tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "# as of Kafka's tools\n! and\n\nsecurity.protocol : SASL_SSL\nssl.truststore.location /trust.pem\n"
        "sasl.mechanism=PLAIN\nsasl.jaas.config=org.apache.Plain required \\\n"
        '    username="jobs" password="a=b\\\\c\\u00e9\\t\\:";\nempty=\n'
    )
    more = ("--kafka-config", str(config), "--kafka-option", "sasl.mechanism=SCRAM-SHA-512")
    for job in ("run", "backfill"):
        assert brokerside("jobs", job, *more).code == 0
    assert [each["kafka_options"] for each in called] == 2 * [
        {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": "/trust.pem",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": 'org.apache.Plain required username="jobs" password="a=b\\cé\t:";',
            "empty": "",
        }
    ]
    for content, said in (
        (b"a=1\n\nhunter2\n", f"{config}: line 3: must be NAME=VALUE"),
        (b"a=1\n=hunter2", f"{config}: line 2: must be NAME=VALUE"),
        (b"hunter2\xff", f"{config} cannot be read: it is not text in UTF-8"),
        (b"bootstrap.servers=hunter2", "bootstrap.servers must not be a Kafka option"),
        (None, f"{config} cannot be read: No such file or directory"),
    ):
        config.unlink() if content is None else config.write_bytes(content)
        done = brokerside("jobs", "run", "--kafka-config", str(config))
        assert done.code == 1
        assert done.err.startswith(f"brokerside: {said}")
        assert "hunter2" not in done.err


@pytest.mark.promise("cost.md", "jobs check says what is charged from when, what is not, and each mistake.")
def test_check_says_what_is_declared_and_what_is_not(brokerside: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(DEFINITIONS)
    done = brokerside("jobs", "check", str(tmp_path))
    assert done.code == 0
    assert done.out.splitlines() == [
        "prices all: in: 0.10 EUR per GB (data produced) from 2026-01-01 until 2026-02-01",
        "prices all: in: 0.12 EUR per GB (data produced) from 2026-03-01",
        "prices all: zones: 1 EUR per GB (data between zones) from 2026-01-01, for topics=o.*",
        "prices all: calls: 1 EUR per 1000 Requests (requests) from 2026-01-01",
        "prices all: rent: 5 EUR per Day (fixed daily amount) from 2026-01-01, split by bytes among rows",
        "prices all: in: nothing is charged from 2026-02-01 until 2026-03-01",
        "mirror dr: topics .+ of a are a.… in b within 5 minutes",
        "retention traffic: 90 days",
        "no owners: all costs are unowned",
        "no zones: nothing is charged for traffic between them",
    ]
    file.write_text(DEFINITIONS.replace("EUR", "gold").replace("90d", "soon"))
    done = brokerside("jobs", "check", str(tmp_path))
    assert (done.code, done.out) == (1, "")
    assert "spec.currency: 'gold'" in done.err
    assert "'soon': must be a duration" in done.err


@pytest.mark.promise("queries.md", "A saved query answers as a table, JSON, YAML, CSV or Parquet, to a file or a pipe.")
def test_a_question_is_answered_in_every_form(brokerside: Terminal, root: str, tmp_path: Path) -> None:
    ask = ("query", "--tables", root, "--ask", "top-talkers", "--since", "2026-09-22")
    assert json.loads(brokerside(*ask, "-o", "json").out)[0]["consumed_bytes"] == 7
    assert yaml.safe_load(brokerside(*ask, "-o", "yaml").out)[0]["consumed_bytes"] == 7
    assert brokerside(*ask, "-o", "csv").out.splitlines()[1].startswith("User:a,,0,7,")
    assert "User:a" in brokerside(*ask).out
    table = pyarrow.parquet.read_table(io.BytesIO(brokerside(*ask, "-o", "parquet").raw))
    assert table.to_pylist()[0]["consumed_bytes"] == 7
    out = tmp_path / "answer.parquet"
    assert brokerside(*ask, "-o", "parquet", "--out", str(out)).raw == b""
    assert pyarrow.parquet.read_table(out).equals(table)


@pytest.mark.promise("queries.md", "A question without its table says how the table is created.")
def test_what_cannot_be_answered_or_written_is_said(brokerside: Terminal, root: str, tmp_path: Path) -> None:
    done = brokerside("query", "--tables", root, "--ask", "chargeback")
    assert (done.code, done.out) == (1, "")
    assert "there is no table cost: `brokerside jobs run --definitions PATH` creates it" in done.err
    (tmp_path / "file").touch()
    for folder, reason in (("missing", "No such file or directory"), ("file", "Not a directory")):
        out = str(tmp_path / folder / "x.csv")
        done = brokerside("query", "SELECT 1", "--tables", root, "--out", out)
        assert (done.code, done.err) == (1, f"brokerside: {out} cannot be written: {reason}\n")


@pytest.mark.promise("cost.md", "Costs and objectives are exported to a file or a pipe.")
def test_exports_go_to_a_file_or_a_pipe(brokerside: Terminal, tmp_path: Path) -> None:
    root, out = str(tmp_path / "tables"), tmp_path / "out"
    at = datetime(2026, 9, 22, tzinfo=UTC)
    for day in (21, 22):
        row = {"day": date(2026, 9, day), "ChargePeriodStart": at, "ChargePeriodEnd": at, "BillingCurrency": "EUR"}
        write(Path(root), "cost", {**row, "SkuId": f"sku{day}"})
    printed = brokerside("export", "focus", "--tables", root, "--since", "2026-09-22")
    assert printed.code == 0
    assert "sku22" in printed.out
    assert "sku21" not in printed.out
    assert brokerside("export", "focus", "--tables", root, "--since", "2026-09-22", "--out", str(out)).out == ""
    assert out.read_text() == printed.out
    link = tmp_path / "link"
    link.symlink_to("behind")
    brokerside("export", "focus", "--tables", root, "--since", "2026-09-22", "--out", str(link))
    assert (link.is_symlink(), (tmp_path / "behind").read_text()) == (True, printed.out)
    reading, writing = os.pipe()
    brokerside("export", "focus", "--tables", root, "--since", "2026-09-22", "--out", f"/dev/fd/{writing}")
    os.close(writing)
    with open(reading, encoding="utf-8", newline="") as pipe:
        assert pipe.read() == printed.out
    assert len(json.loads(brokerside("export", "opencost", "--tables", root).out)) == 2
    done = brokerside("export", "prometheus", "--definitions", "deploy/examples/definitions/slo.yaml")
    assert done.code == 0
    assert "groups:" in done.out
    assert "not exported: " in done.err


def test_a_report_is_written(brokerside: Terminal, root: str, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert brokerside("report", "--tables", root, "--out", str(out)).code == 0
    assert out.read_text().startswith("<!doctype html>")
    done = brokerside("report", "--tables", str(tmp_path / "none"), "--out", str(out))
    assert done.code == 1
    assert "there are no tables in" in done.err
    before = out.read_text()
    for export in ("focus", "opencost", "ocsf"):
        done = brokerside("export", export, "--tables", root, "--out", str(out))
        assert (done.code, done.out) == (1, ""), export
        assert "there is no table" in done.err
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["report.html"]
    assert out.read_text() == before, "what cannot be exported changes no file"
    write(Path(root), "latency", {"day": date(2026, 9, 22)})
    for file in Path(root, "latency").glob("day=*/*.parquet"):
        file.write_text("garbage")
    done = brokerside("report", "--tables", root, "--out", str(out))
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err.startswith(f"brokerside: the table latency in {root} cannot be read: ")
    assert "1 table cannot be read, so this page is not complete" in out.read_text()


ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS = ["principal", "client_id", "produced_bytes", "consumed_bytes", "unconfirmed_bytes"]
ROWS = [
    ("User:checkout", "checkout-7f9c", 2_412_345_678_901, 31, 0),
    ("User:warehouse", "connect-s3-sink-of-the-warehouse", 0, 1_500_000_000_000, 12),
]


Rendered = Callable[[list[str], list[tuple[Any, ...]]], list[str]]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Rendered:
    def rendered(columns: list[str], rows: list[tuple[Any, ...]]) -> list[str]:
        out = io.StringIO()
        monkeypatch.setattr(out, "isatty", lambda: True)
        monkeypatch.setattr(render.shutil, "get_terminal_size", lambda fallback=None: os.terminal_size((80, 24)))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            lines = ESCAPE.sub("", render.render_rows(columns, rows, "table")).splitlines()
            assert "\x1b" not in render.render_rows(["client_id"], [("\x1b[31m",)], "csv")
        assert max(map(len, lines)) <= 80
        return lines

    return rendered


@pytest.mark.promise("queries.md", "In a terminal text is folded, and a number, a time or a day never is.")
def test_text_is_folded_and_names_of_columns_but_never_a_number(table: Rendered) -> None:
    lines = table(COLUMNS, ROWS)
    text = "\n".join(lines)
    for number in ("2,412,345,678,901", "1,500,000,000,000"):
        assert number in text
    names = next(line for line in lines if "principal" in line).split()
    assert names == ["principal", "client_id", "produced_bytes", "consumed_bytes", "bytes"]
    assert lines[0].split() == ["unconfirmed_"]
    assert len(lines) > 4, "the long client id takes more than one line"

    at = datetime(2026, 9, 22, 12, 30, tzinfo=UTC)
    rows = [(f"{'x' * 70}", at, date(2026, 9, 22), ["a" * 30, "b" * 30])]
    text = "\n".join(table(["name", "first_at", "day", "topics"], rows))
    assert "2026-09-22 12:30" in text
    assert re.search(r"2026-09-22(?! 12)", text)
