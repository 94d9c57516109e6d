"""Every response that carries topic ids beside names names them, and nothing that is malformed does harm."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from observers.topic_id_learner import TOPIC_ID_PATHS, TopicIdLearner, carries_topic_ids, read_topic_ids
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.schema import SIZES, Field, Layout, UnknownMessage, layout
from tests.unit.observers.samples import METADATA, TOPIC_ID, exchange

OTHER_ID = bytes(range(16, 32))


def names() -> TopicNames:
    """They know what they learned alone: the cluster is away."""

    def look_up() -> dict[bytes, str]:
        raise ConnectionError

    return TopicNames(look_up)


def everything() -> Iterator[tuple[int, int, Layout]]:
    for key in range(128):
        for version in range(32):
            with suppress(UnknownMessage):
                yield key, version, layout(key, version, response=True)


def with_ids(made: Layout) -> bool:
    """Whether structs of it, or in it, have an id and a name."""
    fields = {field.name for field in made.ordered}
    inside = [field.layout for field in made.ordered if field.layout is not None]
    return ("TopicId" in fields and bool({"Name", "TopicName"} & fields)) or any(map(with_ids, inside))


def encoded(made: Layout, topics: list[tuple[bytes, str | None]]) -> bytes:
    """A message whose every array of structs that name topics has one for each of ``topics``, and others one struct."""
    parts = [_encoded_field(field, made.flexible, topics) for field in made.ordered]
    return b"".join(parts) + (b"\0" if made.flexible else b"")


def _encoded_field(field: Field, flexible: bool, topics: list[tuple[bytes, str | None]]) -> bytes:
    if field.array:
        names_topics = field.layout is not None and "TopicId" in {inner.name for inner in field.layout.ordered}
        ones = [[topic] for topic in topics] if names_topics else [topics]
        values = [_encoded_one(field, flexible, some) for some in ones]
        return _length(len(values), ">i", flexible) + b"".join(values)
    if field.layout is not None and field.nullable:
        return b"\x01" + encoded(field.layout, topics)
    return _encoded_one(field, flexible, topics)


def _encoded_one(field: Field, flexible: bool, topics: list[tuple[bytes, str | None]]) -> bytes:
    if field.layout is not None:
        return encoded(field.layout, topics)
    if field.name == "TopicId":
        return topics[0][0]
    if field.type == "string":
        name = topics[0][1] if field.name in ("Name", "TopicName") else "else"
        return _length(-1, ">h", flexible) if name is None else _length(len(name), ">h", flexible) + name.encode()
    return bytes(SIZES[field.type])


def _length(length: int, form: str, flexible: bool) -> bytes:
    return bytes([length + 1]) if flexible else struct.pack(form, length)


@pytest.mark.promise("observers.md", "Topics that go by id have names where a Metadata response that passed has them.")
def test_every_version_that_carries_ids_beside_names_names_its_topics() -> None:
    found = set()
    for key, version, made in everything():
        assert carries_topic_ids(key, version) == with_ids(made), (key, version)
        if with_ids(made):
            found.add(key)
            body = encoded(made, [(TOPIC_ID, "orders"), (OTHER_ID, "bills")])
            assert set(read_topic_ids(key, version, body)) == {(TOPIC_ID, "orders"), (OTHER_ID, "bills")}, (
                key,
                version,
            )
    assert found == set(TOPIC_ID_PATHS)


def test_a_topic_without_id_or_name_is_none() -> None:
    """As Kafka answers for a topic that does not exist, or is not this client's to see."""
    for pair in ((bytes(16), "orders"), (TOPIC_ID, None), (TOPIC_ID, "")):
        body = encoded(layout(METADATA, 13, response=True), [pair, (OTHER_ID, "bills")])
        assert list(read_topic_ids(METADATA, 13, body)) == [(OTHER_ID, "bills")], pair


def metadata(body: bytes | None) -> Exchange:
    return exchange(api_key=METADATA, api_version=12, response_raw=body)


ORDERS = encoded(layout(METADATA, 12, response=True), [(TOPIC_ID, "orders")])


def test_names_of_a_batch_are_known_after_it_was_read() -> None:
    known = names()
    batch = TopicIdLearner(known).select_responses([metadata(None), metadata(ORDERS)])
    assert batch is not None
    batch.learn()
    assert known.name_of(TOPIC_ID) == "orders"
    learner = TopicIdLearner(names())
    assert learner.select_responses([metadata(None), exchange(api_key=18, api_version=3, response_raw=b"x")]) is None
    assert learner.select_responses([exchange(api_key=METADATA, api_version=9, response_raw=b"x")]) is None


def test_malformed_bodies_and_unknown_versions_teach_nothing_and_do_no_harm() -> None:
    unknown = exchange(api_key=METADATA, api_version=31, response_raw=ORDERS)
    for cut in range(0, len(ORDERS), 5):
        known = names()
        malformed = [metadata(ORDERS[:cut] + b"\xff" * 9), unknown, metadata(b"\xff" * 40)]
        batch = TopicIdLearner(known).select_responses(malformed)
        assert batch is not None
        batch.learn()
        assert known.name_of(OTHER_ID) is None, cut
