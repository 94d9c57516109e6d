"""A consumer: the real membership, around a fetcher of numbered messages and an application that takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from proxy.client.consumer.effects import (
    AssignPartitions,
    CloseLink,
    FetchedFrom,
    LogMembership,
    MembershipEffect,
    MembershipEnded,
    OpenLink,
    SendToCoordinator,
)
from proxy.client.consumer.events import (
    ConsumerStarted,
    FetcherDone,
    FrameReceived,
    LeaveRequested,
    LinkConnected,
    LinkEnded,
    LinkFailed,
    MembershipEvent,
    OffsetOutOfRange,
    SubscriptionChanged,
)
from proxy.client.consumer.membership import ConsumerMembership
from proxy.client.consumer.settings import MembershipSettings
from proxy.client.consumer.states import FetchingState
from proxy.coordinator.wire import LARGEST
from tests.tools.simulation.network import Socket
from tests.tools.simulation.timeline import Process

if TYPE_CHECKING:
    from tests.tools.simulation.world import World

POLL_MS = 100
"""Between two polls of its socket by the link."""

LINK, FETCHER, APPLICATION = -2, -3, -4
"""Sources of what a process waits for: its threads."""


class FetchedPartition:
    """``next_offset``: of the message to hand out next. ``topic_id``: of the topic that fetching began with."""

    __slots__ = ("epoch", "next_offset", "topic_id")

    def __init__(self, epoch: int, next_offset: int, topic_id: str) -> None:
        self.epoch, self.next_offset, self.topic_id = epoch, next_offset, topic_id


class Consumer(Process):
    """One member of a group. ``settings``: of its next run."""

    def __init__(self, world: World, settings: MembershipSettings) -> None:
        super().__init__(world.timeline, world.random, settings.consumer_id)
        self.world, self.settings = world, settings
        self.takes_every = world.random.choice((100, 200, 400))
        """Milliseconds between two messages that the application takes of a partition."""
        self.hangs_until = 0
        """Its fetcher does nothing before that time: StopFetcher and StartFetcher are not answered."""
        self.fails = False
        """Its fetcher fails: they are answered with an error."""
        self.has_ended = True
        """Whether the membership is over."""
        self.starts_again = True

    # Its life

    def start(self) -> None:
        super().start()
        self.membership = ConsumerMembership(self.settings, self.random.random)
        self.fetched: dict[tuple[str, int], FetchedPartition] = {}
        self.socket: Socket | None = None
        self.has_ended = False
        self._give_up_connecting: Callable[[], None] | None = None
        self._heard_at = self.clock()
        self._fetcher_free_at = 0
        self._commit_due = self.clock() + 1000
        self.handle(ConsumerStarted())
        self.later(self.takes_every, APPLICATION, self._take)

    def kill(self, *, powered: bool) -> None:
        self.world.note(self.name, "killed" if powered else "power off")
        self._give_up()
        self.end()
        self.is_powered = powered
        self.world.network.ended(self, powered=powered)

    def leave(self) -> None:
        self.starts_again = False
        self.handle(LeaveRequested())

    def subscribe(self, topic_count: str) -> None:
        self.settings = self.settings._replace(topic_count=topic_count)
        self.handle(SubscriptionChanged(topic_count))

    def may_hand_out(self, topic: str, partition: int) -> bool:
        """Whether it can hand out a message of the partition right now."""
        if not self.is_running or self.is_stopped or self.has_ended:
            return False
        found = self.fetched.get((topic, partition))
        return found is not None and self.membership.may_hand_out(topic, partition, found.epoch, self.clock())

    def has_lease_of(self, topic: str, partition: int) -> bool:
        """Whether it can hand out messages of the partition, now or later, even if it hears nothing any more."""
        membership = self.membership if self.is_running and not self.has_ended else None
        if membership is None or membership.fetching is FetchingState.STOPPED:
            return False
        if membership.fetching is FetchingState.HELD and membership._held_by is None:
            return False  # it is registered again: only StartFetcher lets it go on
        owned = any((one.topic, one.partition) == (topic, partition) for one in membership.assignment.partitions)
        return owned and self.clock() < membership._lease.end

    def go_on(self) -> None:
        super().go_on()
        self._check_rights()

    # The membership

    def handle(self, event: MembershipEvent) -> None:
        if self.has_ended:
            return
        before = self.membership.fetching
        for effect in self.membership.handle(event, self.clock()):
            self._perform(effect)
        if self.membership.fetching is FetchingState.FETCHING and before is not FetchingState.FETCHING:
            self._check_rights()
        self._set_timer()

    def _check_rights(self) -> None:
        if self.is_running and not self.has_ended:
            for topic, partition in self.fetched:
                self.world.invariants.may_hand_out(self, topic, partition)

    def _set_timer(self) -> None:
        due = None if self.has_ended else self.membership.due()
        if due is not None:
            self.wake_at(due, LINK, lambda: self.handle(None))

    def _perform(self, effect: MembershipEffect) -> None:
        match effect:
            case OpenLink(address):
                server = self.world.sidecar_at(address.host)
                run = self.runs

                def done(socket: Socket | None) -> None:
                    if self.runs == run:
                        self._connected(socket)

                self._give_up_connecting = self.world.network.connect(self, server, done)
            case SendToCoordinator(frame):
                if self.socket is not None:
                    self.socket.send(frame)
            case CloseLink(reset):
                self._give_up()
                if self.socket is not None:
                    self.socket.close(reset=reset)
                    self.socket = None
            case AssignPartitions(command, partitions):
                at = max(
                    self.timeline.now + self.random.choice((1, 10, 10, 100)), self._fetcher_free_at, self.hangs_until
                )
                self._fetcher_free_at, asked_at = at, self.timeline.now
                self.later(at - asked_at, FETCHER, lambda: self._assign(command, partitions, asked_at))
            case MembershipEnded(error):
                self._ended(error)
            case LogMembership(_, message):
                self.world.note(self.name, "%s", message)

    def _give_up(self) -> None:
        if self._give_up_connecting is not None:
            self._give_up_connecting()
            self._give_up_connecting = None

    def _ended(self, error: str | None) -> None:
        self.world.note(self.name, "its membership has ended: %s", error)
        self.has_ended = True
        self.fetched.clear()
        if self.starts_again:
            self.later(self.random.choice((500, 3000)), APPLICATION, self._start_again)
        else:
            self.kill(powered=True)

    def _start_again(self) -> None:
        self.kill(powered=True)
        self.start()

    # The link

    def _connected(self, socket: Socket | None) -> None:
        self._give_up_connecting = None
        if socket is None:
            self.handle(LinkFailed("refused", refused=True))
            return
        self.socket, self._heard_at = socket, self.clock()

        def received(frame: bytes, arrived: int) -> None:
            if self.socket is socket:
                self.handle(FrameReceived(frame, self._heard(arrived)))

        def ended(how: str) -> None:
            if self.socket is socket:
                self.socket = None
                self.handle(LinkEnded(how))

        socket.on_frame, socket.on_end = received, ended
        self.handle(LinkConnected())

    def _heard(self, arrived: int) -> int:
        """The last poll that found the socket empty, by this process's clock, before a frame that arrived then."""
        polled = arrived if arrived == self.timeline.now else min(arrived, self.stopped_at)
        if self.random.random() < 0.5:
            polled -= self.random.randrange(POLL_MS)
        self._heard_at = max(self._heard_at, self.clock() - (self.timeline.now - max(polled, 0)))
        return self._heard_at

    # The fetcher

    def _assign(self, command: int, partitions: tuple[FetchedFrom, ...], asked_at: int) -> None:
        if self.has_ended:
            return
        if self.fails:
            self.handle(FetcherDone(command, "fetching fails"))
            return
        before, self.fetched = self.fetched, {}
        for one in partitions:
            topic = self.world.kafka.topics.get(one.topic)
            known = before.get((one.topic, one.partition))
            if known is not None and known.epoch == one.epoch:
                self.fetched[one.topic, one.partition] = known
            elif topic is not None and one.partition < len(topic.starts):
                offset = one.offset
                if offset < 0:
                    offset = topic.end(self.timeline.now) if offset == LARGEST else topic.starts[one.partition]
                self.fetched[one.topic, one.partition] = FetchedPartition(one.epoch, offset, topic.topic_id)
                self.world.invariants.fetching_began(self, one, topic, offset, asked_at)
        self._check_rights()
        self.handle(FetcherDone(command))

    # The application

    def _take(self) -> None:
        """Take one message of each partition, if there is one."""
        self.later(self.takes_every, APPLICATION, self._take)
        for (name, partition), fetched in list(self.fetched.items()):
            topic = self.world.kafka.topics.get(name)
            if topic is None or topic.topic_id != fetched.topic_id:
                continue
            offset, end = fetched.next_offset, topic.end(self.timeline.now)
            if not topic.starts[partition] <= offset <= end:
                self.handle(OffsetOutOfRange(name, partition, fetched.epoch, offset))
                continue
            if offset == end or not self.membership.may_hand_out(name, partition, fetched.epoch, self.clock()):
                continue
            self.membership.handed_out(name, partition, offset + 1)
            fetched.next_offset += 1
            self.world.invariants.handed_out(self, name, partition, fetched.topic_id, offset)
        if not self.settings.auto_commit and self.clock() >= self._commit_due:
            self._commit_due = self.clock() + 1000
            self._commit()

    def _commit(self) -> None:
        """``commit_offsets``: an ordinary OffsetCommit, which takes a time."""
        kafka, group = self.world.kafka, self.settings.group_id
        offsets = self.membership.committable(self.clock())
        if offsets and kafka.is_reachable(self.name) and group not in kafka.ordinary_since:
            there = {which: offset for which, offset in offsets.items() if which[0] in kafka.topics}
            kafka.offsets.setdefault(group, {}).update(there)
            for name, partition in there:
                self.world.invariants.committed_by_itself(self, kafka.topics[name], partition)
