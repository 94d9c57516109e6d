"""Which epoch of finalized levels a sidecar has applied: all of its processes, of all of its runs. Pure.

After a takeover two runs of one sidecar write events: the successor, and its predecessor, which drains. They have one
record in the registry, that of the successor. So an epoch counts as applied once both follow it, and none of them has
an event above its levels left to deliver, or a group of consumers that works above them. What a run leaves on disk at
its end is another process's from then on: it counts once that has searched the disk for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, COORDINATOR_PROTOCOL
from proxy.features.levels import FleetLevels


class AuditLevels(NamedTuple):
    """What the audit of all processes of this run does.

    ``levels``: numbers of processes by the level in use; empty without audit. ``undelivered``: events that are not on
    the topic yet, by level. ``searched_at``: since when all that dead runs had left on disk by then is part of it, in
    monotonic seconds. 0: it is not known what they left; infinite: they cannot leave anything.
    """

    levels: Mapping[int, int] = {}
    undelivered: Mapping[int, int] = {}
    searched_at: float = math.inf

    @classmethod
    def of(cls, audit: Mapping[str, Any], process_ended_at: float) -> Self:
        """Return that of a snapshot's ``audit``, which is empty without one.

        ``process_ended_at``: when the last process was found to have ended, 0 if none was. The others have to search
        the disk after that, each of them, since any of them may have found what it left.
        """
        if not audit:
            return cls()
        searched_at = min(audit["searched"], default=0.0)
        return cls(audit["levels"], audit["undelivered"], searched_at if searched_at > process_ended_at else 0.0)


class GroupLevels(NamedTuple):
    """What the coordinator of this run does. ``followed``: the level that new rebalances use at most. ``groups``:
    numbers of groups by the highest level at which they may still work: of their owners, and of a rebalance."""

    followed: int = 1
    groups: Mapping[int, int] = {}


NO_GROUPS = GroupLevels()
"""Of a sidecar that coordinates none."""


class Applied(NamedTuple):
    """``epoch``: the last one that is applied, −1 if none is. ``undelivered_above``: events above the level in use that
    are left to deliver."""

    epoch: int = -1
    undelivered_above: int = 0


class AppliedEpoch:
    """The epoch that this sidecar has applied. ``inherits``: it takes over from a predecessor."""

    def __init__(self, *, inherits: bool = False) -> None:
        self._own = Applied()
        self.groups_above = 0
        """Groups of this run that work above the level in use."""
        self._predecessor = Applied() if inherits else None
        self._predecessor_ended_at: float | None = None

    @property
    def registered(self) -> Applied:
        """What the registry says of this sidecar: of this run, and of a predecessor as long as that counts."""
        before = self._predecessor
        if before is None:
            return self._own
        above = self._own.undelivered_above + before.undelivered_above
        return Applied(min(self._own.epoch, before.epoch), above)

    def predecessor_applies(self, applied: Applied) -> None:
        """Note what the predecessor has applied by now."""
        if self._predecessor is not None and self._predecessor_ended_at is None:
            self._predecessor = applied

    def predecessor_ended(self, now: float) -> None:
        """Note that the predecessor has ended. ``now``: monotonic seconds.

        It counts until what it may have left on disk is counted by this run.
        """
        if self._predecessor_ended_at is None:
            self._predecessor_ended_at = now

    def update(self, levels: FleetLevels, audit: AuditLevels, groups: GroupLevels = NO_GROUPS) -> None:
        """Note what the audit and the coordinator of this run do, while its processes were to follow ``levels``."""
        ended_at = self._predecessor_ended_at
        if ended_at is not None and audit.searched_at > ended_at:
            self._own, self._predecessor = self.registered, None  # what it left is now part of this run's
        level = levels.in_use.get(AUDIT_EVENT_SCHEMA, 0)
        above = sum(events for of, events in audit.undelivered.items() if of > level)
        follows = all(of == level for of in audit.levels)
        highest = max(levels.in_use.get(COORDINATOR_PROTOCOL, 1), 1)
        self.groups_above = sum(number for of, number in groups.groups.items() if of > highest)
        follows = follows and groups.followed <= highest and not self.groups_above
        is_applied = follows and not above and audit.searched_at > 0
        self._own = Applied(levels.epoch if is_applied else self._own.epoch, above)
