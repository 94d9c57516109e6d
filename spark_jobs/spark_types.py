"""The schemas as Spark's types."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jobs.events import ENVELOPE, EventField
from spark_jobs.schemas import Table

SPARK_TYPES: dict[str, Callable[[], DataType]] = {
    "string": StringType,
    "int": IntegerType,
    "bigint": LongType,
    "double": DoubleType,
    "boolean": BooleanType,
    "date": DateType,
    "timestamp": TimestampType,
    "array<string>": lambda: ArrayType(StringType()),
    "array<bigint>": lambda: ArrayType(LongType()),
    "array<int>": lambda: ArrayType(IntegerType()),
    "map<string,bigint>": lambda: MapType(StringType(), LongType()),
    "map<string,string>": lambda: MapType(StringType(), StringType()),
    "decimal(38,10)": lambda: DecimalType(38, 10),
}
"""Makes a type by its name; of the event's ``array`` see ``array_type``."""


def struct_type(fields: Sequence[EventField]) -> StructType:
    """Return the type of an object with ``fields``; required ones are not nullable."""
    return StructType([StructField(field.name, _field_type(field), not field.required) for field in fields])


def envelope_type() -> StructType:
    """Return the type of the audit envelope."""
    return struct_type(ENVELOPE)


def table_schema(table: Table) -> StructType:
    """Return the schema of ``table``; comments, units and sources are in the columns' metadata."""
    return StructType(
        [
            StructField(
                column.name,
                SPARK_TYPES[column.type](),
                True,
                {"comment": column.meaning, "unit": column.unit, "source": column.source},
            )
            for column in table.columns
        ]
    )


def array_type(fields: Sequence[EventField]) -> ArrayType:
    """Return the type of an array of objects with ``fields``."""
    return ArrayType(struct_type(fields))


def _field_type(field: EventField) -> DataType:
    return array_type(field.possible) if field.type == "array" else SPARK_TYPES[field.type]()
