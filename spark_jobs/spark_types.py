"""The schemas of tables as types of Arrow and Spark."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from spark_jobs.schemas import Table

ARROW_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<string>": pa.list_(pa.string()),
    "array<bigint>": pa.list_(pa.int64()),
    "array<int>": pa.list_(pa.int32()),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "decimal(38,10)": pa.decimal128(38, 10),
}
"""Arrow type by name of the column type."""


def arrow_schema(table: Table) -> pa.Schema:
    """Return the schema of ``table``."""
    return pa.schema([(column.name, ARROW_TYPES[column.type]) for column in table.columns])


def table_schema(table: Table) -> StructType:
    """Return the schema of ``table``; the metadata of each column has its comment, unit and source."""
    schema = StructType()
    for column in table.columns:
        metadata = {"comment": column.meaning, "unit": column.unit, "source": column.source}
        schema.add(column.name, from_arrow_type(ARROW_TYPES[column.type]), True, metadata)
    return schema
