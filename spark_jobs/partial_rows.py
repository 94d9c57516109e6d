"""Partial rows of all streamed tables in one stream: they are added up by key, and become tables at the end. Pure.

A partial row is a table's name, its key, and its values. The last two are MessagePack, so that who moves the rows
sees only bytes. Instants are µs and days are days since 1970. The value of a column that is merged as ``last`` is a
pair of its order and its value: the greatest pair holds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from operator import add, itemgetter
from typing import Any

import msgspec
import pyarrow as pa

from spark_jobs.schemas import STREAMED, Table
from spark_jobs.spark_types import arrow_schema

Key = tuple[Any, ...]
Values = Sequence[Any]
PartialRow = tuple[str, bytes, bytes]

PARTIAL_SCHEMA = pa.schema([("table", pa.string()), ("key", pa.binary()), ("values", pa.binary())])

RECORDS = "records"
"""The name of the table of partial rows that are about Kafka records themselves; see ``decode.RecordSummary``."""

MAX_BIGINT = 2**63 - 1
"""Sums end here, whoever wrote the numbers."""

ROWS_PER_BATCH = 10_000
"""Rows of the Arrow batches that are made here."""

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode


@contextmanager
def collector_paused() -> Iterator[None]:
    """Let Python not search for unreachable cycles. Records and rows have none, and a search visits all of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _sum(one: int, other: int) -> int:
    return min(one + other, MAX_BIGINT)


def bounded(sums: list[int]) -> list[int]:
    """Return ``sums``, none of them above ``MAX_BIGINT``."""
    return sums if max(sums, default=0) <= MAX_BIGINT else [min(each, MAX_BIGINT) for each in sums]


def _counts(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return bounded(list(map(add, one, other)))


_MERGES: Mapping[str | None, Callable[[Any, Any], Any]] = {
    "sum": _sum,
    "min": min,
    "max": max,
    "last": max,
    "counts": _counts,
}
"""By merge rule, how two values become one if neither is NULL."""


class PartialTable:
    """How the partial rows of one table are merged. Rows of one key and day become one row."""

    def __init__(self, table: Table) -> None:
        self.table = table
        grouped = [column for column in table.columns if column.merge == "key" or column.name == "day"]
        others = [column for column in table.columns if column not in grouped]
        self.key_names = tuple(column.name for column in grouped) if table.keys else ()
        self.values = tuple(others) if table.keys else table.columns
        self._merges = [_MERGES[column.merge] for column in self.values] if table.keys else []

    def values_of(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the values of a row that has ``given`` by column. Sums are 0 where nothing is given, others NULL."""
        return [given.get(column.name, 0 if column.merge == "sum" else None) for column in self.values]

    def merge(self, one: Values, other: Values) -> list[Any]:
        """Return the values of two rows with equal keys as those of one row."""
        return [
            mine if others is None else others if mine is None else merge(mine, others)
            for merge, mine, others in zip(self._merges, one, other, strict=True)
        ]

    def to_arrow(self, rows: Sequence[tuple[Key, Values]]) -> pa.Table:
        """Return the rows of the table itself."""
        keys: Sequence[Sequence[Any]] = list(zip(*(key for key, _ in rows), strict=True))
        values: Sequence[Sequence[Any]] = list(zip(*(each for _, each in rows), strict=True))
        schema = arrow_schema(self.table)
        by_name = dict(zip(self.key_names, keys, strict=False))
        for column, each in zip(self.values, values, strict=False):
            if column.merge == "last":
                each = [pair and pair[1] for pair in each]
            by_name[column.name] = each
        return pa.table([pa.array(by_name.get(field.name, ()), field.type) for field in schema], schema=schema)


PARTIAL_TABLES = {name: PartialTable(table) for name, table in STREAMED.items()}
"""Every streamed table, by name."""

KEYLESS = frozenset((RECORDS, *(name for name, table in STREAMED.items() if not table.keys)))
"""Tables whose rows are never merged."""


class PartialRows:
    """Collects partial rows, and merges those of tables with keys."""

    def __init__(self, names: Collection[str]) -> None:
        """``names``: the tables that are wanted; rows of others are dropped."""
        self._merged: dict[str, dict[Key, Values]] = {name: {} for name in names if name not in KEYLESS}
        self._single: list[PartialRow] = []
        self._names = frozenset(names)

    def __len__(self) -> int:
        return sum(map(len, self._merged.values())) + len(self._single)

    def add(self, name: str, key: Key, values: Values) -> None:
        """Add a row of the table ``name``, which has keys."""
        rows = self._merged.get(name)
        if rows is None:
            return
        there = rows.get(key)
        rows[key] = values if there is None else PARTIAL_TABLES[name].merge(there, values)

    def add_given(self, name: str, key: Key, **given: Any) -> None:
        """Add a row of the table ``name`` with some values; see ``PartialTable.values_of``."""
        self.add(name, key, PARTIAL_TABLES[name].values_of(given))

    def add_encoded(self, name: str, key: bytes, values: Values) -> None:
        """Add a row that is never merged. ``key``: by which such rows are spread and sorted."""
        if name in self._names or name == RECORDS:
            self._single.append((name, key, encode(values)))

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as ``PARTIAL_SCHEMA``, and forget them."""
        single, self._single = self._single, []
        yield from to_batches(single)
        for name, rows in self._merged.items():
            yield from to_batches((name, encode(key), encode(values)) for key, values in rows.items())
            rows.clear()


def to_batches(rows: Iterable[PartialRow]) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` as batches of ``PARTIAL_SCHEMA``."""
    rows = iter(rows)
    while some := list(islice(rows, ROWS_PER_BATCH)):
        columns = [
            pa.array(each, field.type) for each, field in zip(zip(*some, strict=True), PARTIAL_SCHEMA, strict=True)
        ]
        yield pa.record_batch(columns, schema=PARTIAL_SCHEMA)


def merge_sorted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield ``batches`` of ``PARTIAL_SCHEMA``, sorted by table and key, with one row for each key."""
    with collector_paused():
        yield from to_batches(_merged(_rows(batches)))


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[PartialRow]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _merged(rows: Iterable[PartialRow]) -> Iterator[PartialRow]:
    for (name, key), alike in groupby(rows, itemgetter(0, 1)):
        first, *others = alike
        if not others or name in KEYLESS:
            yield from (first, *others)
            continue
        merge, values = PARTIAL_TABLES[name].merge, decode(first[2])
        for _, _, more in others:
            values = merge(values, decode(more))
        yield name, key, encode(values)


def table_rows(name: str, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the rows of the table ``name`` in ``batches`` of ``PARTIAL_SCHEMA``, which are all of this table."""
    with collector_paused():
        rows = [(() if name in KEYLESS else decode(key), decode(values)) for _, key, values in _rows(batches)]
        return PARTIAL_TABLES[name].to_arrow(rows)


def table_batches(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    """Yield ``table_rows`` of each batch."""
    for batch in batches:
        yield from table_rows(name, [batch]).to_batches()
