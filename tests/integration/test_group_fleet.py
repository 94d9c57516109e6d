"""Groups of consumers over a fleet: three brokers, three sidecars, and consumers in processes of their own.

GROUPS_FULL=1: every case, and all of it for longer. GROUPS_KAFKA: of the brokers (4.3.1); GROUPS_SEED: of the churn;
GROUPS_SECONDS: for how long the churn brings about faults (300); GROUPS_TIMEOUT_MS: session timeout of the consumers
that nothing may stop (30000). Where the kernel permits a network namespace, which is root's, connections are cut too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import ElectionType, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from proxy.coordinator.records import partition_of
from proxy.coordinator.wire import (
    CLUSTER_METADATA,
    ClusterMetadataRequest,
    ClusterMetadataResponse,
    EndpointEntry,
    decode_cluster_metadata_response,
    encode_cluster_metadata_request,
)
from proxy.core.protected_topics import GROUPS
from proxy.features.catalog import COORDINATOR_PROTOCOL
from proxy.features.records import SAFE_DOWNGRADE, FeatureUpdate
from proxy.features.updates import NONE, UpdateResult
from proxy.local import cluster, process
from proxy.local.state import ClusterState
from tests.brokers import start_again
from tests.integration.feature_fleet import FeatureFleet, wait_until
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
    boottime_ns,
    count_skipped,
    find_overlaps,
    find_replays,
    longest_pauses,
    read_commits,
    read_journal,
)
from tests.integration.own_network import Direction, OwnNetwork, own_network
from tests.integration.quotas import Peer, body_of
from tests.integration.topics import committed
from tests.tools.quick_groups import QUICK_GROUPS

IS_FULL = bool(os.environ.get("GROUPS_FULL"))

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(3600 if IS_FULL else 600)]

PARTITIONS = 6
COMMIT_INTERVAL_MS = 2000
MARGIN_MS = 3000
"""By so much a report and its commit may be late on a busy machine."""

CHURN_SECONDS = int(os.environ.get("GROUPS_SECONDS", "300" if IS_FULL else "40"))
KAFKA = os.environ.get("GROUPS_KAFKA", "4.3.1")

CUTS = [(share, direction) for share in (0.5, 3.0) for direction in Direction] if IS_FULL else [(3.0, Direction.FROM)]
"""For how many session timeouts a consumer is cut off from its coordinator, and in which direction."""

SESSION_TIMEOUT_MS = int(os.environ.get("GROUPS_TIMEOUT_MS", "30000"))
"""Of consumers that nothing is to stop. From 10 s on nothing does, on a machine that has time for them."""

TIMEOUTS_MS = [6000, SESSION_TIMEOUT_MS] if IS_FULL else [SESSION_TIMEOUT_MS]

LEASE_PERCENT = 95
LOOK_MS = 100
"""The consumer looks at its socket as often."""

BROKERS = (1, 2, 3)

ALTER_PARTITION_REASSIGNMENTS = 45

TWO_WORKERS = 2
"""The broker whose sidecar has two: a connection goes from the worker that has accepted it to the main process."""


class ConsumerProcess:
    """A consumer; ``name``: of its journal, no other process has it."""

    def __init__(self, path: Path, arguments: dict[str, Any], host: Sequence[str]) -> None:
        self.name = path.stem
        self.consumer_id = str(arguments["consumer_id"])
        self._path = path
        self._read = 0, Journal(self.name, [], [], [], [], None)
        """The journal as it was when the file had so many bytes."""
        path.touch()
        command = [*host, sys.executable, "-m", "tests.integration.journals", str(path), json.dumps(arguments)]
        with path.with_suffix(".log").open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    @property
    def journal(self) -> Journal:
        if (size := self._path.stat().st_size) != self._read[0]:
            self._read = size, read_journal(self._path)
        return self._read[1]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def check_log(self) -> None:
        assert "Traceback" not in (output := self._path.with_suffix(".log").read_text()), output


class SteadyProducer:
    """Appends messages to all partitions of a topic in turn until ``stop``; a message's value is ``recreated``.

    ``acknowledged``: how many, by partition.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, *, rate: int, recreated: int = 0,
        acknowledged: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        """``rate``: messages of each partition in a second. ``acknowledged``: by another one, before."""
        self.topic, self.partitions, self.recreated = topic, partitions, recreated
        self.acknowledged = Counter[int](acknowledged)
        self._interval = 1 / rate
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> dict[Source, int]:
        """Return how many messages there are of each partition."""
        self._end.set()
        self._thread.join()
        assert self._producer.flush(30) == 0
        return {(self.topic, self.recreated, number): count for number, count in self.acknowledged.items()}

    def _run(self) -> None:
        due = time.monotonic()
        while not self._end.is_set():
            for partition in range(self.partitions):
                self._producer.produce(self.topic, str(self.recreated), partition=partition, on_delivery=self._done)
            self._producer.poll(0)
            due = max(due + self._interval, time.monotonic())
            self._end.wait(due - time.monotonic())

    def _done(self, error: object, message: Any) -> None:
        assert error is None, error
        self.acknowledged[message.partition()] += 1


class GroupFleet(FeatureFleet):
    """The sidecars, and the consumers that were started. ``admin``: a client of the brokers themselves. ``stopped``:
    broker ids of the sidecars that are stopped now. ``network``: each sidecar and each consumer is a host of it."""

    def __init__(self, state: ClusterState, network: OwnNetwork | None) -> None:
        self.network = network
        partitions = {"partitions": PARTITIONS, "offset.commit.interval.ms": COMMIT_INTERVAL_MS}
        coordinator = {"enabled": True, "max.consumers": 100, **partitions}
        super().__init__(state, {"coordinator": coordinator, "observer.class.names": None})
        with self.config(TWO_WORKERS).open("a") as config:
            config.write("workers: 2\n")
        self.admin = AdminClient({"bootstrap.servers": state.internal_bootstrap})
        self.consumers: list[ConsumerProcess] = []
        self.stopped: set[int] = set()

    def host(self, name: str) -> list[str]:
        return [] if self.network is None else self.network.command(name)

    @property
    def living(self) -> list[int]:
        """Broker ids of the sidecars that run, but for those that are stopped."""
        return [one for one, sidecar in self.sidecars.items() if sidecar.process.alive() and one not in self.stopped]

    def group(self, broker_id: int, group: str) -> dict[str, Any] | None:
        """A group as a sidecar has it; None where it does not coordinate it, or does not run."""
        with contextlib.suppress(OSError):
            found: dict[str, Any] = self.ask(broker_id, f"/groups?group={group}")["groups"][0]
            return found
        return None

    def held(self, broker_id: int) -> set[int]:
        return {one["partition"] for one in self.ask(broker_id, "/coordinator")["held"]}

    def is_spread(self) -> bool:
        """Whether each partition is held by the sidecar of its leader, and the sidecars agree on that."""
        leaders = self.leaders("__brokerside_groups")
        try:
            if any(self.held(one) != {p for p, leader in leaders.items() if leader == one} for one in BROKERS):
                return False
            return all(self.coordinators(one) == leaders for one in BROKERS)
        except OSError:
            return False

    def leaders(self, topic: str) -> dict[int, int]:
        found = self.admin.list_topics(topic, timeout=20).topics[topic].partitions
        return {number: one.leader for number, one in found.items()}

    def is_replicated(self, *topics: str) -> bool:
        found = self.admin.list_topics(timeout=20).topics
        partitions = [one for topic in topics for one in found[topic].partitions.values()]
        return all(len(one.isrs) == len(one.replicas) for one in partitions)

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Make a broker the preferred leader of a partition, and let it lead."""
        replicas = [broker_id, *(one for one in BROKERS if one != broker_id)]
        moved = [{"Name": topic, "Partitions": [{"PartitionIndex": partition, "Replicas": replicas}]}]
        body = body_of(ALTER_PARTITION_REASSIGNMENTS, 0, TimeoutMs=30_000, Topics=moved)
        with Peer(self.state.internal_bootstrap.partition(",")[0]) as peer:
            answer = peer.ask(ALTER_PARTITION_REASSIGNMENTS, 0, body)
        assert answer[5:7] == b"\0\0", answer
        which = TopicPartition(topic, partition)

        def leads() -> bool:
            with contextlib.suppress(KafkaException):
                self.admin.elect_leaders(ElectionType.PREFERRED, [which]).result(180)
            return self.leaders(topic)[partition] == broker_id

        wait_until(leads)

    def coordinators(self, broker_id: int) -> dict[int, int]:
        """Who coordinates the groups of each partition, as a sidecar tells its clients."""
        return {
            number: self.cluster_metadata(broker_id, 1, group_of(number)).coordinator_id for number in range(PARTITIONS)
        }

    def cluster_metadata(self, broker_id: int, version: int, group: str | None = None) -> ClusterMetadataResponse:
        body = encode_cluster_metadata_request(version, ClusterMetadataRequest(group))
        with Peer(self.address(broker_id)) as peer:
            return decode_cluster_metadata_response(peer.ask(CLUSTER_METADATA, version, body))

    def coordinator(self, group: str) -> int | None:
        """Broker id of the sidecar that has the group, by its own account."""
        return next((one for one in self.living if self.group(one, group) is not None), None)

    def wait_until_stable(self, group: str, members: int) -> int:
        """Wait until a group has so many members, and each has its share of all partitions; return its coordinator.

        Members that join one after the other may be those of one rebalance or of two, and after the first one the group
        is stable as well.
        """
        found: list[int] = []

        def is_stable() -> bool:
            for broker_id in self.living:
                status = self.group(broker_id, group)
                if status is not None and status["members"] == members:
                    fetching = all(one["state"] == "fetching" for one in status["consumers"])
                    at_rest = status["state"] == "stable" and not status["unowned"] and status["owned"]
                    if at_rest and fetching and _is_even(status["consumers"]):
                        found.append(broker_id)
                        return True
            return False

        wait_until(is_stable)
        return found[-1]

    def create_topic(self, name: str, partitions: int, copies: int = 1) -> None:
        """Create a topic, also one that was deleted just now."""
        topic = NewTopic(name, partitions, copies, config={"min.insync.replicas": str((copies + 1) // 2)})

        def is_created() -> bool:
            try:
                self.admin.create_topics([topic])[name].result(180)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False
            return True

        wait_until(is_created)
        self.wait_for_leaders(name, partitions)

    def wait_for_leaders(self, topic: str, partitions: int) -> None:
        wait_until(lambda: len(self.leaders(topic)) == partitions and -1 not in self.leaders(topic).values())

    def consume(self, group: str, consumer_id: str, topics: Sequence[str], **arguments: Any) -> ConsumerProcess:
        """Start a consumer. ``arguments``: more of what ``journals`` takes. It fetches from the brokers themselves
        so that it can do so while a sidecar is away."""
        given = {
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "kafka": {"bootstrap.servers": self.state.internal_bootstrap},
            "pause": 0,
            **arguments,
            "bootstrap_brokers": [self.address(one) for one in BROKERS],
            "group_id": group,
            "consumer_id": consumer_id,
            "topic_count": dict.fromkeys(topics, 1),
        }
        path = self.folder / f"consumer-{len(self.consumers)}-{consumer_id}"
        self.consumers.append(ConsumerProcess(path, given, self.host(path.name)))
        return self.consumers[-1]

    def cut_consumer(self, consumer: ConsumerProcess, broker_id: int, direction: Direction) -> ExitStack:
        """Lose packets between a consumer and the sidecar of a broker, until the stack is closed."""
        return self.network.cut(consumer.name, [_port(self.address(broker_id))], direction)

    def reset_consumer(self, consumer: ConsumerProcess, broker_id: int, *, of_consumer: bool) -> None:
        """Reset its connection to the sidecar of a broker, on its side or on the sidecar's alone."""
        self.network.reset(consumer.name, _port(self.address(broker_id)), of_host=of_consumer)

    def cut_sidecar(self, broker_id: int, direction: Direction) -> ExitStack:
        """Lose packets between the sidecar of a broker and all brokers, until the stack is closed."""
        ports = [_port(each) for one in self.state.nodes for each in (one.upstream, one.internal)]
        return self.network.cut(f"sidecar-{broker_id}", ports, direction)


def _is_even(consumers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the shares of consumers, as an admin endpoint has them, differ by one partition of each topic at most."""
    threads = [one["threads"].values() for one in consumers]
    topics = {topic for each in threads for one in each for topic in one}
    shares = [sum(len(partitions) for one in each for partitions in one.values()) for each in threads]
    return max(shares) - min(shares) <= len(topics)


def logged_at(line: Mapping[str, Any]) -> int:
    """When a line was logged, as ``boottime_ns`` has it."""
    booted = time.time_ns() - boottime_ns()
    return int(datetime.fromisoformat(line["timestamp"]).timestamp() * SECOND) - booted


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


@contextmanager
def producing(fleet: GroupFleet, topic: str, *, copies: int = 1) -> Iterator[SteadyProducer]:
    """Create a topic, and append to it for the block."""
    fleet.create_topic(topic, PARTITIONS, copies)
    made = SteadyProducer(fleet.state.internal_bootstrap, topic, PARTITIONS, rate=50)
    try:
        yield made
    finally:
        made.stop()


def group_of(partition: int) -> str:
    """A group of a partition of the topic of groups."""
    return next(name for number in range(1000) if partition_of(name := f"g{number}", PARTITIONS) == partition)


# ---- a group on which faults are brought about: consumers, coordinators and brokers end, and topics change -----------

SECOND = 1_000_000_000

CHURN_TIMEOUT_MS = 6000
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

    def __init__(self, fleet: GroupFleet, group: str, seed: int) -> None:
        self.faults: list[Fault] = []
        self._fleet, self._group = fleet, group
        self._random = random.Random(seed)
        self._timeout = CHURN_TIMEOUT_MS * MILLISECOND
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
        actions: list[Callable[[], None]] = [self._replace, self._move_leader, *[self._kill_coordinator] * 2]
        actions += [partial(self._kill, comes_back=one) for one in (True, False)]
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
            uncommitted=COMMIT_INTERVAL_MS * MILLISECOND + COMMIT_SECONDS * SECOND,
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
        partition = partition_of(self._group, PARTITIONS)
        resigned = map(logged_at, self._fleet.logged("coordinator_resigned", partition=partition))
        found += [Outage("takeover", at - FENCED_SECONDS * SECOND, at) for at in resigned]
        unsure_for = timeout * 4 // 3 + RETURN_SECONDS * SECOND
        unsure = map(logged_at, self._fleet.logged("group_unsure", group=self._group))
        found += [UnsureTakeover(at, at + unsure_for) for at in unsure]
        for line in self._fleet.logged("consumer_gone", group=self._group):
            at, names = logged_at(line), [one.name for one in self._all if one.consumer_id == line["consumer"]]
            found += [Loss(name, "gone", at, at + timeout, 2 * timeout) for name in names]
        return found

    # Faults

    def _kill(self, *, comes_back: bool) -> None:
        """``comes_back``: at once, with the same id; else another one comes."""
        self._note("kill", (consumer := self._pick()).name)
        consumer.kill()
        self._drop(consumer)
        if comes_back:
            self._start(consumer.consumer_id)
        else:
            self._after(0.5, self._start)

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

        self._after(share * CHURN_TIMEOUT_MS / 1000, go_on)

    def _cut(self, share: float, direction: Direction) -> None:
        """Off from the coordinator, for a share of the session timeout."""
        coordinator = self._fleet.coordinator(self._group)
        if coordinator is not None:
            self._note(f"cut {direction.value}", (consumer := self._pick()).name)
            heal = self._fleet.cut_consumer(consumer, coordinator, direction).close
            self._after(share * CHURN_TIMEOUT_MS / 1000, heal)

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
        consumer.signal(signal.SIGTERM)
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
        self._fleet.spawn(broker_id, QUICK_GROUPS)

    def _revive(self) -> None:
        """Start sidecars again that have given up starting: the machine was too busy."""
        for broker_id in set(BROKERS).difference(self._fleet.living, self._down):
            self._fleet.spawn(broker_id, QUICK_GROUPS)

    def _kill_broker(self) -> None:
        """And its sidecar, which is the coordinator."""
        is_whole = self._fleet.is_replicated(self._growing, self._recreated, GROUPS, OFFSETS_TOPIC)
        coordinator = self._end_coordinator("kill broker") if is_whole else None
        if coordinator is None:
            if time.monotonic() < self._until:
                self._after(2, self._kill_broker)
            return
        self._stop_sidecar(coordinator)
        cluster.stop_node(self._fleet.folder, coordinator, kill=True)

        def go_on() -> None:
            start_again(self._fleet.folder, coordinator)
            self._start_sidecar(coordinator)

        self._after(self._random.choice([2.0, 10.0]), go_on)

    def _move_leader(self) -> None:
        """Of the partition of the group; the coordinator follows."""
        partition = partition_of(self._group, PARTITIONS)
        if len(self._fleet.living) == len(BROKERS) and self._fleet.is_replicated(GROUPS):
            others = [one for one in BROKERS if one != self._fleet.leaders(GROUPS)[partition]]
            self._note("move leader", str(partition))
            self._fleet.move_leader(GROUPS, partition, self._random.choice(others))

    def _grow(self) -> None:
        producer = self._producers[self._growing]
        partitions = min(producer.partitions + 1, MAX_PARTITIONS)
        self._note("grow", self._growing)
        self._fleet.admin.create_partitions([NewPartitions(self._growing, partitions)])[self._growing].result(180)
        self._fleet.wait_for_leaders(self._growing, partitions)
        self._produced |= producer.stop()
        self._produce(self._growing, partitions, 0)

    def _recreate(self) -> None:
        topic = self._recreated
        before = self._producers.pop(topic)
        before.stop()
        self._fleet.admin.delete_topics([topic])[topic].result(180)
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
        arguments = {"session_timeout_ms": CHURN_TIMEOUT_MS, "pause": PAUSE}
        started = self._fleet.consume(self._group, consumer_id, topics, **arguments)
        self._living[consumer_id] = started
        self._all.append(started)

    def _pick(self) -> ConsumerProcess:
        return self._living[self._random.choice(sorted(self._living))]

    def _drop(self, consumer: ConsumerProcess) -> None:
        self._stopped.discard(consumer.name)
        self._living = {name: one for name, one in self._living.items() if one is not consumer}

    def _note(self, what: str, name: str) -> None:
        """Before it is done."""
        self.faults.append(Fault(boottime_ns(), what, name))

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


# ---- the tests -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupFleet]:
    """In a network of their own if possible; all is ended afterwards."""
    with own_network() as network:
        state = cluster.up(tmp_path_factory.mktemp("groups"), nodes=3, kafka_version=KAFKA, progress=False)
        made = GroupFleet(state, network)
        try:
            made.start(*BROKERS, program=QUICK_GROUPS)
            wait_until(made.is_spread)
            yield made
            made.check_logs()
        finally:
            for consumer in made.consumers:
                consumer.kill()
            process.stop([one.process for one in made.sidecars.values()], 15, kill=True)
            cluster.discard(made.folder)


@pytest.fixture
def group(fleet: GroupFleet) -> Iterator[str]:
    """All consumers are ended after a test."""
    yield f"g-{uuid.uuid4().hex[:8]}"
    for consumer in fleet.consumers:
        consumer.kill()
    for consumer in fleet.consumers:
        consumer.check_log()


@pytest.fixture
def producer(fleet: GroupFleet, group: str) -> Iterator[SteadyProducer]:
    """Of a topic of six partitions that has the group's name."""
    with producing(fleet, group) as made:
        yield made


def read_since(at: int, consumers: list[ConsumerProcess]) -> set[Source]:
    """Of which partitions they were handed out messages since then."""
    return {one.source for consumer in consumers for one in consumer.journal.handed_out if one.before > at}


def moves(journals: list[Journal], since: int) -> int:
    """How many partitions were revoked from a consumer since then."""
    return sum(one.at > since for journal in journals for one in journal.revoked)


def pause(journals: list[Journal], since: int) -> int:
    """The longest pause of any partition since then, in milliseconds."""
    return max(longest_pauses(journals, since, boottime_ns()).values())


def finish(producer: SteadyProducer, consumers: list[ConsumerProcess]) -> list[Journal]:
    """Wait until all messages were handed out."""
    produced = producer.stop()
    wait_until(lambda: not count_skipped([one.journal for one in consumers], produced))
    return [one.journal for one in consumers]


@pytest.mark.promise(
    "coordinator.md", "Any sidecar answers which sidecar coordinates a group, and all answer the same."
)
def test_s1_07_45_46_all_sidecars_give_the_same_answer(fleet: GroupFleet) -> None:
    wait_until(fleet.is_spread)
    addresses = {one: fleet.address(one).rpartition(":") for one in BROKERS}
    brokers = tuple(EndpointEntry(one, host, int(port)) for one, (host, _, port) in addresses.items())
    leaders = fleet.leaders(GROUPS)
    for partition, leader in leaders.items():
        asked = group_of(partition)
        assert [fleet.cluster_metadata(one, 1, asked) for one in BROKERS] == [(0, leader, brokers)] * 3
    assert [fleet.cluster_metadata(one, 0) for one in BROKERS] == [(0, leaders[0], brokers)] * 3
    assert {fleet.cluster_metadata(one, 1, "").error_code for one in BROKERS} == {24}


@pytest.mark.promise(
    "coordinator.md", "A coordinator moves with the leader of its partition, or by `evacuate`, and nobody is stopped."
)
def test_s1_35_64_the_coordinator_moves_with_the_leader_and_by_evacuation_and_nobody_is_stopped(
    fleet: GroupFleet, group: str, producer: SteadyProducer
) -> None:
    wait_until(fleet.is_spread)
    consumers = [fleet.consume(group, f"c{number}", [group]) for number in range(2)]
    before = fleet.wait_until_stable(group, 2)
    partition = partition_of(group, PARTITIONS)
    target = next(one for one in BROKERS if one != before)
    began = boottime_ns()
    fleet.move_leader(GROUPS, partition, target)
    wait_until(lambda: fleet.group(target, group) is not None)
    wait_until(lambda: fleet.wait_until_stable(group, 2) == target)
    wait_until(fleet.is_spread)
    assert {fleet.coordinators(one)[partition] for one in BROKERS} == {target}
    fleet.ask(target, "/coordinator/evacuate", post=True)
    wait_until(lambda: not fleet.held(target))
    after = fleet.wait_until_stable(group, 2)
    assert after != target
    assert fleet.coordinators(target) == fleet.coordinators(after)
    fleet.ask(target, "/coordinator/return", post=True)
    wait_until(fleet.is_spread)
    assert fleet.wait_until_stable(group, 2) == target
    assert moves([one.journal for one in consumers], began) == 0
    assert not find_replays(finish(producer, consumers))


@pytest.mark.promise(
    "coordinator.md",
    "While levels are lowered and raised, and releases replaced one by one, nobody is stopped who loses nothing.",
)
def test_a_rolling_downgrade_and_upgrade_stop_nobody_who_loses_nothing(
    fleet: GroupFleet, group: str, producer: SteadyProducer
) -> None:
    older = ("-m", "tests.tools.older_release", f"{COORDINATOR_PROTOCOL}=1-1", "--")  # does not know level 2
    wait_until(fleet.is_spread)
    consumers = [fleet.consume(group, f"c{number}", [group]) for number in range(2)]

    def state() -> tuple[int, int]:
        """The level at which the owners were assigned, and how many partitions were revoked so far."""
        coordinator = fleet.wait_until_stable(group, len(consumers))
        status = fleet.group(coordinator, group)
        return (0 if status is None else int(status["level"])), moves([one.journal for one in consumers], 0)

    def finalize(update: FeatureUpdate) -> None:
        assert fleet.update(1, update) == UpdateResult(NONE)
        epoch = fleet.finalized().epoch
        wait_until(lambda: fleet.applied() == {epoch})

    level, revoked = state()
    assert level == 2
    finalize(FeatureUpdate(COORDINATOR_PROTOCOL, 1, SAFE_DOWNGRADE))
    assert state() == (1, revoked)
    consumers.append(fleet.consume(group, "c2", [group]))
    revoked += PARTITIONS
    assert state() == (1, revoked), "at level 1 all partitions are assigned anew"
    for program in (older, QUICK_GROUPS):
        for broker_id in BROKERS:
            fleet.stop(broker_id)
            fleet.start(broker_id, program=program)
            assert state() == (1, revoked)
    finalize(FeatureUpdate(COORDINATOR_PROTOCOL, 2))
    assert state()[1] == revoked
    consumers.append(fleet.consume(group, "c3", [group]))
    assert state() == (2, revoked + 1), "at level 2 what moves, and nothing else"
    journals = finish(producer, consumers)
    assert not find_replays(journals)
    assert not find_overlaps(journals)


@pytest.mark.promise(
    "coordinator.md",
    "With T = 30 s nobody is stopped, and nothing read twice, when a broker and its sidecar are killed.",
)
@pytest.mark.parametrize("timeout_ms", TIMEOUTS_MS)
def test_s1_62_the_broker_of_the_coordinator_is_killed_with_it(fleet: GroupFleet, group: str, timeout_ms: int) -> None:
    """Kafka moves the leaders of that broker after its ``broker.session.timeout.ms``: nobody reads their partitions
    before, whoever owns them."""
    with producing(fleet, group, copies=len(BROKERS)) as producer:
        consumers = [fleet.consume(group, f"c{number}", [group], session_timeout_ms=timeout_ms) for number in range(3)]
        coordinator = fleet.wait_until_stable(group, 3)
        wait_until(lambda: len(committed(fleet.admin, group)) == PARTITIONS)
        wait_until(lambda: fleet.is_replicated(group, GROUPS, OFFSETS_TOPIC))
        led = {number for number, leader in fleet.leaders(group).items() if leader == coordinator}
        killed = boottime_ns()
        fleet.stop(coordinator, kill=True)
        cluster.stop_node(fleet.folder, coordinator, kill=True)
        try:
            fleet.wait_until_stable(group, 3)
            stable = boottime_ns()
            every = {(group, 0, number) for number in range(PARTITIONS)}
            wait_until(lambda: every == read_since(stable, consumers))
            consumed = boottime_ns()
        finally:
            start_again(fleet.folder, coordinator)
            fleet.start(coordinator, program=QUICK_GROUPS)
        wait_until(fleet.is_spread)
        fleet.wait_until_stable(group, 3)
        journals = finish(producer, consumers)
    replays = find_replays(journals)
    pauses = longest_pauses(journals, killed, consumed)
    of_others = max(took for (_, _, number), took in pauses.items() if number not in led)
    print(
        f"broker and coordinator killed, T = {timeout_ms} ms: stable after {(stable - killed) // MILLISECOND} ms, all"
        f" is read after {(consumed - killed) // MILLISECOND}, longest pause {max(pauses.values())} ms, of partitions"
        f" that other brokers lead {of_others}, revoked {moves(journals, killed)}, replayed {len(replays)}"
    )
    assert not find_overlaps(journals)
    uncommitted_ms = COMMIT_INTERVAL_MS + timeout_ms // 3 + MARGIN_MS
    assert all(one.first.after > killed - uncommitted_ms * MILLISECOND for one in replays)
    if timeout_ms == SESSION_TIMEOUT_MS:
        assert moves(journals, killed) == 0
        assert not replays


@pytest.mark.promise(
    "coordinator.md", "A coordinator that was paused while another one took over has no effect afterwards."
)
def test_s1_61_63_a_coordinator_that_is_stopped_for_longer_than_the_lease_has_no_effect_afterwards(
    fleet: GroupFleet, group: str, producer: SteadyProducer
) -> None:
    timeout_ms = 6000
    wait_until(fleet.is_spread)  # the sidecar of an earlier test that is back takes its partitions after some seconds
    consumers = [fleet.consume(group, f"c{number}", [group], session_timeout_ms=timeout_ms) for number in range(2)]
    coordinator = fleet.wait_until_stable(group, 2)
    wait_until(lambda: committed(fleet.admin, group))
    of_partition = {"partition": partition_of(group, PARTITIONS), "broker_id": coordinator}
    before = len(fleet.logged("coordinator_resigned", **of_partition))
    rebalances = fleet.logged("rebalance", group=group, broker_id=coordinator)
    assert fleet.coordinator(group) == coordinator
    pid = fleet.sidecars[coordinator].process.pid
    os.kill(pid, signal.SIGSTOP)
    fleet.stopped.add(coordinator)
    try:
        began = boottime_ns()
        fleet.wait_until_stable(group, 2)
        consumers.append(fleet.consume(group, "c2", [group], session_timeout_ms=timeout_ms))
        fleet.wait_until_stable(group, 3)
        offsets = committed(fleet.admin, group)
    finally:
        fleet.stopped.remove(coordinator)
        os.kill(pid, signal.SIGCONT)
    thawed = boottime_ns()
    wait_until(lambda: len(fleet.logged("coordinator_resigned", **of_partition)) > before)
    resigned = boottime_ns()
    journals = [one.journal for one in consumers]
    lease_end = began + (timeout_ms * LEASE_PERCENT // 100 + LOOK_MS) * MILLISECOND
    for journal in journals[:2]:
        # Its connection to the stopped coordinator stays open, so that its lease ends before it asks for another one.
        started_again = min(one.at for one in journal.assigned if one.at > began)
        late = [one for one in journal.handed_out if lease_end < one.before and one.after < started_again]
        assert not late, "S1-61"
    effects = [change for one in journals for change in (*one.assigned, *one.revoked) if thawed < change.at < resigned]
    assert not effects, "S1-63"
    now = committed(fleet.admin, group)
    assert all(now[partition] >= offset for partition, offset in offsets.items()), "S1-63"
    assert fleet.logged("rebalance", group=group, broker_id=coordinator) == rebalances
    wait_until(fleet.is_spread)
    fleet.wait_until_stable(group, 3)
    journals = finish(producer, consumers)
    assert not find_replays(journals)
    assert not find_overlaps(journals)


@pytest.mark.promise(
    "consumer.md", "A consumer that is cut off, in one direction or both, hands out nothing that another one does."
)
@pytest.mark.parametrize(("share", "direction"), CUTS)
def test_a_consumer_that_is_cut_off_from_its_coordinator_overlaps_with_nobody(
    fleet: GroupFleet, group: str, producer: SteadyProducer, share: float, direction: Direction
) -> None:
    """``share``: of the session timeout; it goes on reaching the brokers."""
    if fleet.network is None:
        pytest.skip("no network namespace is permitted")
    timeout_ms = 6000
    first, second = (fleet.consume(group, name, [group], session_timeout_ms=timeout_ms) for name in ("c1", "c2"))
    coordinator = fleet.wait_until_stable(group, 2)
    wait_until(lambda: first.journal.handed_out and second.journal.handed_out)
    began = boottime_ns()
    with fleet.cut_consumer(first, coordinator, direction):
        if share < 1:
            time.sleep(share * timeout_ms / 1000)
        else:
            fleet.wait_until_stable(group, 1)
            moved = boottime_ns()
            every = {(group, 0, number) for number in range(PARTITIONS)}
            wait_until(lambda: every == read_since(moved, [second]))
    fleet.wait_until_stable(group, 2)
    journals = finish(producer, [first, second])
    replays = find_replays(journals)
    assert not find_overlaps(journals)
    gone = {one["consumer"] for one in fleet.logged("consumer_gone", group=group)}
    assert {one.name.rpartition("-")[2] for one in replays} <= gone
    assert all(one.first.after > began - timeout_ms * MILLISECOND for one in replays)


@pytest.mark.promise(
    "coordinator.md", "A coordinator that is cut off from Kafka is replaced, and its consumers go on where they were."
)
@pytest.mark.parametrize("direction", list(Direction) if IS_FULL else [Direction.BOTH], ids=lambda one: one.value)
def test_a_coordinator_that_is_cut_off_from_the_brokers_is_replaced(
    fleet: GroupFleet, group: str, producer: SteadyProducer, direction: Direction
) -> None:
    """Its consumers reach both, all the time."""
    if fleet.network is None:
        pytest.skip("no network namespace is permitted")
    consumers = [fleet.consume(group, f"c{number}", [group]) for number in range(2)]
    coordinator = fleet.wait_until_stable(group, 2)
    wait_until(lambda: committed(fleet.admin, group))
    began = boottime_ns()
    fleet.stopped.add(coordinator)
    with fleet.cut_sidecar(coordinator, direction):
        fleet.wait_until_stable(group, 2)
        took = (boottime_ns() - began) // MILLISECOND
    fleet.stopped.remove(coordinator)
    wait_until(fleet.is_spread)
    fleet.wait_until_stable(group, 2)
    journals = finish(producer, consumers)
    replays = find_replays(journals)
    shown = f"longest pause {pause(journals, began)} ms, revoked {moves(journals, began)}, replayed {len(replays)}"
    print(f"coordinator cut off from Kafka, {direction.value}: replaced after {took} ms, {shown}")
    assert not find_overlaps(journals)
    assert not replays


@pytest.mark.promise(
    "coordinator.md", "Each message that is handed out again, whatever fails, is traced to one event that explains it."
)
def test_s1_01_churn(fleet: GroupFleet, group: str) -> None:
    seed = int(os.environ.get("GROUPS_SEED", "0")) or random.randrange(1 << 31)
    churn = GroupChurn(fleet, group, seed)
    try:
        churn.run(CHURN_SECONDS)
        status = churn.settle()
    finally:
        churn.close()
    explained, others = churn.replays()
    print(f"churn, seed {seed}: {churn.figures()}; skipped {churn.skipped()}")
    print(f"replayed: {explained.total()} for {dict(explained.most_common())}; without a reason: {len(others)}")
    assert (status["owned"], status["unowned"]) == (churn.partitions, 0)
    assert find_overlaps(churn.journals) == []
    assert churn.skipped() == {}
    assert [one.failure for one in churn.journals if one.failure is not None] == []
    assert others == [], churn.faults
