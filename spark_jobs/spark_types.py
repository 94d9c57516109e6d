"""The schemas of events and tables as Spark types."""

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
"""Spark type by name of the column type. An ``array`` of objects in an event is built by ``array_type``."""


def struct_type(fields: Sequence[EventField]) -> StructType:
    """Return the type of an object with ``fields``. Required fields are not nullable."""
    return StructType([StructField(field.name, _field_type(field), not field.required) for field in fields])


def envelope_type() -> StructType:
    """Return the type of the audit envelope."""
    return struct_type(ENVELOPE)


def table_schema(table: Table) -> StructType:
    """Return the schema of ``table``; the metadata of each column has its comment, unit and source."""
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
    return array_type(field.all_fields) if field.type == "array" else SPARK_TYPES[field.type]()
