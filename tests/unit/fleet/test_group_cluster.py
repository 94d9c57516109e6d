"""What the coordinator of groups is told of its cluster; without Kafka."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from proxy.config import Config, load
from proxy.coordinator.effects import ClosePartition
from proxy.coordinator.events import EndpointsChanged, Event
from proxy.coordinator.wire import EndpointEntry
from proxy.fleet.group_cluster import GroupCluster
from proxy.interceptors.broker_metadata import BrokerView, FleetView

VIEW = FleetView(1, (BrokerView(1, {"client": ("k", 9092), "late": ("k", 9093)}),))


class Fleet:
    boot_id = "own"
    group_leaders = ()

    def update_groups(self, groups: object) -> None: ...


class Open:
    """A partition. ``closed``: how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def config_of(tmp_path: Path, *listeners: str) -> Config:
    path = tmp_path / "sidecar.yaml"
    lines = [f"- {{name: {one}, bind: '127.0.0.1:{9092 + n}', upstream: k:1}}" for n, one in enumerate(listeners)]
    text = ["broker.id: 1", "internal.bootstrap.servers: k:1", "coordinator: {enabled: true}", "listeners:", *lines]
    path.write_text("\n".join(text))
    return load(path)


def cluster_of(config: Config, events: list[Event]) -> GroupCluster:
    fleet: Any = Fleet()
    return GroupCluster(config, fleet, events.append, lambda view: None)


async def test_the_addresses_of_a_new_listener_are_told_with_the_reload(tmp_path: Path) -> None:
    events: list[Event] = []
    cluster = cluster_of(config_of(tmp_path, "CLIENT"), events)
    client, late = (EndpointEntry(1, "k", 9092),), (EndpointEntry(1, "k", 9093),)
    cluster.reconfigure(config_of(tmp_path, "CLIENT"))
    cluster.update_fleet_view(VIEW)
    cluster.update_fleet_view(VIEW)
    cluster.reconfigure(config_of(tmp_path, "CLIENT", "LATE"))
    await asyncio.sleep(0)
    assert events == [EndpointsChanged({"CLIENT": client}), EndpointsChanged({"CLIENT": client, "LATE": late})]


async def test_all_open_partitions_are_closed_once(tmp_path: Path) -> None:
    cluster = cluster_of(config_of(tmp_path, "CLIENT"), [])
    opened: dict[int, Any] = {0: Open(), 3: Open()}
    cluster._partitions.update(opened)
    cluster.close_partitions()
    cluster.perform(ClosePartition(3))
    assert [one.closed for one in opened.values()] == [1, 1]
