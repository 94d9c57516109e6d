"""A table against its book: every key, and every column that the book has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tests.ledger.books import Book

SHOWN = 8
"""Differences that a failing test shows."""


def assert_equal(table: str, rows: Iterable[dict[str, Any]], keys: Sequence[str], book: Book) -> None:
    """Raise AssertionError that names the first differences between ``rows`` and ``book``."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    differences = []
    for row in rows:
        at = tuple(row[key] for key in keys)
        if at in found:
            differences.append(f"twice: {at}")
        found[at] = row
    differences += [f"not in the table: {at} {book[at]}" for at in book if at not in found]
    differences += [f"not in the book: {at} {found[at]}" for at in found if at not in book]
    for at in book.keys() & found.keys():
        differences += [
            f"{name} of {at}: table {found[at][name]!r}, book {value!r}"
            for name, value in book[at].items()
            if not _same(found[at][name], value)
        ]
    assert book, f"the book of {table} is empty"
    assert not differences, "\n".join(
        [f"{table}: {len(differences)} differences, {len(book)} rows in the book", *sorted(differences)[:SHOWN]]
    )


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12)
    return one == other
