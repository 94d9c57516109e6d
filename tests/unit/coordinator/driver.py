"""Drives a coordinator by a virtual clock: Kafka and the consumers around it answer at once, unless a test says not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from proxy.coordinator import effects as e
from proxy.coordinator import events as ev
from proxy.coordinator import wire
from proxy.coordinator.description import Clocks, describe_group, describe_partitions
from proxy.coordinator.machine import Coordinator
from proxy.coordinator.records import GenerationRecord, GroupRecord, MemberRecord, OwnersRecord, partition_of
from proxy.coordinator.settings import CoordinatorSettings
from proxy.coordinator.status import GroupStatus, HeldPartitionStatus
from proxy.coordinator.steps import SLICE, Steps

T = 6000
"""Session timeout of the consumers, in milliseconds, unless a test says otherwise."""

GROUP = "g"
LISTENER = "PLAINTEXT"
BROKERS = (wire.EndpointEntry(1, "kafka-1", 9092),)

Some = TypeVar("Some")


@dataclasses.dataclass(eq=False)
class Consumer:
    """A consumer at its end of a connection. ``received``: what was pushed to it, with when."""

    driver: Driver
    connection: int
    consumer_id: str
    auto_commit: bool
    answers: bool = True
    """Whether it answers at once."""
    code: int | None = None
    """Of the response to its registration."""
    generation: int = -1
    closed: str | None = None
    received: list[tuple[int, wire.PushedFrame]] = dataclasses.field(default_factory=list)
    offsets: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    """What it reports, of the partitions that it fetches."""
    fetches: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    """The partitions that it fetches, with the offset that it was assigned to start at."""

    def kinds(self, *, pings: bool = False) -> list[str]:
        """What was pushed, in short."""
        names = {wire.PING: "ping", wire.STOP_FETCHER: "stop", wire.START_FETCHER: "start"}
        return [names[frame.api_key] for _, frame in self.received if pings or frame.api_key != wire.PING]

    def times(self, api_key: int) -> list[int]:
        return [at for at, frame in self.received if frame.api_key == api_key]

    def last(self, api_key: int) -> wire.PushedFrame:
        return [frame for _, frame in self.received if frame.api_key == api_key][-1]

    def answer(self, frame: wire.PushedFrame, *, error_code: int = 0) -> None:
        """Do what the frame says, and answer it."""
        self.driver.do(self.obey(frame, error_code=error_code))

    def obey(self, frame: wire.PushedFrame, *, error_code: int = 0) -> ev.Event:
        """Do what the frame says, unless it is answered with an error. Return the response."""
        stopped = frame.request.partitions if isinstance(frame.request, wire.StopFetcherRequest) else None
        stopped_now = self.fetches.keys() if stopped is None else self.fetches.keys() & set(stopped)
        reported = None
        if self.auto_commit and frame.api_key != wire.START_FETCHER:
            reported = tuple(
                wire.ConsumedOffset(topic, 1, partition, self.offsets[topic, partition])
                for topic, partition in sorted(stopped_now)
                if (topic, partition) in self.offsets
            )
        if frame.api_key == wire.STOP_FETCHER and not error_code:
            self.fetches = {key: offset for key, offset in self.fetches.items() if key not in stopped_now}
        elif isinstance(frame.request, wire.StartFetcherRequest) and not error_code:
            entries = [entry for thread in frame.request.threads for entry in thread.partitions]
            starts = {(entry.topic, entry.partition): entry.offset for entry in entries}
            self.fetches = {key: self.fetches.get(key, offset) for key, offset in starts.items()}
        return self.response(frame.correlation_id, frame.api_key, error_code=error_code, offsets=reported)

    def response(self, correlation_id, api_key, *, error_code=0, consumer_id=None, offsets=None) -> ev.Event:
        response = wire.ConsumerResponse(correlation_id, api_key, error_code, consumer_id or self.consumer_id, offsets)
        return ev.ResponseReceived(self.connection, wire.encode_response(response)[4:])

    def answer_all(self) -> None:
        """Answer what was not answered so far, and from now on at once."""
        self.answers = True
        for _, frame in list(self.received):
            self.answer(frame)

    def end(self, *, by_peer: bool = True) -> None:
        self.driver.do(ev.ConsumerConnectionEnded(self.connection, by_peer, "client_closed"))

    def partitions(self) -> list[tuple[str, int]]:
        return sorted(self.fetches)


class Driver:
    """A coordinator that holds the partition of group ``g``, with topic ``t`` of four partitions."""

    def __init__(self, *, hold: bool = True, units: int = SLICE, **settings: Any) -> None:
        self.settings = CoordinatorSettings(broker_id=1, **settings)
        self.machine = Coordinator(self.settings, units=units)
        self.now = 0
        self.partition = partition_of(GROUP, self.settings.partition_count)
        self.topics: dict[str, ev.TopicFactsOfGroups] = {"t": topic(4)}
        self.committed: dict[tuple[str, int], int] = {}
        """Offsets of group ``g`` that Kafka has."""
        self.records: dict[tuple[str, ...], GroupRecord] = {}
        """The log of the partition, without tombstones."""
        self.history: list[tuple[int, Any]] = []
        """All effects, with when."""
        self.writes_hang = self.reads_hang = self.topics_hang = False
        self.hung: list[Any] = []
        """Effects that Kafka has not answered."""
        self.ordinary: bool | None = False
        self.consumers: dict[int, Consumer] = {}
        self._pending: list[ev.Event] = []
        self._next_connection = 1
        self._watch = e.WatchTopics(-1, frozenset(), False)
        self.do(ev.EndpointsChanged({LISTENER: BROKERS}))
        if hold:
            self.do(ev.PartitionAssigned(self.partition, is_empty=False))

    # Events

    def do(self, event: ev.Event) -> list[Any]:
        """Give the machine an event, and what follows from its effects."""
        first = len(self.history)
        self._pending.append(event)
        while self._pending:
            event = self._pending.pop(0)
            if isinstance(event, ev.ResponseReceived) and self.consumers[event.connection].closed is not None:
                continue  # nothing is reported after CloseConsumer
            for effect in self.machine.handle(event, self.now):
                self.history.append((self.now, effect))
                self._perform(effect)
            if not self._pending and (due := self.machine.due()) is not None and due <= self.now:
                self._pending.append(None)
        return [effect for _, effect in self.history[first:]]

    def advance(self, ms: int) -> None:
        """Let time pass, from one thing that is due to the next."""
        until = self.now + ms
        while (due := self.machine.due()) is not None and due <= until:
            self.now = max(due, self.now)
            self.do(None)
        self.now = until

    def register(
        self,
        consumer_id: str,
        topic_count: str = '{"t": 1}',
        *,
        group: str = GROUP,
        auto_commit: bool = True,
        reset: str = "smallest",
        timeout: int = T,
        answers: bool = True,
        unreadable: frozenset[str] = frozenset(),
        connection: int | None = None,
        level: int = 1,
        offsets: Mapping[tuple[str, int], int] | None = None,
        fetches: Mapping[tuple[str, int], int] | None = None,
    ) -> Consumer:
        if connection is None:
            connection = self._next_connection
            self._next_connection += 1
        consumer = Consumer(self, connection, consumer_id, auto_commit, answers)
        consumer.offsets.update(offsets or {})
        consumer.fetches.update(fetches or {})
        self.consumers[connection] = consumer
        request = wire.RegisterConsumerRequest(group, consumer_id, topic_count, auto_commit, reset, timeout, level)
        event = ev.ConsumerRegistered(connection, 7, 2, request, "client", "User:u", "127.0.0.1", LISTENER, unreadable)
        self.do(event)
        return consumer

    def back(self, *consumers: Consumer) -> list[Consumer]:
        """Those of a predecessor register here, and go on fetching meanwhile."""
        return [self.register(consumer.consumer_id, fetches=consumer.fetches) for consumer in consumers]

    def stable(self, *consumer_ids: str, **settings: Any) -> list[Consumer]:
        """Register consumers, and wait until they fetch."""
        consumers = [self.register(consumer_id, **settings) for consumer_id in consumer_ids]
        self.advance(1000)
        return consumers

    def change_topics(self, **topics: ev.TopicFactsOfGroups | None) -> None:
        for name, facts in topics.items():
            if facts is None:
                self.topics.pop(name, None)
            else:
                self.topics[name] = facts
        self.do(self._snapshot())

    def change_settings(self, **settings: Any) -> None:
        self.settings = self.settings._replace(**settings)
        self.do(ev.SettingsChanged(self.settings))

    def commit(self, write: Any, *, began_at: int | None = None) -> None:
        """Commit a write that hangs."""
        self.hung.remove(write)
        self._commit(write, self.now if began_at is None else began_at)
        self.do(self._pending.pop())

    def commit_all(self) -> None:
        """Commit all that hangs, and all that follows at once."""
        self.writes_hang = False
        for write in list(self.hung):
            self.commit(write)

    def abort(self, write: Any) -> None:
        self.hung.remove(write)
        self.do(ev.WriteAborted(write.partition, getattr(write, "write", -1), "away"))

    def successor(self, *, after: int = 0, **settings: Any) -> Driver:
        """Another sidecar that takes the partition over, by the records."""
        other = Driver(hold=False, **settings)
        other.now = self.now + after
        other.topics, other.committed, other.records = self.topics, self.committed, self.records
        other.do(ev.PartitionAssigned(self.partition, is_empty=False))
        return other

    # What the machine did

    def all(self, kind: type[Some]) -> list[Some]:
        return [effect for _, effect in self.history if isinstance(effect, kind)]

    def logs(self, event: str) -> list[Mapping[str, Any]]:
        return [effect.fields for effect in self.all(e.LogGroupEvent) if effect.event == event]

    def count(self, metric: str, *labels: str) -> float:
        counted = self.all(e.CountGroupEvent)
        return sum(c.amount for c in counted if c.metric == metric and c.labels[: len(labels)] == labels)

    def groups(self) -> list[GroupStatus]:
        state, clocks = self.machine.state, Clocks(self.now, 0)
        groups = [group for _, group in sorted(state.groups.items())]
        return [finish(describe_group(state, group, clocks, with_consumers=True)) for group in groups]

    def partitions(self) -> list[HeldPartitionStatus]:
        return describe_partitions(self.machine.state)

    # Kafka and the network

    def _perform(self, effect: Any) -> None:
        match effect:
            case e.OpenPartition(partition):
                records = list(self.records.values())
                self._pending.append(ev.PartitionOpened(partition, 1, self.now, records))
            case e.WriteRecords() | e.ConfirmClaim():
                if self.writes_hang:
                    self.hung.append(effect)
                else:
                    self._commit(effect, self.now)
            case e.ReadCommittedOffsets(partition, group, read):
                if self.reads_hang:
                    self.hung.append(effect)
                else:
                    self._pending.append(ev.CommittedOffsetsRead(partition, group, read, dict(self.committed)))
            case e.FindOrdinaryMembers(group):
                self._pending.append(ev.OrdinaryMembersFound(group, self.ordinary))
            case e.WatchTopics():
                self._watch = effect
                if not self.topics_hang:
                    self._pending.append(self._snapshot())
            case e.SendFrame(connection, frame):
                self._deliver(self.consumers[connection], frame)
            case e.CloseConsumer(connection, cause):
                self.consumers[connection].closed = cause

    def _commit(self, write: Any, began_at: int) -> None:
        if isinstance(write, e.WriteRecords):
            for record in write.records:
                self._append(record)
            self.committed.update(write.offsets.get(GROUP, {}))
        self._pending.append(ev.WriteCommitted(write.partition, getattr(write, "write", -1), began_at))

    def _append(self, record: GroupRecord) -> None:
        match record:
            case GenerationRecord(group, value):
                key: tuple[str, ...] = (group, "registry")
            case MemberRecord(group, consumer_id, value):
                key = (group, "ids", consumer_id)
            case OwnersRecord(group, name, value):
                key = (group, "owners", name)
        if value is None:
            self.records.pop(key, None)
        else:
            self.records[key] = record

    def _snapshot(self) -> ev.TopicsChanged:
        names = self.topics if self._watch.all_topics else self._watch.names
        return ev.TopicsChanged(self._watch.watch, {name: self.topics[name] for name in names if name in self.topics})

    def _deliver(self, consumer: Consumer, frame: bytes) -> None:
        if consumer.code is None:
            response = wire.decode_register_consumer_response(2, frame[8:])
            consumer.code, consumer.generation = response.error_code, response.generation
            return
        pushed = wire.decode_pushed(frame[4:])
        consumer.received.append((self.now, pushed))
        if consumer.answers and consumer.closed is None:
            self._pending.append(consumer.obey(pushed))


def finish(steps: Steps[Some]) -> Some:
    """Do all of some work, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(Some, end.value)


def topic(partitions: int, topic_id: str = "id-1") -> ev.TopicFactsOfGroups:
    return ev.TopicFactsOfGroups(topic_id, (1,) * partitions)


def owned(consumers: Sequence[Consumer]) -> list[tuple[str, int]]:
    """The partitions that are fetched, one entry for each consumer that fetches it."""
    return sorted(partition for consumer in consumers for partition in consumer.fetches)
