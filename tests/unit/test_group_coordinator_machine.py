"""The runner with the machine itself, before a Kafka that answers at once: what consumers get, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Config, load
from proxy.coordinator.effects import (
    ConfirmClaim,
    Effect,
    FindOrdinaryMembers,
    OpenPartition,
    ReadCommittedOffsets,
    WatchTopics,
    WriteRecords,
)
from proxy.coordinator.events import (
    CommittedOffsetsRead,
    ConsumerConnectionEnded,
    ConsumerRegistered,
    EndpointsChanged,
    Event,
    OrdinaryMembersFound,
    PartitionAssigned,
    PartitionOpened,
    ResponseReceived,
    TopicFactsOfGroups,
    TopicsChanged,
    WriteCommitted,
)
from proxy.coordinator.machine import Coordinator
from proxy.coordinator.view import GroupsView, partition_of
from proxy.coordinator.wire import (
    PING,
    START_FETCHER,
    STOP_FETCHER,
    ConsumerResponse,
    EndpointEntry,
    PushedFrame,
    RegisterConsumerRequest,
    StartFetcherRequest,
    decode_pushed,
    encode_response,
)
from proxy.core.causes import Cause
from proxy.features.view import FeaturesView
from proxy.group_coordinator import GroupCoordinator
from proxy.interceptors.broker_metadata import FleetView

T = 6000
"""Session timeout of all consumers, in milliseconds."""

GROUP = "g"
TOPIC = {"t": TopicFactsOfGroups("id", (1, 1, 1, 1))}

CONFIG = """\
broker.id: 1
internal.bootstrap.servers: 127.0.0.1:19094
coordinator: {enabled: true, partitions: 1, rebalance.delay.ms: 0, state.write.timeout.ms: 5000}
listeners: [{name: CLIENT, bind: '127.0.0.1:9092', upstream: '127.0.0.1:19092'}]
"""


class Kafka:
    """Answers each effect, unless ``is_reachable`` is False: then writes wait."""

    def __init__(
        self, now: Callable[[], int], on_event: Callable[[Event], None], on_view: Callable[[GroupsView], None]
    ) -> None:
        self._now, self._post, self._on_view = now, on_event, on_view
        self.is_reachable = True
        self._waiting: list[Event] = []

    def start(self) -> None:
        self._on_view(GroupsView(partitions=1, own=frozenset({0}), level=1))
        self._post(PartitionAssigned(partition_of(GROUP, 1), is_empty=False))
        self._post(EndpointsChanged({"CLIENT": [EndpointEntry(1, "kafka-1", 9092)]}))

    def perform(self, effect: Effect) -> None:
        match effect:
            case OpenPartition(partition):
                self._post(PartitionOpened(partition, 1, self._now(), []))
            case WriteRecords(partition, write):
                self._commit(WriteCommitted(partition, write, self._now()))
            case ConfirmClaim(partition):
                self._commit(WriteCommitted(partition, -1, self._now()))
            case ReadCommittedOffsets(partition, group, read):
                self._post(CommittedOffsetsRead(partition, group, read, {}))
            case FindOrdinaryMembers(group):
                self._post(OrdinaryMembersFound(group, has_members=False))
            case WatchTopics():
                self._post(TopicsChanged(topics=TOPIC, watch=effect.watch))

    def _commit(self, event: WriteCommitted) -> None:
        if self.is_reachable:
            self._post(event)
        else:
            self._waiting.append(event)

    def reach(self) -> None:
        """Commit what waits, with the time of its beginning, and answer from now on."""
        self.is_reachable = True
        for event in self._waiting:
            self._post(event)
        self._waiting.clear()

    def evacuate(self) -> None: ...

    def return_(self) -> None: ...

    def update_features(self, view: FeaturesView) -> None: ...

    def update_fleet_view(self, view: FleetView) -> None: ...

    def expect_coordinator(self) -> None: ...

    def refresh_topics(self) -> None: ...

    def reconfigure(self, config: Config) -> None: ...

    def close_partitions(self) -> None: ...

    async def resign(self) -> None: ...

    async def close(self) -> None: ...


class World:
    """A running coordinator and its consumers, whose connections are numbers and whose ids are ``c<number>``."""

    def __init__(self, config: Config) -> None:
        self.now = 100_000
        self.received: dict[int, list[tuple[int, PushedFrame]]] = {}
        self.closed: dict[int, str] = {}
        self.answers = True
        self.on_send: Callable[[PushedFrame], None] = lambda frame: None
        self.coordinator = GroupCoordinator(
            config, Coordinator, self, self._make_kafka, lambda view: None, now=lambda: self.now
        )
        self.coordinator.start()

    def _make_kafka(self, on_event: Callable[[Event], None], on_view: Callable[[GroupsView], None]) -> Kafka:
        self.kafka = Kafka(lambda: self.now, on_event, on_view)
        return self.kafka

    async def settle(self) -> None:
        """Let the loop do all that can be done now."""
        for _ in range(100):
            await asyncio.sleep(0)

    async def advance(self, ms: int) -> None:
        """Let time pass, in steps."""
        for _ in range(ms // 100):
            self.now += 100
            self.coordinator.post(None)
            await self.settle()

    async def register(self, *numbers: int) -> None:
        for number in numbers:
            request = RegisterConsumerRequest(GROUP, f"c{number}", '{"t": 1}', False, "smallest", T, 1)
            registered = ConsumerRegistered(
                number, 1, 1, request, "client", "User:a", "127.0.0.1", "CLIENT", frozenset()
            )
            self.received[number] = []
            self.coordinator.post(registered)
        await self.settle()

    def kinds(self, number: int) -> list[int]:
        return [frame.api_key for _, frame in self.received[number]]

    def owned(self, number: int) -> set[int]:
        """The partitions that the consumer was last told to read."""
        started = [one.request for _, one in self.received[number] if isinstance(one.request, StartFetcherRequest)]
        return {entry.partition for thread in started[-1].threads for entry in thread.partitions} if started else set()

    def send(self, number: int, frame: bytes) -> bool:
        try:
            pushed = decode_pushed(frame[4:])
        except Exception:
            return True  # the response to the registration
        self.received[number].append((self.now, pushed))
        self.on_send(pushed)
        if self.answers:
            response = ConsumerResponse(pushed.correlation_id, pushed.api_key, 0, f"c{number}")
            self.coordinator.post(ResponseReceived(number, encode_response(response)[4:]))
        return True

    def accept(self, number: int, user_timeout_ms: int) -> None: ...

    def close(self, number: int, cause: Cause) -> None:
        self.closed[number] = cause

    def close_all(self) -> None: ...

    async def set_topics(self, names: Collection[str]) -> None: ...


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    path = tmp_path / "sidecar.yaml"
    path.write_text(CONFIG)
    made = World(load(path, {}))
    await made.settle()
    yield made
    made.coordinator.abort()


async def test_consumers_share_the_partitions_and_one_takes_over_from_another_that_leaves(world: World) -> None:
    await world.register(1, 2)
    await world.advance(200)
    assert world.owned(1) | world.owned(2) == {0, 1, 2, 3}
    assert len(world.owned(1)) == len(world.owned(2)) == 2
    world.coordinator.post(ConsumerConnectionEnded(2, by_peer=True, cause="client_closed"))
    await world.advance(200)
    assert world.owned(1) == {0, 1, 2, 3}
    found = await world.coordinator.find_group(GROUP)
    assert found is not None
    assert [(one.consumer_id, one.state) for one in found.consumers] == [("c1", "fetching")]
    status = world.coordinator.status()
    assert (status.consumers, status.groups["stable"], status.fields.elector) == (1, 1, 1)
    assert [one.group_id for one in await world.coordinator.list_groups()] == [GROUP]


@pytest.mark.promise(
    "coordinator.md", "A coordinator that was paused sends nothing until Kafka has confirmed that it still coordinates."
)
async def test_after_a_pause_nothing_is_sent_before_the_claim_is_confirmed(world: World) -> None:
    await world.register(1, 2)
    await world.advance(200)

    def pause(frame: PushedFrame) -> None:
        """The process stops for a minute, between the first ping and the second."""
        world.on_send = lambda frame: None
        world.now += 60_000
        world.kafka.is_reachable = False

    world.answers = False
    world.on_send = pause
    before = {number: len(world.received[number]) for number in (1, 2)}
    await world.advance(20_000)
    sent = [frame for number in (1, 2) for _, frame in world.received[number][before[number] :]]
    assert [frame.api_key for frame in sent] == [PING], "the first, and nothing after the pause"
    assert [one.state for one in world.coordinator.status().held] == ["mute"]
    world.answers = True
    world.kafka.reach()
    await world.advance(1000)
    assert [one.state for one in world.coordinator.status().held] == ["open"]
    assert {world.kinds(number)[-1] for number in (1, 2)} == {PING}
    assert world.closed == {}, "nobody has failed meanwhile"


async def test_a_lease_is_reckoned_from_when_a_request_was_really_sent(world: World) -> None:
    await world.register(1)
    await world.advance(200)

    def late(frame: PushedFrame) -> None:
        if frame.api_key == START_FETCHER:
            world.now += 500  # it was the first of two, and sending it took long

    world.on_send = late
    await world.register(2)
    await world.advance(100)
    assert world.kinds(1)[-2:] == [STOP_FETCHER, START_FETCHER]
    started_at, _ = world.received[2][-1]
    moved = world.owned(2)
    world.on_send = lambda frame: None
    world.coordinator.post(ConsumerConnectionEnded(2, by_peer=False, cause="client_reset"))
    await world.settle()
    while not moved <= world.owned(1):
        assert world.now < started_at + 20_000
        await world.advance(100)
    at, _ = world.received[1][-1]
    assert at >= started_at + T * 4 // 3
