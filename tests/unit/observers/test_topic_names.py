"""Names of topics: looked up, remembered, and learned of every response that carries ids beside names."""

from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest

from observers.topic_id_learner import TOPIC_ID_PATHS, TopicIdLearner, carries_topic_ids, read_topic_ids
from observers.topic_names import (
    FAILURE_RETRY_DELAY,
    MAX_LOOKUP_ATTEMPTS,
    MAX_MISS_TIME_SHARE,
    MISS_RETRY_DELAY,
    RecentCache,
    TopicNames,
)
from proxy.compiled.exchange import Exchange
from proxy.core.encode import encode
from proxy.core.schema import Layout, layout
from tests.tools.random_messages import all_messages, draw
from tests.unit.observers.samples import METADATA, PRINTED_ID, TOPIC_ID, exchange

OTHER_ID = bytes(16)


class Listing:
    """A cluster whose topics the test changes; ``calls`` counts look-ups."""

    def __init__(self) -> None:
        self.topics: dict[bytes, str] = {}
        self.calls = 0
        self.away = False
        self.now = 0.0
        self.takes = 0.0

    def fetch_names(self) -> Mapping[bytes, str]:
        self.calls += 1
        self.now += self.takes
        if self.away:
            raise ConnectionError
        return dict(self.topics)

    def names(self) -> TopicNames:
        return TopicNames(self.fetch_names, clock=lambda: self.now, sleep=lambda seconds: None)


@pytest.mark.promise("observers.md", "A topic without a known name is id: and its printed id.")
def test_one_look_up_names_all_topics_and_names_are_kept() -> None:
    listing = Listing()
    listing.topics = {TOPIC_ID: "orders", OTHER_ID: "bills"}
    names = listing.names()
    assert names.label_of(TOPIC_ID, True) == ("orders", PRINTED_ID)
    assert names.label_of(OTHER_ID, True)[0] == "bills"
    listing.topics = {}
    assert names.label_of(TOPIC_ID, True)[0] == "orders"
    assert listing.calls == names.look_ups == 1
    for n in range(1, 6):  # topics made one after the other are each found at once
        listing.topics[bytes([n]) * 16] = f"t{n}"
        assert names.name_of(bytes([n]) * 16) == f"t{n}"
    assert listing.calls == 6
    names.add_names([(b"l" * 16, "learned"), (b"m" * 16, "learned")])  # as of a topic that was made again
    assert names.name_of(b"l" * 16) == names.name_of(b"m" * 16) == "learned"
    assert listing.calls == 6


def test_a_topic_the_broker_asked_learns_of_a_little_later_is_still_found() -> None:
    listing = Listing()
    names = TopicNames(
        listing.fetch_names, clock=lambda: 0.0, sleep=lambda seconds: listing.topics.update({TOPIC_ID: "orders"})
    )
    assert names.name_of(TOPIC_ID) == "orders"
    assert listing.calls == 2


def test_an_unknown_id_is_its_own_label_and_asked_for_again_only_after_a_pause() -> None:
    listing = Listing()
    names = listing.names()
    for _ in range(1000):
        assert names.label_of(TOPIC_ID, True) == (f"id:{PRINTED_ID}", PRINTED_ID)
        assert names.label_of(OTHER_ID, True)[0].startswith("id:")
    assert listing.calls == MAX_LOOKUP_ATTEMPTS
    listing.topics = {TOPIC_ID: "orders"}
    listing.now = MISS_RETRY_DELAY
    assert names.label_of(TOPIC_ID, True) == ("orders", PRINTED_ID)
    # Ids that no topic has cost little of the time however long a look up takes.
    listing = Listing()
    listing.takes = 2.0
    names = listing.names()
    spent = listing.takes * MAX_LOOKUP_ATTEMPTS
    names.label_of(TOPIC_ID, True)
    listing.now = spent + spent / MAX_MISS_TIME_SHARE - 0.01
    names.label_of(OTHER_ID, True)
    assert listing.calls == MAX_LOOKUP_ATTEMPTS
    listing.now += 0.01
    names.label_of(OTHER_ID, True)
    assert listing.calls == 2 * MAX_LOOKUP_ATTEMPTS
    # While the cluster is away look ups are rare.
    listing = Listing()
    listing.away = True
    names = listing.names()
    for _ in range(100):
        assert names.name_of(TOPIC_ID) is None
    assert listing.calls == 1
    listing.away, listing.topics, listing.now = False, {TOPIC_ID: "orders"}, FAILURE_RETRY_DELAY
    assert names.name_of(TOPIC_ID) == "orders"


def test_those_used_last_are_kept_and_no_more_than_there_is_room_for() -> None:
    recent: RecentCache[int, str] = RecentCache(10)
    for key in range(1000):
        recent.put(key, "")
        assert recent.get(0) is not None, "used all the time"
        assert sum(recent.get(kept) is not None for kept in range(max(0, key - 3), key)) == min(key, 3)
    assert sum(recent.get(key) is not None for key in range(1000)) <= 10


def names() -> TopicNames:
    """They know what they learned alone: the cluster is away."""

    def look_up() -> dict[bytes, str]:
        raise ConnectionError

    return TopicNames(look_up)


def with_ids(made: Layout) -> bool:
    """Whether structs of it, or in it, have an id and a name."""
    fields = {field.name for field in made.ordered}
    inside = [field.layout for field in made.ordered if field.layout is not None]
    return ("TopicId" in fields and bool({"Name", "TopicName"} & fields)) or any(map(with_ids, inside))


def named_in(value: Any) -> Iterator[tuple[bytes, str]]:
    """Every pair of an id and a name in drawn values."""
    if isinstance(value, tuple):
        for one in value:
            yield from named_in(one)
    elif isinstance(value, Mapping):
        topic_id, name = value.get("TopicId"), value.get("Name") or value.get("TopicName")
        if topic_id and name:
            yield topic_id, name
        for one in value.values():
            yield from named_in(one)


@pytest.mark.promise("observers.md", "Topics that go by id have names where a Metadata response that passed has them.")
def test_every_version_that_carries_ids_beside_names_names_its_topics() -> None:
    found = Counter[int]()
    for key, version, response in all_messages():
        if not response:
            continue
        made = layout(key, version, response=True)
        assert carries_topic_ids(key, version) == with_ids(made), (key, version)
        for seed in range(20 if with_ids(made) else 0):
            drawn = draw(Random(seed), key, version, True)
            expected = list(named_in(drawn.values))
            assert list(read_topic_ids(key, version, drawn.body)) == expected, (key, version, seed)
            found[key] += len(expected)
    assert set(+found) == set(TOPIC_ID_PATHS)


def metadata_of(*topics: tuple[bytes, str | None], version: int = 12) -> bytes:
    listed = [{"TopicId": topic_id, "Name": name} for topic_id, name in topics]
    return encode(layout(METADATA, version, response=True), {"Topics": listed})


def metadata(body: bytes | None) -> Exchange:
    return exchange(api_key=METADATA, api_version=12, response_raw=body)


ORDERS = metadata_of((TOPIC_ID, "orders"))


def test_names_of_a_batch_are_known_after_it_was_read() -> None:
    known = names()
    batch = TopicIdLearner(known).select_responses([metadata(None), metadata(ORDERS)])
    batch.learn()
    assert known.name_of(TOPIC_ID) == "orders"
    learner = TopicIdLearner(names())
    assert learner.select_responses([metadata(None), exchange(api_key=18, api_version=3, response_raw=b"x")]) is None
    assert learner.select_responses([exchange(api_key=METADATA, api_version=9, response_raw=b"x")]) is None
