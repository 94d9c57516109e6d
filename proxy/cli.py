"""The ``brokerside`` command: the only place that wires the proxy, the observers and the jobs together.

Each command imports what it needs when it runs: a sidecar restarts often and must not wait for the rest.

Exit codes: 0 done, 1 failed (one sentence on stderr), 2 wrong usage.
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from proxy import __version__
from proxy.errors import BrokersideError
from spark_jobs.errors import JobError

WRONG_USAGE = 2

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from proxy.config import Endpoint

    _Commands = _SubParsersAction[ArgumentParser]


def main() -> None:
    """Entry point of the command."""
    arguments = vars(_parser().parse_args())
    act = arguments.pop("act")
    try:
        sys.exit(act(**arguments))
    except (BrokersideError, JobError) as error:
        print(f"brokerside: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        extra = {run_job: "spark", list_tables: "query", run_query: "query", demo: "demo"}.get(act)
        if extra is None:
            raise
        needs = f"this command needs {error.name}, which is not installed: pip install 'brokerside[{extra}]'"
        print(f"brokerside: {needs}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def version() -> None:
    """Print the version."""
    print(__version__)


def run(config: Path) -> int:
    """Run the sidecar until SIGTERM."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    with _lean():
        from proxy.config import load
        from proxy.reload import FileWatch
        from proxy.run import run as run_sidecar
        from proxy.telemetry import configure_logging

        file = FileWatch(config)  # before it is read: what is written from here on is noticed
        loaded = load(config)
    configure_logging(loaded.log_level)
    return run_sidecar(file, loaded)


def worker(descriptor: int) -> int:
    """Serve a sidecar as one of its workers; ``proxy.net.handle`` alone starts it. ``descriptor``: of their socket."""
    with _lean():
        from proxy.net.worker import work

    return work(descriptor)


@contextmanager
def _lean() -> Iterator[None]:
    """For imports of a process that starts often and then lasts.

    Modules stay, so there is no looking for garbage among them, now (40 ms) or while traffic flows (40 ms each time).
    structlog takes rich where it is installed, for consoles: 60 ms and 5 MiB that a sidecar does not need.
    """
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]  # tells the import system that there is none
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        if hidden:
            del sys.modules["rich"]


def check_config(config: Path) -> None:
    """Check a configuration and name every mistake in it."""
    from proxy.config import load

    loaded = load(config)
    listeners = ", ".join(f"{listener.name} {listener.bind} -> {listener.upstream}" for listener in loaded.listeners)
    print(f"{config}: ok, broker {loaded.broker_id}, {listeners}")
    if loaded.quotas_unread is not None:
        said = "the cluster's quotas do not count here, and may limit the sidecar itself"
        print(f"brokerside: {config}: {said}: {loaded.quotas_unread}", file=sys.stderr)


def quotas(admin: Endpoint, watch: bool, output: str) -> None:
    """Show the limits on connections of a running sidecar: how much is used, who waits, the busiest addresses."""
    import msgspec

    from proxy import remote
    from proxy.errors import LocalError
    from proxy.quotas_view import text

    redraw = "\x1b[H\x1b[2J" if watch and output == "table" and sys.stdout.isatty() else ""
    seen = False
    while True:
        try:
            found = remote.quotas(admin)
        except LocalError as error:
            if not (watch and seen):
                raise
            print(redraw, end="", flush=True)
            print(f"brokerside: {error}", file=sys.stderr)  # it restarts
        else:
            seen = True
            print(redraw + (text(found) if output == "table" else msgspec.json.encode(found).decode()), flush=True)
        if not watch:
            return
        time.sleep(1)


def reload(admin: Endpoint) -> int:
    """Let a running sidecar read its configuration again, and say what came of it."""
    from proxy import remote

    done = remote.reload(admin)
    if done.result == "applied":
        print(f"applied: {', '.join(done.changed)}")
    elif done.result == "unchanged":
        print("unchanged: what runs is already what the file says")
    elif done.result == "draining":
        print(f"brokerside: the sidecar at {admin} is shutting down", file=sys.stderr)
        return 1
    else:
        print("brokerside: rejected, the running configuration stays", file=sys.stderr)
        print("".join(f"  {error}\n" for error in done.errors), end="", file=sys.stderr)
        return 1
    return 0


def up(folder: Path, nodes: int, kafka_version: str, ports: list[int] | None, sidecars: bool) -> None:
    """Start it, or say where it runs."""
    from proxy.local import cluster
    from proxy.local import sidecars as side

    state = cluster.up(folder, nodes=nodes, kafka_version=kafka_version, client_ports=ports)
    if sidecars:
        side.start_all(folder, state)
    print(side.describe(folder, state))


def down(folder: Path) -> None:
    """Stop it; its data stays."""
    from proxy.local import cluster, sidecars

    sidecars.stop_all(folder)
    cluster.down(folder)
    print(f"nothing runs in {folder} any more; its data is still there")


def status(folder: Path) -> int:
    """Say what runs."""
    from proxy.local import cluster, sidecars

    state = cluster.status(folder)
    if state is None:
        print(f"no cluster in {folder}")
        return 1
    print(sidecars.describe(folder, state))
    return 0


def run_job(
    job: str,
    bootstrap_servers: str,
    topic: str,
    tables: Path,
    checkpoint: str | None,
    available_now: bool,
    master: str,
) -> None:
    """Run a job: continuously, or over what there is."""
    from proxy.local.jars import resolve
    from spark_jobs.run import run

    summary = run(
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


def list_tables(tables: Path, output: str) -> None:
    """List the tables and their columns."""
    from spark_jobs import query

    print(query.render_tables(query.tables(tables), output))


def run_query(sql: str, tables: Path, output: str) -> None:
    """Answer a SQL query over the tables, without Spark."""
    from spark_jobs import query

    columns, rows = query.query(tables, sql)
    print(query.render(columns, rows, output))


def demo(keep: bool, folder: Path | None) -> int:
    """From a real broker to a table: start Kafka and a sidecar, run real clients, prove the numbers."""
    from proxy.local.demo import demo as run_demo

    return run_demo(folder, keep=keep)


def _parser() -> ArgumentParser:
    """Every command with its arguments; ``act`` is the function above that takes them."""
    parser = ArgumentParser("brokerside", description="A sidecar for Apache Kafka brokers.", allow_abbrev=False)
    commands = _commands(parser)
    _command(commands, "version", version)
    command = _command(commands, "run", run)
    command.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="YAML configuration.")
    command = commands.add_parser("worker")  # without help, it is not listed
    command.set_defaults(act=worker)
    command.add_argument("descriptor", type=int)
    command = _command(commands, "check-config", check_config)
    command.add_argument("config", type=Path, metavar="FILE", help="YAML configuration.")
    command = _command(commands, "reload", reload)
    _add_admin(command)
    command = _command(commands, "quotas", quotas)
    _add_admin(command)
    command.add_argument("--watch", action="store_true", help="Once a second, until Ctrl-C.")
    _add_output(command, ("table", "json"))

    command = _command(commands, "tables", list_tables)
    _add_tables(command)
    _add_output(command)
    command = _command(commands, "query", run_query)
    command.add_argument("sql", metavar="SQL", help="A SELECT over the tables.")
    _add_tables(command)
    _add_output(command)
    command = _command(commands, "demo", demo)
    command.add_argument("--keep", action="store_true", help="Leave everything running and say how to use it.")
    _add_folder(command, None, "Where it works; default: a new temporary folder.")

    clusters = _group(commands, "cluster", "A real Kafka on this machine, behind sidecars.")
    command = _command(clusters, "up", up)
    _add_cluster(command)
    command.add_argument("--nodes", type=int, default=1, metavar="N", help="1 or 3; default: %(default)s.")
    add = partial(command.add_argument, metavar="TEXT")
    add("--kafka-version", default="4.3.1", help="3.9.2, 4.3.1 or 4.4.0; default: %(default)s.")
    add("--ports", type=_ports, help="Ports clients dial, one per node, comma-separated; default: free ones.")
    command.add_argument(
        "--sidecars", action=BooleanOptionalAction, default=True, help="Start a sidecar before each broker."
    )
    _add_cluster(_command(clusters, "down", down))
    _add_cluster(_command(clusters, "status", status))

    jobs = _group(commands, "jobs", "The Spark jobs that turn the audit topic into tables.")
    command = _command(jobs, "run", run_job)
    command.add_argument("job", nargs="?", default="traffic", metavar="JOB", help="Which job; default: %(default)s.")
    add = partial(command.add_argument, metavar="TEXT")
    add("--bootstrap-servers", default="127.0.0.1:19094", help="The INTERNAL listeners; default: %(default)s.")
    add("--topic", default="brokerside-audit", help="The audit topic; default: %(default)s.")
    _add_tables(command)
    add("--checkpoint", help="Default: below the tables.")
    command.add_argument("--available-now", action="store_true", help="Stop when everything there is has been read.")
    add("--master", default="local[*]", help="Spark master; default: %(default)s.")
    return parser


def _commands(parser: ArgumentParser) -> _Commands:
    """Let ``parser`` have commands; without one it prints its help, as a wrong usage."""
    parser.set_defaults(act=partial(_help, parser))
    return parser.add_subparsers(title="commands", metavar="COMMAND")


def _help(parser: ArgumentParser) -> int:
    parser.print_help()
    return WRONG_USAGE


def _group(commands: _Commands, name: str, meaning: str) -> _Commands:
    return _commands(commands.add_parser(name, help=meaning, description=meaning, allow_abbrev=False))


def _command(commands: _Commands, name: str, act: Callable[..., int | None]) -> ArgumentParser:
    meaning = act.__doc__
    command = commands.add_parser(name, help=meaning, description=meaning, allow_abbrev=False)
    command.set_defaults(act=act)
    return command


def _add_cluster(command: ArgumentParser) -> None:
    text = "Where the cluster keeps its data, logs and state; default: %(default)s."
    _add_folder(command, Path(".brokerside/cluster"), text)


def _add_folder(command: ArgumentParser, default: Path | None, meaning: str) -> None:
    command.add_argument("--dir", type=Path, dest="folder", default=default, metavar="PATH", help=meaning)


def _add_tables(command: ArgumentParser) -> None:
    text = "Root folder of the tables; default: %(default)s."
    command.add_argument("--tables", type=Path, default=Path(".brokerside/tables"), metavar="PATH", help=text)


def _add_output(command: ArgumentParser, choices: tuple[str, ...] = ("table", "json", "csv")) -> None:
    text = f"How data is printed: {', '.join(choices[:-1])} or {choices[-1]}; default: %(default)s."
    command.add_argument("-o", "--output", choices=choices, default="table", metavar="FORM", help=text)


def _add_admin(command: ArgumentParser) -> None:
    text = "The sidecar's admin.bind; default: %(default)s."
    command.add_argument("--admin", type=_endpoint, default="127.0.0.1:9644", metavar="HOST:PORT", help=text)


def _endpoint(text: str) -> Endpoint:
    from proxy.config import Endpoint

    try:
        return Endpoint.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} {error}") from None


def _ports(text: str) -> list[int]:
    try:
        return [int(port) for port in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"{text!r}: allowed are port numbers, comma-separated") from None


if __name__ == "__main__":
    main()
