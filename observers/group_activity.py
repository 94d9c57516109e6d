"""What members of groups did, and the offsets they committed, until it is taken as events. No IO, no clock.

A client may join and leave groups as fast as the broker lets it. So an interval has bounds, and what is beyond them is
counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct, field

from observers.api import ObservedExchange
from observers.audit_filter import AuditFilter
from observers.cluster_events import CommittedPartition, GroupEvent
from observers.topic_names import TopicNames
from proxy.core.exchange import ItemErrors, RequestResources
from proxy.core.names import clip, clip_optional

MAX_MEMBERS = 5_000
"""Members of one interval, about 1 KiB each, 5 KiB if all their names are long."""

MAX_OFFSETS = 50_000
"""Committed offsets of one interval, about 0.4 KiB each."""

MAX_FETCHED = 50_000
"""Topics of one interval that members fetched, about 0.1 KiB each."""

MAX_CONNECTIONS = 10_000
"""Connections of members that are kept; with more, all of them are forgotten and learned again."""

ITEMS_PER_EVENT = 1_000
"""Offsets, or topics, in one event."""

OFFSET_COMMIT = 8
TXN_OFFSET_COMMIT = 28

REBALANCE_IN_PROGRESS = 27
"""The answer to a member whose group begins a new generation."""

MEMBER_APIS: dict[int, str | None] = {
    OFFSET_COMMIT: None,
    TXN_OFFSET_COMMIT: None,
    11: "classic",  # JoinGroup
    12: "classic",  # Heartbeat
    14: "classic",  # SyncGroup
    68: "consumer",  # ConsumerGroupHeartbeat
    76: "share",  # ShareGroupHeartbeat
    88: "streams",  # StreamsGroupHeartbeat
}
"""Api keys of requests that a member sends, and the type of its group (Kafka's ``GroupType``)."""


class _Member(NamedTuple):
    """Who did something in which group."""

    listener: str
    principal: str
    client_ip: str
    client_id: str | None
    group_id: str
    member_id: str | None
    group_instance_id: str | None


class _Activity(Struct):
    """What a member did since the last call of ``drain``. Times: µs since 1970."""

    member: _Member
    first: int
    last: int
    group_type: str | None = None
    generation_id: int = -1
    requests: int = 0
    commits: int = 0
    offsets_not_listed: int = 0
    offsets: dict[tuple[str, int], CommittedPartition] = field(default_factory=dict)
    fetched: set[str] = field(default_factory=set)


class GroupActivity:
    """Members of groups, by their requests. Not thread-safe."""

    def __init__(self, names: TopicNames, audit_filter: AuditFilter) -> None:
        self._names = names
        self._filter = audit_filter
        self._activities: dict[_Member, _Activity] = {}
        self._offsets = self._fetched = 0
        self._young: dict[str, _Member] = {}  # connections that carried such a request since the last call of ``drain``
        self.connections: dict[str, _Member] = {}
        """Ids of connections that carried requests of a member, with the last of these members."""
        self.left_out = 0
        """Requests since the last call of ``drain`` whose member, or whose topics, are beyond the bounds."""

    def record_request(self, exchange: ObservedExchange, at: int) -> None:
        """Record an answered request of one of ``MEMBER_APIS`` that names a group; ``at``: when it was answered, µs.

        What the broker refused shows no member: anybody may ask in the name of any member.
        """
        connection = exchange.connection
        found: RequestResources = exchange.resources
        assert found.group_id is not None
        if self._filter.hides_principal(connection.principal) or not (found.member_id or found.commit_count):
            return
        if not _is_accepted(exchange, found):
            return
        member = _Member(
            connection.listener,
            clip(connection.principal),
            connection.client_ip,
            clip_optional(exchange.client_id),
            _text(found.group_id),
            _text(found.member_id) if found.member_id else None,
            None if found.group_instance_id is None else _text(found.group_instance_id),
        )
        activity = self._activity_of(member, at)
        if activity is None:
            self.connections.pop(connection.id, None)  # its fetches are not those of an earlier member
            return
        activity.requests += 1
        activity.group_type = MEMBER_APIS[exchange.api_key] or activity.group_type
        activity.generation_id = max(activity.generation_id, found.generation_id)
        if len(self.connections) >= MAX_CONNECTIONS:
            self.connections, self._young = {}, {}
        self.connections[connection.id] = self._young[connection.id] = activity.member
        if found.commit_count:
            self._record_commits(activity, exchange, found, at)

    def record_fetch(self, exchange: ObservedExchange, at: int) -> None:
        """Record a fetch over one of ``connections``: its topics are what that member reads."""
        member, response = self.connections[exchange.connection.id], exchange.response
        if response is None:
            return
        topics = {one.topic for one in response.partitions if one.records.records and not one.error_code}
        activity = self._activity_of(member, at) if topics else None
        if activity is None:
            return
        names = {self._names.label_of(topic, response.topics_are_ids)[0] for topic in topics} - activity.fetched
        names = {name for name in names if not self._filter.hides_topic(name)}
        if self._fetched + len(names) > MAX_FETCHED:
            self.left_out += 1
            return
        self._fetched += len(names)
        activity.fetched |= names

    def drain(self) -> list[GroupEvent]:
        """Return the events of all that was recorded since the last call, and forget it."""
        events = []
        for activity in self._activities.values():
            offsets = tuple(activity.offsets.values())
            topics = tuple(sorted(activity.fetched))
            event = _event(activity)
            event.requests, event.commits = activity.requests, activity.commits
            event.offsets_not_listed = activity.offsets_not_listed
            for at in range(0, max(len(offsets), len(topics), 1), ITEMS_PER_EVENT):
                if at:
                    event = _event(activity)
                event.committed = offsets[at : at + ITEMS_PER_EVENT]
                event.fetched = topics[at : at + ITEMS_PER_EVENT]
                events.append(event)
        self._activities.clear()
        self._offsets = self._fetched = self.left_out = 0
        # A member that still is one has sent a heartbeat since.
        self.connections, self._young = self._young, {}
        return events

    def _activity_of(self, member: _Member, at: int) -> _Activity | None:
        """Return what ``member`` did; None, and counted, where it is one too many."""
        activity = self._activities.get(member)
        if activity is None:
            if len(self._activities) >= MAX_MEMBERS:
                self.left_out += 1
                return None
            activity = self._activities[member] = _Activity(member, at, at)
        activity.first, activity.last = min(activity.first, at), max(activity.last, at)
        return activity

    def _record_commits(
        self, activity: _Activity, exchange: ObservedExchange, found: RequestResources, at: int
    ) -> None:
        """Record the offsets that the broker took."""
        errors: ItemErrors | None = exchange.item_errors
        refused: set[Any] = set()
        if errors is not None:
            if errors.failures + errors.retriable + errors.protocol > len(errors.items):
                return  # which ones were refused is not known
            refused = {(one.topic_id or one.resource_name, one.partition) for one in errors.items}
        activity.offsets_not_listed += found.commit_count - len(found.commits)
        taken = 0
        for one in found.commits:
            if (one.topic, one.partition) in refused:
                continue
            taken += 1
            name = self._names.label_of(one.topic, one.topic_is_id)[0]
            if one.offset < 0 or self._filter.hides_topic(name):
                continue
            held = activity.offsets.get((name, one.partition))
            if held is None and self._offsets >= MAX_OFFSETS:
                activity.offsets_not_listed += 1
                continue
            if held is None:
                self._offsets += 1
            if held is None or held.ts <= at:
                transactional = exchange.api_key == TXN_OFFSET_COMMIT
                activity.offsets[name, one.partition] = CommittedPartition(
                    name, one.partition, one.offset, at, transactional
                )
        activity.commits += taken > 0


def _is_accepted(exchange: ObservedExchange, found: RequestResources) -> bool:
    """Return whether the broker took the sender for a member, or took at least one of its offsets."""
    if exchange.error_code:
        return exchange.error_code == REBALANCE_IN_PROGRESS and not found.commit_count
    if not found.commit_count:
        return True
    errors: ItemErrors | None = exchange.item_errors
    refused = 0 if errors is None else errors.failures + errors.retriable + errors.protocol
    return exchange.decode in ("none", "full") and refused < found.commit_count


def _event(activity: _Activity) -> GroupEvent:
    """Return an event without sums and offsets."""
    member = activity.member
    return GroupEvent(
        seq=0,
        listener=member.listener,
        principal=member.principal,
        client_ip=member.client_ip,
        group_id=member.group_id,
        ts_first=activity.first,
        ts_last=activity.last,
        client_id=member.client_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        generation_id=activity.generation_id,
        group_type=activity.group_type,
    )


def _text(raw: bytes) -> str:
    return clip(raw.decode("utf-8", "replace"))
