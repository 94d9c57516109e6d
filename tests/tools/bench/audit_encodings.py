"""The candidate formats of an audit record: how a sidecar writes each, and how Spark reads it back."""

from __future__ import annotations

import io
import json
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import fastavro
import msgspec
import pyarrow as pa
from pyspark.sql import functions as F

from observers.event import EVENTS_PER_RECORD, Envelope, RequestEvent, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Encode = Callable[[Sequence[Any]], bytes]


class Encoding(msgspec.Struct, frozen=True):
    """``prepare`` turns events into what the sidecar would hold; only ``encode`` (of one record) is timed."""

    name: str
    events_per_record: int
    prepare: Callable[[Sequence[RequestEvent]], Sequence[Any]]
    encode: Encode
    decode: Callable[[DataFrame], DataFrame]
    """From a frame with the column ``value`` to one row an event with the event's columns."""


EVENT_FIELDS = RequestEvent.__struct_fields__
PART_FIELDS = TopicPartition.__struct_fields__
_json = msgspec.json.Encoder()


def envelope(events: Sequence[Any], first: int, last: int) -> Envelope:
    return Envelope(1, "ThK9ZFduS0ONy_eg3SRv7w", 1, "5f0c4c0d9a4b4e0f", "0.1.0", first, last, 0, 0, list(events))


def spark_type(hint: Any) -> str:
    """Spark SQL's type of a field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "string"
    if origin in (Union, types.UnionType):
        return spark_type(next(a for a in arguments if a is not type(None)))
    if origin in (list, tuple):
        return f"array<{spark_type(arguments[0])}>"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return f"struct<{', '.join(f'`{n}`: {spark_type(t)}' for n, t in get_type_hints(hint).items())}>"
    return {int: "bigint", bool: "boolean", str: "string"}[hint]


# JSON objects ---------------------------------------------------------------------------------------------------------


def same(events: Sequence[RequestEvent]) -> Sequence[RequestEvent]:
    return events


def json_array(events: Sequence[RequestEvent]) -> bytes:
    return _json.encode(envelope(events, events[0].seq, events[-1].seq))


def json_one(events: Sequence[RequestEvent]) -> bytes:
    return _json.encode(events[0])


def read_json_array(df: DataFrame) -> DataFrame:
    decoded = df.select(F.from_json(F.col("value").cast("string"), spark_type(Envelope)).alias("e"))
    return decoded.select(F.explode("e.events").alias("r")).select("r.*")


def read_json_one(df: DataFrame) -> DataFrame:
    return df.select(F.from_json(F.col("value").cast("string"), spark_type(RequestEvent)).alias("r")).select("r.*")


# JSON arrays of arrays ------------------------------------------------------------------------------------------------

_Part = msgspec.defstruct("_Part", list(get_type_hints(TopicPartition).items()), array_like=True, gc=False)
_Event = msgspec.defstruct(
    "_Event",
    [(n, Any if n == "topics" else t) for n, t in get_type_hints(RequestEvent).items()],
    array_like=True,
    gc=False,
)


def positional(events: Sequence[RequestEvent]) -> Sequence[Any]:
    return [
        _Event(
            *(getattr(e, f) for f in EVENT_FIELDS[:-1]),
            [_Part(*(getattr(t, f) for f in PART_FIELDS)) for t in e.topics],
        )
        for e in events
    ]


def json_positional(events: Sequence[Any]) -> bytes:
    return _json.encode(envelope(events, events[0].seq, events[-1].seq))


def read_json_positional(df: DataFrame) -> DataFrame:
    rows = df.select(F.from_json(F.col("value").cast("string"), "struct<events: array<array<string>>>").alias("e"))
    rows = rows.select(F.explode("e.events").alias("r"))
    hints = get_type_hints(RequestEvent)
    parts = F.from_json(F.col("r")[EVENT_FIELDS.index("topics")], "array<array<string>>")
    columns = [F.col("r")[n].cast(spark_type(hints[f])).alias(f) for n, f in enumerate(EVENT_FIELDS[:-1])]
    return rows.select(*columns, F.transform(parts, _part).alias("topics"))


def _part(values: Column) -> Column:
    hints = get_type_hints(TopicPartition)
    return F.struct(*(values[n].cast(spark_type(hints[f])).alias(f) for n, f in enumerate(PART_FIELDS)))


# Avro -----------------------------------------------------------------------------------------------------------------


def avro_type(hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "string"
    if origin in (Union, types.UnionType):
        return ["null", avro_type(next(a for a in arguments if a is not type(None)))]
    if origin in (list, tuple):
        return {"type": "array", "items": avro_type(arguments[0])}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return avro_record(hint)
    return {int: "long", bool: "boolean", str: "string"}[hint]


def avro_record(struct: type[msgspec.Struct]) -> dict[str, Any]:
    fields = []
    for field, hint in zip(msgspec.structs.fields(struct), get_type_hints(struct).values(), strict=True):
        default = (
            {} if field.required else {"default": list(field.default) if field.name == "topics" else field.default}
        )
        fields.append({"name": field.name, "type": avro_type(hint), **default})
    return {"type": "record", "name": struct.__name__, "fields": fields}


AVRO = avro_record(Envelope)
_avro = fastavro.parse_schema(AVRO)


def avro_array(events: Sequence[RequestEvent]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _avro, msgspec.to_builtins(envelope(events, events[0].seq, events[-1].seq)))
    return out.getvalue()


def read_avro_array(df: DataFrame) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro

    decoded = df.select(from_avro("value", json.dumps(AVRO)).alias("e"))
    return decoded.select(F.explode("e.events").alias("r")).select("r.*")


# Arrow ----------------------------------------------------------------------------------------------------------------


def arrow_type(hint: Any) -> pa.DataType:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return pa.string()
    if origin in (Union, types.UnionType):
        return arrow_type(next(a for a in arguments if a is not type(None)))
    if origin in (list, tuple):
        return pa.list_(arrow_type(arguments[0]))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return pa.struct([(n, arrow_type(t)) for n, t in get_type_hints(hint).items()])
    return {int: pa.int64(), bool: pa.bool_(), str: pa.string()}[hint]


_arrow = pa.schema([(n, arrow_type(t)) for n, t in get_type_hints(RequestEvent).items()])


def arrow_array(events: Sequence[RequestEvent]) -> bytes:
    columns = [pa.array([getattr(e, f) for e in events], type=_arrow.field(f).type) for f in EVENT_FIELDS[:-1]]
    parts = [[{f: getattr(t, f) for f in PART_FIELDS} for t in e.topics] for e in events]
    columns.append(pa.array(parts, type=_arrow.field("topics").type))
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, _arrow) as writer:
        writer.write_batch(pa.record_batch(columns, schema=_arrow))
    return bytes(out.getvalue())


def read_arrow_array(df: DataFrame) -> DataFrame:
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column(0):
                yield from pa.ipc.open_stream(value.as_buffer())

    from spark_jobs.io import map_in_arrow

    return map_in_arrow(df.select("value"), decode, spark_type(RequestEvent))


ENCODINGS = [
    Encoding("JSON, 1 event", 1, same, json_one, read_json_one),
    Encoding("**JSON envelope, 200 events**", EVENTS_PER_RECORD, same, json_array, read_json_array),
    Encoding("JSON arrays of arrays, 200", EVENTS_PER_RECORD, positional, json_positional, read_json_positional),
    Encoding("Avro, 200", EVENTS_PER_RECORD, same, avro_array, read_avro_array),
    Encoding("Arrow IPC, 200", EVENTS_PER_RECORD, same, arrow_array, read_arrow_array),
]
