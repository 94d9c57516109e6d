"""What a process knows of the coordinators of the fleet; its data path answers clients with it. The main process
knows it first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from proxy.coordinator.records import partition_of

NO_COORDINATOR = -1


class GroupsView(NamedTuple):
    """Replaced as a whole.

    ``partitions``: over which groups are spread (P), for ever; 0: not known yet. ``holders``: broker id of the sidecar
    that holds a partition, or is to hold it; NO_COORDINATOR, or no entry: there is none. ``own``: partitions that this
    sidecar holds. ``level``: the finalized maximum of ``brokerside.coordinator.protocol``; 0: not finalized, so no
    group is coordinated.
    """

    partitions: int = 0
    holders: Mapping[int, int] = {}
    own: frozenset[int] = frozenset()
    level: int = 0

    @property
    def is_coordinating(self) -> bool:
        """Whether groups are coordinated at all."""
        return self.level > 0 and self.partitions > 0

    def partition_of(self, group_id: str) -> int:
        """Return the partition of a group, while there are any."""
        return partition_of(group_id, self.partitions)

    def coordinator_of(self, partition: int) -> int:
        """Return the broker id of the sidecar that coordinates the groups of ``partition``; NO_COORDINATOR: none."""
        return self.holders.get(partition, NO_COORDINATOR) if self.is_coordinating else NO_COORDINATOR


class GroupsDirectory:
    """The current view, shared by all listeners of a process."""

    def __init__(self) -> None:
        self.view = GroupsView()
