"""One consumer of a group: what it subscribes to, what it may be fetching, and what it has not answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from proxy.coordinator.lease import MAX_ASKED_PINGS, MAX_OPEN_PINGS, SentTimes
from proxy.coordinator.records import MemberValue
from proxy.coordinator.states import MEMBERS, MemberEvent, MemberState, next_state
from proxy.coordinator.subscription import TopicCount
from proxy.coordinator.wire import PING, START_FETCHER, STOP_FETCHER

TopicPartition = tuple[str, int]

Share = Mapping[str, tuple[TopicPartition, ...]]
"""What one member owns: partitions by thread id, only threads that have some."""


def partitions_of(share: Share) -> frozenset[TopicPartition]:
    """All partitions of a share."""
    return frozenset(partition for partitions in share.values() for partition in partitions)


class OpenRequest(NamedTuple):
    """A request to a consumer that is waited for."""

    correlation_id: int
    api_key: int


@dataclass(frozen=True, slots=True)
class Registrant:
    """Who registers: the connection, and what its client is."""

    connection: int
    correlation_id: int
    api_version: int
    client_ip: str
    unreadable: frozenset[str]


class GroupMember:
    """A member. ``state`` is moved by the methods that change it; see ``MemberState``.

    value         as it registered; its record.
    registrant    None while it is absent.
    holds         partitions that it may be fetching.
    started_with  its share by the last StartFetcher on this connection; None if there was none, or it lost some of it.
    has_started   whether it has answered the last StartFetcher on this connection.
    failures      pings that expired in a row.
    has_answered  whether it has answered anything on this connection.
    """

    def __init__(
        self,
        group_id: str,
        consumer_id: str,
        value: MemberValue,
        subscription: TopicCount,
        registrant: Registrant | None,
    ) -> None:
        self.group_id, self.consumer_id, self.value, self.subscription = group_id, consumer_id, value, subscription
        self.registrant = registrant
        self.unreadable: frozenset[str] = registrant.unreadable if registrant is not None else frozenset()
        self.state = MemberState.ABSENT if registrant is None else MemberState.REGISTERING
        self.holds: frozenset[TopicPartition] = frozenset()
        self.started_with: Share | None = None
        self.has_started = False
        self.failures = 0
        self.has_answered = False
        self.last_heard: int | None = None
        self._sent_times = SentTimes()
        self._next_correlation_id = 1
        self._open: dict[int, OpenRequest] = {}
        self._unanswered_pings: set[int] = set()
        self._asked_pings = 0
        """Since the last ping by schedule."""
        self._last_answered = 0
        """Correlation id of the request that was answered last."""
        self._withheld: set[int] = set()
        self._next_withheld = -1
        self._stopping: frozenset[TopicPartition] | None = None
        """What the latest StopFetcher names; None: all."""
        self._latest_order = 0
        """Correlation id of the last StopFetcher or StartFetcher: only its response shows what the member does."""
        self._latest_start = 0

    # Facts

    @property
    def session_timeout_ms(self) -> int:
        """T of the lease."""
        return self.value.session_timeout_ms

    @property
    def connection(self) -> int:
        """The connection on which it is registered."""
        assert self.registrant is not None, "an absent member has no connection"
        return self.registrant.connection

    def streams_of(self, topic: str) -> int:
        """How many threads consume the topic; 0 if it is not subscribed to, or may not be read."""
        return 0 if topic in self.unreadable else self.subscription.select((topic,)).get(topic, 0)

    def can_send_ping(self) -> bool:
        """Whether fewer than two pings are unanswered."""
        return len(self._unanswered_pings) < MAX_OPEN_PINGS

    def can_ask_for_ping(self) -> bool:
        """Whether it gets a ping beside those by schedule: none is unanswered, and it has not had some already."""
        return not self._unanswered_pings and self._asked_pings < MAX_ASKED_PINGS

    def may_fetch(self) -> bool:
        """Whether it may be fetching something."""
        return self.state in _MAY_FETCH

    def may_be_replaced(self) -> bool:
        """Whether another connection may take its id: it has not answered a ping in time."""
        return self.failures > 0

    def free_at(self, ended_at: int) -> int:
        """When its partitions are free, if it has not stopped and its connection ends at ``ended_at``."""
        return self._sent_times.free_at(ended_at, self.session_timeout_ms)

    def open_requests(self) -> tuple[OpenRequest, ...]:
        """Requests that are waited for."""
        return tuple(self._open.values())

    def withheld_pings(self) -> tuple[int, ...]:
        """Numbers of pings that were withheld and have not expired."""
        return tuple(self._withheld)

    def is_latest_order(self, request: OpenRequest) -> bool:
        """Whether no StopFetcher or StartFetcher was sent after this one."""
        return request.correlation_id == self._latest_order

    def is_order_open(self) -> bool:
        """Whether the latest StopFetcher or StartFetcher can still be answered in time."""
        return self._latest_order in self._open

    def is_stopping_all(self) -> bool:
        """Whether the latest order is a StopFetcher of all partitions that can still be answered in time."""
        order = self._open.get(self._latest_order)
        return order is not None and order.api_key == STOP_FETCHER and self._stopping is None

    def reports_share(self, request: OpenRequest) -> bool:
        """Whether the offsets in the response are of what it fetches by the last StartFetcher: it is answered later."""
        return request.correlation_id > self._latest_start

    def holds_by_records(self) -> bool:
        """Whether a predecessor has assigned to it what it holds: no StartFetcher was sent on this connection."""
        return self._latest_start == 0

    # Its connection

    def accepted(self, now: int) -> None:
        """It is registered as a new member."""
        self._move(MemberEvent.ACCEPTED)
        self._sent_times.sent(now)

    def returned(self, holds: frozenset[TopicPartition], not_before: int, now: int) -> None:
        """It is registered, and may be fetching what a predecessor has assigned to it."""
        self._move(MemberEvent.RETURN)
        self.holds = holds
        self._sent_times.sent(now)
        self._sent_times.not_before(not_before)

    def absent(self, holds: frozenset[TopicPartition]) -> None:
        """It is not back after a takeover, and may be fetching what a predecessor has assigned to it."""
        self.holds = holds

    def ended(self) -> None:
        """It is gone."""
        self._move(MemberEvent.END)

    def buffered(self) -> None:
        """See ``SentTimes``."""
        self._sent_times.buffered()

    def drained(self, now: int) -> None:
        """See ``SentTimes``."""
        self._sent_times.drained(now)

    # What is sent to it

    def ping(self, now: int, *, asked: bool = False) -> OpenRequest:
        """A ping is sent. ``asked``: since the consumer has asked for it."""
        self._asked_pings = self._asked_pings + 1 if asked else 0
        request = self._send(PING, now)
        self._unanswered_pings.add(request.correlation_id)
        return request

    def withhold_ping(self) -> int:
        """A ping is due, but two are unanswered. Return a number in place of its correlation id, below 0."""
        number = self._next_withheld
        self._next_withheld -= 1
        self._withheld.add(number)
        return number

    def stop(self, partitions: frozenset[TopicPartition] | None, now: int) -> OpenRequest:
        """StopFetcher is sent, of these partitions or of all."""
        self._move(MemberEvent.STOP)
        self._stopping = partitions
        request = self._send(STOP_FETCHER, now)
        self._latest_order = request.correlation_id
        return request

    def start(self, share: Share, now: int) -> OpenRequest:
        """StartFetcher is sent: from now on it may fetch this share."""
        self._move(MemberEvent.START)
        self.started_with, self.holds, self.has_started = share, partitions_of(share), False
        request = self._send(START_FETCHER, now)
        self._latest_order = self._latest_start = request.correlation_id
        return request

    def _send(self, api_key: int, now: int) -> OpenRequest:
        request = OpenRequest(self._next_correlation_id, api_key)
        self._next_correlation_id += 1
        self._open[request.correlation_id] = request
        self._sent_times.sent(now)
        return request

    # What it answers, and what it does not

    def was_sent(self, correlation_id: int) -> bool:
        """Whether a request with this correlation id was ever sent."""
        return 0 < correlation_id < self._next_correlation_id

    def repeats(self, correlation_id: int) -> bool:
        """Whether a response to this request has come last before."""
        return correlation_id == self._last_answered

    def heard(self, correlation_id: int, now: int) -> OpenRequest | None:
        """A response has come: it is alive. Return what it answers; None if that has expired before."""
        self.has_answered = True
        self.last_heard = now
        self.failures = 0
        self._withheld.clear()
        # It answers in order: what it was asked before and has not answered, it will not answer any more.
        self._unanswered_pings = {ping for ping in self._unanswered_pings if ping > correlation_id}
        request = self._open.pop(correlation_id, None)
        if request is not None:
            self._last_answered = correlation_id
        return request

    def confirmed(self, request: OpenRequest) -> None:
        """The latest StopFetcher or StartFetcher was answered without an error."""
        if request.api_key == STOP_FETCHER and self._stopping is not None:
            self._move(MemberEvent.PARTLY_STOPPED)
            self.holds -= self._stopping
            self.started_with = None
        elif request.api_key == STOP_FETCHER:
            self._move(MemberEvent.STOPPED)
            self.holds = frozenset()
        else:
            self._move(MemberEvent.STARTED)
            self.has_started = True

    def expired(self, correlation_id: int) -> OpenRequest | None:
        """A watcher has expired. Return its request; None for a withheld ping. Pings that expire count as failures."""
        request = self._open.pop(correlation_id, None)
        if request is None:
            self._withheld.discard(correlation_id)
        if request is None or request.api_key == PING:
            self.failures += 1
        return request

    def forgive(self) -> None:
        """Pings that expired so far do not count: they were not sent in time."""
        self.failures = 0

    def _move(self, event: MemberEvent) -> None:
        self.state = next_state(MEMBERS, self.state, event)


_MAY_FETCH = (MemberState.FETCHING, MemberState.STARTING, MemberState.STOPPING, MemberState.RETURNED)
"""No set: the hash of a member of an enumeration is computed in Python."""
