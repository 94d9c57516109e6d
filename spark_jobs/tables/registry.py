"""Maps each table to the function that computes it, its inputs, and the definitions it uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame

from spark_jobs import schemas
from spark_jobs.definitions import Definitions
from spark_jobs.parse import dead_letter_rows
from spark_jobs.schemas import TABLES
from spark_jobs.tables.changes import changes
from spark_jobs.tables.clients import clients
from spark_jobs.tables.completeness import completeness
from spark_jobs.tables.connections import connections
from spark_jobs.tables.cost import cost
from spark_jobs.tables.groups import committed_offsets, end_offsets, group_members
from spark_jobs.tables.inventory import inventory
from spark_jobs.tables.lag import DAYS_BEFORE, LAG_SQL
from spark_jobs.tables.latency import latency
from spark_jobs.tables.member_topics import GROUPS_SQL
from spark_jobs.tables.mirror_check import mirror_check
from spark_jobs.tables.produced import produced
from spark_jobs.tables.quota_advice import QUOTA_ADVICE_SQL
from spark_jobs.tables.request_measures import measure_requests
from spark_jobs.tables.slo import days_read, slo
from spark_jobs.tables.throttles import throttles
from spark_jobs.tables.topics import TOPICS_SQL
from spark_jobs.tables.traffic import traffic
from spark_jobs.tables.unmatched import Fetch, unmatched_charges, unmatched_objectives


@dataclass(frozen=True)
class ParsedBatch:
    """The parsed records of one batch of the stream, or of a whole backfill."""

    parsed: DataFrame
    """The records, as ``parse.deduplicate`` gives them."""
    definitions: Definitions

    @cached_property
    def requests(self) -> DataFrame:
        """The sums of requests and rollups. They are computed once and cached, because several tables use them."""
        return measure_requests(self.parsed).persist()

    def unpersist(self) -> None:
        """Release the cached data. Called when the tables are written."""
        if "requests" in self.__dict__:
            self.requests.unpersist()


STREAMED_FUNCTIONS: dict[str, Callable[[ParsedBatch], DataFrame]] = {
    "traffic": lambda batch: traffic(batch.requests),
    "latency": lambda batch: latency(batch.requests),
    "clients": lambda batch: clients(batch.requests),
    "completeness": lambda batch: completeness(batch.parsed),
    "connections": lambda batch: connections(batch.parsed),
    "throttles": lambda batch: throttles(batch.parsed),
    "changes": lambda batch: changes(batch.parsed),
    "group_members": lambda batch: group_members(batch.parsed),
    "committed_offsets": lambda batch: committed_offsets(batch.parsed),
    "end_offsets": lambda batch: end_offsets(batch.parsed),
    "inventory": lambda batch: inventory(batch.parsed),
    "produced": lambda batch: produced(batch.parsed, batch.definitions.mirrors),
    "dead_letters": lambda batch: dead_letter_rows(batch.parsed),
}
"""By table, the function that computes the partial rows of one batch; see ``schemas.STREAMED``."""

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
    "slo": 2, "cost": 1, "topics": 1, "groups": 1, "lag": 1, "mirror_check": 1, "quota_advice": 1,
}  # fmt: skip
"""Version of each computation. Increase it when the same inputs give other values: the table is then computed again."""

DEAD_LETTER_KIND = "dead letter"
CHANGE_KIND = "change"
"""Requests that change something, and denied ones."""

EVENT_KINDS: dict[str, tuple[str, ...]] = {
    "traffic": ("request", "rollup"),
    "latency": ("request", "rollup"),
    "clients": ("request", "rollup"),
    "produced": ("request", "rollup"),
    "connections": ("connection",),
    "throttles": ("throttle",),
    "changes": (CHANGE_KIND,),
    "group_members": ("group",),
    "committed_offsets": ("group",),
    "end_offsets": ("end_offsets",),
    "inventory": ("topic_inventory",),
    "dead_letters": (DEAD_LETTER_KIND,),
}
"""Kinds of events that a table is computed from. A batch without them has no rows for it. Not listed: all kinds."""

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
    return tuple(
        name
        for name in (*schemas.STREAMED, *schemas.DERIVED)
        if name in names & {*STREAMED_FUNCTIONS, *DERIVED_QUERIES}
    )
