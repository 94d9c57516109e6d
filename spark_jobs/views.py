"""DuckDB views that merge stored rows of equal keys, by the rule of each column in ``spark_jobs.schemas``.

Queries, derived tables and compaction use them. DuckDB pushes a condition on a key column through the view down to the
files, so a query of one day reads the files of that day.
"""

from __future__ import annotations

from collections.abc import Collection

from spark_jobs.schemas import Column, Table
from spark_jobs.schemas.traffic import LATENCY_BUCKETS_US

_HISTOGRAM_LENGTH = len(LATENCY_BUCKETS_US) + 1

DUCKDB_TYPES = {
    "string": "VARCHAR",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "decimal(38,10)": "DECIMAL(38,10)",
    "array<int>": "INTEGER[]",
    "array<bigint>": "BIGINT[]",
    "array<string>": "VARCHAR[]",
    "map<string,string>": "MAP(VARCHAR, VARCHAR)",
}
"""DuckDB type by name of the column type."""


def view_statement(table: Table, stored: str, columns: Collection[str]) -> str:
    """Return the CREATE VIEW statement of ``table``. ``stored``: the relation it reads, with these ``columns``."""
    return f"CREATE VIEW {quote_identifier(table.name)} AS {select_rows(table, stored, columns)}"


def select_rows(table: Table, stored: str, columns: Collection[str], *, merged: bool = True) -> str:
    """Return a SELECT of the rows of ``table`` in the relation ``stored``, ``merged`` or as they are stored.

    Columns that the stored table does not have yet (it has ``columns``) are NULL.
    """
    values = [
        f"{_value(column, table.order, columns, merged)} AS {quote_identifier(column.name)}" for column in table.columns
    ]
    keys = [quote_identifier(name) for name in table.keys if name in columns] if merged else []
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join(values)} FROM {quote_identifier(stored)}{group}"  # noqa: S608 - names are constants


def quote_identifier(name: str) -> str:
    """Return ``name`` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _value(column: Column, order: str, columns: Collection[str], merged: bool) -> str:
    kind = DUCKDB_TYPES[column.type]
    name = quote_identifier(column.name)
    if column.name not in columns:
        return f"NULL::{kind}"
    match column.merge if merged else None:
        case None | "key":
            return name
        case "sum" | "min" | "max":
            return f"{column.merge}({name})::{kind}"
        case "last":
            # Of two equally recent values the greater one, as in Spark.
            late, known = quote_identifier(order), f"{name} IS NOT NULL AND {quote_identifier(order)} IS NOT NULL"
            return f"arg_max({name}, struct_pack(late := {late}, value := {name})) FILTER ({known})"
        case "counts":
            return _element_sums(name)


def _element_sums(counts: str) -> str:
    elements = ", ".join(f"sum({counts}[{place}])::BIGINT" for place in range(1, _HISTOGRAM_LENGTH + 1))
    return f"CASE WHEN count({counts}) > 0 THEN [{elements}] END"


_ENDS = ", ".join(str(end / 1000) for end in (*LATENCY_BUCKETS_US, LATENCY_BUCKETS_US[-1]))
_RANK = "greatest(1, ceil(q::DECIMAL(10, 9) * list_sum(counts)::DECIMAL(19, 0)))"  # exact: 0.07 · 100 is not above 7

_PLACE = (
    f"list_position(list_transform(range(1, {_HISTOGRAM_LENGTH + 1}), lambda n: list_sum(counts[:n]) >= {_RANK}), true)"
)

MACROS = (
    f"CREATE MACRO merge_counts(counts) AS {_element_sums('counts')}",
    f"CREATE MACRO quantile_ms(counts, q) AS CASE WHEN list_sum(counts) > 0 THEN ([{_ENDS}]::DOUBLE[])[{_PLACE}] END",
)
"""``merge_counts(latencies)`` aggregates histograms element by element. ``quantile_ms(counts, 0.99)`` returns a
quantile in ms: the upper end of its bucket (for the last bucket its lower end), NULL for an empty histogram."""
