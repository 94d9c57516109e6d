"""Holds partitions of the topic of groups, as the elections say: who coordinates which groups.

It follows the registry and the finalized levels, and reports which partitions this sidecar gets and loses, and a view
of all coordinators. All of it is on the loop.

A sidecar that is to hold no partition any more first registers that it is no candidate, and then waits until others
hold its partitions: its consumers find them at once. It lets go after ``LEAVE_WITHIN_MS`` in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import structlog

from proxy.coordinator.events import Event, PartitionAssigned, PartitionLost
from proxy.coordinator.view import GroupsView
from proxy.features.catalog import COORDINATOR_PROTOCOL
from proxy.features.view import FeaturesView
from proxy.fleet.group_elections import LOG, GroupElections, Holds, candidates_of, held_by_others, hold_of, holders_of
from proxy.fleet.membership import RegistryContent
from proxy.fleet.suspicion import RECORD_LATE_AFTER_MS, Dialler, LateSidecar, Suspicion
from proxy.fleet.view import OwnGroups

TICK_INTERVAL = 1.0
"""Seconds between two looks at the time, and two attempts to connect to a sidecar that may have been killed."""

EXPECTED_MS = 3000
"""Milliseconds after a client has asked for a coordinator in which all other coordinators are dialled."""

LEAVE_WITHIN_MS = 2000
"""Milliseconds that others have to take the partitions of a sidecar that leaves."""

EVACUATED, STOPPING, NOT_FIT, OTHER_HOLDER = "evacuated", "stopping", "not_fit", "other_holder"
"""Why a partition is let go (``PartitionLost``)."""

log = structlog.get_logger(__name__)


class GroupRegistry(Protocol):
    """What is needed of ``FleetPoller``."""

    boot_id: str
    group_leaders: Sequence[int | None]

    def on_registry(self, callback: Callable[[RegistryContent, bool], None]) -> None:
        """Call ``callback`` with what the registry has, whenever some of it was read, and whether all was."""

    def update_groups(self, groups: OwnGroups) -> None:
        """Register other facts about the groups that this sidecar coordinates."""


class GroupPoller:
    """Runs from ``start`` to ``close``. ``is_evacuated``: no partition is held until ``return_`` is called."""

    def __init__(
        self,
        broker_id: int,
        registry: GroupRegistry,
        on_event: Callable[[Event], None],
        on_view: Callable[[GroupsView], None],
        check_empty: Callable[[int, Callable[[bool], None]], None],
    ) -> None:
        """``check_empty``: finds out whether a partition has no record, and calls back on the loop, later."""
        self._own = broker_id
        self._registry = registry
        self._on_event = on_event
        self._on_view = on_view
        self._check_empty = check_empty
        self._elections = GroupElections(broker_id)
        self._suspicion = Suspicion(broker_id, LOG)
        self._dialler = Dialler(self._on_refused)
        self._content: RegistryContent | None = None
        self._features = FeaturesView()
        self._partitions = 0
        self._taken: dict[int, int] = {}  # partitions to be assigned, each with a number of that attempt
        self._assigned: set[int] = set()
        self._holds: dict[int, int] = {}  # claims, as they are to be registered
        self._attempts = 0
        self._is_ready = False
        self._expected_until = 0
        self._dialled_at = -EXPECTED_MS
        self.is_evacuated = False
        self._leaving: str | None = None
        self._leave_until = 0
        self._left: asyncio.Event | None = None
        self._published = GroupsView()
        self._leave_timer: asyncio.TimerHandle | None = None
        self._changed_logged = self._ignored_logged = False
        self._ticks: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to follow the registry, on the running loop."""
        self._registry.on_registry(self._on_registry)
        self._ticks = asyncio.create_task(self._run_ticks())

    async def close(self) -> None:
        """Stop, after ``resign``."""
        if self._ticks is not None:
            self._ticks.cancel()
            await asyncio.gather(self._ticks, return_exceptions=True)
        if self._leave_timer is not None:
            self._leave_timer.cancel()
        await self._dialler.close()

    def mark_ready(self) -> None:
        """Note that partitions can be opened: the topic is there."""
        self._is_ready = True
        self._update()

    def update_features(self, view: FeaturesView) -> None:
        """Take over the finalized levels, and over how many partitions groups are spread."""
        self._features = view
        self._partitions = self._partitions or view.group_partitions
        if self._partitions != view.group_partitions and not self._changed_logged:
            self._changed_logged = True
            log.error("group_partitions_changed", partitions=self._partitions, now=view.group_partitions)
        self._update()

    def hold(self, partition: int, claim: int) -> None:
        """Register that this sidecar holds a partition. ``claim``: 0 while it is not open."""
        if partition in self._assigned:
            self._holds[partition] = claim
            self._publish()

    def lost(self, partition: int, reason: str) -> None:
        """Report that another sidecar has fenced this one, or that a partition could not be opened."""
        self._elections.lost(partition, self._now())
        self._lose([partition], reason)
        self._update()

    def expect_coordinator(self) -> None:
        """Note that a client has just asked for a coordinator: if one was killed, its consumers all do."""
        now = self._now()
        self._expected_until = now + EXPECTED_MS
        if now - self._dialled_at >= 1000 * TICK_INTERVAL:
            self._suspect(now)

    def evacuate(self) -> None:
        """Let others hold all partitions, until ``return_``."""
        self.is_evacuated = True
        self._leave(EVACUATED)

    def return_(self) -> None:
        """Hold partitions again."""
        self.is_evacuated = False
        if self._leaving == EVACUATED:
            self._leaving = None
        self._update()

    async def resign(self) -> None:
        """Let others hold all partitions, for good."""
        self._left = asyncio.Event()
        self._leave(STOPPING)
        await self._left.wait()

    def _leave(self, reason: str) -> None:
        if self._leaving == STOPPING:
            return
        self._leaving = reason
        self._leave_until = self._now() + LEAVE_WITHIN_MS
        self._update()
        self._leave_timer = asyncio.get_running_loop().call_later(LEAVE_WITHIN_MS / 1000, self._update)

    @staticmethod
    def _now() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    @property
    def _level(self) -> int:
        levels = self._features.finalized.get(COORDINATOR_PROTOCOL)
        return 0 if levels is None else levels.max

    def _is_fit(self) -> bool:
        return (
            self._is_ready
            and self._leaving is None
            and self._partitions == self._features.group_partitions  # 0: their number is not written yet
            and self._level in self._features.supported.get(COORDINATOR_PROTOCOL, ())
        )

    def _on_registry(self, content: RegistryContent, end: bool) -> None:
        if self._content is None and not end:
            return
        self._suspicion.read(content, self._now())
        before, self._content = self._content, self._suspicion.judge(content)
        if before is None or before.sidecars != self._content.sidecars:
            self._update()

    def _on_refused(self, late: LateSidecar) -> None:
        if self._content is None:
            return
        log.info("sidecar_suspected", broker_id=late.node_id, address=f"{late.host}:{late.port}")
        self._suspicion.refused(late)
        self._content = self._suspicion.judge(self._content)
        self._update()

    async def _run_ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_INTERVAL)
            try:
                self._update()
                self._suspect(self._now())
            except Exception:
                log.exception("group_poller_failed")  # a mistake of ours must not end the task

    def _suspect(self, now: int) -> None:
        """Find out whether a coordinator has been killed: once its record is late, or at once if it is looked for."""
        if self._content is None or self._leaving == STOPPING:
            return
        self._dialled_at = now
        for late in self._suspicion.late(self._content, now, 0 if now < self._expected_until else RECORD_LATE_AFTER_MS):
            self._dialler.dial(late)

    def _update(self) -> None:
        """Take and let go partitions, as the elections say, and publish what has changed."""
        now, candidates = self._now(), self._candidates()
        self._log_ignored()
        if self._leaving is not None:
            self._let_go(candidates, now)
        elif self._content is not None:
            taken, let_go = self._elections.decide(candidates, self._registry.group_leaders, self._partitions, now)
            self._lose(let_go, OTHER_HOLDER if self._is_fit() else NOT_FIT)
            for partition in taken:
                self._take(partition)
        self._publish()

    def _log_ignored(self) -> None:
        """Log once that the topic has partitions over which no groups are spread: they were added later."""
        there = len(self._registry.group_leaders)
        if 0 < self._partitions < there and not self._ignored_logged:
            self._ignored_logged = True
            log.warning("group_partitions_ignored", partitions=self._partitions, there=there)

    def _candidates(self) -> Holds:
        """Return the candidates. This sidecar is one no longer than it is fit, whatever the registry still has."""
        if self._content is None:
            return {}
        found = candidates_of(self._content, self._own, self._registry.boot_id)
        return found if self._is_fit() else {one: holds for one, holds in found.items() if one != self._own}

    def _let_go(self, candidates: Holds, now: int) -> None:
        assert self._leaving is not None
        held = self._assigned | self._taken.keys()
        gone = held if now >= self._leave_until or not candidates else held_by_others(held, candidates, self._own)
        for partition in gone:
            self._elections.lost(partition, now)
        self._lose(sorted(gone), self._leaving)
        if self._left is not None and not self._assigned:
            self._left.set()

    def _take(self, partition: int) -> None:
        self._attempts += 1
        attempt = self._taken[partition] = self._attempts

        def checked(is_empty: bool) -> None:
            if self._taken.get(partition) == attempt:
                del self._taken[partition]
                self._assigned.add(partition)
                self._on_event(PartitionAssigned(partition, is_empty))
                self._publish()

        self._check_empty(partition, checked)

    def _lose(self, partitions: Iterable[int], reason: str) -> None:
        for partition in partitions:
            self._taken.pop(partition, None)
            self._holds.pop(partition, None)
            if partition in self._assigned:
                self._assigned.remove(partition)
                self._on_event(PartitionLost(partition, reason))

    def _publish(self) -> None:
        holds = {hold_of(partition): claim for partition, claim in sorted(self._holds.items())}
        self._registry.update_groups(OwnGroups(self._is_fit(), holds))
        view = GroupsView(self._partitions, self._holders(), frozenset(self._assigned), self._level)
        if view != self._published:
            self._published = view
            self._on_view(view)

    def _holders(self) -> Mapping[int, int]:
        found = holders_of(self._candidates(), self._registry.group_leaders, self._partitions)
        return {**found, **dict.fromkeys(self._assigned, self._own)}
