"""Delta tables as the jobs store them, without a JVM: written, rows with what a test says, the rest empty; and read,
merged in plain Python as their columns say."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import DeltaTable, write_deltalake

from spark_jobs.schemas import TABLES, Table
from spark_jobs.schemas.model import Column

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


def read(root: Path | str, table: str) -> list[dict[str, Any]]:
    """All rows of ``table``, those with equal keys merged; in no order. ``root``: a folder, or the URL of one."""
    return merged(TABLES[table], DeltaTable(f"{root}/{table}").to_pyarrow_table().to_pylist())


def merged(described: Table, stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not described.keys:
        return stored
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in stored:
        groups[tuple(row[name] for name in described.keys)].append(row)
    return [
        dict(zip(described.keys, key, strict=True))
        | {
            column.name: _merged(column, described.order, group)
            for column in described.columns
            if column.merge not in (None, "key")
        }
        for key, group in groups.items()
    ]


def _merged(column: Column, order: str, group: Sequence[dict[str, Any]]) -> Any:
    with_value = [row for row in group if row[column.name] is not None]
    values = [row[column.name] for row in with_value]
    if not values:
        return None
    match column.merge:
        case "sum":
            return sum(values)
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "last":
            ordered = [row for row in with_value if row[order] is not None]
            return max(ordered, key=lambda row: (row[order], row[column.name]))[column.name] if ordered else None
        case "counts":
            return [sum(each) for each in zip(*values, strict=True)]
    raise AssertionError(column.merge)
