"""Groups of consumers over a fleet: three brokers, three sidecars, and consumers in processes of their own.

GROUPS_FULL=1: every case, and all of it for longer. GROUPS_KAFKA: of the brokers (4.3.1); GROUPS_SEED: of the churn;
GROUPS_SECONDS: for how long the churn brings about faults (300); GROUPS_TIMEOUT_MS: session timeout of the consumers
that nothing may stop (30000). Where the kernel permits a network namespace, which is root's, connections are cut too.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Iterator

import pytest

from proxy.coordinator.records import partition_of
from proxy.coordinator.wire import EndpointEntry
from proxy.core.protected_topics import GROUPS
from proxy.features.catalog import COORDINATOR_PROTOCOL
from proxy.features.records import SAFE_DOWNGRADE, FeatureUpdate
from proxy.features.updates import NONE, UpdateResult
from proxy.local import cluster
from tests.integration.feature_fleet import wait_until
from tests.integration.group_fleet import (
    BROKERS,
    SESSION_TIMEOUT_MS,
    ConsumerProcess,
    GroupChurn,
    GroupFleet,
    SteadyProducer,
    group_fleet,
    group_of,
    producing,
    stopped,
)
from tests.integration.journaling import boottime_ns
from tests.integration.journals import (
    MILLISECOND,
    OFFSETS_TOPIC,
    HandedOut,
    Journal,
    count_skipped,
    find_overlaps,
    find_replays,
    longest_pauses,
)
from tests.integration.own_network import Direction
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

TIMEOUTS_MS = [6000, SESSION_TIMEOUT_MS] if IS_FULL else [SESSION_TIMEOUT_MS]

LEASE_PERCENT = 95
LOOK_MS = 100
"""The consumer looks at its socket as often."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupFleet]:
    settings = {"partitions": PARTITIONS, "offset.commit.interval.ms": COMMIT_INTERVAL_MS}
    with group_fleet(tmp_path_factory.mktemp("groups"), KAFKA, **settings) as made:
        yield made
        made.check_logs()


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
    with producing(fleet, group, PARTITIONS) as made:
        yield made


def finish(producer: SteadyProducer, consumers: list[ConsumerProcess]) -> list[Journal]:
    """Wait until all messages were handed out."""
    produced = producer.stop()
    wait_until(lambda: not count_skipped([one.journal for one in consumers], produced))
    return [one.journal for one in consumers]


def moves(journals: list[Journal], since: int) -> int:
    """How many partitions were revoked from a consumer since then."""
    return sum(one.at > since for journal in journals for one in journal.revoked)


@pytest.mark.promise(
    "coordinator.md", "Any sidecar answers which sidecar coordinates a group, and all answer the same."
)
def test_s1_07_45_46_all_sidecars_give_the_same_answer(fleet: GroupFleet) -> None:
    wait_until(fleet.is_spread)
    addresses = {one: fleet.address(one).rpartition(":") for one in BROKERS}
    brokers = tuple(EndpointEntry(one, host, int(port)) for one, (host, _, port) in addresses.items())
    leaders = fleet.leaders(GROUPS)
    for partition, leader in leaders.items():
        asked = group_of(partition, PARTITIONS)
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
    journals = finish(producer, consumers)
    print(f"leader moved, evacuated, and returned: longest pause {pause(journals, began)} ms")
    assert not find_replays(journals)


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


def pause(journals: list[Journal], since: int) -> int:
    """The longest pause of any partition since then, in milliseconds."""
    return max(longest_pauses(journals, since, boottime_ns()).values())


@pytest.mark.promise(
    "coordinator.md",
    "With T = 30 s nobody is stopped, and nothing read twice, when a broker and its sidecar are killed.",
)
@pytest.mark.parametrize("timeout_ms", TIMEOUTS_MS)
def test_s1_62_the_broker_of_the_coordinator_is_killed_with_it(fleet: GroupFleet, group: str, timeout_ms: int) -> None:
    """Kafka moves the leaders of that broker after its ``broker.session.timeout.ms``: nobody reads their partitions
    before, whoever owns them."""
    with producing(fleet, group, PARTITIONS, copies=len(BROKERS)) as producer:
        consumers = [fleet.consume(group, f"c{number}", [group], session_timeout_ms=timeout_ms) for number in range(3)]
        coordinator = fleet.wait_until_stable(group, 3)
        wait_until(lambda: len(committed(fleet.admin, group)) == PARTITIONS)
        wait_until(lambda: fleet.is_replicated(group, GROUPS, OFFSETS_TOPIC))
        led = {number for number, leader in fleet.leaders(group).items() if leader == coordinator}
        killed = boottime_ns()
        fleet.stop(coordinator, kill=True)
        fleet.kill_broker(coordinator)
        try:
            fleet.wait_until_stable(group, 3)
            stable = boottime_ns()
            every = {(group, 0, number) for number in range(PARTITIONS)}
            wait_until(lambda: every == {one.source for one in messages(consumers) if one.before > stable})
            consumed = boottime_ns()
        finally:
            cluster.start_node(fleet.folder, coordinator)
            fleet.restart(coordinator)
        wait_until(fleet.is_spread)
        fleet.wait_until_stable(group, 3)
        produced = producer.stop()
        wait_until(lambda: not count_skipped([one.journal for one in consumers], produced))
    journals = [one.journal for one in consumers]
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


def messages(consumers: list[ConsumerProcess]) -> Iterator[HandedOut]:
    """All that they were handed out."""
    return (one for consumer in consumers for one in consumer.journal.handed_out)


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
    with stopped(fleet, coordinator):
        began = boottime_ns()
        fleet.wait_until_stable(group, 2)
        consumers.append(fleet.consume(group, "c2", [group], session_timeout_ms=timeout_ms))
        fleet.wait_until_stable(group, 3)
        offsets = committed(fleet.admin, group)
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
    print(f"stopped coordinator: longest pause {pause(journals, began)} ms")
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
            wait_until(lambda: {one.source for one in second.journal.handed_out if one.before > moved} == every)
    fleet.wait_until_stable(group, 2)
    journals = finish(producer, [first, second])
    replays = find_replays(journals)
    shown = f"{share} T, {direction.value}: longest pause {pause(journals, began)} ms"
    print(f"consumer cut off for {shown}, revoked {moves(journals, began)}, replayed {len(replays)}")
    assert not find_overlaps(journals)
    assert {one.name.rpartition("-")[2] for one in replays} <= {consumer_id for _, consumer_id in fleet.gone(group)}
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
    churn = GroupChurn(fleet, group, seed, session_timeout_ms=6000, commit_interval_ms=COMMIT_INTERVAL_MS)
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
    assert others == []
