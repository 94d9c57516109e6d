"""The jobs' schema of the audit event is the sidecar's, and the committed page is the schemas'."""

from __future__ import annotations

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

(WRITTEN,) = get_args(get_type_hints(event.Envelope)["events"])
"""Every kind of event that is written, as one union."""

PAIRS: list[tuple[type[msgspec.Struct], tuple[EventField, ...]]] = [
    (event.Envelope, ENVELOPE),
    (event.TopicPartition, TOPIC_PARTITION),
    (event.ItemError, ITEM_ERROR),
    (event.Resource, RESOURCE),
    (event.RollupTopic, ROLLUP_TOPIC),
    (InventoryTopic, INVENTORY_TOPIC),
    *[(kind, KINDS[kind.__struct_config__.tag]) for kind in get_args(WRITTEN)],
]


def spark_types(annotation: Any) -> set[str]:
    """Spark's types that can hold what ``annotation`` allows."""
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


@pytest.mark.parametrize(("struct", "fields"), PAIRS)
def test_fields_are_those_of_the_event(struct: type[msgspec.Struct], fields: tuple[EventField, ...]) -> None:
    config = struct.__struct_config__
    tag = [config.tag_field] if config.tag_field else []
    assert [field.name for field in fields] == tag + [field.name for field in msgspec.structs.fields(struct)]


@pytest.mark.parametrize(("struct", "fields"), PAIRS)
def test_types_defaults_and_choices_are_those_of_the_event(
    struct: type[msgspec.Struct], fields: tuple[EventField, ...]
) -> None:
    ours = {field.name: field for field in fields}
    hints = get_type_hints(struct)
    for theirs in msgspec.structs.fields(struct):
        field = ours[theirs.name]
        assert field.type in spark_types(hints[theirs.name]), theirs.name
        assert field.required == theirs.required, theirs.name
        if not theirs.required:
            made = theirs.default_factory() if theirs.default is msgspec.NODEFAULT else theirs.default
            assert field.default == made, theirs.name
        if get_origin(hints[theirs.name]) is Literal:
            assert field.allowed == get_args(hints[theirs.name]), theirs.name


def test_the_level_that_is_read_is_the_highest_one_that_is_written() -> None:
    assert events.SCHEMA_LEVEL == event.ROLLUP_LEVEL == event.SCHEMA_LEVEL + 1


def test_the_kinds_that_are_read_are_those_that_are_written() -> None:
    assert set(KINDS) == {kind.__struct_config__.tag for kind in get_args(WRITTEN)}


def test_a_field_of_several_kinds_is_of_one_type_in_all_of_them() -> None:
    types = {(field.name, field.type) for fields in KINDS.values() for field in fields}
    assert len(types) == len({name for name, _ in types})


@pytest.mark.parametrize("table", schemas.TABLES.values())
def test_every_column_says_what_it_means(table: schemas.Table) -> None:
    assert all(column.meaning.endswith((".", "…")) for column in table.columns)
    assert table.example.startswith("SELECT ")
    assert "day" in {column.name for column in table.columns}
    assert len({column.name for column in table.columns}) == len(table.columns)
