"""A sidecar: the real coordinator and the real election, and a process that carries their effects out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from proxy.coordinator import wire
from proxy.coordinator.effects import (
    CloseConsumer,
    ClosePartition,
    ConfirmClaim,
    ConsumerAccepted,
    CountGroupEvent,
    Effect,
    FindOrdinaryMembers,
    HoldPartition,
    LogGroupEvent,
    OpenPartition,
    ReadCommittedOffsets,
    SendFrame,
    WatchTopics,
    WriteRecords,
)
from proxy.coordinator.events import (
    CommittedOffsetsRead,
    ConnectionBuffered,
    ConnectionDrained,
    ConsumerConnectionEnded,
    ConsumerRegistered,
    EndpointsChanged,
    Event,
    OrdinaryMembersFound,
    PartitionAssigned,
    PartitionLost,
    PartitionOpened,
    ResponseReceived,
    RightsChanged,
    SettingsChanged,
    TopicFactsOfGroups,
    TopicsChanged,
    WriteCommitted,
)
from proxy.coordinator.machine import Coordinator
from proxy.coordinator.records import OwnersRecord
from proxy.coordinator.settings import CoordinatorSettings
from proxy.coordinator.wire import (
    ClusterMetadataResponse,
    EndpointEntry,
    RegisterConsumerRequest,
    RegisterConsumerResponse,
)
from proxy.fleet.election import Decision, Election, holder
from tests.tools.simulation.kafka import Topic
from tests.tools.simulation.network import Listener, Socket
from tests.tools.simulation.writer import CONFIRMATION, Job, Writer

if TYPE_CHECKING:
    from tests.tools.simulation.world import World

LISTENER = "PLAINTEXT"
PORT = 9092

TICK = 1000
"""Milliseconds between two readings of the cluster and the registry."""

READ_TIMEOUT = 5000
"""Milliseconds after which a question to Kafka is given up."""

NO_COORDINATOR, WRONG_COORDINATOR, GROUP_DENIED, TOPIC_DENIED = 15, 16, 30, 29

OF_KAFKA, OF_THE_FLEET = -2, -3
"""Sources of what a process waits for."""

LOG = "__brokerside_groups"

DEAD_AFTER = 9000
"""Milliseconds without a record of a sidecar after which it counts as dead."""

HEARTBEAT = 3000


class Registration(NamedTuple):
    """A sidecar's own record. ``holds``: its claim of each partition of the groups' topic that it holds."""

    boot_id: str
    written_at: int
    is_running: bool
    is_fit: bool
    holds: Mapping[int, int]


class RegistryReader:
    """What one sidecar has read. It is some time behind, and does not change while Kafka is unreachable."""

    def __init__(self) -> None:
        self._read: dict[int, Registration] = {}
        self._read_at = 0
        self._refused: dict[int, int] = {}

    def read(self, registry: Mapping[int, Registration], now: int) -> None:
        self._read = dict(registry)
        self._read_at = now

    def refused(self, broker_id: int) -> None:
        """A sidecar's address has refused a connection: it is dead until there is a later record of it."""
        if broker_id in self._read:
            self._refused[broker_id] = self._read[broker_id].written_at

    def fit(self) -> dict[int, Mapping[int, int]]:
        """The sidecars that run and are fit, with what they hold."""
        return {
            broker_id: one.holds
            for broker_id, one in self._read.items()
            if one.is_running and one.is_fit
            if self._read_at - one.written_at < DEAD_AFTER and self._refused.get(broker_id) != one.written_at
        }

    def has(self, broker_id: int, boot_id: str) -> bool:
        """Whether the record of this run was read."""
        return broker_id in self._read and self._read[broker_id].boot_id == boot_id


class Connection:
    """A connection to this sidecar. ``given``: to the coordinator; ``accepted``: it is a registered consumer's."""

    def __init__(self, number: int, socket: Socket) -> None:
        self.number, self.socket = number, socket
        self.given = self.accepted = False
        self.group_id = self.consumer_id = self.client_id = ""
        self.open_pings: set[int] = set()
        """Correlation ids of pings that are not answered."""


class Sidecar(Listener):
    """In front of the broker ``broker_id``."""

    def __init__(self, world: World, broker_id: int) -> None:
        super().__init__(world.timeline, world.random, f"sidecar-{broker_id}")
        self.world, self.broker_id = world, broker_id
        self.endpoint = EndpointEntry(broker_id, self.name, PORT)
        self.settings = world.settings._replace(broker_id=broker_id)
        self.is_evacuated = False
        self.own: set[int] = set()
        """Partitions that it holds, or is about to."""

    # Its life

    def start(self) -> None:
        super().start()
        world = self.world
        self.settings = world.settings._replace(broker_id=self.broker_id)
        self.coordinator = Coordinator(self.settings, units=world.units)
        self.history: list[tuple[Event, int]] = []
        self.effects: list[list[Effect]] = []
        world.histories.append((self.settings, world.units, self.history, self.effects))
        self.connections: dict[int, Connection] = {}
        self.holds: dict[int, int] = {}
        self.own = set()
        self.confirmed_at: dict[int, int] = {}
        """By partition, by its own clock: when the last write began of which it knows that it is committed."""
        self.writers: dict[int, Writer] = {}
        self.frozen_at = dict.fromkeys(self.settings.frozen_groups, 0)
        """Since when groups are frozen, by its own clock."""
        self.has_ordinary_members: dict[str, bool] = {}
        """By group, as it was last reported to the coordinator since it holds the group's partition."""
        self.asks_ordinary: set[str] = set()
        """Groups of which it asks Kafka that right now."""
        self.registry = RegistryReader()
        self.boot_id = f"{self.broker_id}.{self.runs}"
        self.elections = [Election("groups", number, self.broker_id) for number in range(world.partitions)]
        self._is_fit = True
        self._events: deque[Event] = deque()
        self._is_handling = False
        self._watch: WatchTopics | None = None
        self._reported: tuple[int, dict[str, TopicFactsOfGroups]] | None = None
        self._known_since: dict[str, int] = {}
        """Topics that were reported to the coordinator, by id."""
        self._coordinator_asked_at = -TICK
        self._next_heartbeat = 0
        self.feed(EndpointsChanged({LISTENER: tuple(one.endpoint for one in world.sidecars)}))
        self._register()
        self.later(self.random.randrange(TICK), OF_THE_FLEET, self._tick)

    def kill(self, *, powered: bool) -> None:
        """SIGKILL; or its machine loses power."""
        self.world.note(self.name, "killed" if powered else "power off")
        for writer in self.writers.values():
            writer.stop()
        self.end()
        self.is_powered = powered
        self.world.network.ended(self, powered=powered)

    def shut_down(self) -> None:
        """A clean end: it lets others take its partitions first."""
        self.world.note(self.name, "is not fit any more: it ends")
        self._is_fit = False
        self._register()
        for number in sorted(self.own):
            self._let_go(number, "stopping")

        def end() -> None:
            self.world.registry.pop(self.broker_id, None)
            self.kill(powered=True)

        self.later(2000, OF_THE_FLEET, end)

    def evacuate(self) -> None:
        self.is_evacuated = True
        self._register()
        self._elect()

    def come_back(self) -> None:
        self.is_evacuated = False
        self._register()

    def take(self, partition: int) -> None:
        """Take a partition, whoever holds it."""
        self.elections[partition].held = True
        self.own.add(partition)
        self.feed(PartitionAssigned(partition, self.world.kafka.logs[partition].is_empty))

    def apply(self, settings: CoordinatorSettings) -> None:
        """A reload of the configuration."""
        for group_id in settings.frozen_groups - self.settings.frozen_groups:
            self.frozen_at[group_id] = self.clock()
        self.settings = settings._replace(broker_id=self.broker_id)
        self.feed(SettingsChanged(self.settings))

    def change_rights(self, client_id: str) -> None:
        for one in list(self.connections.values()):
            if one.given and one.client_id == client_id:
                may_read = (client_id, "") not in self.world.denied
                self.feed(RightsChanged(one.number, may_read, self.world.unreadable(client_id)))

    # The coordinator

    def feed(self, event: Event) -> None:
        """Let the coordinator handle an event, and do what it asks for."""
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        run = self.runs
        while self._events and self.runs == run:
            event = self._events.popleft()
            now = self.clock()
            self._note(event)
            effects = self.coordinator.handle(event, now)
            if self.world.keeps_history:
                self.history.append((event, now))
                self.effects.append(effects)
            for effect in effects:
                self._perform(effect)
        self._is_handling = False
        self._set_timer()

    def _note(self, event: Event) -> None:
        match event:
            case PartitionOpened(partition, claim, claimed_at):
                self.confirmed_at[partition] = claimed_at
                self.world.note(self.name, "has opened partition %d, claim %d", partition, claim)
            case WriteCommitted(partition, _, began_at):
                self.confirmed_at[partition] = max(self.confirmed_at.get(partition, began_at), began_at)
            case PartitionLost(partition, reason):
                self.world.note(self.name, "has lost partition %d: %s", partition, reason)
                self.own.discard(partition)
                if reason in ("fenced", "open_failed", "stuck"):
                    self.elections[partition].lost(self.clock())

    def _set_timer(self) -> None:
        due = self.coordinator.due()
        if due is not None:  # the rest of a slice is done after what has happened meanwhile
            self.wake_at(max(due, self.clock() + 1), 0, lambda: self.feed(None))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendFrame(number, frame):
                self._send(number, frame)
            case ConsumerAccepted(number, user_timeout_ms):
                if number in self.connections:
                    self.connections[number].accepted = True
                    self.connections[number].socket.set_user_timeout(user_timeout_ms)
            case CloseConsumer(number, cause):
                if (one := self.connections.pop(number, None)) is not None:
                    self.world.note(self.name, "closes %s of %s: %s", number, one.consumer_id, cause)
                    one.socket.close()
            case WriteRecords(partition, write, records, offsets):
                self.world.invariants.written(self, offsets)
                if any(isinstance(record, OwnersRecord) for record in records):
                    self.world.reached("commit")
                if partition in self.writers:
                    self.writers[partition].write(Job(write, tuple(records), offsets, self.timeline.now))
            case ConfirmClaim(partition):
                if partition in self.writers:
                    self.writers[partition].write(Job(CONFIRMATION, (), {}, self.timeline.now))
            case OpenPartition(partition):
                timeout = self.settings.state_write_timeout_ms
                log = self.world.kafka.logs[partition]
                writer = Writer(self.world.kafka, self, log, self.broker_id, timeout, self.feed)
                self.writers[partition] = writer
                writer.open()
            case ClosePartition(partition):
                if (writer := self.writers.pop(partition, None)) is not None:
                    writer.release()
                self.confirmed_at.pop(partition, None)
                self.holds.pop(partition, None)
                for group in [one for one in self.has_ordinary_members if self.world.partition_of(one) == partition]:
                    del self.has_ordinary_members[group]
                self._register()
            case HoldPartition(partition, claim):
                self.holds[partition] = claim
                self._register()
            case ReadCommittedOffsets(partition, group, read):
                asked_at = self.timeline.now
                self.later(
                    self.random.choice((1, 5, 50)), OF_KAFKA, lambda: self._read(partition, group, read, asked_at)
                )
            case FindOrdinaryMembers(group):
                self.asks_ordinary.add(group)
                self.later(self.random.choice((1, 5, 50)), OF_KAFKA, lambda: self._find_ordinary_members(group))
            case WatchTopics(number, names, all_topics):
                if not names and not all_topics:  # is answered at once, perhaps after the next one was given
                    self.later(1, OF_KAFKA, lambda: self.feed(TopicsChanged(number, {})))
                self._watch = effect
                self.later(self.random.choice((1, 5, 50)), OF_KAFKA, self._report_topics)
            case LogGroupEvent(level, name, fields):
                self.world.logged(self, level, name, fields)
            case CountGroupEvent():
                pass

    # Kafka

    def _read(self, partition: int, group: str, read: int, asked_at: int) -> None:
        kafka = self.world.kafka
        offsets = kafka.committed(group) if kafka.is_reachable(self.name) else None
        if offsets is None and self.timeline.now - asked_at < READ_TIMEOUT:
            self.later(200, OF_KAFKA, lambda: self._read(partition, group, read, asked_at))
        else:
            self.feed(CommittedOffsetsRead(partition, group, read, offsets))

    def _find_ordinary_members(self, group: str) -> None:
        kafka = self.world.kafka
        self.asks_ordinary.discard(group)
        found = group in kafka.ordinary_since if kafka.is_reachable(self.name) else None
        if found is not None:
            self.has_ordinary_members[group] = found
        self.feed(OrdinaryMembersFound(group, found))

    def _report_topics(self) -> None:
        watch, kafka = self._watch, self.world.kafka
        if watch is None or not kafka.is_reachable(self.name):
            return
        now = watch.watch, kafka.facts(watch.names, all_topics=watch.all_topics)
        if now != self._reported:
            self._reported = now
            for facts in now[1].values():
                self._known_since.setdefault(facts.topic_id, self.timeline.now)
            self.feed(TopicsChanged(*now))

    def knew(self, topic: Topic, at: int) -> bool:
        """Whether this topic had been reported to the coordinator then, and not only of an earlier one of that name."""
        return self._known_since.get(topic.topic_id, at + 1) <= at

    # The fleet

    def _tick(self) -> None:
        self.later(TICK, OF_THE_FLEET, self._tick)
        if self.clock() >= self._next_heartbeat:
            self._next_heartbeat = self.clock() + HEARTBEAT
            self._register()
        if self.timeline.now - self._coordinator_asked_at < TICK:
            self._dial()
        if self.world.kafka.is_reachable(self.name):
            self.registry.read(self.world.registry, self.timeline.now)
            self._elect()
        self._report_topics()

    def _register(self) -> None:
        if self.world.kafka.is_reachable(self.name):
            is_fit = self._is_fit and not self.is_evacuated
            one = Registration(self.boot_id, self.timeline.now, True, is_fit, dict(self.holds))
            self.world.registry[self.broker_id] = one

    def _dial(self) -> None:
        """Somebody asks for a coordinator: is one dead that counts as running?"""
        for other in self.world.sidecars:
            refuses = other.is_powered and not other.is_running
            if refuses and not self.world.network.is_path_lost(self.name, other.name):
                self.registry.refused(other.broker_id)

    def _elect(self) -> None:
        kafka, fit = self.world.kafka, self.registry.fit()
        if not self.registry.has(self.broker_id, self.boot_id) or not self._is_fit or self.is_evacuated:
            fit.pop(self.broker_id, None)
        for number, election in enumerate(self.elections):
            claims = {broker_id: holds.get(number, 0) for broker_id, holds in fit.items()}
            decision = election.decide(kafka.leaders[number], claims, self.clock())
            if decision is Decision.TAKE:
                self.world.note(self.name, "takes partition %d", number)
                self.take(number)
            elif decision is Decision.LET_GO:
                self._let_go(number, "other_holder" if self._is_fit and not self.is_evacuated else "not_fit")

    def _let_go(self, number: int, reason: str) -> None:
        if number in self.own:
            self.feed(PartitionLost(number, reason))
            self.elections[number].held = False

    def _coordinator_of(self, number: int) -> int | None:
        """As clients are answered: who has the highest claim, else who is to have one."""
        fit = self.registry.fit()
        if number in self.own:
            return self.broker_id
        claims = [(holds[number], broker_id) for broker_id, holds in fit.items() if holds.get(number)]
        return max(claims)[1] if claims else holder("groups", number, self.world.kafka.leaders[number], fit)

    # Connections

    def accept(self, socket: Socket) -> None:
        one = Connection(self.world.next_connection(), socket)
        self.connections[one.number] = one
        socket.on_frame = lambda frame, arrived: self._received(one, frame)
        socket.on_end = lambda how: self._ended(one, how)
        socket.on_drained = lambda: self.feed(ConnectionDrained(one.number))

    def _received(self, one: Connection, frame: bytes) -> None:
        if one.accepted:
            one.open_pings.discard(int.from_bytes(frame[:4], "big"))
            self.feed(ResponseReceived(one.number, frame))
            return
        api_key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        correlation_id = int.from_bytes(frame[4:8], "big")
        size = int.from_bytes(frame[8:10], "big")
        client_id, body = frame[10 : 10 + size].decode(), frame[10 + size :]
        if api_key == wire.CLUSTER_METADATA:
            asked = wire.decode_cluster_metadata_request(version, body)
            answer = self._find_coordinator(asked.group_id or "")
            one.socket.send(wire.response_frame(correlation_id, wire.encode_cluster_metadata_response(answer)))
        elif api_key == wire.REGISTER_CONSUMER:
            request = wire.decode_register_consumer_request(version, body)
            self._registered(one, correlation_id, version, client_id, request)
        else:
            one.socket.close()

    def _find_coordinator(self, group_id: str) -> ClusterMetadataResponse:
        self._coordinator_asked_at = self.timeline.now
        found = self._coordinator_of(self.world.partition_of(group_id))
        brokers = tuple(other.endpoint for other in self.world.sidecars)
        if found is None:
            return ClusterMetadataResponse(NO_COORDINATOR, -1, ())
        return ClusterMetadataResponse(0, found, brokers)

    def _registered(
        self, one: Connection, correlation_id: int, version: int, client_id: str, request: RegisterConsumerRequest
    ) -> None:
        number = self.world.partition_of(request.group_id)
        unreadable = self.world.unreadable(client_id)
        code = 0
        if not one.given:
            if number not in self.own:
                code = NO_COORDINATOR if self._coordinator_of(number) is None else WRONG_COORDINATOR
            elif (client_id, "") in self.world.denied:
                code = GROUP_DENIED
        if code:
            answer = wire.encode_register_consumer_response(version, RegisterConsumerResponse(code))
            one.socket.send(wire.response_frame(correlation_id, answer))
            return
        one.given = True
        one.group_id, one.consumer_id, one.client_id = request.group_id, request.consumer_id, client_id
        principal = f"User:{client_id}"
        event = ConsumerRegistered(
            one.number, correlation_id, version, request, client_id, principal, "127.0.0.1", LISTENER, unreadable
        )
        self.feed(event)

    def _ended(self, one: Connection, how: str) -> None:
        self.connections.pop(one.number, None)
        if one.given:
            cause = {"fin": "client_closed", "reset": "client_reset", "timeout": "client_timeout"}[how]
            self.feed(ConsumerConnectionEnded(one.number, how == "fin", cause))

    def _send(self, number: int, frame: bytes) -> None:
        one = self.connections.get(number)
        if one is None:
            return
        if one.accepted:
            self.world.invariants.pushed(self, one, frame)
        if not one.socket.send(frame):
            self.feed(ConnectionBuffered(number))
