"""Consumers come and go, are killed, stopped and cut off; so are their coordinators, and brokers; topics change."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any, NamedTuple

from proxy.coordinator.records import partition_of
from proxy.core.protected_topics import GROUPS
from proxy.local import cluster
from tests.integration.feature_fleet import wait_until
from tests.integration.group_fleet import BROKERS, ConsumerProcess, GroupFleet, SteadyProducer
from tests.integration.journaling import boottime_ns
from tests.integration.journals import (
    MILLISECOND,
    OFFSETS_TOPIC,
    Event,
    Explainer,
    Journal,
    Loss,
    Outage,
    Recreation,
    Replay,
    Source,
    UnsureTakeover,
    count_skipped,
    find_replays,
    read_commits,
)
from tests.integration.own_network import Direction

SECOND = 1_000_000_000

MEMBERS = 4  # consumers that live at the same time, but for a moment
RATE = 20  # messages of each partition in a second
PAUSE = 0.25  # seconds in which messages wait in the streams of a consumer: it has some when it is stopped
MAX_PARTITIONS = 9

# For how many session timeouts consumers are stopped, or cut off from the sidecar that coordinates them. After two,
# their partitions are others'.
STOPPED_FOR, CUT_FOR = (0.1, 0.5, 0.9, 2.2, 3.0), (0.5, 3.0)

# Seconds
CUT_SECONDS = 12  # a coordinator is cut off from the brokers; it is silent after ``state.write.timeout.ms``, 5 s
CALM_SECONDS = (3, 20)  # between two ends of coordinators: in the longer one a successor can wait for who is gone
BROKER_SECONDS = 150  # between two brokers that are killed
WRITER_SECONDS = 10  # a coordinator keeps a writer that commits nothing, when a broker is killed
RECREATED_SECONDS = 5  # after a topic was recreated, a consumer may begin at an offset of the topic before it
LATE_SECONDS = 1  # a ping may be late on a busy machine
COMMIT_SECONDS = 3  # a commit may take longer there than its interval
FENCED_SECONDS = 3  # a coordinator may not know that its successor has fenced it: it writes every 2 s at least

RETURN_SECONDS = 10
"""By so much longer than 4T/3 a successor may wait for consumers that are missing, before others get StartFetcher: 1.02
times ``state.write.timeout.ms``, and what it takes on a busy machine until these have answered a ping."""


class Fault(NamedTuple):
    """What was done at a time. ``name``: of the journal of the consumer, or of whatever else it was done to."""

    at: int
    what: str
    name: str


class GroupChurn:
    """A group on which faults are brought about. ``faults``: all of them, by time."""

    def __init__(self, fleet: GroupFleet, group: str, seed: int, *, session_timeout_ms: int, commit_interval_ms: int):
        """``commit_interval_ms``: the fleet's ``offset.commit.interval.ms``."""
        self.faults: list[Fault] = []
        self._fleet, self._group = fleet, group
        self._random = random.Random(seed)
        self._session_timeout_ms, self._commit_interval_ms = session_timeout_ms, commit_interval_ms
        self._timeout = session_timeout_ms * MILLISECOND
        self._calm_until = self._until = 0.0
        self._down: set[int] = set()
        """Broker ids of the sidecars that are to be started again."""
        self._growing, self._recreated = f"{group}-growing", f"{group}-recreated"
        self._producers: dict[str, SteadyProducer] = {}
        self._produced: dict[Source, int] = {}
        self._living: dict[str, ConsumerProcess] = {}
        self._stopped: set[str] = set()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._all: list[ConsumerProcess] = []
        for topic, partitions in ((self._growing, 6), (self._recreated, 3)):
            fleet.create_topic(topic, partitions, copies=len(BROKERS))
            self._produce(topic, partitions, 0)
        for _ in range(MEMBERS):
            self._start()
        fleet.wait_until_stable(group, MEMBERS)

    def run(self, seconds: float) -> None:
        """Bring about faults for so long; then undo what lasts."""
        until = self._until = time.monotonic() + seconds
        recreate_at = time.monotonic() + seconds / 3
        actions: list[Callable[[], None]] = [self._kill, self._kill_and_restart, self._replace, self._move_leader]
        actions += [self._kill_coordinator] * 2
        actions += [partial(self._stop, share) for share in STOPPED_FOR]
        if self._fleet.network is not None:
            actions += [partial(self._cut, share, direction) for share in CUT_FOR for direction in Direction]
            actions += [partial(self._reset, of_consumer=one) for one in (True, False)]
            actions.append(self._cut_coordinator)
        dealt: list[Callable[[], None]] = []
        self._after(seconds / 4, self._grow)
        self._after(seconds / 2, self._grow)
        self._after(recreate_at - time.monotonic(), self._recreate)
        for after in range(BROKER_SECONDS // 2, int(seconds), BROKER_SECONDS):
            self._after(after, self._kill_broker)
        while time.monotonic() < until:
            self._revive()
            if not dealt:
                dealt = self._random.sample(actions, len(actions))
            dealt.pop()()
            self._wait(min(until, time.monotonic() + self._random.uniform(0.5, 3)))
        while self._later:
            self._wait(self._later[0][0])
        self._revive()

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
        for producer in self._producers.values():
            producer.stop()

    @property
    def partitions(self) -> int:
        """Of both topics, now."""
        return sum(one.partitions for one in self._producers.values())

    @property
    def journals(self) -> list[Journal]:
        return [one.journal for one in self._all]

    def skipped(self) -> dict[Source, int]:
        """Messages that nobody was handed out, of the topics that exist."""
        return count_skipped(self.journals, self._produced)

    def replays(self) -> tuple[Counter[str], list[Replay]]:
        """Return how many messages were handed out again by reason, and those without one."""
        commits = read_commits(self._fleet.state.internal_bootstrap, self._group)
        explainer = Explainer(
            self.journals,
            self._events(),
            commits,
            unreported=self._timeout // 3 + LATE_SECONDS * SECOND,
            uncommitted=self._commit_interval_ms * MILLISECOND + COMMIT_SECONDS * SECOND,
            lease=self._timeout,
        )
        found = [(explainer.explain(one), one) for one in find_replays(self.journals)]
        return Counter(reason for reason, _ in found if reason), [one for reason, one in found if reason is None]

    def _events(self) -> list[Event]:
        """What the faults have brought about, as section 8 of the design allows it.

        What a consumer has read since its last answer is lost with it: up to a third of the session timeout T. One that
        is stopped or cut off reads on until its lease ends, at most T after it; where only what it sends is lost it may
        hear two more pings. One that leaves reports everything, if it has a coordinator. One that is gone for its
        coordinator, without a fault, has left several pings unanswered: the machine was busy. A coordinator whose
        partition is taken hears what it cannot commit, until it notices. One that takes over while its predecessor
        waited for somebody's response to StartFetcher logs ``group_unsure``: it says which takeovers are excused.
        """
        timeout, unreported = self._timeout, self._timeout // 3 + LATE_SECONDS * SECOND
        found: list[Event] = []
        # From when on what it reports may be lost, until when it hands out, and for how long it had not reported.
        losses = {
            "kill": (0, SECOND, unreported),
            "leave": (timeout, timeout, 0),
            f"cut {Direction.FROM.value}": (0, timeout * 5 // 3 + SECOND, unreported),
        }
        outages = {
            "kill coordinator": SECOND,
            "cut coordinator": 2 * timeout,
            "kill broker": WRITER_SECONDS * SECOND + 2 * timeout,
        }
        for at, what, name in self.faults:
            if what in outages:
                found.append(Outage(what, at, at + outages[what]))
            elif what == "recreate":
                found.append(Recreation(name, at, at + RECREATED_SECONDS * SECOND))
            elif what in losses or what == "stop" or what.startswith(("cut ", "reset ")):
                lost, until, before = losses.get(what, (0, timeout + SECOND, unreported))
                found.append(Loss(name, what, at + lost, at + until, before))
        resigned = self._fleet.resigned(partition_of(self._group, self._fleet.partitions))
        found += [Outage("takeover", at - FENCED_SECONDS * SECOND, at) for at in resigned]
        unsure_for = timeout * 4 // 3 + RETURN_SECONDS * SECOND
        found += [UnsureTakeover(at, at + unsure_for) for at in self._fleet.unsure(self._group)]
        names = [(one.consumer_id, one.name) for one in self._all]
        for at, consumer_id in self._fleet.gone(self._group):
            found += [Loss(name, "gone", at, at + timeout, 2 * timeout) for own, name in names if own == consumer_id]
        return found

    # Faults

    def _kill(self) -> None:
        self._note("kill", (consumer := self._pick()).name)
        consumer.kill()
        self._drop(consumer)
        self._after(0.5, self._start)

    def _kill_and_restart(self) -> None:
        """The same consumer id comes back at once."""
        self._note("kill", (consumer := self._pick()).name)
        consumer_id = next(name for name, one in self._living.items() if one is consumer)
        consumer.kill()
        self._drop(consumer)
        self._start(consumer_id)

    def _stop(self, share: float) -> None:
        """For a share of the session timeout."""
        consumer = self._pick()
        if consumer.name in self._stopped:
            return
        self._note("stop", consumer.name)
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
            self._note(f"cut {direction.value}", (consumer := self._pick()).name)
            heal = self._fleet.cut_consumer(consumer, coordinator, direction).close
            self._after(share * self._session_timeout_ms / 1000, heal)

    def _reset(self, *, of_consumer: bool) -> None:
        """Its connection to the coordinator, on one side: the other one hears nothing of it."""
        coordinator = self._fleet.coordinator(self._group)
        if coordinator is not None:
            self._note(f"reset {'consumer' if of_consumer else 'coordinator'}", (consumer := self._pick()).name)
            self._fleet.reset_consumer(consumer, coordinator, of_consumer=of_consumer)

    def _end_coordinator(self, what: str) -> int | None:
        """Return the broker id of the sidecar that is to end; None while there are not three, or one ended just now."""
        coordinator = self._fleet.coordinator(self._group)
        is_calm = time.monotonic() > self._calm_until
        if coordinator is None or len(self._fleet.living) < len(BROKERS) or not is_calm:
            return None
        self._note(what, str(coordinator))
        self._calm_until = time.monotonic() + self._random.choice(CALM_SECONDS)
        return coordinator

    def _cut_coordinator(self) -> None:
        """Off from the brokers, until another sidecar has taken its place."""
        if (coordinator := self._end_coordinator("cut coordinator")) is not None:
            self._after(CUT_SECONDS, self._fleet.cut_sidecar(coordinator, self._random.choice(list(Direction))).close)

    def _replace(self) -> None:
        """A consumer leaves, and another one joins."""
        consumer = self._pick()
        if consumer.name in self._stopped:
            return
        self._note("leave", consumer.name)
        consumer.leave()
        self._drop(consumer)
        self._start()

    def _kill_coordinator(self) -> None:
        if (coordinator := self._end_coordinator("kill coordinator")) is not None:
            self._stop_sidecar(coordinator)
            self._after(self._random.choice([0.0, 3.0]), lambda: self._start_sidecar(coordinator))

    def _stop_sidecar(self, broker_id: int) -> None:
        self._down.add(broker_id)
        self._fleet.stop(broker_id, kill=True)

    def _start_sidecar(self, broker_id: int) -> None:
        self._down.remove(broker_id)
        self._fleet.restart(broker_id, wait=False)

    def _revive(self) -> None:
        """Start sidecars again that have given up starting: the machine was too busy."""
        for broker_id in set(BROKERS).difference(self._fleet.living, self._down):
            self._fleet.restart(broker_id, wait=False)

    def _kill_broker(self) -> None:
        """And its sidecar, which is the coordinator."""
        is_whole = self._fleet.is_replicated(self._growing, self._recreated, GROUPS, OFFSETS_TOPIC)
        coordinator = self._end_coordinator("kill broker") if is_whole else None
        if coordinator is None:
            if time.monotonic() < self._until:
                self._after(2, self._kill_broker)
            return
        self._stop_sidecar(coordinator)
        self._fleet.kill_broker(coordinator)

        def go_on() -> None:
            cluster.start_node(self._fleet.folder, coordinator)
            self._start_sidecar(coordinator)

        self._after(self._random.choice([2.0, 10.0]), go_on)

    def _move_leader(self) -> None:
        """Of the partition of the group; the coordinator follows."""
        partition = partition_of(self._group, self._fleet.partitions)
        if len(self._fleet.living) == len(BROKERS) and self._fleet.is_replicated(GROUPS):
            others = [one for one in BROKERS if one != self._fleet.leaders(GROUPS)[partition]]
            self._note("move leader", str(partition))
            self._fleet.move_leader(GROUPS, partition, self._random.choice(others))

    def _grow(self) -> None:
        producer = self._producers[self._growing]
        partitions = min(producer.partitions + 1, MAX_PARTITIONS)
        self._note("grow", self._growing)
        self._fleet.add_partitions(self._growing, partitions)
        self._produced |= producer.stop()
        self._produce(self._growing, partitions, 0)

    def _recreate(self) -> None:
        topic = self._recreated
        before = self._producers.pop(topic)
        before.stop()
        self._fleet.admin.delete_topics([topic])[topic].result(30)
        self._fleet.create_topic(topic, before.partitions, copies=len(BROKERS))
        self._note("recreate", topic)
        self._produce(topic, before.partitions, before.recreated + 1)

    # Means

    def _produce(self, topic: str, partitions: int, recreated: int) -> None:
        before = self._producers.get(topic)
        bootstrap = self._fleet.state.internal_bootstrap
        acknowledged = None if before is None else before.acknowledged
        made = SteadyProducer(bootstrap, topic, partitions, rate=RATE, recreated=recreated, acknowledged=acknowledged)
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

    def _note(self, what: str, name: str) -> None:
        """Before it is done. What was done is also in a file, beside the journals."""
        self.faults.append(fault := Fault(boottime_ns(), what, name))
        with (self._fleet.folder / "faults").open("a") as output:
            print(*fault, file=output)

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
