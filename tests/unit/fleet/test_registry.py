"""The registry's thread, before a topic that only this process knows."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from proxy.fleet import compacted_topic, topic_thread
from proxy.fleet import registry as module
from proxy.fleet.membership import Member
from proxy.fleet.registry import RegistryThread
from proxy.fleet.sidecar_record import SidecarRecord, encode, record_key
from proxy.fleet.topic_spec import TopicRecord

VALUE = encode(SidecarRecord({}, (), None, -1, "1"))
LAST = encode(SidecarRecord({}, (), None, -1, "1", state="stopped"))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: the end of the thread is waited for, and a record is not written again."""
    monkeypatch.setattr(topic_thread, "THREAD_CLOSE_TIMEOUT", 60.0)
    monkeypatch.setattr(module, "HEARTBEAT_INTERVAL", 600.0)


class Topic:
    """``reads``: what each read returns, then nothing."""

    def __init__(self, reads: list[list[TopicRecord]]) -> None:
        self.reads = reads
        self.position = 0
        self.dropped: Counter[str] = Counter()
        self.written: list[tuple[bytes, bytes]] = []

    def read(self, seconds: float) -> tuple[list[TopicRecord], bool]:
        return (self.reads.pop(0) if self.reads else []), not self.reads

    def write(self, key: bytes, value: bytes, done: object) -> None:
        self.written.append((key, value))

    def report_delivered(self) -> None:
        return

    def close_consumer(self) -> None:
        return

    def close_producer(self, seconds: float) -> None:
        return


@asynccontextmanager
async def running(made: Topic, monkeypatch, *, registers: bool) -> AsyncIterator[asyncio.Future[Mapping[int, Member]]]:
    """The thread, and the members that it reports at the end of the topic. It signs off when it ends."""
    monkeypatch.setattr(compacted_topic, "CompactedTopic", lambda spec, settings, authenticator: made)
    reported: asyncio.Future[Mapping[int, Member]] = asyncio.get_running_loop().create_future()
    registry = RegistryThread(
        {}, "me", lambda content, end: reported.set_result(content.sidecars) if end and not reported.done() else None
    )
    registry.register(1, VALUE)
    if not registers:
        registry.withdraw()
    registry.start()
    try:
        yield reported
    finally:
        registry.sign_off(LAST)
        await registry.close()


async def test_sidecars_are_reported_as_read_and_nothing_is_written_once_it_has_withdrawn(monkeypatch):
    for at, events in ((1000, []), (None, ["registry_clock"])):  # with the broker's clock, with those of the writers
        made = Topic([[TopicRecord(record_key(2), VALUE, at)], [TopicRecord(record_key(3), VALUE, at)]])
        with capture_logs() as logs:
            async with running(made, monkeypatch, registers=False) as reported:
                seen = await asyncio.wait_for(reported, 60)
        assert {node_id: one.alive for node_id, one in seen.items()} == {2: True, 3: True}, at
        assert made.written == [], at
        assert [one["event"] for one in logs] == events, at
    assert "message.timestamp.type=LogAppendTime" in logs[0]["advice"]


@pytest.mark.promise("architecture.md", "The last record of a sidecar in the registry says that it stops.")
async def test_the_last_record_says_that_it_stops(monkeypatch):
    made = Topic([])
    async with running(made, monkeypatch, registers=True), asyncio.timeout(60):
        while not made.written:  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.001)
    assert made.written == [(record_key(1), VALUE), (record_key(1), LAST)]
