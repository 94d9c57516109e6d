"""What is asked of group coordinators, and again, before a broker that is a script."""

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from proxy.config import load
from proxy.coordinator.effects import ReadCommittedOffsets
from proxy.coordinator.events import CommittedOffsetsRead, Event
from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.core.struct import view
from proxy.core.wire import skip_tags
from proxy.fleet import broker_queries, group_queries
from proxy.fleet.group_queries import GroupQueries
from proxy.fleet.topic_spec import GROUPS_TOPIC

LIST_OFFSETS, METADATA, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, API_VERSIONS = 2, 3, 9, 10, 15, 18
CONSUMER_GROUP_DESCRIBE, SHARE_GROUP_DESCRIBE = 69, 77
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER, LOADING, NOT_COORDINATOR = 3, 6, 14, 16
NOT_AUTHORIZED, GROUP_ID_NOT_FOUND, UNSTABLE = 30, 69, 88

Script = Callable[[Any], Mapping[str, Any] | None]


class Kafka:
    """One broker. ``scripts``: what answers each request, by api key; without an answer the connection ends.

    ``asked``: how often, by api key; ``connections``: those that are open. ``silent``: it answers nothing.
    """

    def __init__(self) -> None:
        self.scripts: dict[int, Script] = {
            METADATA: lambda _: self._metadata(),
            FIND_COORDINATOR: lambda request: {
                "Coordinators": [{"Key": key, **self._address} for key in request.get("CoordinatorKeys")]
            },
        }
        self.asked: Counter[int] = Counter()
        self.connections: set[asyncio.Task[None]] = set()
        self.silent = False
        self.was_asked = asyncio.Event()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        await self.ended()

    async def ended(self) -> None:
        """Wait until no connection is open."""
        async with asyncio.timeout(60):
            await asyncio.gather(*self.connections)

    @property
    def _address(self) -> dict[str, Any]:
        return {"NodeId": 1, "Host": "127.0.0.1", "Port": self.port}

    def _metadata(self) -> dict[str, Any]:
        topic = {"Name": GROUPS_TOPIC.name, "Partitions": [{"PartitionIndex": n, "LeaderId": 1} for n in range(3)]}
        return {"Brokers": [self._address], "Topics": [topic]}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self.connections.add(task)
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
        made = layout(key, version, response=True)
        body = frame[10 + length :]
        request = view(key, version, body[skip_tags(body, 0) :] if made.flexible else body, response=False)
        self.asked[key] += 1
        self.was_asked.set()
        if self.silent:
            return True
        values = self.scripts[key](request)
        if values is None:
            return False
        answer = struct.pack(">i", correlation_id) + (b"\0" if made.flexible else b"") + encode(made, values)
        writer.write(struct.pack(">i", len(answer)) + answer)
        return True


@pytest_asyncio.fixture
async def kafka() -> AsyncIterator[Kafka]:
    broker = Kafka()
    await broker.start()
    yield broker
    await broker.stop()


class Asking:
    """``events``: what was reported."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        path = folder / "sidecar.yaml"
        path.write_text(
            f"broker.id: 1\ninternal.bootstrap.servers: 127.0.0.1:{kafka.port}\ncoordinator: {{enabled: true}}\n"
            "listeners: [{name: CLIENT, bind: '127.0.0.1:9092', upstream: 'k:1'}]\n"
        )
        self.events = asyncio.Queue[Event]()
        self.queries = GroupQueries(load(path), "me", self.events.put_nowait)

    async def read(self, group: str = "g") -> Mapping[tuple[str, int], int] | None:
        self.queries.read_committed_offsets(ReadCommittedOffsets(0, group, 1))
        event = await asyncio.wait_for(self.events.get(), 60)
        assert (event.partition, event.group, event.read) == (0, group, 1)
        return event.offsets

    async def has_members(self) -> bool | None:
        self.queries.find_ordinary_members("g")
        event = await asyncio.wait_for(self.events.get(), 60)
        return event.has_members

    async def is_empty(self, partition: int) -> bool:
        done = asyncio.get_running_loop().create_future()
        self.queries.check_empty(partition, done.set_result)
        found: bool = await asyncio.wait_for(done, 60)
        return found


@pytest_asyncio.fixture
async def asking(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asking]:
    monkeypatch.setattr(group_queries, "RETRY", 0.001)
    monkeypatch.setattr(group_queries, "RETRY_TIMEOUT", 60.0)
    made = Asking(kafka, tmp_path)
    yield made
    await made.queries.close()
    await kafka.ended()
    assert asyncio.all_tasks() <= {asyncio.current_task(), *kafka.connections}


def offsets(*partitions: tuple[int, int, int], code: int = 0) -> Script:
    """``partitions``: each with its offset and error."""
    parts = [{"PartitionIndex": n, "CommittedOffset": offset, "ErrorCode": error} for n, offset, error in partitions]

    def answer(request: Any) -> Mapping[str, Any]:
        assert request.get("RequireStable")
        groups = [one.get("GroupId") for one in request.get("Groups")]
        topics = [{"Name": "t", "Partitions": parts}]
        return {"Groups": [{"GroupId": group, "ErrorCode": code, "Topics": topics} for group in groups]}

    return answer


def states(state: str, code: int = 0) -> Script:
    return lambda request: {"Groups": [{"GroupId": "g", "GroupState": state, "ErrorCode": code}]}


def in_turn(*scripts: Script) -> Script:
    """The last one answers all that follow."""
    left = list(scripts)
    return lambda request: (left.pop(0) if len(left) > 1 else left[0])(request)


async def test_a_coordinator_that_loads_or_has_moved(kafka: Kafka, asking: Asking, monkeypatch) -> None:
    moved, gone = offsets(code=NOT_COORDINATOR), lambda request: None
    pending = offsets((0, 5, 0), (1, -1, UNSTABLE), (2, -1, 0))  # within a transaction that is not over
    known = offsets((0, 5, 0), (1, 0, 0), (2, -1, 0))
    kafka.scripts[OFFSET_FETCH] = in_turn(offsets(code=LOADING), moved, gone, pending, known)
    assert await asking.read() == {("t", 0): 5, ("t", 1): 0}, "of the partitions that have one"
    assert (kafka.asked[OFFSET_FETCH], kafka.asked[FIND_COORDINATOR]) == (5, 3)
    kafka.scripts[OFFSET_FETCH] = in_turn(offsets(code=NOT_AUTHORIZED), offsets((0, 5, 0)))
    assert await asking.read() is None, "another error is no answer"
    assert await asking.read() == {("t", 0): 5}
    monkeypatch.setattr(group_queries, "RETRY_TIMEOUT", 0.05)
    kafka.scripts[OFFSET_FETCH] = pending
    assert await asking.read() is None, "it does not end"


async def test_many_groups_in_few_requests(kafka: Kafka, asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_queries, "MAX_DECODED_HERE", 0)  # by a thread
    kafka.scripts[OFFSET_FETCH] = offsets((0, 5, 0))
    groups = {f"g{number}" for number in range(250)}
    for group in groups:
        asking.queries.read_committed_offsets(ReadCommittedOffsets(0, group, 1))
    found = [await asyncio.wait_for(asking.events.get(), 60) for _ in groups]
    assert {one.group for one in found if isinstance(one, CommittedOffsetsRead) and one.offsets} == groups
    assert kafka.asked[FIND_COORDINATOR] == 3
    assert kafka.asked[OFFSET_FETCH] <= 6
    assert len(kafka.connections) == 2


OF_OTHER_TYPES: list[tuple[dict[int, tuple[int, int]], Script | None, Script | None, bool | None]] = [
    ({}, None, None, False),
    ({69: (0, 1)}, states("Stable"), None, True),
    ({69: (0, 1)}, states("Empty"), None, False),
    ({69: (0, 0)}, states("", 35), None, False),  # the broker does not have that protocol enabled
    ({69: (0, 1), 77: (0, 0)}, states("", GROUP_ID_NOT_FOUND), None, False),
    ({69: (0, 1), 77: (1, 1)}, states("", GROUP_ID_NOT_FOUND), states("Stable"), True),
    ({69: (0, 1)}, states("", NOT_AUTHORIZED), None, None),
]


@pytest.mark.promise(
    "coordinator.md", "The coordinator finds members of each of Kafka's own group protocols that the broker knows."
)
async def test_the_state_of_a_group_of_any_type_tells_whether_it_has_members(kafka: Kafka, asking: Asking) -> None:
    for state, has_members in (("Stable", True), ("PreparingRebalance", True), ("Empty", False)):
        kafka.scripts[DESCRIBE_GROUPS] = states(state)
        assert await asking.has_members() is has_members, state
    kafka.scripts[DESCRIBE_GROUPS] = states("Dead")  # it is not classic
    for number, (versions, consumer, share, found) in enumerate(OF_OTHER_TYPES):
        known = {API_VERSIONS: (0, 4), **versions}
        entries = [{"ApiKey": key, "MinVersion": low, "MaxVersion": high} for key, (low, high) in known.items()]
        kafka.scripts[API_VERSIONS] = lambda _, entries=entries: {"ApiKeys": entries}
        for key, script in ((CONSUMER_GROUP_DESCRIBE, consumer), (SHARE_GROUP_DESCRIBE, share)):
            kafka.scripts.pop(key, None)
            if script is not None:
                kafka.scripts[key] = script
        assert await asking.has_members() is found, (number, versions)


async def test_a_partition_of_the_topic_of_groups_is_empty_if_it_ends_at_0(kafka: Kafka, asking: Asking) -> None:
    def ends(end: int, code: int) -> Script:
        part = {"PartitionIndex": 2, "Offset": end, "ErrorCode": code}
        return lambda request: {"Topics": [{"Name": GROUPS_TOPIC.name, "Partitions": [part]}]}

    for end in (0, 1):
        failing = (ends(end, NOT_LEADER), ends(end, UNKNOWN_TOPIC_OR_PARTITION))
        kafka.scripts[LIST_OFFSETS] = in_turn(*failing, ends(end, 0))
        assert await asking.is_empty(2) is (end == 0)


async def test_a_new_partition_s_leader(kafka: Kafka, asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"PartitionIndex": 0, "LeaderId": 1}]
    kafka.scripts[LIST_OFFSETS] = lambda _: {"Topics": [{"Name": GROUPS_TOPIC.name, "Partitions": parts}]}
    metadata = kafka.scripts[METADATA]

    def without(request: Any) -> Mapping[str, Any]:
        return {**(metadata(request) or {}), "Topics": []}

    kafka.scripts[METADATA] = in_turn(without, without, without, metadata)  # the first one is of the connection
    assert await asking.is_empty(0)
    monkeypatch.setattr(group_queries, "RETRY_TIMEOUT", 0.01)
    assert not await asking.is_empty(7)


async def test_nothing_is_known_where_nobody_listens(kafka: Kafka, asking: Asking) -> None:
    await kafka.stop()
    assert await asking.read() is None
    assert await asking.has_members() is None
    assert not await asking.is_empty(0)


async def test_closing_ends_a_request_that_is_under_way_and_reports_nothing(kafka: Kafka, asking: Asking) -> None:
    kafka.silent = True
    for group in ("g", "h"):
        asking.queries.read_committed_offsets(ReadCommittedOffsets(0, group, 1))
        asking.queries.find_ordinary_members(group)
    await asyncio.wait_for(kafka.was_asked.wait(), 60)
    asking.queries.find_ordinary_members("new")  # its task has not begun
    await asking.queries.close()
    assert asking.events.empty()
