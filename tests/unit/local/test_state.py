from dataclasses import replace
from pathlib import Path

import pytest

from proxy.errors import LocalError
from proxy.local import cluster
from proxy.local.process import spawn, stop
from proxy.local.state import CLUSTER_FILE, ClusterState, load, save
from tests.unit.local.samples import planned


def test_what_is_saved_is_loaded_and_a_file_that_is_not_is_named(tmp_path: Path) -> None:
    state = planned(tmp_path, 3)
    save(tmp_path, state)
    assert load(tmp_path) == state
    assert load(tmp_path / "nowhere") is None
    assert state.bootstrap == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    assert state.broker_bootstrap == "127.0.0.1:19092,127.0.0.1:19093,127.0.0.1:19094"
    assert state.internal_bootstrap == "127.0.0.1:29092,127.0.0.1:29093,127.0.0.1:29094"
    assert state.node(3).advertised == "127.0.0.1:9094"
    with pytest.raises(LocalError, match="no node 4; there are 1, 2, 3"):
        state.node(4)
    for content in (b"", b"{", b'{"kafka_version": 4}', b"\xff"):
        (tmp_path / CLUSTER_FILE).write_bytes(content)
        with pytest.raises(LocalError, match=rf"{CLUSTER_FILE} cannot be read .* begin anew"):
            load(tmp_path)


def running(folder: Path) -> ClusterState:
    """A saved cluster of one node whose process is a sleep."""
    state = planned(folder, 1)
    node = replace(state.nodes[0], process=spawn(["/bin/sleep", "60"], folder / "out"))
    state = replace(state, nodes=(node,))
    save(folder, state)
    return state


@pytest.mark.promise("local-cluster.md", "Another process with a stopped broker's pid is left alone.")
def test_a_reused_pid_is_not_taken_for_the_node(tmp_path: Path) -> None:
    process = running(tmp_path).nodes[0].process
    assert process is not None
    try:
        stale = planned(tmp_path, 1)
        before_reboot = replace(process, started=process.started - 1)
        save(tmp_path, replace(stale, nodes=(replace(stale.nodes[0], process=before_reboot),)))
        found = cluster.status(tmp_path)
        assert found is not None
        assert not found.running
        cluster.down(tmp_path)
        assert process.alive()
    finally:
        stop([process], 10)


def test_status_and_down_from_what_is_saved(tmp_path: Path) -> None:
    state = running(tmp_path)
    assert cluster.status(tmp_path) == state
    cluster.down(tmp_path)
    cluster.down(tmp_path)
    found = cluster.status(tmp_path)
    assert found is not None
    assert found.nodes[0].pid is None
    assert state.nodes[0].process is not None
    assert not state.nodes[0].process.alive()


def test_where_there_is_no_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    cluster.down(folder)
    assert cluster.status(folder) is None
    assert not folder.exists()
    with pytest.raises(LocalError, match=r"no cluster in .* `brokerside cluster up"):
        cluster.stop_node(tmp_path, 1)
