"""Computes derived tables of given rows, as the jobs do, for tests that say all of them in one call. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow

from spark_jobs.computation import add_rows, compute_rows, create_result, open_database
from spark_jobs.definitions import Definitions
from spark_jobs.schemas import TABLES
from spark_jobs.tables.registry import DERIVED_QUERIES, SUMMED_BY_DAY
from tests.ledger.stored import rows as merged_rows
from tests.spark import stored

NO_DEFINITIONS = Definitions()


def computed(
    name: str,
    inputs: Mapping[str, pyarrow.Table],
    definitions: Definitions = NO_DEFINITIONS,
    since: date | None = None,
) -> pyarrow.Table:
    """The rows of the table ``name`` of merged rows, of the day ``since`` and later (None: of all days)."""
    days = {day for rows in inputs.values() for day in rows["day"].to_pylist() if since is None or day >= since}
    own = {name: stored.rows(TABLES[name])} if name in SUMMED_BY_DAY else {}
    with open_database() as database:
        create_result(database, TABLES[name])
        for each, rows in {**inputs, **own}.items():
            add_rows(database, TABLES[each], rows, merged=False)
        compute_rows(database, DERIVED_QUERIES[name](definitions), sorted(days), keep=False)
        wanted = "SELECT * FROM result" + (" WHERE day IN (SELECT day FROM wanted)" if since else "")
        return database.sql(wanted).to_arrow_table().cast(stored.schema(TABLES[name]))


def rows(*given: Any) -> list[stored.Row]:
    """The same as rows."""
    return stored.plain(computed(*given))


def of_stored(root: Path, name: str, definitions: Definitions) -> list[dict[str, Any]]:
    """Rows of the table ``name`` below ``root``, as they are made at once of what its inputs there hold."""
    inputs = {
        each: pyarrow.Table.from_pylist(merged_rows(root, each), stored.schema(TABLES[each]))
        for each in TABLES[name].derived_from
    }
    return computed(name, inputs, definitions).to_pylist()
