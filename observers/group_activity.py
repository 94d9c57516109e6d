"""What members of groups did, and the offsets they committed, until it is taken as events. No IO, no clock."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct, field

from observers.api import ObservedExchange
from observers.audit_filter import AuditFilter
from observers.event import CommittedPartition, GroupEvent, clip, clip_optional
from observers.topic_names import TopicNames
from proxy.core.exchange import ItemErrors, RequestResources

MAX_MEMBERS = 2_000
"""Members held, about 1 KiB each."""

MAX_OFFSETS = 20_000
"""Committed offsets held, about 0.4 KiB each."""

MAX_CONNECTIONS = 10_000
"""Connections of members that are kept; with more, all of them are forgotten and learned again."""

OFFSETS_PER_EVENT = 1_000

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
        self._offsets = 0
        self._young: dict[str, _Member] = {}  # connections that carried such a request since the last call of ``drain``
        self.connections: dict[str, _Member] = {}
        """Ids of connections that carried requests of a member, with the last of these members."""

    @property
    def full(self) -> bool:
        """Whether so much is held that it has to be taken now."""
        return len(self._activities) >= MAX_MEMBERS or self._offsets >= MAX_OFFSETS

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
        activity.requests += 1
        activity.group_type = MEMBER_APIS[exchange.api_key] or activity.group_type
        activity.generation_id = max(activity.generation_id, found.generation_id)
        if len(self.connections) >= MAX_CONNECTIONS:
            self.connections, self._young = {}, {}
        self.connections[connection.id] = self._young[connection.id] = member
        if found.commit_count:
            self._record_commits(activity, exchange, found, at)

    def record_fetch(self, exchange: ObservedExchange, at: int) -> None:
        """Record a fetch over one of ``connections``: its topics are what that member reads."""
        member, response = self.connections[exchange.connection.id], exchange.response
        if response is None:
            return
        topics = {one.topic for one in response.partitions if one.records.records and not one.error_code}
        if topics:
            fetched = {self._names.label_of(topic, response.topics_are_ids)[0] for topic in topics}
            self._activity_of(member, at).fetched |= {name for name in fetched if not self._filter.hides_topic(name)}

    def drain(self) -> list[GroupEvent]:
        """Return the events of all that was recorded since the last call, and forget it."""
        events = []
        for member, activity in self._activities.items():
            offsets = tuple(activity.offsets.values())
            event = _event(member, activity)
            event.requests, event.commits = activity.requests, activity.commits
            event.offsets_not_listed = activity.offsets_not_listed
            event.fetched = tuple(sorted(activity.fetched))
            event.committed = offsets[:OFFSETS_PER_EVENT]
            events.append(event)
            for at in range(OFFSETS_PER_EVENT, len(offsets), OFFSETS_PER_EVENT):
                events.append(_event(member, activity))
                events[-1].committed = offsets[at : at + OFFSETS_PER_EVENT]
        self._activities.clear()
        self._offsets = 0
        # A member that still is one has sent a heartbeat since.
        self.connections, self._young = self._young, {}
        return events

    def _activity_of(self, member: _Member, at: int) -> _Activity:
        activity = self._activities.get(member)
        if activity is None:
            activity = self._activities[member] = _Activity(at, at)
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


def _event(member: _Member, activity: _Activity) -> GroupEvent:
    """Return an event without sums and offsets."""
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
