"""The committer (seed 001, section 6): consumed offsets are committed by interval, and when a member goes.

Together with them the records of members that are gone are deleted.
"""

from __future__ import annotations

from proxy.coordinator.events import PartitionOffsets
from proxy.coordinator.group import Group
from proxy.coordinator.steps import Steps
from proxy.coordinator.timers import Timers
from proxy.coordinator.writes import Writes

MAX_GROUPS = 25
"""Groups whose offsets are committed in one transaction: it takes a request to Kafka for each."""

MAX_TOMBSTONES = 200
"""Records of members that are deleted in one transaction, of one group."""

SOON_MS = 50
"""Until the offsets of a member that is gone are committed: those of others that go with it are gathered."""

RETRY_MS = 1000
"""Until what could not be committed is written again."""


class Committer:
    """Writes what the groups have to commit, partition by partition."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._timers: Timers[int] = Timers()
        self._uncommitted: dict[int, dict[str, Group]] = {}
        """By partition: the groups that have something to commit."""

    def __len__(self) -> int:
        return sum(len(groups) for groups in self._uncommitted.values())

    def commit_within(self, group: Group, now: int, interval_ms: int) -> None:
        """The group has something that is not committed."""
        self._uncommitted.setdefault(group.partition, {})[group.group_id] = group
        due = self._timers.at(group.partition)
        if due is None or due > now + interval_ms:
            self._timers.set(group.partition, now + interval_ms)

    def run(self, now: int, units: int) -> int:
        """Write what is due, so far as there are units of work. Return how many are left."""
        while units > 0 and (partition := self._timers.pop(now)) is not None:
            units -= self._commit(partition)
            if self._uncommitted.get(partition):
                self._timers.set(partition, now)
        return units

    def commit_all(self, partition: int) -> Steps[None]:
        """Write all that the groups of a partition have to commit."""
        while self._uncommitted.get(partition):
            yield self._commit(partition)

    def _commit(self, partition: int) -> int:
        """Write what some groups of a partition have to commit. Return how many units of work that was."""
        waiting, groups = self._uncommitted[partition], list[Group]()
        units = 1
        while waiting and len(groups) < MAX_GROUPS and units < MAX_TOMBSTONES:
            _, group = waiting.popitem()
            units += 1
            if _has_something(group):
                groups.append(group)
                units += 2 + group.count_obsolete_records(MAX_TOMBSTONES)
        if groups:
            self._write(partition, groups)
        for group in groups:
            if group.has_obsolete_records():
                waiting[group.group_id] = group
        return units

    def _write(self, partition: int, groups: list[Group]) -> None:
        for group in groups:
            if group.has_ordinary_members:  # which commit by themselves
                group.offsets.forget_uncommitted()
        tombstones = {group.group_id: group.take_tombstones(MAX_TOMBSTONES) for group in groups}
        offsets = {group.group_id: group.offsets.take_uncommitted() for group in groups}

        def ended(committed: bool, now: int) -> None:
            for group in groups:
                group.offsets.write_ended(offsets[group.group_id], committed=committed)
                if not committed:
                    for consumer_id in tombstones[group.group_id]:
                        group.record_is_obsolete(consumer_id)
                    self.commit_within(group, now, RETRY_MS)

        records = [record for of_group in tombstones.values() for record in of_group.values()]
        reported: dict[str, PartitionOffsets] = {
            group_id: of_group for group_id, of_group in offsets.items() if of_group
        }
        if records or reported:
            self._writes.begin(partition, records, reported, ended)
        else:
            ended(True, 0)

    def drop(self, partition: int) -> None:
        """The partition is lost: nothing of it is written any more."""
        self._timers.cancel(partition)
        self._uncommitted.pop(partition, None)

    def due(self) -> int | None:
        """When something is to be written."""
        return self._timers.next()


def _has_something(group: Group) -> bool:
    return group.offsets.has_uncommitted() or group.has_obsolete_records()
