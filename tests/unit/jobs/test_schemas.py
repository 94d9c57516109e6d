"""The jobs' schema of the audit event is the sidecar's, and rows have the columns of the schemas."""

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from observers import event
from observers.cluster_events import InventoryTopic
from spark_jobs import events, schemas
from spark_jobs.events import (
    ENVELOPE,
    INVENTORY_TOPIC,
    ITEM_ERROR,
    KINDS,
    RESOURCE,
    ROLLUP_TOPIC,
    TOPIC_PARTITION,
    EventField,
)
from tests.spark import stored
from tests.spark.decoded import kafka_records, partial_rows, rows_of

(WRITTEN,) = get_args(get_type_hints(event.Envelope)["events"])

PAIRS: list[tuple[type[msgspec.Struct], tuple[EventField, ...]]] = [
    (event.Envelope, ENVELOPE), (event.TopicPartition, TOPIC_PARTITION), (event.ItemError, ITEM_ERROR),
    (event.Resource, RESOURCE), (event.RollupTopic, ROLLUP_TOPIC), (InventoryTopic, INVENTORY_TOPIC),
    *[(kind, KINDS[kind.__struct_config__.tag]) for kind in get_args(WRITTEN)],
]  # fmt: skip


def spark_types(annotation: Any) -> set[str]:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        (inner,) = [each for each in get_args(annotation) if each is not type(None)]
        return spark_types(inner)
    if origin is Literal:
        return {"string"}
    if origin in (list, tuple):
        inner = get_args(annotation)[0]
        return {"array"} if inner not in (str, int) else {"array<string>"} if inner is str else {"array<bigint>"}
    if annotation == dict[str, int]:
        return {"map<string,bigint>"}
    return {str: {"string"}, int: {"int", "bigint"}, float: {"double"}, bool: {"boolean"}}[annotation]


def test_fields_types_defaults_and_choices_are_those_of_the_event() -> None:
    for struct, fields in PAIRS:
        config = struct.__struct_config__
        tag = [config.tag_field] if config.tag_field else []
        theirs_of_all = msgspec.structs.fields(struct)
        assert [field.name for field in fields] == tag + [field.name for field in theirs_of_all], struct
        ours, hints = {field.name: field for field in fields}, get_type_hints(struct)
        for theirs in theirs_of_all:
            field, where = ours[theirs.name], (struct, theirs.name)
            assert field.type in spark_types(hints[theirs.name]), where
            assert field.required == theirs.required, where
            if not theirs.required:
                made = theirs.default_factory() if theirs.default is msgspec.NODEFAULT else theirs.default
                assert field.default == made, where
            if get_origin(hints[theirs.name]) is Literal:
                assert field.allowed == get_args(hints[theirs.name]), where


@pytest.mark.promise("architecture.md", "The jobs read every kind of event that sidecars write, with the same fields.")
def test_kinds_and_level_that_are_read_are_those_that_are_written() -> None:
    assert events.SCHEMA_LEVEL == event.ROLLUP_LEVEL == event.SCHEMA_LEVEL + 1
    assert set(KINDS) == {kind.__struct_config__.tag for kind in get_args(WRITTEN)}
    types = {(field.name, field.type) for fields in KINDS.values() for field in fields}
    assert len(types) == len({name for name, _ in types}), "a field of several kinds is of one type"


def test_rows_of_events_have_the_columns_of_their_table() -> None:
    for name, table in schemas.STREAMED.items():
        made = rows_of(name, partial_rows(kafka_records([]))).schema
        assert [(field.name, field.type) for field in made] == [
            (field.name, field.type) for field in stored.schema(table)
        ], name
