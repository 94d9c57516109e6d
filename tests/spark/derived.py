"""Computes derived tables of given rows, as the jobs do, for tests that say all of them in one call. Needs no Spark."""

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow

from spark_jobs.computation import add_rows, compute_rows, create_result, open_database
from spark_jobs.definitions import Definitions
from spark_jobs.schemas import TABLES
from spark_jobs.tables.registry import DERIVED_QUERIES, SUMMED_BY_DAY
from tests.spark import stored

NOON = datetime(2026, 9, 22, 12)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def alive(first: float, last: float, *, broker: int = 1, boot: str = "boot", **changes: Any) -> list[dict[str, Any]]:
    """Rows of ``completeness``: a run that began ``first`` seconds after noon, with a status each ten seconds.

    The last of them is of ``last`` seconds after noon. Each counts one event, its own.
    """
    statuses = [after(first + 10 * number) for number in range(1, int((last - first) // 10) + 1)]
    reported: dict[datetime, list[int]] = {}
    for number, at in enumerate(statuses, 1):
        reported.setdefault(at.replace(second=0, microsecond=0), []).append(number)
    return [
        {
            "day": minute.date(), "minute": minute, "cluster_id": "cluster", "broker_id": broker, "boot_id": boot,
            "envelopes": len(numbers), "events": len(numbers), "first_seq": numbers[0], "last_seq": numbers[-1],
            "statuses": len(numbers), "last_status": statuses[numbers[-1] - 1], "started_at": after(first),
            "emitted": numbers[-1], "ended": False, **changes,
        }
        for minute, numbers in reported.items()
    ]  # fmt: skip


NO_DEFINITIONS = Definitions()


def computed(
    name: str, inputs: Mapping[str, pyarrow.Table], definitions: Definitions = NO_DEFINITIONS, since: date | None = None
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
    return stored.plain(computed(*given))
