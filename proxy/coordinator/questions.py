"""What the coordinator asks Kafka about a group: its committed offsets, and whether it has ordinary members."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.coordinator.effect_sink import EffectSink
from proxy.coordinator.effects import FindOrdinaryMembers, ReadCommittedOffsets
from proxy.coordinator.events import CommittedOffsetsRead, OrdinaryMembersFound
from proxy.coordinator.group import Group
from proxy.coordinator.steps import QUESTION_UNITS
from proxy.coordinator.timers import Timers

ORDINARY_INTERVAL_MS = 10_000
"""How often a group with members is checked for members of Kafka's own protocols."""

RETRY_MS = 500
"""Until a question that could not be asked is asked again."""

_OFFSETS = "offsets"
_ORDINARY = "ordinary"


class GroupQuestions:
    """Asks at once, asks again what was not answered, and repeats what may have changed."""

    def __init__(self, effects: EffectSink, groups: Mapping[str, Group]) -> None:
        self._effects, self._groups = effects, groups
        self._timers: Timers[tuple[str, str]] = Timers()
        self._next_read = 0

    def group_is_used(self, group: Group, now: int) -> None:
        """A consumer of the group registers: ask what is not known, or may be out of date."""
        if not group.offsets.is_loaded and group.read is None:
            self.read_offsets(group)
        if (_ORDINARY, group.group_id) in self._timers:
            return  # it is asked then; after a question that failed there is a pause
        asked_at = group.ordinary_asked_at
        if asked_at is None or now - asked_at >= ORDINARY_INTERVAL_MS:
            self._find_ordinary(group, now)
        else:
            self._timers.set((_ORDINARY, group.group_id), asked_at + ORDINARY_INTERVAL_MS)

    def group_is_unused(self, group: Group) -> None:
        """Nothing needs to be known of the group any more."""
        self._timers.cancel((_OFFSETS, group.group_id))
        self._timers.cancel((_ORDINARY, group.group_id))

    def read_offsets(self, group: Group) -> None:
        """Read the committed offsets. A reading that is under way does not count."""
        group.read = self._next_read
        self._next_read += 1
        self._timers.cancel((_OFFSETS, group.group_id))
        self._effects.add(ReadCommittedOffsets(group.partition, group.group_id, group.read))

    def offsets_read(self, group: Group, event: CommittedOffsetsRead, now: int) -> bool:
        """Return whether the offsets are known now."""
        if event.read != group.read:
            return False
        group.read = None
        if event.offsets is None:
            self._timers.set((_OFFSETS, group.group_id), now + RETRY_MS)
            return False
        group.offsets.loaded(event.offsets)
        return True

    def ordinary_found(self, group: Group, event: OrdinaryMembersFound, now: int) -> None:
        """Take the answer, and ask again after a while."""
        group.is_asking_ordinary = False
        if event.has_members is None:
            group.ordinary_asked_at = None  # a group that is used again after it was not is asked about at once
        else:
            group.has_ordinary_members = event.has_members
        interval = RETRY_MS if event.has_members is None else ORDINARY_INTERVAL_MS
        if not group.is_unused():
            self._timers.set((_ORDINARY, group.group_id), now + interval)

    def run(self, now: int, units: int) -> int:
        """Ask what is due to be asked again, so far as there are units of work. Return how many are left."""
        while units > 0 and (key := self._timers.pop(now)) is not None:
            units -= QUESTION_UNITS
            question, group_id = key
            group = self._groups.get(group_id)
            if group is None:
                continue
            if question == _OFFSETS:
                group.read = None
            if group.is_unused():
                continue
            if question == _OFFSETS:
                self.read_offsets(group)
            else:
                self._find_ordinary(group, now)
        return units

    def due(self) -> int | None:
        """When ``run`` is to be called."""
        return self._timers.next()

    def _find_ordinary(self, group: Group, now: int) -> None:
        if not group.is_asking_ordinary:
            group.is_asking_ordinary = True
            group.ordinary_asked_at = now
            self._effects.add(FindOrdinaryMembers(group.group_id))
