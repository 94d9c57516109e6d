"""Rebalance and failover under all that can happen to them: a model beside the machine.

The model knows what a consumer may be fetching at most, what it has reported, and what is committed. From that follows
what the machine may send and write, and what has to be so once everybody does what he should.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from proxy.coordinator import effects as e
from proxy.coordinator.assignment import range_assign
from proxy.coordinator.events import PartitionAssigned, WriteAborted
from proxy.coordinator.lease import SentTimes
from proxy.coordinator.records import GenerationRecord, GroupRecord, OwnersRecord
from proxy.coordinator.subscription import parse_topic_count
from proxy.coordinator.wire import SMALLEST, START_FETCHER, PushedFrame, StartFetcherRequest, decode_pushed
from tests.unit.coordinator.driver import GROUP, Consumer, Driver, T, finish, topic

TopicPartition = tuple[str, int]

SUBSCRIPTIONS = ['{"t": 1}', '{"t": 2, "u": 1}', '{"u": 1}', "*1*.*", "!3!u", '{"later": 1}']
IDS = [f"c{number}" for number in range(4)]

LEASE_MS = T // 3 + T * 95 // 100
"""How long a lost consumer fetches at most after a request was sent to it: until that arrives, and then its lease."""

CALM_MS = 60_000
"""Until everything has to be as it should: more than any bound of the design."""

PROMPT = st.sampled_from([1, 1, 0])
"""Whether a consumer answers at once."""

THEN = st.sampled_from([0, 100, 300, 1000])
"""Milliseconds until something else happens."""

SETTINGS = {"rebalance_backoff_ms": 500, "max_rebalance_retries": 2}

SEARCH = settings(
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def _new_generation(records: Iterable[GroupRecord]) -> int:
    """The generation that the records begin; 0 if they begin none."""
    registries = (record.value for record in records if isinstance(record, GenerationRecord) and record.value)
    return next((value.generation for value in registries if value.state == "starting"), 0)


class Modelled:
    """A consumer: a process, on one connection."""

    def __init__(self, driver: ModelledDriver, consumer: Consumer) -> None:
        self.driver, self.consumer = driver, consumer
        self.is_prompt = False
        """It answers at once."""
        self.unanswered: list[PushedFrame] = []
        self.last_sent = driver.now
        self.has_ended = False
        """Its connection was ended by it or by the network."""
        self.has_stopped = False
        """Its process is gone, or has another connection."""

    def on_its_lease(self) -> set[TopicPartition]:
        """What it goes on fetching when its coordinator is gone."""
        is_over = self.has_stopped or self.driver.now > self.last_sent + T * 95 // 100
        return set() if is_over else set(self.consumer.fetches)

    def has_connection(self) -> bool:
        return not self.has_ended and self.consumer.closed is None

    def is_member(self) -> bool:
        return self.has_connection() and self.consumer.code == 0

    def may_fetch(self) -> set[TopicPartition]:
        """What it is fetching at most: what it was assigned, also by what it has not answered."""
        if self.has_stopped or (not self.has_connection() and self.driver.now > self.last_sent + LEASE_MS):
            return set()
        assigned = {
            (one.topic, one.partition)
            for frame in self.unanswered
            if isinstance(frame.request, StartFetcherRequest)
            for thread in frame.request.threads
            for one in thread.partitions
        }
        return assigned | self.consumer.fetches.keys()

    def answer(self, error_code: int = 0) -> None:
        frame, before = self.unanswered.pop(0), self.consumer.fetches.keys()
        response = self.consumer.obey(frame, error_code=error_code)
        for key in self.consumer.fetches.keys() - before:
            self.consumer.offsets.pop(key, None)
        self.driver.reported = (
            {}
            if frame.api_key == START_FETCHER
            else {key: self.consumer.offsets[key] for key in before if key in self.consumer.offsets}
        )
        self.driver.do(response)


class ModelledDriver(Driver):
    """Checks what the machine sends and writes, when it does."""

    def __init__(self, **options: Any) -> None:
        self.consumers_of_model: dict[int, Modelled] = {}
        self.positions: dict[TopicPartition, int] = {}
        """What was last reported of each partition by its owner."""
        self.reported: dict[TopicPartition, int] = {}
        """What the response says that the machine has got last."""
        self.generation = 0
        self.next_generation = "is written"
        self._is_answering = False
        super().__init__(**options)

    def modelled(self, consumer: Consumer) -> Modelled:
        return self.consumers_of_model.setdefault(consumer.connection, Modelled(self, consumer))

    def everybody(self) -> list[Modelled]:
        return list(self.consumers_of_model.values())

    def do(self, event: Any) -> list[Any]:
        done = super().do(event)
        if not self._is_answering:
            self._is_answering = True
            while prompt := [one for one in self.everybody() if one.is_prompt and one.unanswered and one.is_member()]:
                prompt[0].answer()
            self._is_answering = False
        return done

    def _perform(self, effect: Any) -> None:
        match effect:
            case e.CountGroupEvent("offsets_total", ("accepted",)):
                self.positions.update(self.reported)
            case e.WriteRecords(partition, write, records, offsets) if generation := _new_generation(records):
                self.check_generation(generation, offsets.get(GROUP, {}))
                fate, self.next_generation = self.next_generation, "is written"
                if fate == "is not written":
                    self._pending.append(WriteAborted(partition, write, "away"))
                    return
                self.writes_hang = self.writes_hang or fate == "hangs"
        super()._perform(effect)

    def _deliver(self, consumer: Consumer, frame: bytes) -> None:
        modelled = self.modelled(consumer)
        assert modelled.has_connection()
        if consumer.code is not None:
            pushed = decode_pushed(frame[4:])
            if isinstance(pushed.request, StartFetcherRequest):
                self.check_start(modelled, pushed.request)
            modelled.last_sent = self.now
            modelled.unanswered.append(pushed)
        super()._deliver(consumer, frame)

    def check_generation(self, generation: int, offsets: Mapping[TopicPartition, int]) -> None:
        """A number is used once, nobody fetches while partitions change hands, and offsets are those reported."""
        assert generation > self.generation
        self.generation = generation
        fetching = {one.consumer.consumer_id: one.may_fetch() for one in self.everybody() if one.is_member()}
        assert not any(fetching.values()), f"{fetching} while partitions change hands"
        assert all(self.positions[key] == offset for key, offset in offsets.items())

    def check_start(self, started: Modelled, request: StartFetcherRequest) -> None:
        """What it gets is committed as its own, nobody else can be fetching it, and nothing is skipped or repeated."""
        owners = {
            (record.topic, partition): thread
            for record in self.records.values()
            if isinstance(record, OwnersRecord) and record.value
            for thread, partitions in record.value.owners.items()
            for partition in partitions
        }
        for thread in request.threads:
            for one in thread.partitions:
                key = one.topic, one.partition
                assert owners.get(key) == thread.thread_id, f"{key} is not committed as its own"
                others = [other for other in self.everybody() if other is not started and key in other.may_fetch()]
                assert [other.consumer.consumer_id for other in others] == [], f"{key} is fetched by another one"
                if key not in started.consumer.fetches:
                    assert one.offset == self.positions.get(key, SMALLEST)

    def successor(self, after: int) -> ModelledDriver:
        """This sidecar is dead; another one takes over after so many milliseconds."""
        other = ModelledDriver(hold=False, **SETTINGS)
        other.now = self.now + after
        other.topics, other.committed, other.records = self.topics, self.committed, self.records
        other.positions = dict(self.committed)
        registries = [record for record in self.records.values() if isinstance(record, GenerationRecord)]
        other.generation = max((record.value.generation for record in registries if record.value), default=0)
        other._next_connection, other.consumers_of_model = self._next_connection, self.consumers_of_model
        for one in self.everybody():
            one.driver = other
            one.has_ended = True
        other.do(PartitionAssigned(self.partition, is_empty=False))
        return other


class Rebalancing(RuleBasedStateMachine):
    """One group of up to four consumers, and a Kafka that may hang."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = ModelledDriver(**SETTINGS)
        self.driver.change_topics(t=topic(4), u=topic(3))
        self.subscriptions: dict[str, str] = {}

    def connected(self) -> list[Modelled]:
        return [one for one in self.driver.everybody() if one.has_connection()]

    def members(self, *, waiting: bool = False) -> list[Modelled]:
        return [one for one in self.connected() if one.is_member() and (one.unanswered or not waiting)]

    @initialize(subscriptions=st.lists(st.sampled_from(SUBSCRIPTIONS), min_size=1, max_size=3))
    def some_are_there(self, subscriptions: list[str]) -> None:
        for number, subscription in enumerate(subscriptions):
            self.joins(number, subscription, 1, 500)

    @rule(number=st.integers(0, 3), subscription=st.sampled_from(SUBSCRIPTIONS), prompt=PROMPT, ms=THEN)
    def joins(self, number: int, subscription: str, prompt: int, ms: int) -> None:
        connected = {one.consumer.consumer_id for one in self.connected()}
        if free := [consumer_id for consumer_id in IDS if consumer_id not in connected]:
            consumer_id = free[number % len(free)]
            for one in self.driver.everybody():  # the same process, or one that was started in its place
                one.has_stopped = one.has_stopped or one.consumer.consumer_id == consumer_id
            self.subscriptions[consumer_id] = subscription
            one = self.driver.modelled(self.driver.register(consumer_id, subscription, answers=False))
            one.is_prompt = bool(prompt)
            self.driver.do(None)
            self.driver.advance(ms)

    @rule(number=st.integers(0, 3), by_peer=st.booleans(), ms=THEN)
    def connection_ends(self, number: int, by_peer: bool, ms: int) -> None:
        """By its own side, which has stopped then; or it was reset, and it goes on fetching on its lease."""
        if connected := self.connected():
            one = connected[number % len(connected)]
            one.has_ended = True
            one.has_stopped = one.has_stopped or by_peer
            one.consumer.end(by_peer=by_peer)
            self.driver.advance(ms)

    @rule(number=st.integers(0, 3), error_code=st.sampled_from([0, 0, 0, 1]))
    def answers_one(self, number: int, error_code: int) -> None:
        if members := self.members(waiting=True):
            members[number % len(members)].answer(error_code)

    @rule(number=st.integers(0, 3), prompt=st.booleans())
    def becomes_prompt_or_slow(self, number: int, prompt: bool) -> None:
        if members := self.members():
            members[number % len(members)].is_prompt = prompt
            self.driver.do(None)

    @rule(more=st.integers(1, 9))
    def all_consume(self, more: int) -> None:
        for one in self.members():
            for key, start in one.consumer.fetches.items():
                one.consumer.offsets[key] = max(one.consumer.offsets.get(key, start), 0) + more

    @rule(ms=st.sampled_from([1, 200, 500, 1000, 2000, 2000, 4000, 6000, 20_000]))
    def time_passes(self, ms: int) -> None:
        self.driver.advance(ms)

    @rule()
    def kafka_hangs(self) -> None:
        self.driver.writes_hang = True

    @rule(fate=st.sampled_from(["hangs", "is not written"]))
    def the_next_generation(self, fate: str) -> None:
        self.driver.next_generation = fate

    @precondition(lambda self: self.driver.hung)
    @rule(how=st.sampled_from(["commit", "abort"]), count=st.sampled_from([1, 9]))
    def kafka_ends_writes(self, how: str, count: int) -> None:
        """The oldest one, or all that hang."""
        for write in self.driver.hung[:count]:
            getattr(self.driver, how)(write)

    @rule()
    @precondition(lambda self: self.driver.writes_hang)
    def kafka_is_back(self) -> None:
        self.driver.writes_hang, self.driver.next_generation = False, "is written"
        while self.driver.hung:
            self.driver.commit(self.driver.hung[0])

    @rule(partitions=st.integers(1, 6))
    def a_topic_grows_or_is_made(self, partitions: int) -> None:
        name = "later" if "later" not in self.driver.topics else "t"
        before = self.driver.topics[name].leaders if name in self.driver.topics else ()
        self.driver.change_topics(**{name: topic(max(partitions, len(before)))})

    @rule(frozen=st.sampled_from([False, False, False, True]))
    def rebalances_are_held(self, frozen: bool) -> None:
        self.driver.change_settings(frozen_groups=frozenset({GROUP} if frozen else ()))

    def teardown(self) -> None:
        """Nothing more happens: every partition has the owner that the algorithm says, who fetches it."""
        self.rebalances_are_held(False)
        self.kafka_is_back()
        for one in self.driver.everybody():
            one.is_prompt = True
        self.driver.advance(CALM_MS)
        members = {one.consumer.consumer_id: one.consumer for one in self.members()}
        threads: dict[str, list[str]] = {}
        for consumer_id in members:
            for name, streams in parse_topic_count(self.subscriptions[consumer_id]).select(self.driver.topics).items():
                threads.setdefault(name, []).extend(f"{consumer_id}-{number}" for number in range(streams))
        partitions = {name: range(len(facts.leaders)) for name, facts in self.driver.topics.items()}
        expected: dict[str, set[TopicPartition]] = {consumer_id: set() for consumer_id in members}
        for name, shares in finish(range_assign(partitions, threads)).items():
            for thread, numbers in shares.items():
                expected[thread.rpartition("-")[0]].update((name, number) for number in numbers)
        assert {consumer_id: set(one.fetches) for consumer_id, one in members.items()} == expected
        stops = self.count_stops()
        self.driver.advance(CALM_MS)
        assert self.count_stops() == stops, "nothing has changed, and somebody was stopped"

    def count_stops(self) -> int:
        return sum(one.consumer.kinds().count("stop") for one in self.driver.everybody())


class Failover(Rebalancing):
    """The same, and sidecars that die."""

    @rule(commits=st.booleans(), after=st.sampled_from([0, 500, 3000, 8000]))
    def another_sidecar_takes_over(self, commits: bool, after: int) -> None:
        """What hung when the old one died is committed, or never will be."""
        for write in self.driver.hung if commits else ():
            self.driver._commit(write, self.driver.now)
        self.driver = self.driver.successor(after)

    @rule(prompt=PROMPT)
    def all_return(self, prompt: int) -> None:
        """Consumers whose connection was lost register again; with a successor, they have gone on fetching."""
        connected = {one.consumer.consumer_id for one in self.connected()}
        for one in self.driver.everybody():
            before = one.consumer
            if one.has_stopped or before.consumer_id in connected:
                continue
            fetches = {} if before.driver is self.driver else {key: before.fetches[key] for key in one.on_its_lease()}
            one.has_stopped = True
            text = self.subscriptions[before.consumer_id]
            kept = {
                "fetches": fetches,
                "offsets": {key: before.offsets[key] for key in fetches if key in before.offsets},
            }
            back = self.driver.modelled(self.driver.register(before.consumer_id, text, answers=False, **kept))
            back.is_prompt = bool(prompt)
            self.driver.do(None)


@pytest.mark.promise(
    "coordinator.md", "Two consumers never hand out messages of one partition at the same time, and none is skipped."
)
def test_the_machine_does_as_the_model_says() -> None:
    for world in (Rebalancing, Failover):
        run_state_machine_as_test(world, settings=settings(SEARCH, max_examples=60))


@pytest.mark.slow
def test_the_machine_does_as_the_model_says_for_long() -> None:
    for world in (Rebalancing, Failover):
        run_state_machine_as_test(world, settings=settings(SEARCH, max_examples=300, derandomize=False))


def test_a_machine_that_errs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes lost consumers to have stopped."""
    monkeypatch.setattr(SentTimes, "free_at", lambda self, ended_at, timeout: ended_at)
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(Rebalancing, settings=settings(SEARCH, phases=[Phase.generate], max_examples=300))
