"""Structs of every message, and the tables that say what they are."""

import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from observers.views import request_view
from proxy.core import apis, schema_table
from proxy.core.accessors import printed_id
from proxy.core.apis import APIS
from proxy.core.observation_interest import ERROR_AFTER_THROTTLE, ERROR_FIRST, THROTTLE_FIRST
from proxy.core.schema import WITHHELD, Layout, layout, plain, response_prefix
from proxy.core.struct import MissingField, ObservableStructImpl, SchemaError, SchemaException, view
from proxy.local.jars import cache_dir
from tests.cases import each
from tests.tools import generate_apis, generate_schema
from tests.tools.random_messages import UNKNOWN_TAGS, all_messages, draw, length, read_all
from tests.unit.observers import samples as sample

JARS = ["kafka-clients-4.4.0.jar", "kafka-clients-3.9.2.jar"]
MESSAGES = list(all_messages())
TOPIC_ID = bytes(range(16))


def layouts(made: Layout) -> Iterator[Layout]:
    yield made
    for field in (*made.ordered, *made.tagged.values()):
        if field.layout is not None:
            yield from layouts(field.layout)


def expected(made: Layout, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a view returns of drawn ``values``: defaults of what was not sent, ids as printed, nothing withheld."""
    reported: dict[str, Any] = {}
    for field in (*made.ordered, *made.tagged.values()):
        if plain(field.name) in made.hidden:
            continue
        value = values.get(field.name, field.default)

        def one(value: Any, field: Any = field) -> Any:
            if isinstance(value, Mapping):
                return expected(field.layout, value)
            return printed_id(value) if field.type == "uuid" and value is not None else value

        if field.array and value is not None:
            reported[field.name] = tuple(map(one, value))
        else:
            reported[field.name] = b"" if value is None and field.type == "records" else one(value)
    return reported | {key: value for key, value in values.items() if key == UNKNOWN_TAGS}


@pytest.mark.promise("observers.md", "A struct has every field of every version that Kafka 3.9.2 or 4.4.0 defines.")
@each("key", sorted(APIS))
def test_every_field_of_every_version_is_read(key: int) -> None:
    for message in MESSAGES:
        if message[0] == key:
            for number in range(3):
                drawn = draw(Random(f"{message} {number}"), *message)
                struct = view(*message[:2], drawn.body, response=message[2])
                assert read_all(struct) == expected(layout(*message[:2], response=message[2]), drawn.values), message
                assert struct._end() == struct.size_of() == len(drawn.body)


def produce(version: int, topic: bytes) -> ObservableStructImpl:
    """acks −1, timeout 7 ms, and one partition 3 with 4 bytes that are no batch."""
    flexible = version >= 9
    tags = b"\0" if flexible else b""
    records = length(4, flexible, 4) + b"abcd"
    name = topic if version >= 13 else length(len(topic), flexible, 2) + topic
    partition = b"\0\0\0\3" + records + tags
    one = name + length(1, flexible, 4) + partition + tags
    head = length(None, flexible, 2) if version >= 3 else b""
    body = head + b"\xff\xff\0\0\0\7" + length(1, flexible, 4) + one + tags
    return view(0, version, body, response=False, size=100, name_of={TOPIC_ID: "orders"}.get)


def walked() -> Any:
    """The same of a body that was not kept, in which all is as its facts say."""
    return request_view(sample.produce([(b"orders", 3, 4, 0)]), lambda topic_id: None)


@pytest.mark.promise("observers.md", "A field has the names of Kafka's definitions and of KIP-388.")
@pytest.mark.promise(
    "observers.md",
    "A field's name is spelled as in Kafka's definitions or as in KIP-388; case and underscores do not matter.",
)
@each("version", range(14))
def test_a_produce_request_in_both_spellings(version: int) -> None:
    kept = produce(version, TOPIC_ID if version >= 13 else b"orders")
    for struct, size, timeout, data in ((kept, 100, 7, b"abcd"), (walked(), 50, 30_000, None)):
        assert struct.size_of() == size
        assert (struct.get_short("acks"), struct.get_int("timeout"), struct.get("TimeoutMs")) == (-1, timeout, timeout)
        assert struct.get_or_else("transactional_id", None) is None
        for topics, name, partitions, index, records in [
            ("topic_data", "topic", "data", "partition", "record_set"),
            ("TopicData", "Name", "PartitionData", "Index", "Records"),
            ("topicData", "name", "partition_data", "index", "records"),
        ]:
            (topic,) = struct.get_observable_struct_array(topics)
            (partition,) = topic.get_observable_struct_array(partitions)
            assert (topic.get_string(name), partition.get_int(index)) == ("orders", 3)
            found = partition.get_records(records)
            assert (found.size_in_bytes(), found.data) == (4, data)


@pytest.mark.promise("observers.md", "A topic that goes by its id has its name wherever the cluster knows it.")
def test_metadata_by_id_has_a_topic_all_the_same() -> None:
    body = b"\2" + TOPIC_ID + b"\0\0" + b"\1\0\0"
    struct = view(3, 12, body, response=False, name_of={TOPIC_ID: "orders"}.get)
    (topic,) = struct.get_observable_struct_array("topics")
    assert (topic.get("Name"), topic.get("topic")) == (None, "orders")


@each("version", range(6))
def test_a_broker_that_knows_no_such_version_answers_in_version_0(version: int) -> None:
    struct = view(18, version, b"\0\x23\0\0\0\1\0\x12\0\0\0\3", response=True)
    (one,) = struct.get_observable_struct_array("api_keys")
    assert (struct.get("error_code"), one.get("api_key"), one.get("max_version")) == (35, 18, 3)


@pytest.mark.promise(
    "observers.md",
    "A missing field raises a KeyError that lists the fields; a method for another type raises SchemaException.",
)
def test_fields_that_are_missing_or_of_another_type() -> None:
    wrong = {
        "byte": "int8", "int": "int32", "long": "int64", "unsigned_int": "uint16", "float64": "float64",
        "string": "string", "boolean": "bool", "uuid": "uuid", "bytes": "bytes", "array": "an array",
        "struct": "struct", "records": "records", "observable_struct_array": "array of struct",
    }  # fmt: skip
    for struct in (produce(9, b"t"), walked()):
        assert struct.has_field("Acks")
        assert not struct.has_field("responses")
        assert struct.get_or_else("responses", 5) == 5
        with pytest.raises(KeyError) as missing:
            struct.get("responses")
        assert str(missing.value) == "no field 'responses' here; there are: TransactionalId, Acks, TimeoutMs, TopicData"
        for method, kind in wrong.items():
            with pytest.raises(SchemaException, match=f"the field 'acks' is of type int16, not {kind}"):
                getattr(struct, f"get_{method}")("acks")
        with pytest.raises(SchemaException, match="array of struct, not struct"):
            struct.get_struct("TopicData")


@pytest.mark.promise("observers.md", "Fields that hold a secret cannot be read from a struct.")
@each("message", sorted(WITHHELD))
def test_secrets_are_withheld(message: tuple[int, str]) -> None:
    key, kind = message
    found = 0
    for version in range(APIS[key].min_version, APIS[key].max_version + 1):
        made = layout(key, version, response=kind == "response")
        names = {field.name for one in layouts(made) for field in one.ordered}
        found += len(names & set(WITHHELD[message]))
        for number in range(20):
            drawn = draw(Random(number), key, version, kind == "response")
            reported = read_all(view(key, version, drawn.body, response=kind == "response"))
            assert not any(f"'{name}'" in str(reported) for name in WITHHELD[message])
    assert found >= len(WITHHELD[message])
    struct = view(36, 0, b"\0\0\0\6secret", response=False)
    assert (struct.field_names(), struct.has_field("auth_bytes"), struct.size_of()) == ((), False, 10)
    assert struct.get_or_else("auth_bytes", None) is None
    for read in (struct.get, struct.get_bytes):
        with pytest.raises(MissingField, match="withheld"):
            read("AuthBytes")
    assert "secret" not in repr(struct)


@pytest.mark.promise("observers.md", "Structs are read-only, and a KeyError names the fields that there are.")
@pytest.mark.promise("observers.md", "Structs are read-only, and so are their arrays and records.")
def test_nothing_can_be_changed() -> None:
    kept: Any = produce(9, b"t")
    for struct in (walked(), kept):
        partition = struct.get("topic_data")[0].get("data")[0]
        records = partition.get_records("record_set")
        for one in (struct, partition, records):
            for name in ("_starts", "_plan", "_values", "data", "acks"):
                with pytest.raises(AttributeError):
                    setattr(one, name, 0)
                with pytest.raises(AttributeError):
                    delattr(one, name)
        assert isinstance(struct.get("topic_data"), tuple)
    with pytest.raises(TypeError, match="read-only"):
        records.data[0] = 0
    with pytest.raises(TypeError):
        kept.unknown_tagged_fields()[1] = b""


@pytest.mark.promise("observers.md", "Reading a struct takes at most 64 bytes of memory for each byte of its body.")
def test_memory_is_bounded_by_the_bytes_there_are() -> None:
    bodies = [
        (3, 1, b"\x7f\xff\xff\xff" + bytes(1000)),
        (3, 9, b"\xff\xff\xff\xff\x0e" + bytes(1000)),
        (3, 1, length(10_000, False, 4) + bytes(20_000)),
        (3, 9, length(10_000, True, 4) + b"\1\0" * 10_000 + bytes(3)),
    ]
    for key, version, body in bodies:
        struct = view(key, version, body, response=False)
        tracemalloc.start()
        try:
            with suppress(SchemaError):
                struct.get("Topics")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= 64 * len(body) + 65_536


def test_how_responses_begin() -> None:
    for key, version, response in MESSAGES:
        if not response:
            continue
        names = [field.name for field in layout(key, version, response=True).ordered[:2]]
        flags = response_prefix(key, version)
        assert bool(flags & THROTTLE_FIRST) == (names[:1] == ["ThrottleTimeMs"])
        assert bool(flags & ERROR_FIRST) == (names[:1] == ["ErrorCode"])
        assert bool(flags & ERROR_AFTER_THROTTLE) == (names == ["ThrottleTimeMs", "ErrorCode"])
    assert response_prefix(95, 0) == response_prefix(0, 99) == 0


@pytest.mark.promise(
    "supported-versions.md",
    "The sidecar knows every api and version of Kafka 0.8.2 to 4.4.0 by Kafka's own message definitions.",
)
@each(("module", "generate"), [(apis, generate_apis.generate), (schema_table, generate_schema.generate)])
def test_the_committed_tables(module: ModuleType, generate: Callable[[list[Path]], str]) -> None:
    found = [path for name in JARS for path in sorted((cache_dir() / "jars").glob(name))]
    if len(found) < len(JARS):
        pytest.skip(f"the jar cache {cache_dir()} lacks {' or '.join(JARS)}: python -m proxy.local.jars fetch")
    assert Path(module.__file__ or "").read_text() == generate(found)
