"""What the audit numbers, emits and counts, with an outbox that only keeps it."""

import threading
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from observers.audit import AuditObserver
from observers.delivery_accounting import Gap
from observers.event import Envelope, RollupEvent
from observers.event_blocks import Chunk, EncodedEvents
from observers.event_observer import MIN_CLOCK_STEP, STATUS_INTERVAL
from observers.inventory import Inventory
from observers.outbox import OutboxStats
from proxy.core.exchange import ConnectionTransition, ItemErrorFacts, ItemErrors, RequestResource, RequestResources
from tests.unit.observers.audit_levels import configs as given_to_observers
from tests.unit.observers.samples import connection, exchange, fetch, produce, report


class Kept:
    """In place of an ``Outbox``."""

    def __init__(self, *_: Any, **settings: Any) -> None:
        self.settings = settings
        self.schema_level = settings["schema_level"]
        self.sequence_lock = threading.Lock()
        self.seq = 0
        self.observed = memoryview(array("q", [0]))
        self.json: list[bytes] = []
        self.lost: Counter[str] = Counter()
        self.taken = self.hidden = 0
        self.searched_at = 7.5
        self.closed = False

    def start(self, tick: Callable[[], None]) -> None:
        self.tick = tick

    def add_events(self, chunks: Sequence[Chunk], last: int, lost: Mapping[str, int], taken: int, hidden: int) -> None:
        assert self.sequence_lock.locked()
        assert not self.closed
        assert sum(chunk.count for chunk in chunks) + sum(lost.values()) == last - self.seq, (
            "each number is accounted for"
        )
        assert all(first.first < then.first for first, then in pairwise(chunks))
        self.json += [chunk.json for chunk in chunks]
        self.seq = last
        self.lost.update(lost)
        self.taken += taken
        self.hidden += hidden

    def drain_gaps(self, *, ending: bool = False) -> list[Gap]:
        assert self.sequence_lock.locked()
        return []

    def stats(self) -> OutboxStats:
        reported = self.seq - sum(self.lost.values())
        return OutboxStats(
            emitted=self.seq, delivered=0, dropped=self.lost, spooled=0, queued=reported, undelivered={},
            queued_bytes=0, spool_bytes=0, spool_problem="", replayed=0, replay_lost=0, records_delivered=0,
            bytes_delivered=0, observed=self.observed[0], taken=self.taken, hidden=self.hidden, problems={},
        )  # fmt: skip

    def close(self, timeout: float) -> None:
        self.closed = True

    @property
    def events(self) -> list[Any]:
        envelope = b'{"schema_level":1,"cluster_id":"","broker_id":1,"boot_id":"","sidecar_version":"","first_seq":1,'
        envelope += b'"last_seq":1,"dropped":0,"sent_at":0,"events":[%b]}' % b",".join(self.json)
        return msgspec.json.decode(envelope, type=Envelope).events


class Clock:
    """In place of the module ``time``."""

    def __init__(self) -> None:
        self.now, self.offset = 500.0, 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + self.offset

    def time_ns(self) -> int:
        return round(self.time() * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("observers.event_observer.time", clock)
    return clock


Auditing = Callable[..., tuple[AuditObserver, Kept]]


@pytest.fixture
def auditing(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Auditing:
    monkeypatch.setattr("observers.event_observer.Outbox", Kept)
    monkeypatch.setattr(Inventory, "start", lambda self: None)

    def configured(*, configs: Mapping[str, Any] | None = None, **audit: Any) -> tuple[AuditObserver, Kept]:
        observer = AuditObserver()
        observer.configure({**given_to_observers("boot", features=False, **audit), **(configs or {})})
        outbox: Any = observer._outbox
        return observer, outbox

    return configured


def kinds(outbox: Kept) -> list[str]:
    return [type(event).__struct_config__.tag for event in outbox.events]  # type: ignore[misc]  # each has one


def closed(**changes: Any) -> ConnectionTransition:
    return ConnectionTransition(connection(**changes), "closed", 200.0)


def heartbeat(group: bytes) -> Any:
    one = exchange(api_key=12, outcome="answered")
    one.resources = RequestResources(group_id=group, member_id=b"m")
    return one


@pytest.mark.promise("audit-event.md", "What the audit did not get has numbers, and is lost as observer_queue.")
def test_what_was_lost_before_has_numbers_and_a_reason(auditing: Auditing) -> None:
    observer, outbox = auditing()
    observer.record_exchanges([exchange()], 40)
    observer.record_changes([closed()], 3)
    observer.record_throttles([report(), report(observed=float("nan")), report()], 5)
    observer.record_throttles([], 2)
    assert [event.seq for event in outbox.events] == [41, 45, 51, 53]
    assert outbox.lost == {"observer_queue": 50, "failed": 1}
    assert (outbox.taken, outbox.seq) == (55, 55)


@pytest.mark.promise("audit-event.md", "Group members beyond an interval's bounds are lost as interval_full.")
def test_members_beyond_the_bounds_of_an_interval_are_lost_with_a_reason(
    auditing: Auditing, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer, outbox = auditing()
    monkeypatch.setattr("observers.group_activity.MAX_MEMBERS", 2)
    observer.record_exchanges([heartbeat(b"g%d" % number) for number in range(5)], 0)
    assert kinds(outbox) == ["request"] * 5, "nothing is sent before the interval ends"
    observer.close(0)
    assert kinds(outbox)[5:] == ["group", "group", "sidecar_status"]
    assert [event.seq for event in outbox.events[5:]] == [9, 10, 11]
    assert outbox.lost == {"interval_full": 3}
    assert outbox.taken == 5


def test_what_is_hidden_in_part_was_seen_has_a_number_and_is_counted(auditing: Auditing) -> None:
    for mode in ("event", "rollup"):
        observer, outbox = auditing(**{"mode": mode, "exclude.topics": ["a", "b"]})
        both = produce([(b"a", 0, 1, 1), (b"orders", 0, 1, 1)])
        observer.record_exchanges([both, exchange(), both, produce([(b"a", 0, 1, 1)])], 0)
        assert observer.stats().partly_hidden == 2
        observer.close(0)
        assert (outbox.taken, outbox.hidden) == (4, 1)
        status = outbox.events[-1]
        hidden = (status.hidden_by, status.partly_hidden, status.partly_hidden_by)
        assert hidden == ({"topic a": 1}, 2, {"topic a": 2}), mode


@pytest.fixture
def rolling(auditing: Auditing) -> tuple[AuditObserver, Kept]:
    return auditing(**{"mode": "rollup", "rollup.interval.ms": 1000, "exclude.topics": ["hidden"]})


def test_requests_are_reported_together_once_their_interval_is_over(
    rolling: tuple[AuditObserver, Kept], clock: Clock
) -> None:
    observer, outbox = rolling
    observer.record_exchanges([exchange()], 0)
    observer.record_exchanges([exchange(), exchange(client_id="other")], 0)
    clock.now += 0.9
    outbox.tick()
    assert (outbox.events, outbox.taken) == ([], 0)
    clock.now += 0.2
    outbox.tick()
    reported = [(event.seq, event.client_id, event.requests) for event in outbox.events]
    assert reported == [(1, "app", 2), (2, "other", 1)]
    assert outbox.taken == 3
    outbox.tick()
    assert len(outbox.events) == 2
    observer.record_exchanges([exchange()], 0)
    clock.now += 1.1
    observer.record_exchanges([exchange()], 0)
    assert [event.requests for event in outbox.events[2:]] == [1], "traffic itself ends an interval"
    observer.record_exchanges([exchange(client_id=str(n)) for n in range(25_000)], 0)
    assert len(outbox.json) > 20_000, "too many keys are reported at once"


@pytest.mark.promise("changes.md", "In mode rollup, changes and denials are events of their own.")
def test_changes_and_denials_are_events_of_their_own(rolling: tuple[AuditObserver, Kept]) -> None:
    observer, outbox = rolling
    denied = ItemErrors((ItemErrorFacts(30, "group", b"g", None, -1, 0, None, None),), 1, 0, 0)
    moved = ItemErrors((ItemErrorFacts(16, "group", b"g", None, -1, 0, None, None),), 0, 1, 0)
    created = exchange(api_key=19, api_version=7)
    alone = [
        created,
        exchange(item_errors=denied),
        exchange(error_code=31),
        produce([(b"orders", 0, 10, 1)], error_code=29),
    ]
    observer.record_exchanges(
        [*alone, exchange(), exchange(item_errors=moved), produce([(b"orders", 0, 10, 1)], error_code=6)], 3
    )
    assert [(event.seq, event.api_key) for event in outbox.events] == [(4, 19), (5, 3), (6, 3), (7, 0)]
    assert kinds(outbox) == ["request"] * 4
    assert (outbox.taken, outbox.lost) == (7, {"observer_queue": 3})
    observer.close(0)
    assert outbox.taken == 10


@pytest.mark.promise("changes.md", "The first 100 failures of a connection, api and minute are not rolled up.")
def test_failed_ones_without_end_are_rolled_up(rolling: tuple[AuditObserver, Kept]) -> None:
    """The first hundred of each connection, api and minute are events of their own."""
    observer, outbox = rolling
    denied = [exchange(error_code=30, received_at=float(n // 200 * 60)) for n in range(400)]
    observer.record_exchanges(denied + [exchange(error_code=30, api_key=19, received_at=60.0)] * 150, 0)
    assert Counter(event.api_key for event in outbox.events) == {3: 200, 19: 100}
    observer.close(0)
    rolled_up = [event for event in outbox.events if isinstance(event, RollupEvent)]
    assert sum(event.errors for event in rolled_up) == sum(event.requests for event in rolled_up) == 250


def test_what_changed_something_is_always_an_event(rolling: tuple[AuditObserver, Kept]) -> None:
    """All of it, or one of two topics."""
    observer, outbox = rolling
    topics = tuple(RequestResource("topic", name, None, at, None, None) for at, name in enumerate((b"a", b"b")))
    refused = ItemErrors((ItemErrorFacts(36, "topic", b"a", None, -1, 0, None, None),), 1, 0, 0)
    half = exchange(api_key=19, resources=RequestResources(topics, 2), item_errors=refused)
    observer.record_exchanges([half] * 150 + [exchange(api_key=19)] * 150, 0)
    assert Counter(event.api_key for event in outbox.events) == {19: 300}


@pytest.mark.promise("audit-event.md", "A run's accounts are reported every ten seconds and as its last event.")
def test_a_status_comes_every_ten_seconds_and_as_the_last_event(auditing: Auditing, clock: Clock) -> None:
    observer, outbox = auditing(**{"exclude.topics": ["hidden"]})
    outbox.tick()
    assert outbox.events == []
    outbox.observed[0] = 30
    observer.record_exchanges([exchange()] * 4 + [produce([(b"hidden", 0, 1, 1)])], 20)
    clock.now += STATUS_INTERVAL
    outbox.tick()
    outbox.tick()
    status = outbox.events[-1]
    assert kinds(outbox) == ["request"] * 4 + ["sidecar_status"]
    assert (status.seq, status.emitted, status.seen, status.hidden, status.waiting) == (25, 24, 30, 1, 5)
    got = (status.dropped, status.queued, status.last, status.clock_step_ms)
    assert got == ({"observer_queue": 20}, 4, False, 0)
    assert (status.started_at, status.ts) == (1_700_000_500_000_000, 1_700_000_510_000_000)
    observer.close(0)
    assert outbox.events[-1].last
    assert outbox.closed
    outbox.tick()
    assert len(outbox.events) == 6


@pytest.mark.promise("audit-event.md", "A status says by how much the wall clock was set since the last one.")
def test_a_clock_that_was_set_is_reported_once(auditing: Auditing, clock: Clock) -> None:
    for step, reported in ((MIN_CLOCK_STEP * 0.9, 0), (3600.5, 3_600_500), (-7.25, -7250)):
        _, outbox = auditing()
        clock.offset += step
        for _ in range(2):
            clock.now += STATUS_INTERVAL
            outbox.tick()
        assert [event.clock_step_ms for event in outbox.events] == [reported, 0], step


@pytest.mark.promise("audit-event.md", "Groups and ends of partitions are reported at an interval, in each mode.")
def test_offsets_are_emitted_at_their_time_and_at_the_end(auditing: Auditing, clock: Clock) -> None:
    """In either mode; each with a number, which nothing that was seen has."""
    for mode, reported in (("event", ["request"]), ("rollup", ["rollup"])):
        observer, outbox = auditing(**{"mode": mode, "offsets.interval.ms": 60_000, "rollup.interval.ms": 100})
        observer.record_exchanges([produce([(b"a", 0, 1, 1)])], 0)
        clock.now += 59
        outbox.tick()
        assert kinds(outbox) == [*reported, "sidecar_status"]
        clock.now += 1
        outbox.tick()
        assert kinds(outbox) == [*reported, "sidecar_status", "end_offsets"]
        observer.record_exchanges([produce([(b"a", 0, 1, 1)])], 0)
        observer.close(0)
        assert kinds(outbox)[-3:] == [*reported, "end_offsets", "sidecar_status"]
        assert outbox.taken == 2


def test_of_several_workers_the_first_alone_asks_for_topics_and_a_spool_is_used_where_one_is_set(
    auditing: Auditing, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Inventory] = []
    monkeypatch.setattr(Inventory, "start", lambda inventory: started.append(inventory))
    assert auditing(configs={"worker": 2})[1].settings["spool"] is None
    assert not started
    spool = auditing(configs={"worker": 1}, **{"spool.path": "/a/b", "spool.max.bytes": 1 << 30})[1].settings["spool"]
    assert (spool.path, spool.max_bytes) == ("/a/b", 1 << 30)
    assert len(started) == 1


@pytest.mark.promise("consumed-records.md", "Without observer.records.deep the audit keeps no body of a request.")
def test_bodies_are_kept_of_what_may_hold_old_sets_where_that_is_asked_for(auditing: Auditing) -> None:
    pairs = [(0, 2), (0, 3), (1, 3), (1, 17), (78, 1), (3, 1)]
    assert not any(auditing()[0].keeps(*pair) for pair in pairs)
    deep = auditing(configs={"observer.records.deep": True})[0]
    assert [deep.keeps(*pair) for pair in pairs] == [True, False, True, True, True, False]


def test_exact_records_take_the_place_of_claimed_ones_and_all_else_stays(
    auditing: Auditing, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer, outbox = auditing(configs={"observer.records.deep": True})
    values: dict[str, Any] = {
        "correlation_id": 9, "client_id": "old", "forwarded_at": 100.0005, "responded_at": 100.001,
        "throttle_ms": 7, "error_code": 8, "request_raw": b"asked", "response_raw": b"answer", "synthesized": True,
    }  # fmt: skip
    claimed, exact = (fetch([(b"a", 0)], [(b"a", 0, 10, records, 0)], **values) for records in (1, 99))
    monkeypatch.setattr("observers.event_observer.count_compressed_records", lambda one: (one.request, exact.response))
    observer.record_exchanges([claimed, produce([(b"a", 0, 10, 1)])], 0)
    assert [event.topics[0].records for event in outbox.events] == [99, 1]
    reported: list[Any] = []

    def encode_exchanges(exchanges: Sequence[Any], first: int, wall_offset: float) -> EncodedEvents:
        reported.extend(exchanges)
        return EncodedEvents(last=first - 1, hidden=len(exchanges))

    monkeypatch.setattr(observer, "_request_encoder", SimpleNamespace(encode_exchanges=encode_exchanges))
    observer.record_exchanges([claimed], 0)
    assert reported == [exact]
