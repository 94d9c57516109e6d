"""The tables without a JVM: DuckDB over the files that Delta's log names. Reads only, and only below one root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_jobs import render as layout
from spark_jobs.errors import QueryError
from spark_jobs.schemas import TABLES

LOCKED = (
    "SET TimeZone = 'UTC'",
    # The tables are read by Arrow, outside of DuckDB: SQL itself needs no files and no network.
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)

SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}

ADVICE = "`brokerside jobs run traffic` fills them"


@dataclass(frozen=True)
class ColumnInfo:
    """One column: type as Delta names it, and what it means."""

    name: str
    type: str
    description: str
    unit: str = ""


@dataclass(frozen=True)
class TableInfo:
    """One table below the root."""

    name: str
    description: str
    columns: tuple[ColumnInfo, ...]
    rows: int
    """Rows as stored; where equal keys add up, a query shows fewer."""
    files: int
    bytes: int
    """Size of the files that are part of the table now, compressed."""


def tables(root: Path | str) -> list[TableInfo]:
    """Return every Delta table directly below ``root``, by name; none where there are none, or no root."""
    return [_info(name, table) for name, table in _stored(Path(root)).items()]


def query(root: Path | str, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of the columns and the rows that ``sql``, one SELECT, gives over the tables below ``root``.

    Rows of ``traffic`` with equal keys are shown summed. Raises QueryError, with one sentence on what is wrong.
    """
    found = _stored(Path(root))
    if not found:
        raise QueryError(f"there are no tables in {root}; {ADVICE}")
    with _database(found) as database:
        try:
            statements = database.extract_statements(sql)
            if len(statements) != 1 or statements[0].type not in (
                duckdb.StatementType.SELECT,
                duckdb.StatementType.EXPLAIN,
            ):
                raise QueryError("one SELECT is allowed, and nothing that changes anything")
            result = database.execute(statements[0])
            return [column[0] for column in result.description or ()], result.fetchall()
        except duckdb.Error as error:
            raise _explained(error, database, found) from error


def render(columns: list[str], rows: list[tuple[Any, ...]], form: str) -> str:
    """Return the text of a result, as ``table``, ``json`` or ``csv``."""
    return layout.rows(columns, rows, form)


def render_tables(found: list[TableInfo], form: str) -> str:
    """Return the text of a list of tables with their columns, as ``table``, ``json`` or ``csv``."""
    if form == "json":
        columns = ["name", "description", "rows", "files", "bytes", "columns"]
        described = [(t.name, t.description, t.rows, t.files, t.bytes, [vars(c) for c in t.columns]) for t in found]
        return layout.rows(columns, described, form)
    names = ["column", "type", "unit", "description"]
    if form == "csv":
        lines = [(t.name, c.name, c.type, c.unit, c.description) for t in found for c in t.columns]
        return layout.rows(["table", *names], lines, form)
    if not found:
        return f"no tables; {ADVICE}"
    parts = []
    for t in found:
        parts.append(f"{t.name}: {t.rows:,} rows stored, {t.files:,} files, {t.bytes:,} bytes. {t.description}".strip())
        parts.append(layout.rows(names, [(c.name, c.type, c.unit, c.description) for c in t.columns], form))
    return "\n\n".join(parts)


def _stored(root: Path) -> dict[str, DeltaTable]:
    """Return the Delta tables directly below ``root``, by name."""
    logs = sorted(root.glob("*/_delta_log")) if root.is_dir() else []
    try:
        return {log.parent.name: DeltaTable(log.parent) for log in logs}
    except DeltaError as error:
        raise QueryError(f"a table in {root} cannot be read: {error}") from error


def _info(name: str, table: DeltaTable) -> TableInfo:
    sizes = pyarrow.table(table.get_add_actions())["size_bytes"].to_pylist()
    columns = tuple(
        ColumnInfo(
            field.name, field.type.type, str(field.metadata.get("comment", "")), str(field.metadata.get("unit", ""))
        )
        for field in table.schema().fields
    )
    return TableInfo(
        name=name,
        description=table.metadata().description or "",
        columns=columns,
        rows=table.to_pyarrow_dataset().count_rows(),
        files=len(sizes),
        bytes=sum(sizes),
    )


@contextmanager
def _database(found: dict[str, DeltaTable]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give a database in memory with one view for each table, cut off from files and network."""
    database = duckdb.connect(":memory:", config=SETTINGS)
    try:
        for name, table in found.items():
            dataset = table.to_pyarrow_dataset()
            known = TABLES.get(name)
            if known is None or not known.keys:
                database.register(name, dataset)
            else:
                database.register(f"{name} as stored", dataset)
                keys = ", ".join(known.keys)
                sums = ", ".join(f"sum({column.name})::BIGINT AS {column.name}" for column in known.merged)
                database.execute(f'CREATE VIEW {name} AS SELECT {keys}, {sums} FROM "{name} as stored" GROUP BY {keys}')  # noqa: S608 - names are constants of this package
        for setting in LOCKED:
            database.execute(setting)
        yield database
    finally:
        database.close()


def _explained(error: duckdb.Error, database: duckdb.DuckDBPyConnection, found: dict[str, DeltaTable]) -> QueryError:
    """Return what is wrong with a query in one sentence, with what exists where something was not found."""
    said = str(error).split("\n", 1)[0]
    said = re.sub(r"^\w+ Error: ", "", said).rstrip("!. ")
    if isinstance(error, duckdb.CatalogException) and "Table with name" in said:
        return QueryError(f"{said}; the tables are: {', '.join(found)}")
    if isinstance(error, duckdb.BinderException) and ("not found" in said or "column named" in said):
        columns = {name: [field.name for field in table.schema().fields] for name, table in found.items()}
        return QueryError(
            f"{said}; the columns are: " + "; ".join(f"{name} ({', '.join(c)})" for name, c in columns.items())
        )
    return QueryError(said)
