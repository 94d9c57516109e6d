"""The threads of the topics of features and of the registry, before a topic that only this process knows."""

import asyncio
import math
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE
from structlog.testing import capture_logs

from proxy.errors import BrokersideError
from proxy.fleet import compacted_topic, features_thread, registry, topic_consumer, topic_thread
from proxy.fleet.features_thread import FeaturesThread
from proxy.fleet.membership import Member
from proxy.fleet.registry import RegistryThread
from proxy.fleet.sidecar_record import SidecarRecord, encode, record_key
from proxy.fleet.topic_client import TopicError
from proxy.fleet.topic_consumer import end_offset, to_topic_record
from proxy.fleet.topic_spec import TopicRecord
from tests.unit.fleet.cluster import eventually

A, B = TopicRecord(b"a", b"1", 1000), TopicRecord(b"b", b"2", 1000)


class Topic:
    """``arriving``: records that the next reads return, one each. ``end_offset``: the end, as the cluster has it.

    ``more``: if not set, a read that finds nothing waits for it. ``reader``: the thread that has read last.
    """

    def __init__(self, *arriving: TopicRecord, end_offset: int = 0) -> None:
        self.arriving = deque(arriving)
        self.end_offset = end_offset
        self.position = 0
        self.failure: str | None = None
        self.dropped: Counter[str] = Counter()
        self.written: list[tuple[bytes, bytes | None]] = []
        self.more = threading.Event()
        self.more.set()
        self.reader = threading.current_thread()
        self.closed = threading.Event()
        self.producer_closed = False

    def read(self, seconds: float) -> tuple[list[TopicRecord], bool]:
        self.reader = threading.current_thread()
        if self.failure:
            raise BrokersideError(self.failure)
        if not self.arriving:
            self.closed.wait(0.001)
            self.more.wait(20)
            return [], True
        self.position += 1
        return [self.arriving.popleft()], False

    def end(self) -> int:
        return self.end_offset

    def write(self, key: bytes, value: bytes | None, done: Callable[[str | None], None]) -> None:
        self.written.append((key, value))
        done(None)

    def report_delivered(self) -> None:
        return

    def close_consumer(self) -> None:
        assert threading.current_thread() is self.reader, "another thread reads"
        self.closed.set()

    def close_producer(self, seconds: float) -> None:
        self.producer_closed = True


class Seen:
    """What a thread has reported, in its order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *topics: Topic) -> None:
        opened = iter(topics)

        def open_next(*args: Any) -> Topic:
            topic = next(opened, None)
            if topic is None:
                raise BrokersideError("cannot be opened")
            return topic

        monkeypatch.setattr(compacted_topic, "CompactedTopic", open_next)
        monkeypatch.setattr(topic_thread, "FIRST_RETRY", 0.01)
        monkeypatch.setattr(topic_thread, "THREAD_CLOSE_TIMEOUT", 60.0)
        self.reports: list[Any] = []
        self.thread = FeaturesThread({}, "me", None, self._on_records, lambda: self.reports.append("restart"))

    def _on_records(self, records: Sequence[TopicRecord]) -> None:
        self.reports += [record.key for record in records]

    async def until(self, count: int) -> None:
        await eventually(lambda: len(self.reports) >= count)


@pytest.mark.promise(
    "architecture.md", "A sidecar that waits for the end of its topic waits for that of a topic that was made again."
)
async def test_who_waits_for_the_end_waits_for_that_of_the_topic_that_is_opened_again(monkeypatch):
    lost, again = Topic(A, end_offset=2), Topic(A, B, end_offset=2)
    seen = Seen(monkeypatch, lost, again)
    monkeypatch.setattr(features_thread, "UNAVAILABLE_AFTER", math.inf)
    with capture_logs() as logs:
        seen.thread.start()
        await seen.until(1)
        seen.thread.read_to_end(lambda: seen.reports.append("end"))
        await asyncio.sleep(0.05)
        lost.failure = "it was deleted"
        await seen.until(5)
        await seen.thread.close()
    assert seen.reports == [b"a", "restart", b"a", b"b", "end"]
    assert logs == [], "it did not last"


async def test_a_topic_that_is_read_no_further_though_it_ends_elsewhere_is_opened_again(monkeypatch):
    """It was made again, and has fewer records than before or more; librdkafka may report nothing."""
    monkeypatch.setattr(topic_thread, "CHECK_INTERVAL", 0.0)
    monkeypatch.setattr(features_thread, "UNAVAILABLE_AFTER", math.inf)
    for end in (0, 2):
        seen = Seen(monkeypatch, Topic(A, end_offset=end), Topic(B, end_offset=1))
        seen.thread.start()
        await seen.until(3)
        await asyncio.sleep(0.05)
        await seen.thread.close()
        assert seen.reports == [b"a", "restart", b"b"], end


@pytest.mark.promise(
    "log-events.md", "`features_unavailable` is logged once, when the topic could not be read for 5 seconds."
)
async def test_a_failure_is_logged_once_when_it_has_lasted(monkeypatch):
    """A topic that the first sidecar has just created cannot be read at once."""
    for has_lasted in [False, True]:
        failing = [Topic() for _ in range(3)]
        for topic in failing:
            topic.failure = "unknown topic"
        seen = Seen(monkeypatch, *failing, Topic(A))
        monkeypatch.setattr(features_thread, "UNAVAILABLE_AFTER", 0 if has_lasted else math.inf)
        with capture_logs() as logs:
            seen.thread.start()
            await seen.until(4)
            await seen.thread.close()
        assert seen.reports == ["restart", "restart", "restart", b"a"], has_lasted
        assert [(one["event"], one.get("error")) for one in logs] == (
            [("features_unavailable", "unknown topic"), ("features_back", None)] if has_lasted else []
        ), has_lasted


async def test_what_is_proposed_is_written_unless_its_time_is_over(monkeypatch):
    topic = Topic()
    seen = Seen(monkeypatch, topic)
    seen.thread.propose(b"late", b"1", 0, seen.reports.append)
    seen.thread.propose(b"key", b"2", 60, seen.reports.append)
    seen.thread.start()
    await seen.until(1)
    await seen.thread.close()
    assert topic.written == [(b"key", b"2")]
    assert seen.reports == [None]


async def test_nothing_that_is_asked_for_waits_for_a_read(monkeypatch):
    monkeypatch.setattr(topic_thread, "TURN_SECONDS", 60.0)
    topic = Topic(A, end_offset=1)
    topic.more.clear()
    seen = Seen(monkeypatch, topic)
    seen.thread.start()
    await seen.until(1)
    seen.thread.read_to_end(lambda: seen.reports.append("end"))
    await seen.until(2)
    seen.thread.propose(b"key", b"2", 60, seen.reports.append)
    await seen.until(3)
    await seen.thread.close()
    assert seen.reports == [b"a", "end", None]
    assert topic.written == [(b"key", b"2")]
    assert topic.producer_closed
    assert not topic.closed.is_set()
    topic.more.set()
    assert topic.closed.wait(60)


VALUE, LAST = (encode(SidecarRecord({}, (), None, -1, "1", state=state)) for state in ("running", "stopped"))


@asynccontextmanager
async def running(made: Topic, monkeypatch, *, registers: bool) -> AsyncIterator[asyncio.Future[Mapping[int, Member]]]:
    """The thread, and the members that it reports at the end of the topic. It signs off when it ends."""
    monkeypatch.setattr(compacted_topic, "CompactedTopic", lambda *args: made)
    monkeypatch.setattr(topic_thread, "THREAD_CLOSE_TIMEOUT", 60.0)
    monkeypatch.setattr(registry, "HEARTBEAT_INTERVAL", 600.0)  # a record is not written again
    reported: asyncio.Future[Mapping[int, Member]] = asyncio.get_running_loop().create_future()
    thread = RegistryThread(
        {}, "me", lambda content, end: reported.set_result(content.sidecars) if end and not reported.done() else None
    )
    thread.register(1, VALUE)
    if not registers:
        thread.withdraw()
    thread.start()
    try:
        yield reported
    finally:
        thread.sign_off(LAST)
        await thread.close()


async def test_sidecars_are_reported_as_read_and_nothing_is_written_once_it_has_withdrawn(monkeypatch):
    for at, events in ((1000, []), (None, ["registry_clock"])):  # with the broker's clock, with those of the writers
        made = Topic(*(TopicRecord(record_key(node_id), VALUE, at) for node_id in (2, 3)))
        with capture_logs() as logs:
            async with running(made, monkeypatch, registers=False) as reported:
                seen = await asyncio.wait_for(reported, 60)
        assert {node_id: one.alive for node_id, one in seen.items()} == {2: True, 3: True}, at
        assert made.written == [], at
        assert [one["event"] for one in logs] == events, at
    assert "message.timestamp.type=LogAppendTime" in logs[0]["advice"]


@pytest.mark.promise("architecture.md", "The last record of a sidecar in the registry says that it stops.")
async def test_the_last_record_says_that_it_stops(monkeypatch):
    made = Topic()
    async with running(made, monkeypatch, registers=True):
        await eventually(lambda: made.written)
    assert made.written == [(record_key(1), VALUE), (record_key(1), LAST)]


OFFSET_INVALID = -1001
"""What librdkafka's admin client returns without an error where the leader was killed."""


@pytest.mark.promise("architecture.md", "Only times that the broker's clock has given to records count.")
def test_only_the_broker_s_clock_counts():
    for timestamp, at in [
        ((TIMESTAMP_LOG_APPEND_TIME, 1000), 1000),
        ((TIMESTAMP_CREATE_TIME, 9_000_000_000_000), None),
        ((TIMESTAMP_NOT_AVAILABLE, 0), None),
    ]:
        assert to_topic_record(b"sidecar/1", b"{}", timestamp).at == at, (timestamp, at)


class Admin:
    """Answers with these offsets, the last one again and again. ``refreshed``: how often it was asked for leaders."""

    def __init__(self, *offsets: int) -> None:
        self._offsets: Iterator[int] = iter(offsets)
        self._last = 0
        self.refreshed = 0

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        self._last = next(self._offsets, self._last)
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=self._last))
        return dict.fromkeys(asked, answer)

    def list_topics(self, *_: Any, **__: Any) -> None:
        self.refreshed += 1


def test_a_leader_that_does_not_answer_is_not_an_empty_topic(monkeypatch):
    monkeypatch.setattr(topic_consumer, "STALE_LEADER_PAUSES", (0.0, 0.0))
    admin = Admin(OFFSET_INVALID, 384)
    assert end_offset(cast(Any, admin), "t", 0) == 384
    assert admin.refreshed == 1, "another broker leads it now"
    with pytest.raises(TopicError):
        end_offset(cast(Any, Admin(OFFSET_INVALID)), "t", 0)
