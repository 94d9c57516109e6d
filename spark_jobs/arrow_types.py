"""The schemas of tables as Arrow types."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

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
