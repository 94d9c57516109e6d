"""When topics are asked for, and what is reported of them, before a cluster that only this process knows."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from proxy.fleet import topic_watch
from proxy.fleet.schedule import Schedule
from proxy.fleet.topic_watch import TopicWatch
from proxy.rpc.messages import RpcRequest
from proxy.rpc.topic_messages import DescribedTopic, describe_topics_request
from tests.unit.rpc.test_group_messages import DESCRIBED_TOPICS as ANSWER

T = {"t": DescribedTopic("x2WV4MPmRI633fAt3yEvuQ", (1, 1, 1))}


class Cluster:
    """``answer``: what it says. ``asked``: all requests."""

    away_reason: str | None = None

    def __init__(self) -> None:
        self.answer = ANSWER
        self.asked: list[RpcRequest] = []
        self.was_asked = asyncio.Event()

    async def call(self, request: RpcRequest) -> bytes:
        self.asked.append(request)
        self.was_asked.set()
        return self.answer

    def close(self) -> None:
        return

    async def asked_again(self, times: int = 1) -> None:
        """Wait until it was asked so often from now on, and the answer was read."""
        async with asyncio.timeout(60):
            for _ in range(times):
                self.was_asked.clear()
                await self.was_asked.wait()
            await asyncio.sleep(0)
            await asyncio.sleep(0)


class Watching:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.reports = asyncio.Queue[Mapping[str, DescribedTopic]]()
        self.watch = TopicWatch(self.cluster, self._report, 0.01)
        self.number = 0

    def _report(self, topics: Mapping[str, DescribedTopic], number: int) -> None:
        assert number == self.number
        self.reports.put_nowait(topics)

    def begin(self, *names: str, all_topics: bool = False) -> None:
        self.number += 1
        self.watch.watch(self.number, frozenset(names), all_topics=all_topics)

    async def report(self) -> Mapping[str, DescribedTopic]:
        async with asyncio.timeout(60):
            return await self.reports.get()


@pytest_asyncio.fixture
async def watching(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watching]:
    monkeypatch.setattr("proxy.fleet.schedule.MIN_POLL_INTERVAL", 0.001)
    monkeypatch.setattr(topic_watch, "ALL_TOPICS_INTERVAL", 0.02)
    one = Watching()
    one.watch.start()
    yield one
    await one.watch.close()


@pytest.mark.promise("architecture.md", "The coordinator is told of a topic once, and after each change of it.")
async def test_named_topics_are_reported_once_and_after_each_change(watching: Watching) -> None:
    await asyncio.sleep(0.05)
    assert watching.cluster.asked == [], "nothing is watched"
    watching.begin("t", "nosuch")
    assert await watching.report() == T
    assert watching.cluster.asked[0] == describe_topics_request(["nosuch", "t"])
    await watching.cluster.asked_again(3)
    assert watching.reports.empty()
    watching.cluster.answer = ANSWER.replace(b"\x02t", b"\x02u")
    assert await watching.report() == {}
    watching.begin("u")
    assert await watching.report() == {"u": T["t"]}
    for name in ("other", "another"):
        watching.begin(name)
        assert await watching.report() == {}, "it does not exist"


async def test_each_watch_is_reported_once_and_the_same_in_other_bytes_is_not(watching: Watching) -> None:
    watching.begin("t")
    assert await watching.report() == T
    watching.cluster.answer = b"\0\0\0\0\7" + ANSWER[5:]  # the broker has throttled the request
    await watching.cluster.asked_again(3)
    assert watching.reports.empty()
    for _ in range(2):
        watching.begin("t")
        assert await watching.report() == T
    for _ in range(2):
        watching.begin()
        assert await watching.report() == {}


def looks(schedule: Schedule, until: float, *, took: float = 0.0, fails: bool = False) -> list[float]:
    """When it polls until then, each poll taking that long."""
    times = []
    while (at := schedule.next_at()) <= until:
        times.append(round(at, 3))
        (schedule.failed if fails else schedule.succeeded)(at, at + took)
    return times


@pytest.mark.promise(
    "limits.md", "A rate that is stored in the cluster acts on every sidecar within 11 seconds: each looks every ten."
)
def test_it_looks_at_once_and_then_every_ten_seconds_and_sooner_after_a_poke_or_a_failure() -> None:
    assert looks(Schedule(5.0), 40.0) == [5.0, 15.0, 25.0, 35.0]
    schedule = Schedule(0.0)
    assert looks(schedule, 4.0) == [0.0]
    schedule.refresh(4.0)
    assert looks(schedule, 20.0) == [4.0, 4.2, 4.5, 5.0, 6.0, 16.0]
    schedule = Schedule(0.0)
    schedule.refresh(0.0)
    assert looks(schedule, 15.0, took=1.5) == [0.0, 1.7, 3.4, 14.9], "slow answers leave out what is due meanwhile"
    schedule = Schedule(0.0)
    schedule.refresh(0.5)
    schedule.succeeded(0.0, 1.0)
    assert schedule.next_at() == 1.2, "a poke during a look counts"
    schedule = Schedule(0.0)
    assert looks(schedule, 45.0, fails=True) == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0, 35.0, 45.0]
    schedule.succeeded(50.0, 50.0)
    schedule.failed(60.0, 60.0)
    assert schedule.next_at() == 61.0
