"""Consumers come and go, are killed and stopped; their coordinator is killed; topics grow and are recreated."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

from tests.integration.feature_fleet import wait_until
from tests.integration.group_fleet import BROKERS, ConsumerProcess, GroupFleet, SteadyProducer
from tests.integration.journaling import boottime_ns
from tests.integration.journals import MILLISECOND, Fault, Replay, Source, count_skipped, find_overlaps, find_replays
from tests.integration.own_network import Direction

SECOND = 1_000_000_000

MEMBERS = 4
"""Consumers that live at the same time, but for a moment."""

RATE = 20
"""Messages of each partition in a second."""

PAUSE = 0.25
"""Seconds in which messages wait in the streams of a consumer: it has some when it is stopped."""

MAX_PARTITIONS = 9

STOPPED_FOR = (0.1, 0.5, 0.9, 2.2, 3.0)
"""For how many session timeouts consumers are stopped. After two, their partitions are others'."""

CUT_FOR = (0.5, 3.0)
"""For how many session timeouts they are cut off from the sidecar that coordinates them."""

CUT_SECONDS = 12
"""For so long a coordinator is cut off from the brokers. It is silent after ``state.write.timeout.ms``, 5 s."""

GONE_TIMEOUTS = 10
"""Within so many session timeouts it is noticed that a consumer is gone: each takeover waits for it anew."""

COORDINATOR_ENDS = ("kill_coordinator", "cut_coordinator")

WATCH_SECONDS = 10
"""For so long after a topic was recreated, consumers may find an offset of the topic before it, and begin anew."""


class GroupChurn:
    """A group on which faults are brought about. ``faults``: all of them, by time."""

    def __init__(self, fleet: GroupFleet, group: str, seed: int, *, session_timeout_ms: int, commit_interval_ms: int):
        """``commit_interval_ms``: the fleet's ``offset.commit.interval.ms``."""
        self.faults: list[Fault] = []
        self._fleet, self._group = fleet, group
        self._random = random.Random(seed)
        self._session_timeout_ms, self._commit_interval_ms = session_timeout_ms, commit_interval_ms
        self._growing, self._recreated = f"{group}-growing", f"{group}-recreated"
        self._producers: dict[str, SteadyProducer] = {}
        self._produced: dict[Source, int] = {}
        self._living: dict[str, ConsumerProcess] = {}
        self._stopped: set[str] = set()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._all: list[ConsumerProcess] = []
        for topic, partitions in ((self._growing, 6), (self._recreated, 3)):
            fleet.create_topic(topic, partitions)
            self._produce(topic, partitions, 0)
        for _ in range(MEMBERS):
            self._start()
        fleet.wait_until_stable(group, MEMBERS)

    def run(self, seconds: float) -> None:
        """Bring about faults for so long; then undo what lasts."""
        until = time.monotonic() + seconds
        recreate_at = time.monotonic() + seconds / 3
        actions: list[Callable[[], None]] = [self._kill, self._kill_and_restart, self._replace]
        actions += [self._kill_coordinator] * 2
        actions += [partial(self._stop, share) for share in STOPPED_FOR]
        if self._fleet.network is not None:
            actions += [partial(self._cut, share, direction) for share in CUT_FOR for direction in Direction]
            actions.append(self._cut_coordinator)
        dealt: list[Callable[[], None]] = []
        self._after(seconds / 4, self._grow)
        self._after(seconds / 2, self._grow)
        self._after(recreate_at - time.monotonic(), self._recreate)
        while time.monotonic() < until:
            if not dealt:
                dealt = self._random.sample(actions, len(actions))
            dealt.pop()()
            self._wait(min(until, time.monotonic() + self._random.uniform(0.5, 3)))
        while self._later:
            self._wait(self._later[0][0])

    def settle(self) -> dict[str, Any]:
        """Wait until the group owns all partitions and has all messages; then end it. Returns its status."""
        coordinator = self._fleet.wait_until_stable(self._group, len(self._living))
        status = self._fleet.group(coordinator, self._group) or {}
        for producer in self._producers.values():
            self._produced |= producer.stop()
        wait_until(lambda: not self.skipped())
        for consumer in self._living.values():
            consumer.kill()
        return status

    def close(self) -> None:
        """Stop the producers."""
        for producer in self._producers.values():
            producer.stop()

    @property
    def partitions(self) -> int:
        """Of both topics, now."""
        return sum(one.partitions for one in self._producers.values())

    def overlaps(self) -> list[str]:
        """See ``find_overlaps``."""
        return find_overlaps(one.journal for one in self._all)

    def skipped(self) -> dict[Source, int]:
        """Messages that nobody was handed out, of the topics that exist."""
        return count_skipped((one.journal for one in self._all), self._produced)

    def replays(self) -> tuple[list[Replay], list[Replay]]:
        """Return what was handed out again with a reason, and what without.

        A consumer that was gone for its coordinator is such a reason, too: a machine that is busy keeps one from
        answering for as long as a fault does.
        """
        self.faults += [
            Fault(at, "gone", one.name)
            for at, consumer_id in self._fleet.gone(self._group)
            for one in self._all
            if one.consumer_id == consumer_id
        ]
        self.faults.sort()
        found = find_replays(one.journal for one in self._all)
        excused: list[Replay] = []
        others: list[Replay] = []
        for one in found:
            (excused if self._is_excused(one) else others).append(one)
        return excused, others

    def failures(self) -> list[str]:
        """Consumers that have ended by themselves."""
        return [f"{one.name}: {one.journal.failure}" for one in self._all if one.journal.failure is not None]

    def _is_excused(self, replay: Replay) -> bool:
        """What a consumer has read since its last answer is lost with it: a third of the session timeout, and half as
        much for what is late. So it is where an offset is out of range, which ends its connection. What the coordinator
        had not committed is lost if both end, in whatever way. Who is cut off may hear two more
        requests before its lease begins to end."""
        timeout = self._session_timeout_ms * MILLISECOND
        handed_out, unanswered = replay.first, timeout // 2
        for fault in self.faults:
            since = handed_out.after - fault.at
            if fault.what == "recreate" and -unanswered < since < WATCH_SECONDS * SECOND:
                return True
            until = fault.at + (2 * timeout if fault.what == "cut" else timeout)
            if fault.name != replay.name or handed_out.before > until:
                continue
            if fault.what == "gone" and since > -GONE_TIMEOUTS * timeout:
                return True
            if fault.what != "leave" and since > -unanswered:
                return True
            if since > -unanswered - self._commit_interval_ms * MILLISECOND and self._coordinator_ended(fault.at):
                return True
        return False

    def _coordinator_ended(self, at: int) -> bool:
        """Whether it was killed or cut off not long before, or after."""
        near = 2 * self._session_timeout_ms * MILLISECOND
        return any(one.what in COORDINATOR_ENDS and abs(one.at - at) < near for one in self.faults)

    # Faults

    def _kill(self) -> None:
        self._note("kill", consumer := self._pick())
        consumer.kill()
        self._drop(consumer)
        self._after(0.5, self._start)

    def _kill_and_restart(self) -> None:
        """The same consumer id comes back at once."""
        self._note("kill", consumer := self._pick())
        consumer_id = next(name for name, one in self._living.items() if one is consumer)
        consumer.kill()
        self._drop(consumer)
        self._start(consumer_id)

    def _stop(self, share: float) -> None:
        """For a share of the session timeout."""
        consumer = self._pick()
        if consumer.name in self._stopped:
            return
        self._note("stop", consumer)
        consumer.signal(signal.SIGSTOP)
        self._stopped.add(consumer.name)

        def go_on() -> None:
            if consumer.name in self._stopped:
                self._stopped.remove(consumer.name)
                consumer.signal(signal.SIGCONT)

        self._after(share * self._session_timeout_ms / 1000, go_on)

    def _cut(self, share: float, direction: Direction) -> None:
        """Off from the coordinator, for a share of the session timeout."""
        coordinator = self._fleet.coordinator(self._group)
        if coordinator is not None:
            self._note("cut", consumer := self._pick())
            heal = self._fleet.cut_consumer(consumer, coordinator, direction).close
            self._after(share * self._session_timeout_ms / 1000, heal)

    def _cut_coordinator(self) -> None:
        """Off from the brokers, until another sidecar has taken its place."""
        coordinator = self._fleet.coordinator(self._group)
        if coordinator is not None and len(self._fleet.living) == len(BROKERS):
            self.faults.append(Fault(boottime_ns(), "cut_coordinator", str(coordinator)))
            self._after(CUT_SECONDS, self._fleet.cut_sidecar(coordinator, self._random.choice(list(Direction))).close)

    def _replace(self) -> None:
        """A consumer leaves, and another one joins."""
        consumer = self._pick()
        if consumer.name in self._stopped:
            return
        self._note("leave", consumer)
        consumer.leave()
        self._drop(consumer)
        self._start()

    def _kill_coordinator(self) -> None:
        coordinator = self._fleet.coordinator(self._group)
        if coordinator is None or len(self._fleet.living) < len(BROKERS):
            return
        self.faults.append(Fault(boottime_ns(), "kill_coordinator", str(coordinator)))
        self._fleet.stop(coordinator, kill=True)
        self._after(self._random.choice([0.0, 3.0]), lambda: self._fleet.restart(coordinator, wait=False))

    def _grow(self) -> None:
        producer = self._producers[self._growing]
        partitions = min(producer.partitions + 1, MAX_PARTITIONS)
        self.faults.append(Fault(boottime_ns(), "grow", self._growing))
        self._fleet.add_partitions(self._growing, partitions)
        self._produced |= producer.stop()
        self._produce(self._growing, partitions, 0)

    def _recreate(self) -> None:
        topic = self._recreated
        before = self._producers.pop(topic)
        before.stop()
        self.faults.append(Fault(boottime_ns(), "recreate", topic))
        self._fleet.admin.delete_topics([topic])[topic].result(30)
        self._fleet.create_topic(topic, before.partitions)
        self._produce(topic, before.partitions, before.recreated + 1)

    # Means

    def _produce(self, topic: str, partitions: int, recreated: int) -> None:
        before = self._producers.get(topic)
        bootstrap = self._fleet.state.internal_bootstrap
        made = SteadyProducer(bootstrap, topic, partitions, rate=RATE, recreated=recreated)
        if before is not None:
            made.acknowledged.update(before.acknowledged)
        self._producers[topic] = made

    def _start(self, consumer_id: str = "") -> None:
        self._count += 1
        consumer_id = consumer_id or f"c{self._count}"
        topics = [self._growing, self._recreated]
        arguments = {"session_timeout_ms": self._session_timeout_ms, "pause": PAUSE}
        started = self._fleet.consume(self._group, consumer_id, topics, **arguments)
        self._living[consumer_id] = started
        self._all.append(started)

    def _pick(self) -> ConsumerProcess:
        return self._living[self._random.choice(sorted(self._living))]

    def _drop(self, consumer: ConsumerProcess) -> None:
        self._stopped.discard(consumer.name)
        self._living = {name: one for name, one in self._living.items() if one is not consumer}

    def _note(self, what: str, consumer: ConsumerProcess) -> None:
        self.faults.append(Fault(boottime_ns(), what, consumer.name))

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._later, (time.monotonic() + seconds, self._count, call))

    def _wait(self, until: float) -> None:
        while self._later and self._later[0][0] <= until:
            due, _, call = heappop(self._later)
            time.sleep(max(0.0, due - time.monotonic()))
            call()
        time.sleep(max(0.0, until - time.monotonic()))

    def figures(self) -> str:
        """What happened, in a line."""
        kinds = Counter(one.what for one in self.faults)
        handed_out = sum(len(one.journal.handed_out) for one in self._all)
        return f"{len(self._all)} consumers, {handed_out} messages, {dict(sorted(kinds.items()))}"
