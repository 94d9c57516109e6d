"""The writes to the groups' topic that are under way, and what follows when they are committed or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from proxy.coordinator.effect_sink import EffectSink
from proxy.coordinator.effects import WriteRecords
from proxy.coordinator.events import PartitionOffsets
from proxy.coordinator.records import GroupRecord
from proxy.coordinator.steps import Steps, drain

WriteEnded = Callable[[bool, int], None]
"""What follows a write: called with whether it is committed, and with the time."""


class Writes:
    """Numbers the writes of this process. What follows a write is dropped with its partition."""

    def __init__(self, effects: EffectSink) -> None:
        self._effects = effects
        self._next = 0
        self._open: dict[int, tuple[int, WriteEnded]] = {}
        self._closed: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self, partition: int, records: Sequence[GroupRecord], offsets: Mapping[str, PartitionOffsets], then: WriteEnded
    ) -> None:
        """Write records and offsets (by group) in one transaction; nothing while the partition is closed."""
        if partition in self._closed:
            return
        number = self._next
        self._next += 1
        self._open[number] = (partition, then)
        self._effects.add(WriteRecords(partition, number, records, offsets))

    def ended(self, number: int, committed: bool, now: int) -> None:
        """A write is committed, or surely not; nothing happens if its partition was dropped meanwhile."""
        partition, then = self._open.pop(number, (0, None))
        if then is not None and partition not in self._closed:
            self._effects.count("writes_total", "committed" if committed else "aborted")
            then(committed, now)

    def close(self, partition: int) -> None:
        """What follows the writes of this partition is not to happen any more. Until ``open`` none begins."""
        self._closed.add(partition)

    def drop(self, partition: int) -> Steps[None]:
        """Forget the writes of a partition that is closed."""
        for number, write in drain(self._open.items()):
            if write[0] == partition:
                self._open.pop(number, None)
            yield 1

    def open(self, partition: int) -> None:
        """All that was known of the partition is dropped: it can be held again."""
        self._closed.discard(partition)
