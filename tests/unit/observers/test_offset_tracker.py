"""Groups, ends of partitions and lists of topics, as events."""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from observers import group_activity
from observers.audit_filter import AuditFilter
from observers.cluster_events import (
    CommittedPartition,
    EndOffset,
    EndOffsetsEvent,
    GroupEvent,
    InventoryEvent,
    InventoryTopic,
)
from observers.inventory import UNCHANGED_LIST_INTERVAL, Inventory
from observers.kafka_admin import TopicDescription
from observers.offset_tracker import OffsetTracker
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core import exchange as facts
from proxy.core.exchange import Connection, ItemErrorFacts, ItemErrors, RecordSet, RequestResources
from tests.unit.observers import samples as sample
from tests.unit.observers.samples import PRINTED_ID, TOPIC_ID

WALL = 1_000.0
ID = bytes(range(16))
COMMIT, TXN_COMMIT, HEARTBEAT, CONSUMER_HEARTBEAT = 8, 28, 12, 68


def tracker(*, topics: Collection[str] = (), principals: Collection[str] = ()) -> OffsetTracker:
    names = TopicNames(lambda: {ID: "orders"})
    return OffsetTracker(names, AuditFilter(names, topics=topics, principals=principals))


def after(*exchanges: Any, **excluded: Collection[str]) -> OffsetTracker:
    """A tracker that has got these."""
    made = tracker(**excluded)
    made.record_exchanges(exchanges, WALL)
    return made


def connection(number: int = 1, principal: str = "User:billing") -> Connection:
    return sample.connection(id=f"c{number}", principal=principal)


def exchange(api_key: int, at: float = 1.0, **changes: Any) -> Exchange:
    values = {"connection": connection(), "received_at": at - 0.1, "responded_at": at, "answered_at": at}
    return sample.exchange(**{**values, "api_key": api_key, **changes})


def produced(topic: bytes, offset: int, *, records: int = 10, error: int = 0, at: float = 1.0, **changes: Any) -> Any:
    is_id = len(topic) == 16
    given = facts.ProducedPartition(topic, 3, RecordSet(records * 10, 1, records, changes.pop("magic", 2)))
    request = facts.ProduceRequest(-1, 100, None, (given,), is_id)
    response = facts.ProduceResponse(0, (facts.AnsweredPartition(topic, 3, error, offset),), is_id)
    return exchange(0, at, request=request, response=response, decode="full", **changes)


def fetched(
    topic: bytes, high_watermark: int, *, error: int = 0, records: int = 0, at: float = 1.0, **more: Any
) -> Any:
    part = facts.FetchedPartition(topic, 3, error, high_watermark, RecordSet(records, 1, records, 2))
    response = facts.FetchResponse(0, 0, 0, (part,), len(topic) == 16)
    request = facts.FetchRequest(-1, 0, 0, 0, -1, (), len(topic) == 16)
    return exchange(1, at, request=request, response=response, decode="full", **more)


def about(
    group: bytes = b"invoicing", member: bytes | None = b"m1", *commits: tuple[bytes, int, int], **more: Any
) -> Any:
    made = tuple(
        facts.CommittedOffset(topic, len(topic) == 16, partition, offset) for topic, partition, offset in commits
    )
    count = more.pop("count", len(made))
    return RequestResources(commits=made, commit_count=count, group_id=group, member_id=member, **more)


def ends(found: OffsetTracker) -> dict[tuple[str, int], int]:
    events = [event for event in found.drain(5) if isinstance(event, EndOffsetsEvent)]
    return {(one.topic, one.partition): one.offset for event in events for one in event.end_offsets}


def groups(found: OffsetTracker) -> list[GroupEvent]:
    return [event for event in found.drain(5) if isinstance(event, GroupEvent)]


@pytest.mark.promise("audit-event.md", "The ends of partitions that were written or fetched are reported.")
def test_the_end_follows_acknowledged_records() -> None:
    offsets = after(produced(b"clicks", 50), produced(ID, 7), produced(b"clicks", 60, at=2.0))
    (event,) = offsets.drain(5)
    assert event == EndOffsetsEvent(
        0, 5, (EndOffset("clicks", 3, 70, 1_002_000_000), EndOffset("orders", 3, 17, 1_001_000_000))
    )
    assert offsets.drain(6) == []


def test_what_says_nothing_of_the_end_is_left_out_and_the_last_response_holds() -> None:
    for one in (
        produced(b"t", 50, error=3),
        produced(b"t", -1),
        produced(b"t", 50, magic=1),
        produced(b"t", 50, outcome="connection_lost"),
        fetched(b"t", 50, error=3),
        fetched(b"t", -1),
    ):
        offsets = after(one)
        assert offsets.drain(5) == [], one
    offsets = after(produced(b"t", 1, at=float("nan")), produced(b"u", 1))
    assert ends(offsets) == {("u", 3): 11}, "one it cannot work with leaves the others"
    # The last response holds whatever was handed on first.
    for at, high_watermark, end in ((1.0, 40, 100), (3.0, 0, 0), (2.000053, 90, 100)):
        offsets = after(produced(b"t", 90, at=2.0), fetched(b"t", high_watermark, at=at))
        assert ends(offsets) == {("t", 3): end}, at


def test_hidden_topics_and_principals_are_left_out() -> None:
    commits = about(b"g", b"m", (b"secret", 0, 1), (b"t", 0, 2))
    hidden = connection(2, "User:hidden")
    offsets = after(
        produced(b"secret", 1),
        exchange(COMMIT, resources=commits),
        exchange(HEARTBEAT, resources=about(), connection=hidden),
        topics=["secret"],
        principals=["User:hidden"],
    )
    (event,) = offsets.drain(5)
    assert isinstance(event, GroupEvent)
    assert [(one.topic, one.offset) for one in event.committed] == [("t", 2)]


@pytest.mark.promise("audit-event.md", "A group event says what one member did and committed.")
def test_a_member_is_reported_with_its_last_offsets() -> None:
    first = about(b"invoicing", b"m1", (b"t", 0, 5), (ID, 1, 7), generation_id=2)
    second = about(b"invoicing", b"m1", (b"t", 0, 6), generation_id=3, group_instance_id=None)
    offsets = after(
        exchange(HEARTBEAT, 1.0, resources=about(generation_id=2)),
        exchange(COMMIT, 2.0, resources=first),
        exchange(COMMIT, 3.0, resources=second),
    )
    assert groups(offsets) == [
        GroupEvent(
            seq=0, listener="CLIENT", principal="User:billing", client_ip="10.0.0.7", group_id="invoicing",
            ts_first=1_001_000_000, ts_last=1_003_000_000, requests=3, client_id="app", member_id="m1",
            generation_id=3, group_type="classic", commits=2,
            committed=(
                CommittedPartition("t", 0, 6, 1_003_000_000), CommittedPartition("orders", 1, 7, 1_002_000_000)
            ),
        )
    ]  # fmt: skip


def test_offsets_that_were_refused_or_whose_result_is_not_known_are_left_out() -> None:
    refused = ItemErrorFacts(29, "topic", b"t", None, 1, -1, None, None)
    by_id = ItemErrorFacts(3, "topic", None, ID, 0, -1, None, None)
    commits = about(b"g", b"m", (b"t", 0, 5), (b"t", 1, 6), (ID, 0, 7))
    offsets = after(exchange(COMMIT, resources=commits, item_errors=ItemErrors((refused, by_id), 2, 0, 0)))
    (event,) = groups(offsets)
    assert ([(one.topic, one.partition) for one in event.committed], event.commits) == ([("t", 0)], 1)
    # A commit whose result is not known counts for nothing.
    for changes in (
        {"outcome": "connection_lost"},
        {"error_code": 16},
        {"decode": "malformed"},
        {"decode": "not_kept"},
        {"item_errors": ItemErrors((), 1, 0, 0)},  # more failed than are listed
    ):
        offsets = after(exchange(COMMIT, resources=about(b"g", b"m", (b"t", 0, 5)), **changes))
        assert groups(offsets) == [], changes


def test_whom_the_broker_refuses_is_no_member_nor_who_only_reads_of_a_group() -> None:
    """NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, GROUP_AUTHORIZATION_FAILED, FENCED_INSTANCE_ID; then
    DescribeGroups, OffsetFetch, LeaveGroup of an administrator, and a first JoinGroup."""
    for one in (
        *(exchange(HEARTBEAT, resources=about(), error_code=code) for code in (16, 22, 25, 30, 82)),
        *(exchange(api, resources=about()) for api in (9, 13, 15)),
        exchange(11, resources=about(member=b"")),
    ):
        offsets = after(one, fetched(b"clicks", 5, records=2))
        assert groups(offsets) == [], one
    offsets = after(exchange(HEARTBEAT, resources=about(), error_code=27))
    assert [(event.member_id, event.requests) for event in groups(offsets)] == [("m1", 1)], "one in a rebalance is"


def test_topics_that_a_members_connection_fetched_are_reported() -> None:
    """Also after the events of the last interval were taken; and not of other connections."""
    offsets = after(exchange(HEARTBEAT, resources=about()))
    assert groups(offsets)[0].fetched == ()
    offsets.record_exchanges(
        [
            fetched(b"clicks", 5, records=2),
            fetched(ID, 5, records=2),
            fetched(b"empty", 5),
            fetched(b"refused", 5, records=2, error=3),
            fetched(b"other", 5, records=2, connection=connection(2)),
        ],
        WALL,
    )
    (event,) = groups(offsets)
    assert (event.fetched, event.requests) == (("clicks", "orders"), 0)
    offsets.drain(5)
    offsets.record_exchanges([fetched(b"clicks", 5, records=2)], WALL)
    assert groups(offsets) == [], "without a heartbeat for so long it is no member"


def test_what_is_kept_of_an_interval_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_activity, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(group_activity, "MAX_OFFSETS", 2)
    monkeypatch.setattr(group_activity, "MAX_FETCHED", 1)
    offsets = tracker()
    for number in range(3):
        one = exchange(HEARTBEAT, resources=about(b"g%d" % number), connection=connection(number))
        offsets.record_exchanges([one], WALL)
    offsets.record_exchanges([fetched(b"t", 5, records=1, connection=connection(0))], WALL)
    assert [event.fetched for event in groups(offsets)] == [(), (), ()], "its connection was forgotten"
    commits = about(b"g", b"m", (b"t", 0, 1), (b"t", 1, 1), (b"t", 2, 1), (b"t", 1, 8))
    offsets.record_exchanges([exchange(COMMIT, resources=commits)], WALL)
    (event,) = groups(offsets)
    assert [(one.partition, one.offset) for one in event.committed] == [(0, 1), (1, 8)]
    assert event.offsets_not_listed == 1
    offsets = after(exchange(HEARTBEAT, resources=about()))
    offsets.record_exchanges([fetched(topic, 5, records=1) for topic in (b"a", b"b", b"a")], WALL)
    assert (offsets.left_out, groups(offsets)[0].fetched) == (1, ("a",))
    monkeypatch.undo()
    offsets = tracker()
    for number in range(50_003):
        offsets.record_exchanges([produced(b"t%d" % number, 5)], WALL)
    offsets.record_exchanges([produced(b"t0", 50)], WALL)
    assert offsets.left_out == 3
    found = ends(offsets)
    assert (len(found), found["t0", 3], offsets.left_out) == (50_000, 60, 0)
    # Many offsets are several events.
    offsets = tracker()
    many = [(b"t", number, 1) for number in range(1_000)]
    for at in (0, 1_000):
        moved = [(topic, partition + at, offset) for topic, partition, offset in many]
        offsets.record_exchanges([exchange(COMMIT, resources=about(b"g", b"m", *moved, count=1_200))], WALL)
    first, second = groups(offsets)
    assert (first.requests, first.commits, first.offsets_not_listed, len(first.committed)) == (2, 2, 400, 1_000)
    assert (second.requests, second.commits, second.offsets_not_listed, len(second.committed)) == (0, 0, 0, 1_000)


class World:
    """A cluster, who listens, and the time."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.published: list[Sequence[InventoryEvent]] = []
        self.now = 0.0
        self.inventory = Inventory(
            self.topics, lambda name: name == "audit", self.published.append, interval=60, clock=lambda: self.now
        )

    def topics(self) -> Mapping[str, TopicDescription]:
        return {name: TopicDescription(name, TOPIC_ID, 3, internal=name.startswith("__")) for name in self.names}


@pytest.mark.promise("audit-event.md", "The whole list of topics is reported each hour and when it has changed.")
def test_the_list_is_reported_when_it_changed_and_each_hour_but_for_excluded_topics() -> None:
    world = World("a")
    world.inventory.poll_topics()
    world.now += UNCHANGED_LIST_INTERVAL - 1
    world.inventory.poll_topics()
    assert len(world.published) == 1
    world.names = ("a", "b")
    world.inventory.poll_topics()
    assert len(world.published) == 2
    world.now += UNCHANGED_LIST_INTERVAL
    world.inventory.poll_topics()
    assert len(world.published) == 3
    # A list has what the cluster has but for excluded topics.
    world = World("b", "audit", "__consumer_offsets", "a")
    world.inventory.poll_topics()
    ((event,),) = world.published
    assert (event.part, event.parts) == (1, 1)
    assert event.inventory == (
        InventoryTopic("__consumer_offsets", PRINTED_ID, 3, internal=True),
        InventoryTopic("a", PRINTED_ID, 3),
        InventoryTopic("b", PRINTED_ID, 3),
    )
    # A list that could not be reported is reported the next time unless it is closed.
    world = World("a")
    world.inventory._publish = lambda listed: (_ for _ in ()).throw(RuntimeError)
    with pytest.raises(RuntimeError):
        world.inventory.poll_topics()
    world.inventory._publish = world.published.append
    world.inventory.poll_topics()
    assert len(world.published) == 1
    world.inventory.close()
    world.names = ("b",)
    world.inventory.poll_topics()
    assert len(world.published) == 1


def test_a_cluster_that_is_away_is_asked_again() -> None:
    answers = [RuntimeError("away"), RuntimeError("away"), {"a": TopicDescription("a", bytes(16), 1, internal=False)}]
    published = threading.Event()

    def topics() -> Mapping[str, TopicDescription]:
        answer = answers.pop(0)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    def publish(listed: Sequence[InventoryEvent]) -> None:
        assert listed[0].inventory == (InventoryTopic("a", None, 1),)
        published.set()

    inventory = Inventory(topics, lambda name: False, publish, interval=0.001)
    inventory.start()
    assert published.wait(30)
    inventory.close()
    inventory._thread.join(60)  # it may log until then
