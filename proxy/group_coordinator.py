"""Runs the coordinator of consumer groups: it feeds the machine (``proxy.coordinator``), and does what that asks for.

All of it is on the event loop of the main process, in slices: traffic of clients goes on between two. What has happened
waits in a queue. The machine gets the next event when all effects of the one before are done, so that it never reckons
with something that was not sent yet.

The right to speak is checked by time before each request to a consumer, since the process may have been paused between
the decision and the sending (assumption A5 of docs/coordinator.md). A request that is sent late is reported to the
machine: the lease of its consumer begins when the kernel has taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import TypeVar, cast

import structlog

from proxy.config import Config
from proxy.coordinator.description import (
    Clocks,
    count_quarantined,
    describe_group,
    describe_partitions,
)
from proxy.coordinator.effects import (
    CloseConsumer,
    ConsumerAccepted,
    CountGroupEvent,
    Effect,
    FindOrdinaryMembers,
    LogGroupEvent,
    SendFrame,
    WatchTopics,
)
from proxy.coordinator.events import (
    ConnectionDrained,
    EndpointsChanged,
    Event,
    PartitionLost,
    ResponseReceived,
    SettingsChanged,
    TopicsChanged,
)
from proxy.coordinator.settings import CoordinatorSettings
from proxy.coordinator.status import CoordinatorStatus, GroupStatus
from proxy.coordinator.steps import SLICE, Steps
from proxy.coordinator.view import NO_COORDINATOR, GroupsView
from proxy.fleet.applied_epoch import GroupLevels
from proxy.fleet.boottime import boottime_ms
from proxy.group_contracts import ConsumerLinks, CoordinatorMachine, MakeCluster
from proxy.group_log import GroupLog

NOT_FINALIZED = "brokerside.coordinator.protocol is not finalized, or not read yet (brokerside features describe)"
EVACUATED = "it is evacuated (brokerside groups return)"

SLICE_SECONDS = 0.002
"""Longest work in one iteration of the event loop, but for one event of the machine."""

LATE_SEND_MS = 5
"""A request that is sent so long after it was decided is reported as sent at that later time."""

MAX_QUEUED_EVENTS = 20_000
MAX_QUEUED_BYTES = 33_554_432
"""Events that wait, and bytes of their frames. Beyond that, the loop works on them before it takes more."""

GROUPS_AT_ONCE = 50
"""Groups that are described before clients are served."""

MAX_SLEEP_MS = 1000
"""Longest time between two readings of the clock: the loop's own does not go on while the machine sleeps."""

SETTLE_TIMEOUT = 1.0
"""Seconds that the end waits until the connections of consumers are closed."""

RESTART_DELAY = 10.0
"""Seconds after a mistake of ours until this sidecar coordinates groups again."""

log = structlog.get_logger(__name__)

T = TypeVar("T")


class GroupCoordinator:
    """Runs from ``start`` to ``close``. Belongs to the event loop's thread."""

    def __init__(
        self,
        config: Config,
        make_machine: Callable[[CoordinatorSettings], CoordinatorMachine],
        consumers: ConsumerLinks,
        make_cluster: MakeCluster,
        on_view: Callable[[GroupsView], None],
        *,
        now: Callable[[], int] = boottime_ms,
    ) -> None:
        """``on_view``: gets each new view of the coordinators. ``now``: milliseconds of a clock that goes on while the
        machine sleeps."""
        self.broker_id = config.broker_id
        self._config = config
        self._view = GroupsView()
        self._settings = settings_of(config, self._view)
        self._make_machine = make_machine
        self._consumers = consumers
        self._cluster = make_cluster(self.post, self._on_groups_view)
        self._on_view = on_view
        self._now = now
        self._loop = asyncio.get_running_loop()
        self.machine = make_machine(self._settings)
        self.log = GroupLog()
        self._lost: deque[PartitionLost] = deque()
        self._events: deque[Event] = deque()
        self._queued_bytes = 0
        self._effects: deque[tuple[int, Effect]] = deque()  # each with the time of its decision
        self._due_handled_at = -1
        self._working = self._scheduled = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._is_evacuated = False
        self._topics: deque[TopicsChanged] = deque()
        self._endpoints: EndpointsChanged | None = None  # the last ones
        self._publishing_topics: asyncio.Task[None] | None = None

        self.start = self._cluster.start
        self.update_features = self._cluster.update_features
        self.update_fleet_view = self._cluster.update_fleet_view
        self.expect_coordinator = self._cluster.expect_coordinator
        self.refresh_topics = self._cluster.refresh_topics

    def reconfigure(self, config: Config) -> None:
        """Take over a changed configuration."""
        self._config = config
        self._cluster.reconfigure(config)
        self._update_settings()

    def _on_groups_view(self, view: GroupsView) -> None:
        self._view = view
        self._update_settings()
        self._on_view(view)

    def _update_settings(self) -> None:
        settings = settings_of(self._config, self._view)
        if settings != self._settings:
            self._settings = settings
            self.post(SettingsChanged(settings))

    def post(self, event: Event) -> None:
        """Take an event. It is handled in this iteration of the loop only where too many wait."""
        if self._closed:
            return
        if isinstance(event, TopicsChanged):
            self._topics.append(event)
            if self._publishing_topics is None:
                self._publishing_topics = self._loop.create_task(self._publish_topics())
            return
        if isinstance(event, EndpointsChanged):
            self._endpoints = event
        if isinstance(event, PartitionLost):
            self._lost.append(event)
        else:
            self._events.append(event)
            if isinstance(event, ResponseReceived):
                self._queued_bytes += len(event.frame)
        while not self._working and self._is_full():
            self._work(until=0.0)
        self._schedule()

    def may_send(self, number: int) -> bool:
        """Return whether a request may be sent to a consumer now: not while its partition is mute, or has to be."""
        return self.machine.may_send(number, self._now())

    def evacuate(self) -> None:
        """Let other sidecars coordinate all groups, until ``return_``."""
        self._is_evacuated = True
        self._cluster.evacuate()

    def return_(self) -> None:
        """Coordinate groups again."""
        self._is_evacuated = False
        self._cluster.return_()

    @property
    def reason(self) -> str | None:
        """Why no group is coordinated here; None where groups may be."""
        if not self._view.level:
            return NOT_FINALIZED
        return EVACUATED if self._is_evacuated else None

    def status(self) -> CoordinatorStatus:
        """Return all about the coordinator. Maxima in it are those since the last call."""
        state = self.machine.state
        groups = state.groups.values()
        return CoordinatorStatus(
            level=self._view.level,
            partitions=self._view.partitions,
            evacuated=self._is_evacuated,
            held=describe_partitions(state),
            fields=self.machine.sizes(),
            groups=Counter(group.state.value for group in groups),
            consumers=sum(len(group.members) for group in groups),
            highest_level=self.machine.highest_level(),
            quarantined_partitions=sum(count_quarantined(group) for group in groups),
            totals=self.log.totals(),
        )

    def group_levels(self) -> GroupLevels:
        """Return at which levels of the protocol groups work here, and up to which the next rebalances will."""
        state = self.machine.state
        return GroupLevels(state.settings.level, Counter(group.highest_level() for group in state.groups.values()))

    async def list_groups(self) -> list[GroupStatus]:
        """Return all groups, without their consumers, in steps between which the event loop serves clients."""
        found, state = [], self.machine.state
        for place, group_id in enumerate(sorted(state.groups)):
            if (group := state.groups.get(group_id)) is not None:
                found.append(await _in_slices(describe_group(state, group, self._clocks(), with_consumers=False)))
            if place % GROUPS_AT_ONCE == GROUPS_AT_ONCE - 1:
                await asyncio.sleep(0)
        return found

    async def find_group(self, group_id: str) -> GroupStatus | None:
        """Return a group with its consumers; None if it is not coordinated here. In steps, as ``list_groups``."""
        group = self.machine.state.groups.get(group_id)
        if group is None:
            return None
        return await _in_slices(describe_group(self.machine.state, group, self._clocks(), with_consumers=True))

    def coordinator_of(self, group_id: str) -> int:
        """Return the broker id of the sidecar that coordinates a group; NO_COORDINATOR: none."""
        if not self._view.is_coordinating:
            return NO_COORDINATOR
        return self._view.coordinator_of(self._view.partition_of(group_id))

    def _clocks(self) -> Clocks:
        return Clocks(self._now(), time.time())

    async def resign(self) -> None:
        """Let other sidecars coordinate all groups, for good, and close the connections of their consumers."""
        await self._cluster.resign()
        self._idle.clear()
        self._schedule()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT):
                await self._idle.wait()

    async def close(self) -> None:
        """Stop. What waits is not done any more."""
        await self._cluster.close()
        self.abort()

    def abort(self) -> None:
        """Stop at once."""
        self._closed = True
        if self._publishing_topics is not None:
            self._publishing_topics.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._forget()

    def _forget(self) -> None:
        self._topics.clear()
        self._lost.clear()
        self._events.clear()
        self._effects.clear()
        self._queued_bytes = 0

    async def _publish_topics(self) -> None:
        """Give topics to the machine once it is known who may read them."""
        try:
            while self._topics:
                event = self._topics.popleft()
                await self._consumers.set_topics(event.topics.keys())
                self._events.append(event)
                self._schedule()
        except Exception:
            log.exception("coordinator_failed")
            self._restart()
        finally:
            self._publishing_topics = None

    def _is_full(self) -> bool:
        return len(self._events) > MAX_QUEUED_EVENTS or self._queued_bytes > MAX_QUEUED_BYTES

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        self._work(time.perf_counter() + SLICE_SECONDS)
        self._arm()

    def _work(self, until: float) -> None:
        """Do one thing at least, and go on until the loop's time ``until``."""
        self._working = True
        try:
            while self._step():
                if time.perf_counter() >= until:
                    self._schedule()
                    break
            else:
                due = self.machine.due()
                if due is None or due > self._now():
                    self._idle.set()
        except Exception:
            log.exception("coordinator_failed")  # a mistake of ours: consumers find another coordinator, or this one
            self._restart()
        finally:
            self._working = False

    def _step(self) -> bool:
        """Do one thing; return whether there was any to do."""
        now = self._now()
        if self._lost:
            self._withdraw(self._lost.popleft(), now)
            return True
        if self._effects:
            decided_at, effect = self._effects.popleft()
            self._perform(effect, decided_at, now)
            return True
        due = self.machine.due()
        if due is not None and due <= now and self._due_handled_at != now:
            self._due_handled_at = now
            self._handle(None, now)
            return True
        if not self._events:
            return False
        event = self._events.popleft()
        if isinstance(event, ResponseReceived):
            self._queued_bytes -= len(event.frame)
        self._handle(event, now)
        return True

    def _handle(self, event: Event, now: int) -> None:
        self._effects.extend((now, effect) for effect in self.machine.handle(event, now))

    def _withdraw(self, event: PartitionLost, now: int) -> None:
        """Do nothing any more that was decided for a partition before it was lost."""
        found = self.machine.handle(event, now)
        closed = {one.connection for one in found if isinstance(one, CloseConsumer)}
        self._effects = deque(one for one in self._effects if not _is_of(one[1], event.partition, closed))
        self._effects.extend((now, effect) for effect in found)

    def _perform(self, effect: Effect, decided_at: int, now: int) -> None:
        match effect:
            case SendFrame():
                self._send(effect, decided_at, now)
            case ConsumerAccepted():
                self._consumers.accept(effect.connection, effect.user_timeout_ms)
            case CloseConsumer():
                self._consumers.close(effect.connection, effect.cause)
            case LogGroupEvent():
                self.log.log(effect, now)
            case CountGroupEvent():
                self.log.count(effect)
            case _:
                self._cluster.perform(effect)

    def _send(self, effect: SendFrame, decided_at: int, now: int) -> None:
        """Send a frame if the partition is not mute by now. What is not sent is like what is never answered."""
        if not self.machine.may_send(effect.connection, now):
            self.log.count(CountGroupEvent("frames_withheld_total", ()))
            return
        is_taken = self._consumers.send(effect.connection, effect.frame)
        if is_taken and now - decided_at >= LATE_SEND_MS:
            self._events.appendleft(ConnectionDrained(effect.connection))

    def _restart(self) -> None:
        """Begin again with nothing but what is reported only when it changes, and hold no partition for a while."""
        self._forget()
        self.machine = self._make_machine(self._settings)
        self._consumers.close_all()
        self._cluster.close_partitions()
        self._cluster.evacuate()
        if self._endpoints is not None:
            self.post(self._endpoints)
        self._loop.call_later(RESTART_DELAY, self._return_after_restart)

    def _return_after_restart(self) -> None:
        if not self._is_evacuated and not self._closed:
            self._cluster.return_()

    def _arm(self) -> None:
        """Read the clock again when the machine is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.machine.due()
        if due is not None and not self._closed:
            wait = min(max(due - self._now(), 1), MAX_SLEEP_MS)
            self._timer = self._loop.call_later(wait / 1000, self._schedule)


async def _in_slices(steps: Steps[T]) -> T:
    """Do work in steps between which the event loop serves clients."""
    while True:
        units = 0
        while units < SLICE:
            try:
                units += next(steps)
            except StopIteration as end:
                return cast(T, end.value)
        await asyncio.sleep(0)


def settings_of(config: Config, view: GroupsView) -> CoordinatorSettings:
    """Return the settings of the machine."""
    section = config.coordinator
    return CoordinatorSettings(
        broker_id=config.broker_id,
        partition_count=view.partitions or section.partitions,
        min_session_timeout_ms=section.min_session_timeout_ms,
        max_ping_retries=section.max_ping_retries,
        max_rebalance_retries=section.max_rebalance_retries,
        rebalance_backoff_ms=section.rebalance_backoff_ms,
        rebalance_delay_ms=section.rebalance_delay_ms,
        rebalance_threadpool_size=section.rebalance_threadpool_size,
        offset_commit_interval_ms=section.offset_commit_interval_ms,
        state_write_timeout_ms=section.state_write_timeout_ms,
        max_consumers=section.max_consumers,
        frozen_groups=frozenset(group for group, one in section.groups.items() if not one.rebalance_enabled),
        level=view.level,
    )


def _is_of(effect: Effect, partition: int, connections: Collection[int]) -> bool:
    """Return whether an effect is of a partition, or of one of the connections."""
    match effect:
        case SendFrame() | ConsumerAccepted() | CloseConsumer():
            return effect.connection in connections
        case LogGroupEvent() | CountGroupEvent() | FindOrdinaryMembers() | WatchTopics():
            return False
        case _:
            return effect.partition == partition
