"""A cluster that was planned and never started."""

from __future__ import annotations

from pathlib import Path

from proxy.local.state import ClusterState, Node


def planned(folder: Path, nodes: int) -> ClusterState:
    """Clients dial 9092…, brokers listen on 19092…, INTERNAL on 29092…, CONTROLLER on 39092…, admin on 9644…."""

    def node(index: int) -> Node:
        dialled, upstream, internal, controller, admin = (
            f"127.0.0.1:{base + index}" for base in (9092, 19092, 29092, 39092, 9644)
        )
        return Node(index + 1, dialled, upstream, internal, controller, admin, folder / f"node-{index + 1}")

    return ClusterState("4.3.1", "ThK9ZFduS0ONy_eg3SRv7w", "sidecar", tuple(node(index) for index in range(nodes)))
