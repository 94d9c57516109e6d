"""A real KRaft cluster of one or three nodes on loopback. Any process can start, stop and inspect it.

Everything of a cluster is in its folder: ``cluster.json`` (what it is and which processes run), ``sidecar-<id>.yaml``
(configuration of the sidecar in front of each broker), ``node-<id>/`` (configuration, data, logs).
"""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from proxy.errors import LocalError
from proxy.local import archive, broker, process
from proxy.local.ports import HOST, free_ports, is_free
from proxy.local.readiness import known_brokers
from proxy.local.state import Advertise, ClusterState, Node, load, save
from proxy.local.tools import tool

__all__ = ["ClusterState", "Node", "discard", "down", "plan", "start_node", "status", "stop_node", "tool", "up"]

CLUSTER_START_TIMEOUT = 120.0
"""Seconds until every started node has to be ready; one needs 1 to 3, three need 4 to 13, a busy machine more."""

CLUSTER_STOP_TIMEOUT = 60.0
"""Seconds a node may take to end after SIGTERM; one needs 0.4, the last of three 6, one that writes an archive 5: if
it is killed while it does, every later one starts in twice the time."""

READY_POLL_INTERVAL = 0.05


def up(
    folder: Path,
    *,
    nodes: int = 1,
    kafka_version: str = "4.3.1",
    client_ports: Sequence[int] | None = None,
    broker_properties: Mapping[str, str] | None = None,
    advertise: Advertise = "sidecar",
    progress: bool = True,
) -> ClusterState:
    """Start a cluster in ``folder``, or the stopped nodes of an existing one, and wait until it is ready.

    ``client_ports``: what clients dial, one for each node (default: free ones). ``advertise``: whether that is where a
    sidecar is going to listen, or the broker itself. ``broker_properties``: Kafka's own names; they win over ours, and
    stay with the folder until others are given. Raises LocalError.
    """
    folder = folder.absolute()
    jars = broker.broker_jars(kafka_version, progress=progress)
    with _locked(folder):
        state = _read_state(folder)
        if state is None:
            state = _create(folder, nodes, kafka_version, client_ports, advertise)
        else:
            _check_same(folder, state, nodes, kafka_version, client_ports)
            if state.running:
                _print_progress(progress, f"Kafka {state.kafka_version} already runs in {folder}")
                return state
        if broker_properties is not None:
            for node in state.nodes:
                broker.write_properties(state, node, broker_properties)
        save(folder, state)
        _print_progress(
            progress, f"starting Kafka {kafka_version}, {nodes} node{'s' if nodes > 1 else ''}, in {folder}"
        )
        return _start(folder, state, [node for node in state.nodes if node.process is None], jars)


def plan(folder: Path, *, kafka_version: str = "4.3.1") -> ClusterState:
    """Choose everything about a new cluster of one node, which ``up`` starts, and start nothing.

    For ``broker_properties`` that name its addresses. Raises LocalError.
    """
    folder = folder.absolute()
    with _locked(folder):
        return _create(folder, 1, kafka_version, None, "sidecar")


def down(folder: Path) -> None:
    """Stop every node; data and configuration stay. Does nothing where nothing runs."""
    folder = folder.absolute()
    if load(folder) is None:
        return
    with _locked(folder):
        state = _existing(folder)
        _stop(folder, state, state.nodes)


def discard(folder: Path) -> None:
    """Stop every node of a cluster that is not going to be started again. Does nothing where nothing runs.

    The last two of three nodes are killed: without a quorum, the last one would end seconds later. The first one ends
    as ever, and leaves an archive where there is none.
    """
    state = status(folder)
    if state is not None:
        for number, node in enumerate(state.nodes):
            stop_node(folder, node.id, kill=number > 0)


def status(folder: Path) -> ClusterState | None:
    """Return what is in ``folder`` and which of its nodes run now; None if there is no cluster."""
    return _read_state(folder.absolute())


def stop_node(folder: Path, node_id: int, *, kill: bool = False) -> ClusterState:
    """Stop one node, with SIGKILL if ``kill``; does nothing where it does not run."""
    folder = folder.absolute()
    with _locked(folder):
        state = _existing(folder)
        return _stop(folder, state, [state.node(node_id)], kill=kill)


def start_node(folder: Path, node_id: int) -> ClusterState:
    """Start one node on the data it has, and wait until it is ready; does nothing where it runs."""
    folder = folder.absolute()
    with _locked(folder):
        state = _existing(folder)
        node = state.node(node_id)
        if node.process is not None:
            return state
        return _start(folder, state, [node], broker.broker_jars(state.kafka_version, progress=False))


def _create(
    folder: Path, nodes: int, kafka_version: str, client_ports: Sequence[int] | None, advertise: Advertise
) -> ClusterState:
    """Choose everything about a new cluster, and write its files."""
    state = _choose(folder, nodes, kafka_version, client_ports, advertise)
    for node in state.nodes:
        broker.write_properties(state, node, {})
        if advertise == "sidecar":
            broker.write_sidecar_config(folder / f"sidecar-{node.id}.yaml", node)
    save(folder, state)
    return state


def _choose(
    folder: Path, nodes: int, kafka_version: str, client_ports: Sequence[int] | None, advertise: Advertise
) -> ClusterState:
    """Choose everything about a new cluster; nothing is started or written."""
    if nodes not in (1, 3):
        raise LocalError(f"a cluster of {nodes} nodes cannot be started; allowed are 1 and 3")
    if client_ports is not None:
        _check_ports(client_ports, nodes)
    given = list(client_ports or ())
    free = iter(free_ports((4 if given else 5) * nodes, avoid=given))
    planned = []
    for node_id, dialled in enumerate(given or islice(free, nodes), 1):
        upstream, internal, controller, admin = (f"{HOST}:{port}" for port in islice(free, 4))
        advertised = f"{HOST}:{dialled}"
        if advertise == "broker":
            upstream = advertised
        home = folder / f"node-{node_id}"
        planned.append(Node(node_id, advertised, upstream, internal, controller, admin, home))
    return ClusterState(kafka_version, broker.new_id(), advertise, tuple(planned))


def _check_ports(ports: Sequence[int], nodes: int) -> None:
    given = ", ".join(map(str, ports))
    if len(ports) != nodes or len(set(ports)) != nodes:
        raise LocalError(f"client ports {given}: there must be {nodes}, one for each node, all different")
    for port in ports:
        if not 1 <= port <= 65535:
            raise LocalError(f"client port {port}: allowed is 1 to 65535")
        if not is_free(port):
            raise LocalError(f"client port {port} is taken by another process; give a free one, or none")


def _check_same(
    folder: Path, state: ClusterState, nodes: int, kafka_version: str, client_ports: Sequence[int] | None
) -> None:
    there = (len(state.nodes), state.kafka_version)
    if (nodes, kafka_version) != there:
        raise LocalError(
            f"{folder} holds a cluster of {there[0]} node(s) with Kafka {there[1]}, not of {nodes} with Kafka "
            f"{kafka_version}; give another folder, or stop it and remove this one"
        )
    if client_ports is not None and [f"{HOST}:{port}" for port in client_ports] != state.bootstrap.split(","):
        raise LocalError(
            f"the cluster in {folder} has its clients dial {state.bootstrap}; give another folder for other ports, "
            "or stop it and remove this one"
        )


def _start(folder: Path, state: ClusterState, nodes: Sequence[Node], jars: Sequence[Path]) -> ClusterState:
    """Start ``nodes`` and wait until all that run know each other; on failure stop what this call started."""
    for node in nodes:
        for listener, address in (
            ("CLIENT", node.upstream),
            ("INTERNAL", node.internal),
            ("CONTROLLER", node.controller),
        ):
            host, _, port = address.rpartition(":")
            if not is_free(int(port), host):
                raise LocalError(
                    f"{address}, the {listener} listener of node {node.id}, is taken by another process; end that one, "
                    f"or remove {folder} to begin anew"
                )
    broker.format_storage(state, jars)
    started: list[Node] = []
    try:
        for node in nodes:
            run = process.spawn(broker.command(node, state.kafka_version, jars), node.output)
            started.append(replace(node, process=run))
            state = _replace_nodes(state, started)
            save(folder, state)
        _wait_ready(state, started)
    except BaseException:
        _stop(folder, state, started, kill=True)
        raise
    return state


def _wait_ready(state: ClusterState, started: Sequence[Node]) -> None:
    """Wait until every started node answers on both listeners and knows every node that runs. Raises LocalError."""
    deadline = time.monotonic() + CLUSTER_START_TIMEOUT
    running = {node.id for node in state.nodes if node.process}
    for node in started:
        while not all(known_brokers(address) >= running for address in (node.internal, node.upstream)):
            if node.process is None or not node.process.alive():
                raise LocalError(f"Kafka's node {node.id} ended while it started; {_log_tail(node)}")
            if time.monotonic() > deadline:
                late = f"was not ready after {CLUSTER_START_TIMEOUT:.0f} s"
                raise LocalError(f"Kafka's node {node.id} {late}; {_log_tail(node)}")
            time.sleep(READY_POLL_INTERVAL)


def _stop(folder: Path, state: ClusterState, nodes: Sequence[Node], *, kill: bool = False) -> ClusterState:
    running = [node.process for node in nodes if node.process is not None]
    gently = process.stop(running, CLUSTER_STOP_TIMEOUT, kill=kill)
    for node in nodes:
        archive.publish_or_discard(node.home, complete=gently)
    state = _replace_nodes(state, [replace(node, process=None) for node in nodes])
    save(folder, state)
    return state


def _read_state(folder: Path) -> ClusterState | None:
    """Read the state, without processes that have ended."""
    state = load(folder)
    if state is None:
        return None
    ended = [replace(node, process=None) for node in state.nodes if node.process and not node.process.alive()]
    return _replace_nodes(state, ended)


def _existing(folder: Path) -> ClusterState:
    state = _read_state(folder)
    if state is None:
        raise LocalError(f"there is no cluster in {folder}; start one with `brokerside cluster up --dir {folder}`")
    return state


def _replace_nodes(state: ClusterState, nodes: Sequence[Node]) -> ClusterState:
    changed = {node.id: node for node in nodes}
    return replace(state, nodes=tuple(changed.get(node.id, node) for node in state.nodes))


def _log_tail(node: Node) -> str:
    said = [broker.error_lines(file.read_text(errors="replace")) for file in (node.output, node.log) if file.exists()]
    return f"{node.log} says:\n" + "\n".join(filter(None, said))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder. Raises LocalError if the folder cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise LocalError(f"{folder} cannot be used for a cluster: {error.strerror}; give another folder") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _print_progress(progress: bool, text: str) -> None:
    if progress:
        print(text, file=sys.stderr)
