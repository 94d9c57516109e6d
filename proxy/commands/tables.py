"""Commands of the tables: the jobs that write them, queries, a report, exports."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.commands.arguments import (
    TABLES,
    WRONG_USAGE,
    add_bootstrap_servers,
    add_kafka_config,
    add_output,
    command,
    count,
    day,
    group,
    instant,
    names,
    setting,
)
from proxy.commands.hmac_option import AUDIT_KEYS, REGISTRY_KEYS, add_hmac_keys, hmac_keys
from spark_jobs.errors import JobError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator
    from datetime import date
    from io import TextIOWrapper

    from proxy.commands.arguments import Commands


def add(commands: Commands) -> None:
    """Add the commands to the command line."""
    jobs = group(commands, "jobs", "The Spark jobs that turn the audit topic into tables.")
    made = command(jobs, "run", run_jobs, extra="spark")
    _add_source(made)
    made.add_argument(
        "--only",
        type=names,
        metavar="TABLES",
        help="Only these tables, comma-separated; fixed for a checkpoint.",
    )
    made.add_argument("--available-now", action="store_true", help="Stop when all existing records are read.")
    text = "Name of the job in the sidecars' registry; default: tables-HASH, of the tables' root."
    made.add_argument("--reader", metavar="NAME", help=text)
    made = command(jobs, "backfill", backfill, extra="spark")
    _add_source(made)
    made.add_argument(
        "--from", type=day, dest="first", metavar="DAY", help="First day; default: the first of the topic."
    )
    made.add_argument("--to", type=day, dest="last", metavar="DAY", help="Last day; default: the last of the topic.")
    command(jobs, "archive", make_archive, extra="spark")
    made = command(jobs, "check", check)
    made.add_argument("definitions", type=Path, nargs="+", metavar="PATH", help="YAML files and folders.")

    made = command(commands, "tables", list_tables, extra="query")
    made.add_argument("name", nargs="?", metavar="NAME", help="Show the columns of this table.")
    _add_tables(made)
    add_output(made)
    made = command(commands, "query", run_query, extra="query")
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("sql", nargs="?", metavar="SQL", help="A SELECT over the tables.")
    what.add_argument("--ask", metavar="NAME", help="Run a saved query; see --list.")
    what.add_argument("--list", action="store_true", dest="listed", help="List the saved queries.")
    _add_tables(made)
    add_output(made, ("table", "json", "yaml", "csv", "parquet"))
    _add_out(made)
    parameters = made.add_argument_group("parameters of saved queries")
    parameters.add_argument("--since", type=day, metavar="DAY", help="First day.")
    parameters.add_argument("--until", type=day, metavar="DAY", help="Last day.")
    parameters.add_argument("--limit", type=count, metavar="N", help="Maximum number of rows; default: 20.")
    parameters.add_argument("--topic", metavar="NAME", help="Name of the topic.")
    parameters.add_argument("--at", type=instant, metavar="INSTANT", help="Time of the query; default: now.")
    made = command(commands, "report", report, extra="query")
    _add_tables(made)
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help="The HTML file to write.")
    made.add_argument("--since", type=day, metavar="DAY", help="First day; default: 7 days up to --until.")
    made.add_argument("--until", type=day, metavar="DAY", help="Last day; default: the newest day in the tables.")

    exports = group(commands, "export", "Export the tables to the formats of other systems.")
    for name, act in (("focus", export_focus), ("opencost", export_opencost), ("ocsf", export_ocsf)):
        made = command(exports, name, act, extra="query")
        _add_tables(made)
        made.add_argument("--since", type=day, metavar="DAY", help="First day; default: the first day in the table.")
        made.add_argument("--until", type=day, metavar="DAY", help="Last day; default: the last day in the table.")
        _add_out(made)
    made = command(exports, "prometheus", export_prometheus)
    _add_definitions(made, required=True)
    _add_out(made)


def _add_source(made: ArgumentParser) -> None:
    option = partial(made.add_argument, metavar="TEXT")
    add_bootstrap_servers(made, default="127.0.0.1:19094", help="The INTERNAL listeners; default: %(default)s.")
    option("--topic", default="brokerside-audit", help="The audit topic; default: %(default)s.")
    _add_tables(made)
    option("--checkpoint", help="Folder or URL of the checkpoint; default: below the tables.")
    _add_definitions(made)
    many: Any = partial(made.add_argument, action="append", default=[])
    add_kafka_config(made, "File with settings of Kafka's Java client, as Kafka's tools take it. Put passwords there.")
    many(
        "--kafka-option",
        type=setting,
        dest="kafka_options",
        metavar="K=V",
        help="One such setting; overrides the file.",
    )
    text = "The file of audit.hmac.keys.file. Records without a valid signature become dead letters."
    add_hmac_keys(made, AUDIT_KEYS, text)
    text = "The file of registry.hmac.keys.file. Without it, sidecars that have such keys do not see the job."
    add_hmac_keys(made, REGISTRY_KEYS, text)
    many("--conf", type=setting, metavar="K=V", help="A setting of Spark.")
    option("--master", default="local[*]", help="Spark master; default: %(default)s.")


def _add_tables(made: ArgumentParser) -> None:
    default = ".brokerside/tables"
    text = f"Root of the tables, a folder or URL; default: {TABLES}, else {default}."
    made.add_argument("--tables", default=os.environ.get(TABLES, default), metavar="PATH", help=text)


def _add_definitions(made: ArgumentParser, required: bool = False) -> None:
    text = "YAML file or folder with prices, owners, objectives, mirrors, retention; may be repeated."
    made.add_argument(
        "--definitions", type=Path, action="append", default=[], required=required, metavar="PATH", help=text
    )


def _add_out(made: ArgumentParser) -> None:
    made.add_argument("--out", type=Path, metavar="FILE", help="Write to this file instead of standard output.")


def run_jobs(**arguments: Any) -> int:
    """Write the tables from the audit topic, continuously or up to its current end."""
    from spark_jobs.progress import ProgressLines
    from spark_jobs.run import run

    say = ProgressLines(_say, time.monotonic)
    summary = run(**_prepared(arguments), progress=say)
    say(summary)
    return 1 if summary.failed else 0


def backfill(**arguments: Any) -> int:
    """Compute days of the tables again from the audit topic."""
    from spark_jobs.run import backfill as run

    summary = run(**_prepared(arguments), progress=_say)
    _say(summary)
    return 1 if summary.failed else 0


def make_archive() -> None:
    """Make the archive of Java's classes, with which each job starts in two thirds of the CPU time."""
    from proxy.local.jars import resolve
    from spark_jobs.class_archive import make_class_archive

    print(make_class_archive(resolve("spark-4.2.0")))


def check(definitions: list[Path]) -> None:
    """Check definitions, report all errors in them at once, and describe what they declare."""
    from spark_jobs.definitions import load
    from spark_jobs.definitions.describe import describe_definitions

    print("\n".join(describe_definitions(load(definitions))))


def list_tables(name: str | None, tables: str, output: str) -> int:
    """List the tables, or the columns of one."""
    from spark_jobs import query

    found = query.describe_tables(tables)
    chosen = [info for info in found if name in (None, info.name)]
    if name is not None and not chosen:
        there = f"; the tables are: {', '.join(info.name for info in found)}" if found else ""
        raise JobError(f"{query.explain_missing_table(name)}{there}")
    one = name is not None and output == "table"
    print(query.render_table(chosen[0]) if one else query.render_tables(chosen, output))
    return 1 if any(info.broken for info in chosen) else 0


def run_query(
    sql: str | None, ask: str | None, listed: bool, tables: str, output: str, out: Path | None, **given: Any
) -> int:
    """Run a SQL query over the tables, or a saved query, without Spark."""
    from spark_jobs import query, saved_queries

    values = {name: value for name, value in given.items() if value is not None}
    if output == "parquet" and out is None and sys.stdout.isatty():
        return _wrong("parquet cannot be written to a terminal; give --out FILE, or use a pipe")
    if values and ask is None:
        return _wrong(f"--{next(iter(values))} is only for saved queries: --ask NAME")
    _check_days(values.get("since"), values.get("until"))
    if listed:
        columns = ["question", "meaning", "tables", "options"]
        rows = [
            (q.name, q.meaning, list(q.tables), [f"--{name}" for name in q.parameters])
            for q in saved_queries.SAVED_QUERIES.values()
        ]
        return _give(query.render(columns, rows, "table" if output == "parquet" else output), out)
    with query.open_tables(tables) as reader:
        text, parameters = (
            saved_queries.prepare_saved_query(reader, ask, values) if ask is not None else (sql or "", {})
        )
        if output == "parquet":
            return _give(query.to_parquet(reader.fetch_arrow(text, parameters)), out)
        return _give(query.render(*reader.fetch_rows(text, parameters), output), out)


def report(tables: str, out: Path, since: date | None, until: date | None) -> int:
    """Write the HTML report of the tables, one page that can be read offline."""
    from spark_jobs.report import render_page

    page = render_page(tables, since, until)
    for why in page.unreadable:
        _say(f"brokerside: {why}")
    return _give(page.html, out) or (1 if page.unreadable else 0)


def export_focus(tables: str, since: date | None, until: date | None, out: Path | None) -> int:
    """Costs as a CSV file of FOCUS 1.2, the FinOps cost and usage specification."""
    from spark_jobs.export import focus

    _check_days(since, until)
    with _writable(out) if out else nullcontext(sys.stdout) as file:
        focus.write_focus_csv(tables, file, since, until)
    return 0


def export_opencost(tables: str, since: date | None, until: date | None, out: Path | None) -> int:
    """Export costs as custom costs of OpenCost, in JSON."""
    from spark_jobs.export import opencost

    _check_days(since, until)
    return _give(opencost.opencost_json(tables, since, until), out)


def export_ocsf(tables: str, since: date | None, until: date | None, out: Path | None) -> int:
    """Changes and denials as events of OCSF 1.3, the Open Cybersecurity Schema Framework; JSON lines."""
    from spark_jobs.export import ocsf

    _check_days(since, until)
    with _writable(out) if out else nullcontext(sys.stdout) as file:
        ocsf.write_ocsf(tables, file, since, until)
    return 0


def export_prometheus(definitions: list[Path], out: Path | None) -> int:
    """Export objectives as rules of Prometheus over the sidecars' metrics; list those that cannot be exported."""
    from spark_jobs.definitions import load
    from spark_jobs.export import prometheus

    declared = load(definitions)
    for line in prometheus.unsupported_objectives(declared):
        _say(f"brokerside: not exported: {line}")
    return _give(prometheus.prometheus_rules(declared).encode(), out)


def _prepared(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a job, converted from those of the command line."""
    from proxy.commands.properties import read_properties
    from proxy.local.jars import resolve
    from spark_jobs.definitions import load

    file = arguments.pop("kafka_config")
    options = (read_properties(file) if file else {}) | dict(arguments["kafka_options"])
    if "bootstrap.servers" in options:
        raise JobError("bootstrap.servers must not be a Kafka option; give --bootstrap-server")
    return {
        **arguments,
        "definitions": load(arguments["definitions"]),
        "conf": dict(arguments["conf"]),
        "kafka_options": options,
        "hmac_keys": hmac_keys(AUDIT_KEYS, arguments["hmac_keys"]),
        "registry_hmac_keys": hmac_keys(REGISTRY_KEYS, arguments["registry_hmac_keys"]),
        "jars": [jar for name in _sets(arguments) for jar in resolve(name)],
    }


def _sets(arguments: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the jar sets that a job needs."""
    yield "spark-4.2.0"
    folders = (arguments["tables"], arguments["checkpoint"] or "")
    if any(folder.startswith(("s3://", "s3a://")) for folder in folders):
        yield "hadoop-aws-3.5.0"


def _check_days(first: date | None, last: date | None) -> None:
    if first and last and first > last:
        raise JobError(f"the first day, {first}, is after the last one, {last}")


def _say(what: object) -> None:
    print(what, file=sys.stderr)


def _wrong(what: str) -> int:
    _say(f"brokerside: {what}")
    return WRONG_USAGE


def _give(content: str | bytes, out: Path | None) -> int:
    """Write ``content`` to a file, or print it."""
    raw = content if isinstance(content, bytes) else f"{content}\n".encode()
    if out is None:
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
        return 0
    with _writable(out) as file:
        file.buffer.write(raw)
    return 0


@contextmanager
def _writable(out: Path) -> Iterator[TextIOWrapper]:
    """Yield a file that becomes ``out`` at the end; after an error ``out`` is what it was before."""
    try:
        if out.exists() and not out.is_file():  # a device, or a pipe
            with out.open("w", encoding="utf-8", newline="") as file:
                yield file
            return
        whole = Path(os.path.realpath(out))  # a link stays one
        part = whole.with_name(f".{whole.name}.{os.getpid()}")
        try:
            with part.open("w", encoding="utf-8", newline="") as file:
                yield file
            part.replace(whole)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        raise JobError(f"{out} cannot be written: {error.strerror}") from error
