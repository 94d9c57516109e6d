"""The schemas as Spark's types."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jobs.schemas import ENVELOPE, Field, Table

ATOMIC: dict[str, type[DataType]] = {
    "string": StringType,
    "int": IntegerType,
    "bigint": LongType,
    "double": DoubleType,
    "boolean": BooleanType,
    "date": DateType,
    "timestamp": TimestampType,
}


def struct_of(fields: Sequence[Field]) -> StructType:
    """Return the type of an object with ``fields``; required ones are not nullable."""
    return StructType([StructField(field.name, _type_of(field), not field.required) for field in fields])


def envelope() -> StructType:
    """Return the type of the audit envelope."""
    return struct_of(ENVELOPE)


def table_schema(table: Table) -> StructType:
    """Return the schema of ``table``; comments, units and sources are in the columns' metadata."""
    return StructType(
        [
            StructField(
                column.name,
                ATOMIC[column.type](),
                True,
                {"comment": column.meaning, "unit": column.unit, "source": column.source},
            )
            for column in table.columns
        ]
    )


def array_of(fields: Sequence[Field]) -> ArrayType:
    """Return the type of an array of objects with ``fields``."""
    return ArrayType(struct_of(fields))


def _type_of(field: Field) -> DataType:
    return array_of(field.possible) if field.type == "array" else ATOMIC[field.type]()
