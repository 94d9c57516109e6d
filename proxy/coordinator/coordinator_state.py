"""What the parts of the coordinator work on together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proxy.coordinator.effect_sink import EffectSink
from proxy.coordinator.group import Group
from proxy.coordinator.held_partition import HeldPartition
from proxy.coordinator.requests import ConsumerRequests
from proxy.coordinator.settings import CoordinatorSettings
from proxy.coordinator.steps import Jobs
from proxy.coordinator.topics import TopicIndex
from proxy.coordinator.wire import EndpointEntry
from proxy.coordinator.writes import Writes


@dataclass(slots=True)
class CoordinatorState:
    """``partitions``: those that are held, by number. ``groups``: of the partitions that are open, by group id."""

    settings: CoordinatorSettings
    effects: EffectSink
    requests: ConsumerRequests
    writes: Writes
    settings_number: int = 0
    """How often the settings were replaced."""
    now: int = 0
    """The time of the current call: for work that goes on through many of them."""
    jobs: Jobs = field(default_factory=Jobs)
    topics: TopicIndex = field(default_factory=TopicIndex)
    partitions: dict[int, HeldPartition] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    endpoints: Mapping[str, Sequence[EndpointEntry]] = field(default_factory=dict)
    """The brokers by listener, as its clients dial them."""

    def partition_of(self, group: Group) -> HeldPartition:
        """The partition that a group belongs to."""
        return self.partitions[group.partition]

    def may_speak_to(self, group: Group, now: int) -> bool:
        """Whether the group's consumers may be sent anything."""
        return self.partition_of(group).may_speak(now, self.settings.state_write_timeout_ms)
