"""Maps each derived table to the function that computes it, its inputs, and the definitions it uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import date

from pyspark.sql import DataFrame

from spark_jobs.definitions import Definitions
from spark_jobs.schemas import TABLES
from spark_jobs.tables.cost import cost
from spark_jobs.tables.groups import groups
from spark_jobs.tables.lag import lag
from spark_jobs.tables.mirror_check import mirror_check
from spark_jobs.tables.quota_advice import quota_advice
from spark_jobs.tables.slo import slo
from spark_jobs.tables.topics import topics
from spark_jobs.tables.unmatched import unmatched_charges, unmatched_objectives


@dataclass(frozen=True)
class InputTables:
    """The inputs of a derived table: streamed tables with merged rows, except for ``UNMERGED_INPUTS``."""

    tables: Mapping[str, DataFrame]
    definitions: Definitions
    since: date | None
    """The first day to be computed; None: all days."""


DERIVED_FUNCTIONS: dict[str, Callable[[InputTables], DataFrame]] = {
    "slo": lambda stored: slo(
        stored.tables["latency"], stored.tables["traffic"], stored.definitions.objectives, stored.since
    ),
    "cost": lambda stored: cost(
        stored.tables["traffic"],
        stored.tables["connections"],
        stored.tables["inventory"],
        stored.tables["completeness"],
        stored.definitions,
        stored.since,
    ),
    "topics": lambda stored: topics(
        stored.tables["traffic"], stored.tables["inventory"], stored.tables["completeness"]
    ),
    "groups": lambda stored: groups(stored.tables["group_members"], stored.tables["traffic"], stored.since),
    "lag": lambda stored: lag(stored.tables["committed_offsets"], stored.tables["end_offsets"], stored.since),
    "mirror_check": lambda stored: mirror_check(
        stored.tables["produced"], stored.tables["completeness"], stored.definitions.mirrors, stored.since
    ),
    "quota_advice": lambda stored: quota_advice(
        stored.tables["connections"], stored.tables["throttles"], stored.tables["completeness"]
    ),
}
"""By table, the function that computes all rows of the day ``since`` and later; see ``schemas.DERIVED``."""

UNMATCHED_FUNCTIONS: dict[str, Callable[[DataFrame, Definitions], list[str]]] = {
    "slo": unmatched_objectives,
    "cost": unmatched_charges,
}
"""By table, the function that returns the definitions that no row of the table matches."""

UNMERGED_INPUTS: dict[str, tuple[str, ...]] = {
    "slo": ("latency", "traffic"),
    "cost": ("traffic",),
    "topics": ("traffic",),
    "groups": ("traffic",),
}
"""By table, the inputs that are not merged first, because only sums, maxima and minima of them are used. Merging them
would cost more than computing the table."""

COMPUTATION_VERSIONS: dict[str, int] = {
    "slo": 2, "cost": 1, "topics": 1, "groups": 1, "lag": 1, "mirror_check": 1, "quota_advice": 1,
}  # fmt: skip
"""Version of each computation. Increase it when the same inputs give other values: the table is then computed again."""

DEFINITIONS_USED: dict[str, Callable[[Definitions], object]] = {
    "produced": lambda definitions: definitions.mirrors,
    "mirror_check": lambda definitions: definitions.mirrors,
    "slo": lambda definitions: definitions.objectives,
    "cost": lambda definitions: definitions.prices and (definitions.prices, definitions.owners, definitions.zones),
}
"""By table, the definitions that it uses. Without any it has no rows. When they change, it is computed again."""


def tables_without_definitions(names: Collection[str], definitions: Definitions) -> list[str]:
    """Return those of the tables ``names`` that need definitions and have none. They are not written."""
    return [name for name in names if name in DEFINITIONS_USED and not DEFINITIONS_USED[name](definitions)]


def selected_tables(only: Collection[str] | None) -> tuple[str, ...]:
    """Return the names of the tables to be written, inputs before the tables that are computed from them.

    ``only``: names of the tables wanted; the tables they are computed from are added. None: all tables.
    """
    names = {*(TABLES if only is None else only)}
    names |= {source for name in names for source in TABLES[name].derived_from}
    return tuple(name for name in TABLES if name in names)
