"""A partition of the topic of groups gives up a writer that commits nothing; with one that does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from proxy.coordinator.effects import WriteRecords
from proxy.coordinator.events import Event, WriteAborted, WriteCommitted
from proxy.fleet import group_partitions
from proxy.fleet.group_partitions import GroupKafka, GroupPartition

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


@pytest.mark.parametrize("fails", [False, True])
async def test_a_writer_that_commits_nothing_is_given_up(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """``fails``: it says that what was to be written is aborted."""
    monkeypatch.setattr(group_partitions, "MUTE_SECONDS", 0.01)
    lost = asyncio.get_running_loop().create_future()
    kafka = KAFKA._replace(write_timeout_ms=10)
    partition = GroupPartition(3, kafka, lambda event: None, lambda *found: lost.set_result(found))
    partition.write(WriteRecords(3, 1, [], {}))
    if fails:
        writer.ends[0]("timed out", 10)
    with capture_logs() as logged:
        assert await asyncio.wait_for(lost, 60) == (3, "stuck")
    assert writer.is_stopped
    assert [(one["event"], one["reason"]) for one in logged] == [("group_partition_lost", "stuck")]


async def test_each_write_that_is_committed_begins_the_time_again(writer: Writer) -> None:
    events: list[Event] = []
    partition = GroupPartition(3, KAFKA, events.append, lambda *_: pytest.fail("it was given up"))
    partition.write(WriteRecords(3, 1, [], {}))
    first = partition._stuck
    assert first is not None
    partition.write(WriteRecords(3, 2, [], {}))
    assert partition._stuck is first, "later writes do not move it"
    writer.ends[0](None, 10)
    assert first.cancelled()
    second = partition._stuck
    assert second is not None
    partition.write(WriteRecords(3, 3, [], {}))
    writer.ends[1]("timed out", 20)
    assert partition._stuck is second, "one that is aborted does not"
    writer.ends[2](None, 30)
    assert second.cancelled()
    assert partition._pending == 0, "nothing is waited for"
    await asyncio.sleep(0)
    assert events == [WriteCommitted(3, 1, 10), WriteAborted(3, 2, "timed out"), WriteCommitted(3, 3, 30)]
