"""Sidecars of this process that hold partitions of the topic of groups, without a machine that coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from proxy.coordinator.effects import HoldPartition, OpenPartition, WriteRecords
from proxy.coordinator.events import (
    Event,
    PartitionAssigned,
    PartitionLost,
    PartitionOffsets,
    PartitionOpened,
    WriteAborted,
    WriteCommitted,
)
from proxy.coordinator.records import GroupRecord
from proxy.coordinator.view import GroupsView
from proxy.features.view import FeaturesView
from proxy.fleet.group_cluster import GroupCluster
from proxy.interceptors.broker_metadata import FleetView
from proxy.local.cluster import Node
from tests.integration.feature_sidecars import FeatureSidecar, until

AnyEvent = TypeVar("AnyEvent")


class GroupSidecar(FeatureSidecar):
    """One sidecar. ``events`` and ``group_views``: what it has reported."""

    def __init__(self, node: Node, *, partitions: int = 3, **settings: Any) -> None:
        super().__init__(node, coordinator={"enabled": True, "partitions": partitions}, **settings)
        self.events: list[Event] = []
        self.group_views: list[GroupsView] = [GroupsView()]
        self.groups = GroupCluster(self.config, self.fleet, self.events.append, self.group_views.append)
        self._writes = 0

    def _on_fleet_view(self, view: FleetView) -> None:
        self.groups.update_fleet_view(view)

    def _on_features_view(self, view: FeaturesView) -> None:
        super()._on_features_view(view)
        self.groups.update_features(view)

    @property
    def view(self) -> GroupsView:
        return self.group_views[-1]

    def start(self) -> None:
        super().start()
        self.groups.start()

    async def stop(self) -> None:
        await self.groups.resign()
        await self.groups.close()
        await super().stop()

    async def kill(self) -> None:
        """End as a killed process does: nothing is written, and nobody listens any more."""
        await self.groups.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self.features.close()
        await self.fleet.close()

    def found(self, kind: type[AnyEvent], **fields: object) -> list[AnyEvent]:
        """Events of a class with these fields."""
        return [
            one
            for one in self.events
            if isinstance(one, kind) and all(getattr(one, name) == value for name, value in fields.items())
        ]

    async def heard(self, kind: type[AnyEvent], **fields: object) -> AnyEvent:
        """The last event of a class with these fields, once there is one."""
        await until(lambda: self.found(kind, **fields))
        return self.found(kind, **fields)[-1]

    async def open(self, partition: int) -> PartitionOpened:
        """Open an assigned partition, and register it."""
        await until(lambda: partition in self.view.own)
        before = len(self.found(PartitionOpened, partition=partition))
        self.groups.perform(OpenPartition(partition))
        await until(lambda: len(self.found(PartitionOpened, partition=partition)) > before or self.lost(partition))
        assert not self.lost(partition)
        opened = self.found(PartitionOpened, partition=partition)[-1]
        self.groups.perform(HoldPartition(partition, opened.claim))
        return opened

    def lost(self, partition: int) -> list[str]:
        """Why a partition was lost since it was assigned last."""
        reasons: list[str] = []
        for event in self.events:
            if isinstance(event, PartitionAssigned) and event.partition == partition:
                reasons.clear()
            elif isinstance(event, PartitionLost) and event.partition == partition:
                reasons.append(event.reason)
        return reasons

    def begin_write(
        self, partition: int, records: list[GroupRecord], offsets: Mapping[str, PartitionOffsets] | None = None
    ) -> int:
        """Write, and return the number of the write."""
        number, self._writes = self._writes, self._writes + 1
        self.groups.perform(WriteRecords(partition, number, records, offsets or {}))
        return number

    async def write(
        self, partition: int, records: list[GroupRecord], offsets: Mapping[str, PartitionOffsets] | None = None
    ) -> WriteCommitted | WriteAborted:
        """Write, and return what became of it."""
        return await self.written(self.begin_write(partition, records, offsets))

    async def written(self, number: int) -> WriteCommitted | WriteAborted:
        """What became of a write."""

        def done() -> list[WriteCommitted | WriteAborted]:
            return [*self.found(WriteCommitted, write=number), *self.found(WriteAborted, write=number)]

        await until(done)
        return done()[0]
