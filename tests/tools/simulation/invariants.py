"""What has to hold, at each step and at the end (I1 to I10; the package's docstring says what each means)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from proxy.client.consumer.effects import FetchedFrom
from proxy.client.consumer.states import FetchingState, LinkState
from proxy.coordinator import wire
from proxy.coordinator.events import PartitionOffsets
from proxy.coordinator.records import GenerationRecord, OwnersRecord
from proxy.coordinator.subscription import parse_topic_count
from proxy.coordinator.wire import StartFetcherRequest
from tests.tools.simulation.kafka import GroupsLog, Topic, Transaction

if TYPE_CHECKING:
    from tests.tools.simulation.consumer import Consumer
    from tests.tools.simulation.sidecar import Connection, Sidecar
    from tests.tools.simulation.world import World

ORDINARY_FOUND_WITHIN = 10_000 + 1_000
"""Milliseconds within which a coordinator finds members of Kafka's own protocols: it asks every 10 s."""

ORDINARY_RETRIED_WITHIN = 500 + 1_500
"""Milliseconds within which it has asked again what Kafka did not answer, and has written again what was aborted."""

REPORTED_WITHIN = 500
"""Milliseconds for which offsets of a topic may still be committed that were consumed from an earlier one."""

MAX_OPEN_PINGS = 2


class InvariantError(AssertionError):
    """``name``: which invariant does not hold."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class TopicOwners(NamedTuple):
    """The committed owners of one topic: thread id by partition."""

    topic_id: str
    threads: dict[int, str]


class GroupHistory:
    """What the committed transactions of one group have said so far."""

    def __init__(self) -> None:
        self.generation = self.level = 0
        self.owners: dict[str, TopicOwners] = {}
        self.committed: dict[tuple[str, int], tuple[int, str]] = {}
        """The offset committed last, and the owner at that time."""


class Invariants:
    """Hears of everything that counts. Raises InvariantError."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._groups: dict[str, GroupHistory] = {}
        self._claims: dict[int, int] = {}
        self._claimed_at: dict[int, int] = {}
        self._high: dict[tuple[str, str, int], int] = {}
        """The highest offset to consume next, by group, topic id and partition: all before it was handed out."""

        self._stale: set[tuple[str, str, int]] = set()
        """Those for which an offset of an earlier topic of that name was committed before anybody could know."""

    def _fail(self, name: str, text: str) -> None:
        raise InvariantError(name, text)

    # Commits

    def committed(self, log: GroupsLog, transaction: Transaction) -> None:
        if transaction.claim is not None:
            before = self._claims.get(log.number, 0)
            if transaction.claim.claim < before:
                self._fail("I2", f"claim {transaction.claim.claim} of partition {log.number} after {before}")
            if transaction.claim.claim > before:
                self._claims[log.number] = transaction.claim.claim
                self._claimed_at[log.number] = transaction.at
        for record, following in zip_longest(transaction.records, transaction.records[1:]):
            group = self._groups.setdefault(record.group, GroupHistory())
            if isinstance(record, GenerationRecord) and record.value is not None:
                # Its own follow it at once: a transaction may have those of other generations and groups, too.
                has_owners = isinstance(following, OwnersRecord)
                # One that is written again for a lower level changes no owner.
                is_again = record.value.generation == group.generation and record.value.level <= group.level
                is_new = record.value.state == "starting" and (has_owners or not is_again)
                if is_new and record.value.generation <= group.generation:
                    self._fail("I2", f"generation {record.value.generation} of {record.group} after {group.generation}")
                if record.value.generation < group.generation:
                    self._fail("I2", f"{record.group} goes back to {record.value.generation}")
                group.generation, group.level = record.value.generation, record.value.level
                self._world.note(transaction.writer, "commits %s", record)
            elif isinstance(record, OwnersRecord):
                self._owners_committed(group, record)
        for group_id, offsets in transaction.offsets.items():
            self._offsets_committed(transaction, group_id, dict(offsets))

    def _owners_committed(self, group: GroupHistory, record: OwnersRecord) -> None:
        if record.value is None:
            group.owners.pop(record.topic, None)
            return
        threads: dict[int, str] = {}
        for thread_id, partitions in record.value.owners.items():
            for partition in partitions:
                if partition in threads:
                    self._fail("I1", f"{record.topic}-{partition} has two owners in {record.value.generation}")
                threads[partition] = thread_id
        group.owners[record.topic] = TopicOwners(record.value.topic_id, threads)
        self._world.note("kafka", "owners %s", record)

    def _may_be_stale(self, writer: Sidecar, topic: Topic, asked_at: int) -> bool:
        """Whether an offset may be of an earlier topic of that name: the coordinator may not have heard of this one."""
        return not writer.knew(topic, asked_at - REPORTED_WITHIN)

    def _offsets_committed(self, transaction: Transaction, group_id: str, offsets: dict[tuple[str, int], int]) -> None:
        world, group = self._world, self._groups.setdefault(group_id, GroupHistory())
        writer = world.sidecar_at(transaction.writer)
        for (name, partition), offset in offsets.items():
            topic = world.kafka.topics.get(name)
            if topic is None or self._may_be_stale(writer, topic, transaction.asked_at):
                if topic is not None:  # it is of an earlier topic of that name
                    self._stale.add((group_id, topic.topic_id, partition))
                continue
            high = self._high.get((group_id, topic.topic_id, partition), 0)
            if offset > high:
                self._fail("I6", f"{group_id} commits {offset} of {name}-{partition}, handed out up to {high}")
            owners = group.owners.get(name)
            owner = owners.threads.get(partition, "") if owners is not None else ""
            owner = f"{owner} {group.generation} {topic.topic_id}"
            before, owner_before = group.committed.get((name, partition), (0, ""))
            if owner == owner_before and offset < before:
                self._fail(
                    "I6", f"{group_id} goes back from {before} to {offset} of {name}-{partition}, owned by {owner}"
                )
            group.committed[name, partition] = offset, owner

    def committed_by_itself(self, consumer: Consumer, topic: Topic, partition: int) -> None:
        """A consumer has committed an offset, of the topic that it fetches or of a later one of that name."""
        fetched = consumer.fetched.get((topic.name, partition))
        if fetched is None or fetched.topic_id != topic.topic_id:
            self._stale.add((consumer.settings.group_id, topic.topic_id, partition))

    def written(self, sidecar: Sidecar, offsets: Mapping[str, PartitionOffsets]) -> None:
        """A coordinator asks for offsets to be committed.

        Kafka does not say when a member of its own protocols joins, and does not refuse these offsets. A coordinator
        can only ask, so what it has asked for before the next answer may be committed beside such members, also when
        the commit itself takes long. What it asks for later may not (I9).
        """
        for group_id, of_group in offsets.items():
            if of_group and sidecar.has_ordinary_members.get(group_id):
                self._fail("I9", f"{sidecar.name} commits {of_group} for {group_id}, which has ordinary members")
            if of_group and self._are_ordinary_members_overdue(sidecar, group_id):
                self._fail("I9", f"{sidecar.name} commits {of_group} for {group_id}: ordinary members are not found")

    def _are_ordinary_members_overdue(self, sidecar: Sidecar, group_id: str) -> bool:
        """Whether a group has members of Kafka's own protocols that its coordinator has to know by now.

        It has to if they and its claim are old enough for the next question, and it was able to ask again since it was
        last stopped, or cut off from Kafka; unless that question is under way, which takes 50 ms at most.
        """
        kafka, now = self._world.kafka, self._world.timeline.now
        if group_id not in kafka.ordinary_since or group_id in sidecar.asks_ordinary:
            return False
        since = max(kafka.ordinary_since[group_id], self._claimed_at.get(self._world.partition_of(group_id), 0))
        hindered_until = max(sidecar.went_on_at, kafka.unreachable_until.get(sidecar.name, 0))
        return now - since > ORDINARY_FOUND_WITHIN and now - hindered_until > ORDINARY_RETRIED_WITHIN

    # What a coordinator sends

    def pushed(self, sidecar: Sidecar, one: Connection, frame: bytes) -> None:
        api_key = int.from_bytes(frame[4:6], "big")
        partition = self._world.partition_of(one.group_id)
        confirmed_at = sidecar.confirmed_at.get(partition)
        if confirmed_at is None:
            self._fail("I3", f"{sidecar.name} sends to {one.consumer_id} and does not hold partition {partition}")
        elif sidecar.clock() - confirmed_at > sidecar.settings.state_write_timeout_ms:
            self._fail("I3", f"{sidecar.name} sends to {one.consumer_id} and was not confirmed in time")
        if api_key == wire.PING:
            one.open_pings.add(int.from_bytes(frame[8:12], "big"))
            if len(one.open_pings) > MAX_OPEN_PINGS:
                self._fail("I7", f"{sidecar.name} has pinged {one.consumer_id} without an answer: {one.open_pings}")
        elif api_key == wire.START_FETCHER:
            self._world.reached("start")
            request = wire.decode_pushed(frame[4:]).request
            assert isinstance(request, StartFetcherRequest)
            self._starts(sidecar, one, request)
        elif api_key == wire.STOP_FETCHER:
            self._world.reached("stop")
            self._world.note(sidecar.name, "StopFetcher to %s", one.consumer_id)
            attempt = sidecar.coordinator._state.groups[one.group_id].attempt
            began_at = sidecar.clock() if attempt is None else attempt.began_at
            if one.group_id in sidecar.settings.frozen_groups and began_at > sidecar.frozen_at[one.group_id]:
                self._fail("I8", f"{sidecar.name} stops {one.consumer_id} of the frozen group {one.group_id}")

    def _starts(self, sidecar: Sidecar, one: Connection, request: StartFetcherRequest) -> None:
        self._world.note(sidecar.name, "StartFetcher to %s: %s", one.consumer_id, request.threads)
        group = self._groups.get(one.group_id)
        for thread in request.threads:
            for assigned in thread.partitions:
                self._is_free(one, assigned.topic, assigned.partition)
                owners = None if group is None else group.owners.get(assigned.topic)
                if owners is None or owners.threads.get(assigned.partition) != thread.thread_id:
                    log = self._world.kafka.logs[self._world.partition_of(one.group_id)]
                    writer = sidecar.writers.get(log.number)
                    if writer is not None and writer.epoch == log.epoch:  # else a successor has committed another
                        self._fail(
                            "I3", f"{sidecar.name} starts {thread.thread_id} with {assigned}, which is not committed"
                        )

    def _is_free(self, one: Connection, topic: str, partition: int) -> None:
        """Nobody else may hand out messages of a partition, now or later, when its next owner is sent StartFetcher."""
        for other in self._world.consumers:
            is_rival = other.name != one.consumer_id and other.settings.group_id == one.group_id
            if is_rival and other.has_lease_of(topic, partition):
                self._fail(
                    "I4", f"{one.consumer_id} is to start {topic}-{partition}, which {other.name} has a lease of"
                )

    def check_purgatories(self) -> None:
        """They hold what members have not answered, and pings that were withheld."""
        for sidecar in self._world.sidecars:
            if sidecar.is_running:
                requests = sidecar.coordinator._state.requests
                members = [
                    member for group in sidecar.coordinator._state.groups.values() for member in group.members.values()
                ]
                waiting = sum(len(member.open_requests()) + len(member.withheld_pings()) for member in members)
                if sum(requests.sizes().values()) != waiting or requests.scheduled_pings() != len(members):
                    self._fail("I7", f"{sidecar.name} waits for {requests.sizes()}, and {waiting} are open")

    # What consumers do

    def may_hand_out(self, consumer: Consumer, topic: str, partition: int) -> None:
        """A consumer may be about to hand out messages of this partition."""
        if not consumer.may_hand_out(topic, partition):
            return
        for other in self._world.consumers:
            is_rival = other is not consumer and other.settings.group_id == consumer.settings.group_id
            if is_rival and other.may_hand_out(topic, partition):
                self._fail("I4", f"{consumer.name} and {other.name} both hand out {topic}-{partition}")

    def fetching_began(self, consumer: Consumer, one: FetchedFrom, topic: Topic, offset: int, asked_at: int) -> None:
        """A consumer fetches from this offset on, for a StartFetcher that arrived at ``asked_at``."""
        which = (consumer.settings.group_id, topic.topic_id, one.partition)
        high = self._high.get(which)
        start = topic.starts[one.partition]
        is_of_earlier_topic = asked_at < topic.created_at or which in self._stale
        if high is None or one.offset == wire.LARGEST or is_of_earlier_topic:
            self._high[which] = max(high or 0, offset)
        elif offset > max(high, start):
            self._fail("I6", f"{consumer.name} skips {one.topic}-{one.partition}: {high} to {offset}")
        else:
            self._high[which] = max(high, offset)

    def handed_out(self, consumer: Consumer, topic: str, partition: int, topic_id: str, offset: int) -> None:
        which = (consumer.settings.group_id, topic_id, partition)
        high = self._high[which]
        if offset > high:
            self._fail("I6", f"{consumer.name} skips {topic}-{partition}: {high} to {offset}")
        self._high[which] = max(high, offset + 1)

    # The end

    def missing(self) -> str | None:
        """Return what is not as it has to be when nothing is wrong any more; None if all is well (I5)."""
        world = self._world
        wanted: dict[tuple[str, str], int] = {}
        for consumer in world.consumers:
            if not consumer.is_running or consumer.has_ended:
                if consumer.starts_again:
                    return f"{consumer.name} does not run"
                continue
            if consumer.membership.link is not LinkState.JOINED:
                return f"{consumer.name} is not registered"
            subscription = parse_topic_count(consumer.settings.topic_count)
            for name in subscription.select(world.kafka.topics):
                wanted[consumer.settings.group_id, name] = len(world.kafka.topics[name].leaders)
        for (group_id, name), count in wanted.items():
            for partition in range(count):
                owners = [
                    consumer.name
                    for consumer in world.consumers
                    if consumer.settings.group_id == group_id
                    and consumer.may_hand_out(name, partition)
                    and consumer.membership.fetching is FetchingState.FETCHING
                    and consumer.fetched[name, partition].topic_id == world.kafka.topics[name].topic_id
                ]
                if len(owners) != 1:
                    return f"{name}-{partition} of {group_id} is owned by {owners}"
        return None
