"""Which writes go into one transaction, and what an aborted one does to the others; without Kafka."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer

from proxy.fleet import fenced_writer
from proxy.fleet.fenced_writer import FencedWriter, Write
from proxy.fleet.group_metadata import MARKER, UnknownGroupMetadata, group_metadata, read_template
from proxy.fleet.topic_spec import GROUPS_TOPIC
from tests.unit.fleet.cluster import eventually


class Transactions(FencedWriter):
    """``committed``: the keys of each transaction. A write of a key in ``refused`` is to blame for an abort."""

    def __init__(self, refused: Sequence[bytes] = (), unclear: Sequence[bytes] = ()) -> None:
        super().__init__(GROUPS_TOPIC, "test", {}, None, lambda reason: None)
        self.committed: list[list[bytes]] = []
        self.results: list[tuple[bytes, str | None]] = []
        self.is_under_way = threading.Event()
        self.may_commit = threading.Event()
        self._refused, self._unclear = refused, unclear

    def _begin(self) -> Any:
        return None

    def _write(self, producer: Any, writes: Sequence[Write]) -> str | None:
        self.is_under_way.set()
        self.may_commit.wait(60)
        self._blamed = writes
        for one in writes:
            if any(key in self._refused for key in one.records):
                self._blamed = [one]
                return "refused"
        keys = [key for one in writes for key in one.records]
        if any(key in self._unclear for key in keys):
            return "unclear"
        self.committed.append(keys)
        return None

    def put(self, key: bytes, value: bytes = b"") -> None:
        self.write({key: value}, lambda error, began: self.results.append((key, error)))

    async def end(self, count: int) -> None:
        self.may_commit.set()
        await eventually(lambda: len(self.results) >= count)
        self.stop()
        await asyncio.to_thread(self._thread.join, 60)
        assert not self._thread.is_alive()


async def start(writer: Transactions) -> None:
    """The first write is under way when this returns, and waits."""
    begun = asyncio.Event()
    writer.start(begun.set)
    await begun.wait()
    writer.put(b"first")
    await eventually(writer.is_under_way.is_set)  # before, the thread may take more with it


async def test_all_that_waits_while_one_commits_goes_into_the_next_and_nothing_is_reported_after_the_end() -> None:
    writer = Transactions()
    await start(writer)
    for key in (b"a", b"b", b"c"):
        writer.put(key)
    await writer.end(4)
    assert writer.committed == [[b"first"], [b"a", b"b", b"c"]]
    assert writer.results == [(b"first", None), (b"a", None), (b"b", None), (b"c", None)]
    writer = Transactions()
    await start(writer)
    writer.put(b"a")
    writer.stop()
    await writer.end(0)
    await asyncio.sleep(0)
    assert writer.results == []


async def test_a_transaction_is_bounded_but_for_a_single_write(monkeypatch: pytest.MonkeyPatch) -> None:
    for records, size in ((2, 1_000_000), (1000, 10)):
        monkeypatch.setattr(fenced_writer, "MAX_BATCH_RECORDS", records)
        monkeypatch.setattr(fenced_writer, "MAX_BATCH_BYTES", size)
        writer = Transactions()
        await start(writer)
        for key in (b"a", b"b", b"c", b"d"):
            writer.put(key, bytes(4))
        writer.put(b"e", bytes(100))
        await writer.end(6)
        assert writer.committed == [[b"first"], [b"a", b"b"], [b"c", b"d"], [b"e"]], (records, size)


@pytest.mark.promise(
    "architecture.md", "Of the writes in one transaction only that which cannot be committed is aborted."
)
async def test_a_write_that_is_to_blame_is_aborted_alone() -> None:
    writer = Transactions(refused=[b"b", b"d"])
    await start(writer)
    for key in (b"a", b"b", b"c", b"d"):
        writer.put(key)
    await writer.end(5)
    assert writer.committed == [[b"first"], [b"a", b"c"]]
    assert dict(writer.results) == {b"first": None, b"a": None, b"b": "refused", b"c": None, b"d": "refused"}
    writer = Transactions(unclear=[b"b"])
    await start(writer)
    for key in (b"a", b"b"):
        writer.put(key)
    await writer.end(3)
    assert dict(writer.results) == {b"first": None, b"a": "unclear", b"b": "unclear"}, "nobody is to blame"


async def test_who_finishes_writes_what_waits() -> None:
    for waits in (0, 1, 3):
        writer = Transactions()
        await start(writer)
        keys = [bytes([97 + number]) for number in range(waits)]
        for key in keys:
            writer.put(key)
        writer.finish()
        writer.may_commit.set()
        await asyncio.to_thread(writer.join, 60)
        assert not writer._thread.is_alive()
        assert writer.committed == [[b"first"], *([keys] if keys else [])]


def test_the_metadata_of_a_group_are_those_of_a_consumer_of_it() -> None:
    for group in ("g", "payments.eu-1", "a" * 255, "grüße/日本", "a b", MARKER, "\xff\xff"):
        consumer = Consumer({"group.id": group})
        assert group_metadata(read_template())(group) == consumer.consumer_group_metadata(), group
        consumer.close()
    with pytest.raises(UnknownGroupMetadata, match="not as expected"):
        group_metadata(b"CGMDv3" + read_template()[6:])
