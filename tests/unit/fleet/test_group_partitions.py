"""What a coordinator is told of its cluster, and when a partition gives up a writer that commits nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from proxy.config import Config, load
from proxy.coordinator.effects import WriteRecords
from proxy.coordinator.events import EndpointsChanged, Event, WriteAborted, WriteCommitted
from proxy.coordinator.wire import EndpointEntry
from proxy.fleet import group_partitions
from proxy.fleet.group_cluster import GroupCluster
from proxy.fleet.group_partitions import GroupKafka, GroupPartition
from proxy.interceptors.broker_metadata import BrokerView, FleetView

KAFKA = GroupKafka({}, None, cast(Any, None), lambda group: b"", 1, "boot", 5000)


class Writer:
    """Takes writes, and ends none by itself."""

    def __init__(self) -> None:
        self.ends: list[Callable[[str | None, int], None]] = []
        self.is_stopped = False

    def write(self, records: Any, done: Callable[[str | None, int], None], offsets: Any) -> None:
        self.ends.append(done)

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    made = Writer()
    monkeypatch.setattr(group_partitions, "FencedWriter", lambda *_, **__: made)
    return made


@pytest.mark.promise(
    "coordinator.md", "A coordinator that is cut off from Kafka resigns 5 s after `state.write.timeout.ms` has passed."
)
async def test_a_writer_that_commits_nothing_is_given_up(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert group_partitions.MUTE_SECONDS == 5
    monkeypatch.setattr(group_partitions, "MUTE_SECONDS", 0.01)
    for fails in (False, True):  # it says that what was to be written is aborted
        writer.ends.clear()
        writer.is_stopped = False
        lost = asyncio.get_running_loop().create_future()
        kafka = KAFKA._replace(write_timeout_ms=10)
        partition = GroupPartition(3, kafka, lambda event: None, lambda *found, lost=lost: lost.set_result(found))
        partition.write(WriteRecords(3, 1, [], {}))
        if fails:
            writer.ends[0]("timed out", 10)
        with capture_logs() as logged:
            assert await asyncio.wait_for(lost, 60) == (3, "stuck")
        assert writer.is_stopped, fails
        assert [(one["event"], one["reason"]) for one in logged] == [("group_partition_lost", "stuck")]


async def test_each_write_that_is_committed_begins_the_time_again(writer: Writer) -> None:
    events: list[Event] = []
    partition = GroupPartition(3, KAFKA, events.append, lambda *_: pytest.fail("it was given up"))
    partition.write(WriteRecords(3, 1, [], {}))
    first = partition._stuck
    partition.write(WriteRecords(3, 2, [], {}))
    assert partition._stuck is first, "later writes do not move it"
    writer.ends[0](None, 10)
    assert first.cancelled()
    second = partition._stuck
    partition.write(WriteRecords(3, 3, [], {}))
    writer.ends[1]("timed out", 20)
    assert partition._stuck is second, "one that is aborted does not"
    writer.ends[2](None, 30)
    assert second.cancelled()
    assert partition._pending == 0, "nothing is waited for"
    await asyncio.sleep(0)
    assert events == [WriteCommitted(3, 1, 10), WriteAborted(3, 2, "timed out"), WriteCommitted(3, 3, 30)]


VIEW = FleetView(1, (BrokerView(1, {"client": ("k", 9092), "late": ("k", 9093)}),))


class Fleet:
    boot_id = "own"
    group_leaders = ()

    def update_groups(self, groups: object) -> None: ...


def config_of(tmp_path: Path, *listeners: str) -> Config:
    path = tmp_path / "sidecar.yaml"
    lines = [f"- {{name: {one}, bind: '127.0.0.1:{9092 + n}', upstream: k:1}}" for n, one in enumerate(listeners)]
    text = ["broker.id: 1", "internal.bootstrap.servers: k:1", "coordinator: {enabled: true}", "listeners:", *lines]
    path.write_text("\n".join(text))
    return load(path)


def cluster_of(config: Config, events: list[Event]) -> GroupCluster:
    fleet: Any = Fleet()
    return GroupCluster(config, fleet, events.append, lambda view: None)


async def test_the_addresses_of_a_new_listener_are_told_with_the_reload(tmp_path: Path) -> None:
    events: list[Event] = []
    cluster = cluster_of(config_of(tmp_path, "CLIENT"), events)
    client, late = (EndpointEntry(1, "k", 9092),), (EndpointEntry(1, "k", 9093),)
    cluster.reconfigure(config_of(tmp_path, "CLIENT"))
    cluster.update_fleet_view(VIEW)
    cluster.update_fleet_view(VIEW)
    cluster.reconfigure(config_of(tmp_path, "CLIENT", "LATE"))
    await asyncio.sleep(0)
    assert events == [EndpointsChanged({"CLIENT": client}), EndpointsChanged({"CLIENT": client, "LATE": late})]
