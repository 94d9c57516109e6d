"""Commands of the tables: the jobs that write them, questions about them, a report, exports."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.commands.arguments import WRONG_USAGE, add_output, command, count, day, group, instant, names, setting
from spark_jobs.errors import JobError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator
    from datetime import date
    from io import TextIOWrapper

    from proxy.commands.arguments import Commands


def add(commands: Commands) -> None:
    """Put them on the command line."""
    jobs = group(commands, "jobs", "The Spark job that turns the audit topic into tables.")
    made = command(jobs, "run", run_jobs, extra="spark")
    _add_source(made)
    made.add_argument("--only", type=names, metavar="TABLES", help="Some of the tables; chosen once, comma-separated.")
    made.add_argument("--available-now", action="store_true", help="Stop when everything there is has been read.")
    made = command(jobs, "backfill", backfill, extra="spark")
    _add_source(made)
    made.add_argument(
        "--from", type=day, dest="first", metavar="DAY", help="The first day; default: the first there is."
    )
    made.add_argument("--to", type=day, dest="last", metavar="DAY", help="The last day; default: the last there is.")
    made = command(jobs, "check", check)
    made.add_argument("definitions", type=Path, nargs="+", metavar="PATH", help="Files and folders of YAML documents.")

    made = command(commands, "tables", list_tables, extra="query")
    _add_tables(made)
    add_output(made)
    made = command(commands, "query", run_query, extra="query")
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("sql", nargs="?", metavar="SQL", help="A SELECT over the tables.")
    what.add_argument("--ask", metavar="NAME", help="A question that is often asked; --list has them.")
    what.add_argument("--list", action="store_true", dest="listed", help="Show the questions.")
    _add_tables(made)
    add_output(made, ("table", "json", "csv", "parquet"))
    _add_out(made)
    parameters = made.add_argument_group("of questions")
    parameters.add_argument("--since", type=day, metavar="DAY", help="The first day that counts.")
    parameters.add_argument("--until", type=day, metavar="DAY", help="The last day that counts.")
    parameters.add_argument("--limit", type=count, metavar="N", help="At most so many rows; default: 20.")
    parameters.add_argument("--topic", metavar="NAME", help="Which topic is meant.")
    parameters.add_argument("--at", type=instant, metavar="INSTANT", help="When it is asked; default: now.")
    made = command(commands, "report", report, extra="query")
    _add_tables(made)
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help="The page, .html.")
    made.add_argument("--since", type=day, metavar="DAY", help="The first day that counts; default: 7 days.")
    made.add_argument("--until", type=day, metavar="DAY", help="The last day that counts; default: the newest.")

    exports = group(commands, "export", "What the tables say, in the words of other systems.")
    for name, act in (("focus", export_focus), ("opencost", export_opencost)):
        made = command(exports, name, act, extra="query")
        _add_tables(made)
        made.add_argument("--since", type=day, metavar="DAY", help="The first day; default: the first there is.")
        made.add_argument("--until", type=day, metavar="DAY", help="The last day; default: the last there is.")
        _add_out(made)
    made = command(exports, "prometheus", export_prometheus)
    _add_definitions(made, required=True)
    _add_out(made)


def _add_source(made: ArgumentParser) -> None:
    option = partial(made.add_argument, metavar="TEXT")
    option("--bootstrap-servers", default="127.0.0.1:19094", help="The INTERNAL listeners; default: %(default)s.")
    option("--topic", default="brokerside-audit", help="The audit topic; default: %(default)s.")
    _add_tables(made)
    option("--checkpoint", help="Default: below the tables.")
    _add_definitions(made)
    many: Any = partial(made.add_argument, action="append", default=[])
    text = "Settings of Kafka's Java client, as of --command-config of Kafka's tools: passwords belong there."
    made.add_argument("--kafka-config", type=Path, metavar="FILE", help=text)
    many("--kafka-option", type=setting, dest="kafka_options", metavar="K=V", help="One of them; wins over the file.")
    text = "Keys of audit.hmac.keys.file: records that none of them has signed become dead letters."
    made.add_argument("--hmac-keys", type=Path, metavar="FILE", help=text)
    many("--conf", type=setting, metavar="K=V", help="Of Spark.")
    option("--master", default="local[*]", help="Spark master; default: %(default)s.")


def _add_tables(made: ArgumentParser) -> None:
    text = "Root of the tables, a folder or a URL; default: %(default)s."
    made.add_argument("--tables", default=".brokerside/tables", metavar="PATH", help=text)


def _add_definitions(made: ArgumentParser, required: bool = False) -> None:
    text = "Prices, owners, objectives, mirrors, retention: a file or folder of YAML; may be given several times."
    made.add_argument(
        "--definitions", type=Path, action="append", default=[], required=required, metavar="PATH", help=text
    )


def _add_out(made: ArgumentParser) -> None:
    made.add_argument("--out", type=Path, metavar="FILE", help="Write there instead of printing.")


def run_jobs(**arguments: Any) -> int:
    """Write the tables: continuously, or of what there is."""
    from spark_jobs.run import run

    summary = run(**_prepared(arguments))
    _say(summary)
    return 1 if summary.failed else 0


def backfill(**arguments: Any) -> int:
    """Compute the tables of some days again, from the audit topic."""
    from spark_jobs.run import backfill as run

    summary = run(**_prepared(arguments))
    _say(summary)
    return 1 if summary.failed else 0


def check(definitions: list[Path]) -> None:
    """Check definitions, name every mistake in them, and say what they declare."""
    from spark_jobs.definitions import load
    from spark_jobs.definitions.describe import describe

    print("\n".join(describe(load(definitions))))


def list_tables(tables: str, output: str) -> None:
    """List the tables and their columns."""
    from spark_jobs import query

    print(query.render_tables(query.describe_tables(tables), output))


def run_query(
    sql: str | None, ask: str | None, listed: bool, tables: str, output: str, out: Path | None, **given: Any
) -> int:
    """Answer a SQL query over the tables, or a question that is often asked, without Spark."""
    from spark_jobs import query, saved_queries

    values = {name: value for name, value in given.items() if value is not None}
    if output == "parquet" and out is None and sys.stdout.isatty():
        return _wrong("parquet is not for a terminal: --out FILE, or a pipe")
    if values and ask is None:
        return _wrong(f"--{next(iter(values))} is for questions: --ask NAME")
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
            return _give(query.to_parquet(reader.arrow(text, parameters)), out)
        return _give(query.render(*reader.rows(text, parameters), output), out)


def report(tables: str, out: Path, since: date | None, until: date | None) -> None:
    """Write one page of HTML that shows what the tables say, for people, to be read without a network."""
    from spark_jobs.report import page

    _give(page(tables, since, until), out)


def export_focus(tables: str, since: date | None, until: date | None, out: Path | None) -> int:
    """Costs as a CSV file of FOCUS 1.2, the FinOps cost and usage specification."""
    from spark_jobs.export import focus

    _check_days(since, until)
    with _writable(out) if out else nullcontext(sys.stdout) as file:
        focus.write(tables, file, since, until)
    return 0


def export_opencost(tables: str, since: date | None, until: date | None, out: Path | None) -> int:
    """Costs as the JSON of OpenCost's custom costs."""
    from spark_jobs.export import opencost

    _check_days(since, until)
    return _give(opencost.text(tables, since, until), out)


def export_prometheus(definitions: list[Path], out: Path | None) -> int:
    """Objectives as rules for Prometheus, over the sidecars' metrics; says which of them metrics cannot tell."""
    from spark_jobs.definitions import load
    from spark_jobs.export import prometheus

    declared = load(definitions)
    for line in prometheus.left_out(declared):
        _say(f"brokerside: not among the rules: {line}")
    return _give(prometheus.rules(declared).encode(), out)


def _prepared(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a job as it takes them."""
    from proxy.commands.properties import read_properties
    from proxy.local.jars import resolve
    from spark_jobs.definitions import load

    file = arguments.pop("kafka_config")
    options = (read_properties(file) if file else {}) | dict(arguments["kafka_options"])
    if "bootstrap.servers" in options:
        raise JobError("bootstrap.servers is not a setting of the client here; give --bootstrap-servers")
    return {
        **arguments,
        "definitions": load(arguments["definitions"]),
        "conf": dict(arguments["conf"]),
        "kafka_options": options,
        "hmac_keys": _hmac_keys(arguments["hmac_keys"]),
        "jars": [jar for name in _sets(arguments) for jar in resolve(name)],
        "progress": _say,
    }


def _hmac_keys(path: Path | None) -> dict[str, bytes]:
    from proxy.config.hmac_keys import load_text
    from proxy.core.authentication import read_keys

    try:
        return {} if path is None else read_keys(load_text(path))
    except ValueError as error:
        raise JobError(f"--hmac-keys: file {str(path)!r} {error}") from None


def _sets(arguments: dict[str, Any]) -> Iterator[str]:
    """Give the names of the sets of jars that a job needs."""
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
    try:
        with out.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise JobError(f"{out} cannot be written: {error.strerror}") from error
