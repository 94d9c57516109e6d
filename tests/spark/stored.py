"""Delta tables as the jobs store them, written without a JVM: rows with what a test says, the rest empty."""

from pathlib import Path
from typing import Any

import pyarrow
from deltalake import write_deltalake

from spark_jobs.schemas import TABLES, Table

ARROW: dict[str, Any] = {
    "string": pyarrow.string(), "int": pyarrow.int32(), "bigint": pyarrow.int64(), "double": pyarrow.float64(),
    "boolean": pyarrow.bool_(), "date": pyarrow.date32(), "timestamp": pyarrow.timestamp("us", tz="UTC"),
    "decimal(38,10)": pyarrow.decimal128(38, 10), "array<int>": pyarrow.list_(pyarrow.int32()),
    "array<bigint>": pyarrow.list_(pyarrow.int64()), "array<string>": pyarrow.list_(pyarrow.string()),
    "map<string,string>": pyarrow.map_(pyarrow.string(), pyarrow.string()),
}  # fmt: skip


def rows(table: Table, *given: dict[str, Any]) -> pyarrow.Table:
    """Rows of ``table``: sums are 0 where nothing is given, all else is NULL."""
    empty = {column.name: 0 if column.merge == "sum" else None for column in table.columns}
    for row in given:
        assert row.keys() <= empty.keys(), row.keys() - empty.keys()
    return pyarrow.Table.from_pylist([{**empty, **row} for row in given], schema=schema(table))


def schema(table: Table) -> pyarrow.Schema:
    return pyarrow.schema(
        pyarrow.field(c.name, ARROW[c.type], metadata={"comment": c.meaning, "unit": c.unit}) for c in table.columns
    )


class Row(dict[str, Any]):
    """A row whose columns are attributes, too."""

    __getattr__ = dict.__getitem__


def plain(found: pyarrow.Table) -> list[Row]:
    """``found`` as rows: times without a zone, maps as dictionaries."""
    maps = {field.name for field in found.schema if pyarrow.types.is_map(field.type)}
    times = {field.name for field in found.schema if pyarrow.types.is_timestamp(field.type)}
    return [
        Row({
            name: value and (dict(value) if name in maps else value.replace(tzinfo=None) if name in times else value)
            for name, value in row.items()
        })
        for row in found.to_pylist()
    ]  # fmt: skip


def write(root: Path, name: str, *given: dict[str, Any]) -> None:
    """Append rows to the table ``name`` below ``root``, as one batch of a job does."""
    table = TABLES[name]
    write_deltalake(root / name, rows(table, *given), mode="append", partition_by=["day"], description=table.meaning)
