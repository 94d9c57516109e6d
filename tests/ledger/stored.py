"""What tables hold, read and merged in plain Python: as their columns say, without Spark or DuckDB."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from spark_jobs.schemas import TABLES
from spark_jobs.schemas.model import Column, Table

Row = dict[str, Any]


def rows(root: Path | str, table: str) -> list[Row]:
    """All rows of ``table``, those with equal keys merged; in no order. ``root``: a folder, or the URL of one."""
    return merged(TABLES[table], DeltaTable(f"{root}/{table}").to_pyarrow_table().to_pylist())


def merged(described: Table, stored: list[Row]) -> list[Row]:
    if not described.keys:
        return stored
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
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


def _merged(column: Column, order: str, group: Sequence[Row]) -> Any:
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
