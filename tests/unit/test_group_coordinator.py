"""The runner of the coordinator: in which order, and when, it does what the machine asks for."""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import proxy.group_coordinator as runner
from proxy.config import Config, load
from proxy.coordinator.coordinator_state import CoordinatorState
from proxy.coordinator.effects import (
    CloseConsumer,
    ConsumerAccepted,
    Effect,
    HoldPartition,
    LogGroupEvent,
    SendFrame,
    WriteRecords,
)
from proxy.coordinator.events import (
    ConnectionBuffered,
    ConnectionDrained,
    EndpointsChanged,
    Event,
    PartitionLost,
    ResponseReceived,
    TopicFactsOfGroups,
    TopicsChanged,
    WriteCommitted,
)
from proxy.coordinator.settings import CoordinatorSettings
from proxy.coordinator.status import CoordinatorFields, MetricTotal
from proxy.coordinator.view import GroupsView
from proxy.coordinator.wire import EndpointEntry
from proxy.core.causes import Cause
from proxy.group_coordinator import GroupCoordinator
from proxy.group_log import GroupLog

WRITE_TIMEOUT = 5000


class Machine:
    """Answers each event as ``on`` says. ``confirmed_at``: since when it may send for ``WRITE_TIMEOUT``."""

    def __init__(self) -> None:
        self.handled: list[tuple[Event, int]] = []
        self.on: Callable[[Event], list[Effect]] = lambda event: []
        self.due_at: int | None = None
        self.confirmed_at = 0

    def handle(self, event: Event, now: int) -> list[Effect]:
        self.handled.append((event, now))
        if event is None:
            self.due_at = None
        return self.on(event)

    def due(self) -> int | None:
        return self.due_at

    def may_send(self, connection: int, now: int) -> bool:
        return now - self.confirmed_at < WRITE_TIMEOUT

    def sizes(self) -> CoordinatorFields:
        return CoordinatorFields()

    def highest_level(self) -> int:
        return 1

    @property
    def state(self) -> CoordinatorState:
        raise NotImplementedError

    @property
    def events(self) -> list[Event]:
        return [event for event, _ in self.handled]


class Calls:
    """What was asked of consumers and of the cluster, in order; ``during`` is called with each call."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.during: Callable[[Any], None] = lambda call: None

    def note(self, *call: Any) -> None:
        self.done.append(call)
        self.during(call)


class Consumers:
    """``full``: connections of which the kernel takes nothing more."""

    def __init__(self, calls: Calls) -> None:
        self._note = calls.note
        self.full: set[int] = set()

    def send(self, number: int, frame: bytes) -> bool:
        self._note("send", number, frame)
        return number not in self.full

    def accept(self, number: int, user_timeout_ms: int) -> None:
        self._note("accept", number, user_timeout_ms)

    def close(self, number: int, cause: Cause) -> None:
        self._note("close", number, cause)

    def close_all(self) -> None:
        self._note("close_all")

    async def set_topics(self, names: Collection[str]) -> None:
        self._note("set_topics", sorted(names))


class Cluster:
    def __init__(self, calls: Calls, on_event: Callable[[Event], None], on_view: Callable[[GroupsView], None]) -> None:
        self._note = calls.note
        self.on_event, self.on_view = on_event, on_view
        self.lost: list[PartitionLost] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self._note(name, *arguments)

    async def resign(self) -> None:
        for event in self.lost:
            self.on_event(event)


class Running:
    """A runner with a clock that stands still unless ``now`` is set."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.now = 1000
        self.calls = Calls()
        self.consumers = Consumers(self.calls)
        self.clusters: list[Cluster] = []
        self.machines: list[Machine] = []
        self.views: list[GroupsView] = []
        self.coordinator = GroupCoordinator(
            self.config, self._make, self.consumers, self._make_cluster, self.views.append, now=lambda: self.now
        )

    def _make_cluster(self, on_event: Callable[[Event], None], on_view: Callable[[GroupsView], None]) -> Cluster:
        self.clusters.append(Cluster(self.calls, on_event, on_view))
        return self.clusters[-1]

    def _make(self, settings: CoordinatorSettings) -> Machine:
        self.machines.append(Machine())
        return self.machines[-1]

    @property
    def machine(self) -> Machine:
        return self.machines[-1]

    async def settle(self) -> None:
        """Let the loop do all that can be done now."""
        for _ in range(50):
            await asyncio.sleep(0)


CONFIG = """\
broker.id: 7
internal.bootstrap.servers: 127.0.0.1:19094
coordinator: {enabled: true, partitions: 5}
listeners: [{name: CLIENT, bind: '127.0.0.1:9092', upstream: '127.0.0.1:19092'}]
"""


@pytest.fixture
def load_config(tmp_path: Path) -> Callable[[str], Config]:
    def load_config(text: str) -> Config:
        path = tmp_path / "sidecar.yaml"
        path.write_text(text)
        return load(path, {})

    return load_config


@pytest.fixture
async def running(load_config: Callable[[str], Config]) -> Any:
    made = Running(load_config(CONFIG))
    yield made
    made.coordinator.abort()


def response(connection: int) -> ResponseReceived:
    return ResponseReceived(connection, b"frame")


async def test_effects_are_done_in_their_order_before_the_next_event(running: Running) -> None:
    write = WriteRecords(0, 1, (), {})
    running.machine.on = lambda event: (
        [ConsumerAccepted(7, 2000), SendFrame(7, b"ping"), write, CloseConsumer(8, "consumer_left")]
        if event == response(7)
        else [SendFrame(9, b"later")]
    )
    running.coordinator.post(response(7))
    running.coordinator.post(response(9))
    assert running.calls.done == [], "nothing is done within the call"
    await running.settle()
    assert running.calls.done == [
        ("accept", 7, 2000),
        ("send", 7, b"ping"),
        ("perform", write),
        ("close", 8, "consumer_left"),
        ("send", 9, b"later"),
    ]


@pytest.mark.promise("architecture.md", "The runner checks the right to send before each request, by its own clock.")
async def test_nothing_is_sent_after_a_pause_in_which_the_right_to_send_has_ended(running: Running) -> None:
    running.machine.confirmed_at = 900

    def pause(call: Any) -> None:  # the process stops between two frames
        running.now = 900 + WRITE_TIMEOUT

    running.calls.during = pause
    running.machine.on = lambda event: [SendFrame(1, b"start"), SendFrame(2, b"start")]
    running.coordinator.post(response(1))
    await running.settle()
    assert running.calls.done == [("send", 1, b"start")]
    assert running.coordinator.log.totals() == {"frames_withheld_total": [MetricTotal((), 1, 1)]}


async def test_time_is_processed_before_what_has_come_during_a_pause(running: Running) -> None:
    running.machine.due_at = 2000
    running.coordinator.post(response(1))
    running.now = 9000
    await running.settle()
    assert running.machine.handled == [(None, 9000), (response(1), 9000)]


async def test_a_request_is_reported_as_sent_with_the_time_when_the_kernel_had_it(running: Running) -> None:
    def slow(call: Any) -> None:
        running.now += 100
        if call == ("send", 4, b"full"):
            running.consumers.full.add(4)
            running.coordinator.post(ConnectionBuffered(4))

    frames = [SendFrame(1, b"a"), SendFrame(2, b"b"), SendFrame(4, b"full"), SendFrame(4, b"behind it")]
    running.calls.during = slow
    running.machine.on = lambda event: {response(1): frames[:2], response(3): frames[2:]}.get(event, [])  # type: ignore[arg-type]
    running.coordinator.post(response(1))
    running.coordinator.post(response(5))
    await running.settle()
    assert running.machine.handled == [(response(1), 1000), (ConnectionDrained(2), 1200), (response(5), 1200)]
    running.machine.handled.clear()
    running.coordinator.post(response(3))
    await running.settle()
    assert running.machine.events == [response(3), ConnectionBuffered(4)], "what it has not taken is not sent"


async def test_what_waits_for_a_lost_partition_is_not_done(running: Running) -> None:
    lost = PartitionLost(3, "fenced")

    def lose(call: Any) -> None:
        running.calls.during = lambda call: None
        running.coordinator.post(lost)

    running.calls.during = lose
    running.machine.on = lambda event: {
        response(1): [
            SendFrame(1, b"start"),
            SendFrame(2, b"start"),
            SendFrame(4, b"of another partition"),
            WriteRecords(3, 1, (), {}),
            HoldPartition(3, 5),
            HoldPartition(4, 6),
        ],
        lost: [CloseConsumer(1, "coordinator_moved"), CloseConsumer(2, "coordinator_moved")],
    }[event]  # type: ignore[index]
    running.coordinator.post(response(1))
    await running.settle()
    assert running.calls.done == [
        ("send", 1, b"start"),
        ("send", 4, b"of another partition"),
        ("perform", HoldPartition(4, 6)),
        ("close", 1, "coordinator_moved"),
        ("close", 2, "coordinator_moved"),
    ]


async def test_a_mistake_closes_consumers_and_begins_again(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RESTART_DELAY", 0.0)

    def fail(event: Event) -> list[Effect]:
        raise KeyError(event)

    running.machine.on = fail
    running.coordinator.post(response(1))
    running.coordinator.post(response(2))
    with capture_logs() as logged:
        await running.settle()
    assert [line["event"] for line in logged] == ["coordinator_failed"]
    assert running.calls.done == [("close_all",), ("close_partitions",), ("evacuate",), ("return_",)]
    assert len(running.machines) == 2
    running.coordinator.post(WriteCommitted(0, 1, 1))
    await running.settle()
    assert running.machine.events == [WriteCommitted(0, 1, 1)], "what had waited is gone"


async def test_after_a_mistake_it_stays_evacuated_and_is_told_the_addresses_of_brokers_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RESTART_DELAY", 0.0)
    endpoints = EndpointsChanged({"CLIENT": (EndpointEntry(7, "kafka-7", 9092),)})
    running.coordinator.post(EndpointsChanged({}))
    running.coordinator.post(endpoints)
    running.coordinator.evacuate()
    await running.settle()
    running.machine.on = lambda event: [1 / 0]  # type: ignore[list-item]
    running.coordinator.post(response(1))
    with capture_logs():
        await running.settle()
    assert running.calls.done == [("evacuate",), ("close_all",), ("close_partitions",), ("evacuate",)]
    assert running.machine.events == [endpoints], "they are reported only when they change"


async def test_what_waits_is_bounded_by_number_and_by_bytes(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for most, size in (("MAX_QUEUED_EVENTS", 2), ("MAX_QUEUED_BYTES", 10)):
        running.machine.handled.clear()
        with monkeypatch.context() as patched:
            patched.setattr(runner, most, size)
            for number in range(5):
                running.coordinator.post(response(number))
            assert running.machine.events == [response(0), response(1), response(2)], (
                f"without a turn of the loop: {most}"
            )
        await running.settle()


async def test_topics_are_told_once_it_is_known_who_may_read_them(running: Running) -> None:
    first, second = (TopicsChanged(watch=watch, topics={"t": TopicFactsOfGroups("id", (1,))}) for watch in (0, 1))
    running.calls.during = lambda call: running.coordinator.post(response(len(running.calls.done)))
    running.coordinator.post(first)
    running.coordinator.post(second)
    await running.settle()
    assert running.calls.done == [("set_topics", ["t"])] * 2
    assert running.machine.events == [response(1), first, response(2), second]


async def test_the_end_waits_until_consumers_are_told(running: Running) -> None:
    lost = PartitionLost(0, "stopping")
    running.machine.on = lambda event: [SendFrame(1, b"moved"), CloseConsumer(1, "coordinator_moved")]
    running.clusters[0].lost = [lost]
    await running.coordinator.resign()
    assert running.machine.events == [lost]
    assert running.calls.done == [("send", 1, b"moved"), ("close", 1, "coordinator_moved")]


@pytest.mark.promise(
    "log-events.md", "Of one event of the coordinator 20 lines are logged in a second, and the rest counted."
)
def test_lines_of_an_event_are_limited_within_a_second_and_counted() -> None:
    lines: list[tuple[str, dict[str, Any]]] = []
    log = GroupLog({"info": lambda event, **fields: lines.append((event, fields))})
    for number in range(25):
        log.log(LogGroupEvent("info", "rebalance", {"group": number}), 1000)
    log.log(LogGroupEvent("info", "consumer_gone", {}), 1500)
    log.log(LogGroupEvent("info", "rebalance", {"group": 25}), 2000)
    assert len(lines) == 22
    assert lines[-2:] == [("consumer_gone", {}), ("rebalance", {"group": 25, "suppressed": 5})]
