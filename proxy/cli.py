"""The ``brokerside`` command: the only place that wires the proxy, the observers and the jobs together.

Exit codes: 0 done, 1 failed (one sentence on stderr), 2 wrong usage.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from proxy import __version__
from proxy.errors import BrokersideError
from spark_jobs.errors import JobError

app = typer.Typer(
    name="brokerside",
    help="A sidecar for Apache Kafka brokers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
cluster_app = typer.Typer(help="A real Kafka on this machine, behind sidecars.", no_args_is_help=True)
jobs_app = typer.Typer(help="The Spark jobs that turn the audit topic into tables.", no_args_is_help=True)
app.add_typer(cluster_app, name="cluster")
app.add_typer(jobs_app, name="jobs")


class Output(StrEnum):
    """How data is printed."""

    table = "table"
    json = "json"
    csv = "csv"


ConfigFile = Annotated[Path, typer.Argument(help="YAML configuration.", metavar="FILE")]
Folder = Annotated[Path, typer.Option("--dir", help="Where the cluster keeps its data, logs and state.")]
Tables = Annotated[Path, typer.Option("--tables", help="Root folder of the tables.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table, json or csv.")]

DEFAULT_CLUSTER = Path(".brokerside/cluster")
DEFAULT_TABLES = Path(".brokerside/tables")


def main() -> None:
    """Entry point of the command."""
    try:
        app()
    except (BrokersideError, JobError) as error:
        print(f"brokerside: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


@app.command()
def run(config: Annotated[Path, typer.Option("--config", "-c", help="YAML configuration.")]) -> None:
    """Run the sidecar until SIGTERM."""
    from proxy.config import load
    from proxy.run import run as run_sidecar
    from proxy.telemetry import configure_logging

    loaded = load(config)
    configure_logging(loaded.log_level)
    sys.exit(run_sidecar(loaded))


@app.command()
def check_config(config: ConfigFile) -> None:
    """Check a configuration and name every mistake in it."""
    from proxy.config import load

    loaded = load(config)
    listeners = ", ".join(f"{listener.name} {listener.bind} -> {listener.upstream}" for listener in loaded.listeners)
    print(f"{config}: ok, broker {loaded.broker_id}, {listeners}")


@cluster_app.command()
def up(
    folder: Folder = DEFAULT_CLUSTER,
    nodes: Annotated[int, typer.Option(help="1 or 3.")] = 1,
    kafka_version: Annotated[str, typer.Option(help="3.9.2, 4.3.1 or 4.4.0.")] = "4.3.1",
    ports: Annotated[
        str, typer.Option(help="Ports clients dial, one per node, comma-separated; default: free ones.")
    ] = "",
    sidecars: Annotated[bool, typer.Option(help="Start a sidecar before each broker.")] = True,
) -> None:
    """Start it, or say where it runs."""
    from proxy.local import cluster
    from proxy.local import sidecars as side

    try:
        client_ports = [int(port) for port in ports.split(",")] if ports else None
    except ValueError:
        raise typer.BadParameter(f"--ports {ports!r}: allowed are port numbers, comma-separated") from None
    state = cluster.up(folder, nodes=nodes, kafka_version=kafka_version, client_ports=client_ports)
    if sidecars:
        side.start_all(folder, state)
    print(side.describe(folder, state))


@cluster_app.command()
def down(folder: Folder = DEFAULT_CLUSTER) -> None:
    """Stop it; its data stays."""
    from proxy.local import cluster, sidecars

    sidecars.stop_all(folder)
    cluster.down(folder)
    print(f"nothing runs in {folder} any more; its data is still there")


@cluster_app.command()
def status(folder: Folder = DEFAULT_CLUSTER) -> None:
    """Say what runs."""
    from proxy.local import cluster, sidecars

    state = cluster.status(folder)
    if state is None:
        print(f"no cluster in {folder}")
        raise typer.Exit(1)
    print(sidecars.describe(folder, state))


@jobs_app.command("run")
def jobs_run(
    job: Annotated[str, typer.Argument(help="Which job: traffic.")] = "traffic",
    bootstrap_servers: Annotated[str, typer.Option(help="The INTERNAL listeners.")] = "127.0.0.1:19094",
    topic: Annotated[str, typer.Option(help="The audit topic.")] = "brokerside-audit",
    tables: Tables = DEFAULT_TABLES,
    checkpoint: Annotated[str | None, typer.Option(help="Default: below the tables.")] = None,
    available_now: Annotated[bool, typer.Option(help="Stop when everything there is has been read.")] = False,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
) -> None:
    """Run a job: continuously, or over what there is."""
    from proxy.local.jars import resolve
    from spark_jobs.run import run as run_job

    summary = run_job(
        job,
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        tables=str(tables),
        checkpoint=checkpoint,
        jars=resolve("spark-4.2.0"),
        available_now=available_now,
        master=master,
        progress=lambda done: print(done, file=sys.stderr),
    )
    print(summary, file=sys.stderr)


@app.command("tables")
def list_tables(tables: Tables = DEFAULT_TABLES, output: OutputOption = Output.table) -> None:
    """List the tables and their columns."""
    from spark_jobs import query

    print(query.render_tables(query.tables(tables), output.value))


@app.command("query")
def run_query(
    sql: Annotated[str, typer.Argument(help="A SELECT over the tables.")],
    tables: Tables = DEFAULT_TABLES,
    output: OutputOption = Output.table,
) -> None:
    """Answer a SQL query over the tables, without Spark."""
    from spark_jobs import query

    columns, rows = query.query(tables, sql)
    print(query.render(columns, rows, output.value))


@app.command()
def demo(
    keep: Annotated[bool, typer.Option(help="Leave everything running and say how to use it.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Where it works; default: a new temporary folder.")
    ] = None,
) -> None:
    """From a real broker to a table: start Kafka and a sidecar, run real clients, prove the numbers."""
    from proxy.local.demo import demo as run_demo

    sys.exit(run_demo(folder, keep=keep))


if __name__ == "__main__":
    main()
