"""Every response that carries topic ids beside names names them, and nothing that is malformed does harm."""

from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest

from observers.topic_id_learner import TOPIC_ID_PATHS, TopicIdLearner, carries_topic_ids, read_topic_ids
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.encode import encode
from proxy.core.schema import Layout, layout
from tests.tools.random_messages import all_messages, draw
from tests.unit.observers.samples import METADATA, TOPIC_ID, exchange

OTHER_ID = bytes(range(16, 32))


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
