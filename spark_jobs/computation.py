"""DuckDB as the jobs use it, in bounded memory; and derived tables computed with it: input tables as views."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import date
from tempfile import TemporaryDirectory

import duckdb
import pyarrow
import pyarrow.dataset

from spark_jobs.schemas import Table
from spark_jobs.views import DUCKDB_TYPES, quote_identifier, select_rows

SQL_TYPES = DUCKDB_TYPES | {"timestamp": "TIMESTAMP"}
"""DuckDB type by name of the column type. Times are in UTC, without a zone: arithmetic with zones is slow."""

MEMORY_LIMIT = "1GB"
"""Memory of one computation. What does not fit is written to a temporary folder."""

BATCH_ROWS = 100_000
"""Rows that are written at once."""

_STORED = " as stored"
"""Suffix of the internal relation with the rows of a table before they are merged."""


@contextmanager
def open_database(memory_limit: str = MEMORY_LIMIT) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield an empty database. Its times are in UTC. Beyond ``memory_limit`` it uses temporary files."""
    with TemporaryDirectory(prefix="brokerside-") as folder:
        database = duckdb.connect(
            ":memory:",
            config={"memory_limit": memory_limit, "temp_directory": folder, "python_enable_replacements": False},
        )
        try:
            database.execute("SET TimeZone = 'UTC'")
            yield database
        finally:
            database.close()


def create_result(database: duckdb.DuckDBPyConnection, table: Table) -> None:
    """Create the relation ``result`` for the rows of ``table``, empty."""
    columns = ", ".join(f"{quote_identifier(column.name)} {SQL_TYPES[column.type]}" for column in table.columns)
    database.execute(f"CREATE TEMP TABLE result ({columns})")


def add_rows(
    database: duckdb.DuckDBPyConnection,
    table: Table,
    rows: pyarrow.dataset.Dataset | pyarrow.Table,
    *,
    merged: bool,
    with_result: bool = False,
) -> None:
    """Make the stored ``rows`` the view of ``table``, as they are or ``merged``. Times are in UTC, without a zone.

    ``with_result``: together with those of ``result``.
    """
    stored = f"{table.name}{_STORED}"
    database.register(stored, rows)
    times = [
        f"make_timestamp(epoch_us({name})) AS {name}"
        for name in (quote_identifier(column.name) for column in table.columns if column.type == "timestamp")
    ]
    select = select_rows(table, stored, rows.schema.names, merged=merged)
    if times:
        select = f"SELECT * REPLACE ({', '.join(times)}) FROM ({select})"
    if with_result:
        select += " UNION ALL BY NAME SELECT * FROM result"
    database.execute(f"CREATE OR REPLACE VIEW {quote_identifier(table.name)} AS {select}")


def compute_rows(database: duckdb.DuckDBPyConnection, query: str, days: Collection[date], *, keep: bool) -> None:
    """Add to ``result`` the rows of ``query``, with the ``days`` in ``wanted``. ``keep``: those of before, too."""
    if not keep:
        database.execute("DELETE FROM result")
    database.execute("CREATE OR REPLACE TEMP TABLE wanted AS SELECT unnest($days::DATE[]) AS day", {"days": [*days]})
    database.execute(f"INSERT INTO result BY NAME {query}")


def result_days(database: duckdb.DuckDBPyConnection) -> list[date | None]:
    """Return the days of the rows in ``result``."""
    return [day for (day,) in database.execute("SELECT DISTINCT day FROM result ORDER BY day").fetchall()]


def rows_of_day(
    database: duckdb.DuckDBPyConnection, day: date | None, schema: pyarrow.Schema
) -> pyarrow.RecordBatchReader:
    """Return the rows of ``day`` in ``result`` with the columns of ``schema``."""
    columns = ", ".join(map(quote_identifier, schema.names))
    sql = f"SELECT {columns} FROM result WHERE day IS NOT DISTINCT FROM $day"
    return database.sql(sql, params={"day": day}).to_arrow_reader(BATCH_ROWS).cast(schema)
