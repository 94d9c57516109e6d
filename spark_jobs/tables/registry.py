"""Maps each derived table to the function that computes it, its inputs, and the definitions it uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from spark_jobs.definitions import Definitions
from spark_jobs.schemas import TABLES
from spark_jobs.tables.cost import cost
from spark_jobs.tables.lag import DAYS_BEFORE, LAG_SQL
from spark_jobs.tables.member_topics import GROUPS_SQL
from spark_jobs.tables.mirror_check import mirror_check
from spark_jobs.tables.quota_advice import QUOTA_ADVICE_SQL
from spark_jobs.tables.slo import days_read, slo
from spark_jobs.tables.topics import TOPICS_SQL
from spark_jobs.tables.unmatched import Fetch, unmatched_charges, unmatched_objectives

DERIVED_QUERIES: dict[str, Callable[[Definitions], str]] = {
    "slo": lambda definitions: slo(definitions.objectives),
    "cost": cost,
    "topics": lambda _: TOPICS_SQL,
    "groups": lambda _: GROUPS_SQL,
    "lag": lambda _: LAG_SQL,
    "mirror_check": lambda definitions: mirror_check(definitions.mirrors),
    "quota_advice": lambda _: QUOTA_ADVICE_SQL,
}
"""By table, SQL (DuckDB's) of the rows of the days in the relation ``wanted``; see ``schemas.DERIVED``."""

DAYS_READ: dict[str, Callable[[Definitions], Mapping[str, Sequence[int] | None]]] = {
    "slo": lambda definitions: dict.fromkeys(("latency", "traffic"), days_read(definitions.objectives)),
    "cost": lambda _: {"traffic": (0,), "connections": None, "inventory": (0, 1), "completeness": (0,)},
    "groups": lambda _: {"group_members": (0,), "traffic": (0,)},
    "lag": lambda _: dict.fromkeys(("committed_offsets", "end_offsets"), range(DAYS_BEFORE + 1)),
    "mirror_check": lambda _: {"produced": None, "completeness": None},
}
"""By table that is not computed as a whole, the days of each input that a day is computed from: so many days before
it, in ascending order; None: all days up to it."""

SUMMED_BY_DAY = ("slo",)
"""Tables that are also computed from their own rows, of the days in between those of ``DAYS_READ``."""

UNMATCHED_FUNCTIONS: dict[str, Callable[[Fetch, Definitions], list[str]]] = {
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
    "slo": 2, "cost": 1, "topics": 1, "groups": 1, "lag": 2, "mirror_check": 1, "quota_advice": 2,
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
