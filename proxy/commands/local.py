"""Commands for trying it: a real Kafka on this machine, and the demo."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.commands.arguments import add_folder, command, group, numbers

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from proxy.commands.arguments import Commands


def add(commands: Commands) -> None:
    """Put them on the command line."""
    made = command(commands, "demo", demo, extra="demo")
    made.add_argument("--keep", action="store_true", help="Leave everything running and say how to use it.")
    add_folder(made, None, "Where it works; default: a new temporary folder.")

    clusters = group(commands, "cluster", "A real Kafka on this machine, behind sidecars.")
    made = command(clusters, "up", up)
    _add_cluster(made)
    made.add_argument("--nodes", type=int, default=1, metavar="N", help="1 or 3; default: %(default)s.")
    option = partial(made.add_argument, metavar="TEXT")
    option("--kafka-version", default="4.3.1", help="3.9.2, 4.3.1 or 4.4.0; default: %(default)s.")
    option("--ports", type=numbers, help="Ports clients dial, one per node, comma-separated; default: free ones.")
    made.add_argument(
        "--sidecars", action=BooleanOptionalAction, default=True, help="Start a sidecar in front of each broker."
    )
    text = "Sidecars coordinate groups of consumers (coordinator.enabled); those that run have to be stopped first."
    made.add_argument("--coordinator", action="store_true", help=text)
    _add_cluster(command(clusters, "down", down))
    _add_cluster(command(clusters, "status", status))


def _add_cluster(made: ArgumentParser) -> None:
    text = "Where the cluster keeps its data, logs and state; default: %(default)s."
    add_folder(made, Path(".brokerside/cluster"), text)


def up(
    folder: Path, nodes: int, kafka_version: str, ports: list[int] | None, sidecars: bool, coordinator: bool
) -> None:
    """Start it, or say where it runs."""
    from proxy.local import cluster
    from proxy.local import sidecars as side

    state = cluster.up(folder, nodes=nodes, kafka_version=kafka_version, client_ports=ports)
    if coordinator:
        side.enable_coordinator(folder, state)
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


def demo(keep: bool, folder: Path | None) -> int:
    """Start Kafka and a sidecar, run real clients and the Spark job, and compare tables with the clients' counts."""
    from proxy.local.demo import demo as run_demo

    return run_demo(folder, keep=keep)
