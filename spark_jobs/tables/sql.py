"""Text of DuckDB's SQL, of which the derived tables are computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal

from spark_jobs.computation import SQL_TYPES
from spark_jobs.schemas import Table
from spark_jobs.views import quote_identifier


def literal(value: object) -> str:
    """Return ``value`` as an SQL literal."""
    match value:
        case None:
            return "NULL"
        case bool() | int() | Decimal():
            return str(value)
        case float():
            return f"{value!r}::DOUBLE"
        case date():
            return f"DATE '{value}'"
    return "'" + str(value).replace("'", "''") + "'"


def values(name: str, types: Mapping[str, str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return a common table expression of ``rows`` (at least one). ``types``: SQL type by column name."""
    each = ", ".join(f"({', '.join(literal(row[column]) for column in types)})" for row in rows)
    casts = ", ".join(f"{column}::{type} AS {column}" for column, type in types.items())
    return f"{name} AS MATERIALIZED (SELECT {casts} FROM (VALUES {each}) AS given({', '.join(types)}))"


def matches(column: str, patterns: Sequence[str]) -> str:
    """Return a condition, never NULL: one of ``patterns`` matches the whole name in ``column``."""
    pattern = literal("|".join(f"(?:{each})" for each in patterns))
    return f"coalesce(regexp_full_match({column}, {pattern}), false)"


def is_one_of(column: str, names: Iterable[str]) -> str:
    """Return a condition: ``column`` has one of ``names``."""
    return f"{column} IN ({', '.join(map(literal, names))})"


def table_columns(table: Table, **sql: str) -> str:
    """Return the columns of ``table`` in order, cast to their types. ``sql``: of those that are not called so."""
    return ", ".join(
        f"CAST({sql.get(column.name, quote_identifier(column.name))} AS {SQL_TYPES[column.type]})"
        f" AS {quote_identifier(column.name)}"
        for column in table.columns
    )
