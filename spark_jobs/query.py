"""Queries the tables without a JVM: DuckDB over the files in Delta's log. Read-only, and only below one root."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pyarrow.dataset
import pyarrow.parquet

from spark_jobs import render as layout
from spark_jobs import views
from spark_jobs.errors import QueryError
from spark_jobs.schemas import TABLES

os.environ.setdefault(
    "RUST_LOG", "error"
)  # delta-rs reads it on import; its warnings precede an error that is reported
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

LOCKDOWN_STATEMENTS = (
    "SET TimeZone = 'UTC'",
    # Arrow reads the files, outside of DuckDB: SQL itself needs no access to files or the network.
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)

DUCKDB_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}

_AS_STORED = " as stored"
"""Suffix of the internal relation with the rows of a table before they are merged."""

NO_TABLES_ADVICE = "`brokerside jobs run` fills them"

COLUMN_FIELDS = ("column", "type", "unit", "description")

DEFINITION_KIND_OF_TABLE = {"cost": "Prices", "slo": "SLO", "mirror_check": "Mirror", "produced": "Mirror"}
"""Kind of definition without which a table is not created."""


@dataclass(frozen=True)
class ColumnInfo:
    """One column. ``type``: Delta's name of the type."""

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
    """Rows as stored. A query shows fewer if several of them have the same key."""
    files: int
    bytes: int
    """Compressed size of the files of the current version."""
    newest: date | None = None
    """The latest ``minute`` of its rows, or the latest day of a table without minutes."""
    broken: str = ""
    """Why the table cannot be read, empty if it can. All other fields are empty then."""


@dataclass(frozen=True)
class TableReader:
    """The tables below one root, open for queries."""

    root: str
    tables: Mapping[str, DeltaTable]
    database: duckdb.DuckDBPyConnection
    broken: Mapping[str, str] = field(default_factory=dict)
    """By name, why a table cannot be read. Queries of other tables are not affected."""

    def explain_missing(self, name: str) -> str:
        """Return one sentence that says why the table ``name`` is not in ``tables``."""
        return self.broken.get(name) or explain_missing_table(name)

    def fetch_rows(
        self, sql: str, parameters: Mapping[str, Any] | None = None
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run ``sql``, one SELECT, and return the names of its columns and its rows.

        ``parameters``: values of ``$name`` in the SQL. Raises QueryError with one sentence on the cause.
        """
        with self._explained(sql):
            result = self.database.execute(self._checked(sql), dict(parameters or {}))
            return [column[0] for column in result.description or ()], result.fetchall()

    def fetch_arrow(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pyarrow.Table:
        """Run ``sql`` as ``fetch_rows`` does, and return the result as an Arrow table, which keeps the types."""
        with self._explained(sql):
            return self.database.sql(self._checked(sql), params=dict(parameters or {})).to_arrow_table()

    def _checked(self, sql: str) -> duckdb.Statement:
        statements = self.database.extract_statements(sql)
        allowed = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        if len(statements) != 1 or statements[0].type not in allowed:
            raise QueryError("only one statement is allowed, and it must be a SELECT or EXPLAIN")
        return statements[0]

    @contextmanager
    def _explained(self, sql: str) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            raise _explain_error(error, sql, self) from error


@contextmanager
def open_tables(root: Path | str) -> Iterator[TableReader]:
    """Yield a reader of the tables below ``root``, a folder or its URL. Rows of equal keys are merged into one.

    Settings of a URL's storage are taken from the environment, for example ``AWS_REGION`` (docs/queries.md). Raises
    QueryError if there are no tables.
    """
    found, broken = _open_all(str(root))
    if not found:
        raise QueryError(next(iter(broken.values()), f"there are no tables in {root}; {NO_TABLES_ADVICE}"))
    database = duckdb.connect(":memory:", config=DUCKDB_SETTINGS)
    try:
        for statement in views.MACROS:
            database.execute(statement)
        for name, (table, rows) in found.items():
            known = TABLES.get(name)
            stored = f"{name}{_AS_STORED}" if known else name
            database.register(stored, rows)
            if known:
                database.execute(views.view_statement(known, stored, [field.name for field in table.schema().fields]))
        for setting in LOCKDOWN_STATEMENTS:
            database.execute(setting)
        yield TableReader(str(root), {name: table for name, (table, _) in found.items()}, database, broken)
    finally:
        database.close()


def query(
    root: Path | str, sql: str, parameters: Mapping[str, Any] | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run ``sql``, one SELECT, over the tables below ``root``, and return the names of its columns and its rows."""
    with open_tables(root) as reader:
        return reader.fetch_rows(sql, parameters)


def arrow(root: Path | str, sql: str, parameters: Mapping[str, Any] | None = None) -> pyarrow.Table:
    """Run ``sql``, one SELECT, over the tables below ``root``, and return an Arrow table, for example for pandas."""
    with open_tables(root) as reader:
        return reader.fetch_arrow(sql, parameters)


def explain_missing_table(name: str) -> str:
    """Return one sentence that says what creates the table ``name``."""
    if name in DEFINITION_KIND_OF_TABLE:
        return (
            f"there is no table {name}: `brokerside jobs run --definitions PATH` creates it if PATH has a document of"
            f" kind {DEFINITION_KIND_OF_TABLE[name]}"
        )
    return f"there is no table {name}: `brokerside jobs run` creates it"


def describe_tables(root: Path | str) -> list[TableInfo]:
    """Describe every Delta table directly below ``root``, sorted by name. Empty if there is no root."""
    found, broken = _open_all(str(root))
    infos = [_describe_table(str(root), name, *found[name]) for name in found]
    infos += [TableInfo(name, "", (), 0, 0, 0, broken=why) for name, why in broken.items()]
    return sorted(infos, key=lambda info: info.name)


def render(columns: list[str], rows: list[tuple[Any, ...]], form: str) -> str:
    """Return a query result as text in the format ``table``, ``json``, ``yaml`` or ``csv``."""
    return layout.render_rows(columns, rows, form)


def to_parquet(answer: pyarrow.Table) -> bytes:
    """Return a result as a Parquet file."""
    out = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(answer, out)
    return bytes(out.getvalue().to_pybytes())


def render_tables(found: list[TableInfo], form: str) -> str:
    """Return a list of tables as text in the format ``table``, ``json``, ``yaml`` or ``csv``; all but ``table`` have
    their columns, too."""
    if form in ("json", "yaml"):
        columns = ["name", "description", "rows", "files", "bytes", "newest", "broken", "columns"]
        described = [
            (t.name, t.description, t.rows, t.files, t.bytes, t.newest, t.broken, [vars(c) for c in t.columns])
            for t in found
        ]
        return layout.render_rows(columns, described, form)
    if form == "csv":
        lines = [(t.name, c.name, c.type, c.unit, c.description) for t in found for c in t.columns]
        return layout.render_rows(["table", *COLUMN_FIELDS], lines, form)
    if not found:
        return f"no tables; {NO_TABLES_ADVICE}"
    rows = [(t.name, t.rows, t.bytes, t.newest) for t in found if not t.broken]
    listed = layout.render_rows(["table", "rows stored", "bytes", "newest (UTC)"], rows, form) if rows else ""
    return "\n\n".join(filter(None, (listed, *(t.broken for t in found))))


def render_table(info: TableInfo) -> str:
    """Return one table with its columns as text for people."""
    if info.broken:
        return info.broken
    said = f"{info.name}: {info.rows:,} rows stored, {info.files:,} files, {info.bytes:,} bytes. {info.description}"
    columns = [(c.name, c.type, c.unit, c.description) for c in info.columns]
    return f"{said.strip()}\n\n{layout.render_rows(COLUMN_FIELDS, columns, 'table')}"


_DeltaDataset = tuple[DeltaTable, pyarrow.dataset.Dataset]


def _open_all(root: str) -> tuple[dict[str, _DeltaDataset], dict[str, str]]:
    """Open the Delta tables directly below ``root``. Return them by name, and by name why others cannot be read.

    A URL cannot be listed, so only the tables that the jobs create are looked for.
    """
    if "://" in root:
        places = {name: f"{root.rstrip('/')}/{name}" for name in sorted(TABLES)}
    else:
        folder = Path(root)
        logs = sorted(folder.glob("*/_delta_log")) if folder.is_dir() else []
        places = {log.parent.name: str(log.parent) for log in logs}
    with ThreadPoolExecutor(max_workers=len(TABLES)) as pool:
        opened = dict(zip(places, pool.map(_open_table, places.values()), strict=True))
    found = {name: each for name, each in opened.items() if isinstance(each, tuple)}
    return found, {
        name: _unreadable_message(name, root, each) for name, each in opened.items() if isinstance(each, Exception)
    }


def _open_table(place: str) -> _DeltaDataset | Exception | None:
    """Open the table at ``place``. Return None if there is none, and the error if it cannot be read."""
    try:
        if not DeltaTable.is_deltatable(place):
            return None
        table = DeltaTable(place)
        return table, table.to_pyarrow_dataset()
    except (DeltaError, OSError, ValueError, pyarrow.ArrowException) as error:
        return error


def _unreadable_message(name: str, root: str, why: object) -> str:
    """Return one sentence on a table that cannot be read, from an error text of delta-rs, Arrow or DuckDB."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(why)).split()).replace(" ↳ ", ": ")
    text = re.split(r" 0: (?:<unknown>|[\w<]\S*::)", text, maxsplit=1)[0]  # stack frames follow
    return f"the table {name} in {root} cannot be read: {text.rstrip('. ')}"


def _describe_table(root: str, name: str, table: DeltaTable, rows: pyarrow.dataset.Dataset) -> TableInfo:
    try:
        count = rows.count_rows()
    except (OSError, pyarrow.ArrowException) as error:
        return TableInfo(name, "", (), 0, 0, 0, broken=_unreadable_message(name, root, error))
    files = pyarrow.table(table.get_add_actions(flatten=True))
    sizes = files["size_bytes"].to_pylist()
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
        rows=count,
        files=len(sizes),
        bytes=sum(sizes),
        newest=_newest(files),
    )


def _newest(files: pyarrow.Table) -> date | None:
    """Return the latest minute by the statistics of ``files``, else the latest day by their partitions."""
    column = next((name for name in ("max.minute", "partition.day") if name in files.column_names), None)
    return max(filter(None, files[column].to_pylist()), default=None) if column else None


def _explain_error(error: duckdb.Error, sql: str, reader: TableReader) -> QueryError:
    """Return the cause of a failed query in one sentence. For an unknown name it lists the names that exist."""
    text = str(error).split("\n", 1)[0]
    text = re.sub(r"^(?:\w+ )+Error: ", "", text).rstrip("!. ")
    missing = re.match(r"Table with name (\w+) does not exist", text)
    if isinstance(error, duckdb.CatalogException) and missing:
        name = missing[1].lower()
        if name in reader.broken:
            return QueryError(reader.broken[name])
        text = explain_missing_table(name) if name in TABLES else text
        return QueryError(f"{text}; the tables are: {', '.join(reader.tables)}")
    lost = re.match(r"reading the stream registered as '(.+?)' failed: (.*)", text)
    if lost:
        return QueryError(_unreadable_message(lost[1].removesuffix(_AS_STORED), reader.root, lost[2]))
    if isinstance(error, duckdb.BinderException) and ("not found" in text or "column named" in text):
        columns = {
            name: [field.name for field in table.schema().fields]
            for name, table in reader.tables.items()
            if re.search(rf"\b{re.escape(name)}\b", sql, re.IGNORECASE)
        }
        there = "; ".join(f"{name} ({', '.join(names)})" for name, names in columns.items())
        return QueryError(f"{text}; the columns are: {there}" if there else text)
    return QueryError(text)
