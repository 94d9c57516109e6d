"""One schedule: a fleet, its consumers and a cluster, made and disturbed by one seed, until all is well again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any
from zlib import crc32

from proxy.client.consumer.settings import MembershipSettings
from proxy.config.values import Endpoint
from proxy.coordinator.effects import Effect
from proxy.coordinator.events import Event
from proxy.coordinator.machine import Coordinator
from proxy.coordinator.settings import CoordinatorSettings
from proxy.coordinator.steps import SLICE
from tests.tools.simulation.consumer import Consumer
from tests.tools.simulation.faults import FAULTS, Fault, plan
from tests.tools.simulation.invariants import InvariantError, Invariants
from tests.tools.simulation.kafka import Kafka
from tests.tools.simulation.network import Network, Socket
from tests.tools.simulation.sidecar import PORT, Registration, Sidecar
from tests.tools.simulation.timeline import Timeline

SUBSCRIPTIONS = ('{"t1":1}', '{"t1":2}', '{"t1":1,"t2":1}', '{"t2":2,"t3":1}', "*1*t.*", "!2!t1")

History = tuple[CoordinatorSettings, int, list[tuple[Event, int]], list[list[Effect]]]
"""Of one run of a coordinator: how it was made (settings, units of work in a call), its events with times, its effects.
"""

CHECK_EVERY = 250
"""Milliseconds between two checks whether all is well again."""

SETTLED = 3000
"""Milliseconds for which it has to stay well."""

REFUSED_FOR = 60_000
"""Milliseconds for which a consumer is refused that has let an attempt fail for good."""

FOUND_WITHIN = 12_000
"""Milliseconds until a dead sidecar is found, and its partitions are taken."""

SLOWEST_SEARCH = 20_000
"""Milliseconds that a consumer may take to find its coordinator: its longest time-outs and back-offs, some of each."""

SLOWEST_TRIGGER = 10_000
"""Milliseconds by which a rebalance is delayed at most."""


class World:
    """Everything. ``tracing``: whether the story is kept; ``keeps_history``: events and effects, to repeat them."""

    def __init__(
        self,
        seed: int,
        *,
        tracing: bool = False,
        keeps_history: bool = False,
        faults: Sequence[Fault] = FAULTS,
    ) -> None:
        self.faults = faults
        self.seed, self.tracing, self.keeps_history = seed, tracing, keeps_history
        self.story: list[str] = []
        self.random = random = Random(seed)
        self.timeline = Timeline()
        self.network = Network(self.timeline, random)
        self.partitions = random.choice((1, 1, 2, 3))
        self.kafka = Kafka(self.timeline, random, self.partitions)
        self.registry: dict[int, Registration] = {}
        self.denied: set[tuple[str, str]] = set()
        """Rights that were revoked: client id and topic, or ``""`` for the group."""
        self.settings = CoordinatorSettings(
            partition_count=self.partitions,
            rebalance_threadpool_size=random.choice((1, 16)),
            max_ping_retries=random.choice((1, 2, 2, 3)),
            max_rebalance_retries=random.choice((0, 1, 4)),
            rebalance_backoff_ms=random.choice((500, 2000)),
            offset_commit_interval_ms=random.choice((2000, 10_000)),
            state_write_timeout_ms=random.choice((2000, 5000, 5000)),
            level=random.choice((1, 2)),
        )
        self.units = random.choice((1, 5, SLICE))
        """Of work in one call of a coordinator: groups are so small that an attempt is one slice by default."""
        self.histories: list[History] = []
        self._connections = 0
        self.invariants = Invariants(self)
        self.kafka.on_commit = self.invariants.committed
        brokers = random.choice((1, 2, 2, 3))
        for number in range(1, random.choice((1, 2, 3)) + 1):
            self.kafka.create(f"t{number}", random.choice((1, 2, 3, 6)), brokers)
        self.kafka.leaders = [1 + random.randrange(brokers) for _ in self.kafka.leaders]
        self.sidecars = [Sidecar(self, broker_id) for broker_id in range(1, brokers + 1)]
        self._by_host = {one.name: one for one in self.sidecars}
        self.consumers = [self._consumer(number) for number in range(random.choice((1, 2, 2, 3, 3, 4, 5)))]
        self.can_refuse = False
        """Whether a consumer may be refused for a minute after the last fault."""
        self.recovery = 0
        self.is_healed = False
        self._awaited: dict[str, list[Fault]] = {}

    def _consumer(self, number: int) -> Consumer:
        random = self.random
        if number == 0:
            self._groups = ("g",) if random.random() < 0.8 else ("g", "h")
            self._auto_commit = random.random() < 0.8
            self._subscriptions = SUBSCRIPTIONS if random.random() < 0.5 else (random.choice(SUBSCRIPTIONS),)
            self._levels = random.choice(((1,), (2,), (2,), (1, 2)))
            self._timeouts = (3001, 6000, 10_000) if random.random() < 0.3 else (random.choice((3001, 6000, 10_000)),)
        name = f"consumer-{number}"
        brokers = [Endpoint(one.name, PORT) for one in self.sidecars]
        random.shuffle(brokers)
        settings = MembershipSettings(
            tuple(brokers),
            random.choice(self._groups),
            name,
            random.choice(self._subscriptions),
            name,
            session_timeout_ms=random.choice(self._timeouts),
            auto_commit=self._auto_commit,
            auto_offset_reset=random.choice(("smallest", "smallest", "largest")),
            detached_fetching=random.random() < 0.9,
            protocol_level=random.choice(self._levels),
        )
        return Consumer(self, settings)

    # What its parts ask for

    def note(self, who: str, text: str, *values: object) -> None:
        """Add a line to the story."""
        if self.tracing:
            self.story.append(f"{self.timeline.now:>7} {who}: {text % values if values else text}")

    def logged(self, sidecar: Sidecar, level: str, name: str, fields: Mapping[str, Any]) -> None:
        if name == "coordinator_invariant":
            raise InvariantError("I1", f"{sidecar.name}: {fields}")
        if name == "ConsumerRebalanceFailedException":
            self.can_refuse = True
        if self.tracing:
            self.note(sidecar.name, "%s %s", name, dict(fields))

    def sidecar_at(self, host: str) -> Sidecar:
        return self._by_host[host]

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    def partition_of(self, group_id: str) -> int:
        return crc32(group_id.encode()) % self.partitions

    def unreadable(self, client_id: str) -> frozenset[str]:
        return frozenset(topic for who, topic in self.denied if who == client_id and topic)

    def at_next(self, moment: str, fault: Fault) -> None:
        """Let something go wrong as soon as a group is rebalanced. ``moment``: ``stop``, ``commit`` or ``start``."""
        self._awaited.setdefault(moment, []).append(fault)

    def reached(self, moment: str) -> None:
        """A StopFetcher is sent, a generation is to be written, a StartFetcher is sent."""
        for fault in self._awaited.pop(moment, ()):
            self.later(self.random.choice((0, 0, 1, 5, 30, 200)), fault)

    def later(self, delay: int, fault: Fault) -> None:
        """Let something go wrong after a time, unless all is healed by then."""
        self.timeline.after(delay, lambda: None if self.is_healed else fault(self))

    def a_link(self) -> Socket | None:
        """The consumer's end of some connection."""
        links = [one.socket for one in self.consumers if one.is_running and one.socket is not None]
        return self.random.choice(links) if links else None

    def apply(self, settings: CoordinatorSettings) -> None:
        """A configuration, or a finalized level, that each sidecar hears of at its own time."""
        self.settings = settings
        for one in self.sidecars:
            if one.is_running:
                one.later(self.random.randrange(2000), -4, lambda one=one: one.apply(self.settings))  # type: ignore[misc]

    def repeat(self) -> None:
        """I10: give each coordinator's events to another one."""
        for settings, units, events, effects in self.histories:
            again = Coordinator(settings, units=units)
            for (event, now), before in zip(events, effects, strict=True):
                if (after := again.handle(event, now)) != before:
                    raise InvariantError("I10", f"at {now}, {event}: {before}, and then {after}")

    # The schedule

    def run(self) -> None:
        """Raises InvariantError."""
        random, timeline = self.random, self.timeline
        for process in (*self.sidecars, *self.consumers):
            timeline.at(random.randrange(3000), process.start)
        quiet_at = plan(self)
        while timeline.now < quiet_at:
            timeline.step()
        self._heal()
        self._wait_until_well()

    def _wait_until_well(self) -> None:
        """I5."""
        timeline, began = self.timeline, self.timeline.now
        well_since: int | None = None
        missing: str | None = ""
        while timeline.now < began + self._bound() + SETTLED:
            at = timeline.now + CHECK_EVERY
            timeline.at(at, lambda: None)
            while timeline.now < at:
                timeline.step()
            self.invariants.check_purgatories()
            missing = self.invariants.missing()
            if missing is not None:
                well_since = None
            elif well_since is None:
                well_since = timeline.now
            elif timeline.now - well_since >= SETTLED:
                self.recovery = well_since - began
                return
        raise InvariantError("I5", missing or "it was well, and did not stay so")

    def _bound(self) -> int:
        timeouts = [one.settings.session_timeout_ms for one in self.consumers]
        longest, settings = max(timeouts), self.settings
        lease = settings.state_write_timeout_ms * 102 // 100 + longest * 4 // 3
        attempts = 2 * (longest * 2 // 3) + settings.rebalance_backoff_ms
        search = FOUND_WITHIN + SLOWEST_SEARCH + SLOWEST_TRIGGER
        return lease + attempts + search + (REFUSED_FOR if self.can_refuse else 0)

    def _heal(self) -> None:
        """No fault is left."""
        self._awaited.clear()
        self.is_healed = True
        self.note("world", "no fault is left")
        self.network.lost_until.clear()
        for socket in self.network.sockets:
            socket.lost_until = min(socket.lost_until, self.timeline.now)
        self.kafka.unreachable_until.clear()
        self.kafka.ordinary_since.clear()
        self.denied.clear()
        self.apply(self.settings._replace(frozen_groups=frozenset()))
        for one in self.sidecars:
            one.go_on()
            one.is_powered = True
            one.is_evacuated = False
            if not one.is_running:
                one.start()
        for consumer in self.consumers:
            consumer.go_on()
            consumer.is_powered = True
            consumer.fails = False
            if consumer.hangs_until > self.timeline.now and consumer.is_running:
                consumer.kill(powered=True)
            consumer.hangs_until = 0
            if not consumer.is_running and consumer.starts_again:
                consumer.start()
