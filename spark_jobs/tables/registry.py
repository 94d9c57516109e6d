"""Which function makes which table, and of what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property

from pyspark.sql import DataFrame

from spark_jobs import schemas
from spark_jobs.definitions import Definitions
from spark_jobs.parse import dead_letter_rows
from spark_jobs.schemas import TABLES
from spark_jobs.tables.clients import clients
from spark_jobs.tables.completeness import completeness
from spark_jobs.tables.connections import connections
from spark_jobs.tables.cost import cost
from spark_jobs.tables.inventory import inventory
from spark_jobs.tables.latency import latency
from spark_jobs.tables.mirror_check import mirror_check
from spark_jobs.tables.produced import produced
from spark_jobs.tables.quota_advice import quota_advice
from spark_jobs.tables.request_measures import summed
from spark_jobs.tables.slo import slo
from spark_jobs.tables.throttles import throttles
from spark_jobs.tables.topics import topics
from spark_jobs.tables.traffic import traffic
from spark_jobs.tables.unmatched import charges, objectives


@dataclass(frozen=True)
class Batch:
    """What one batch of the stream, or a whole backfill, has to give."""

    parsed: DataFrame
    """The records, as ``parse.deduplicate`` gives them."""
    definitions: Definitions

    @cached_property
    def requests(self) -> DataFrame:
        """What requests and rollups add up to; made once, by the first table that needs it."""
        return summed(self.parsed).persist()

    def release(self) -> None:
        """Forget what was kept for the tables. To be called when they are written."""
        if "requests" in self.__dict__:
            self.requests.unpersist()


@dataclass(frozen=True)
class Stored:
    """What the tables that were written from the audit topic say, merged but for ``AS_STORED``."""

    tables: Mapping[str, DataFrame]
    definitions: Definitions
    since: date | None
    """The first day that is computed again; None: all of them."""


STREAMED: dict[str, Callable[[Batch], DataFrame]] = {
    "traffic": lambda batch: traffic(batch.requests),
    "latency": lambda batch: latency(batch.requests),
    "clients": lambda batch: clients(batch.requests),
    "completeness": lambda batch: completeness(batch.parsed),
    "connections": lambda batch: connections(batch.parsed),
    "throttles": lambda batch: throttles(batch.parsed),
    "inventory": lambda batch: inventory(batch.parsed),
    "produced": lambda batch: produced(batch.parsed, batch.definitions.mirrors),
    "dead_letters": lambda batch: dead_letter_rows(batch.parsed),
}
"""Makes partial rows of one batch, by table; see ``schemas.STREAMED``."""

DERIVED: dict[str, Callable[[Stored], DataFrame]] = {
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
    "mirror_check": lambda stored: mirror_check(
        stored.tables["produced"], stored.tables["completeness"], stored.definitions.mirrors, stored.since
    ),
    "quota_advice": lambda stored: quota_advice(
        stored.tables["connections"], stored.tables["throttles"], stored.tables["completeness"]
    ),
}
"""Makes all rows of ``since`` and later, by table; see ``schemas.DERIVED``."""

UNMATCHED: dict[str, Callable[[DataFrame, Definitions], list[str]]] = {"slo": objectives, "cost": charges}
"""Tells, of all rows of a table, which of the definitions met nothing."""

AS_STORED: dict[str, tuple[str, ...]] = {
    "slo": ("latency", "traffic"),
    "cost": ("traffic",),
    "topics": ("traffic",),
}
"""Inputs that a table gets without being merged first: it takes only sums, the greatest and the least of them. To merge
them costs more than the table itself."""

EDITIONS: dict[str, int] = {"slo": 2, "cost": 1, "topics": 1, "mirror_check": 1, "quota_advice": 1}
"""To be raised with a release that computes other values of the same inputs: the table is then computed anew."""

DEAD = "dead letter"

FED_BY: dict[str, tuple[str, ...]] = {
    "traffic": ("request", "rollup"),
    "latency": ("request", "rollup"),
    "clients": ("request", "rollup"),
    "produced": ("request", "rollup"),
    "connections": ("connection",),
    "throttles": ("throttle",),
    "inventory": ("topic_inventory",),
    "dead_letters": (DEAD,),
}
"""Kinds of events that a table's rows are made of, where that are not all: a batch without them has nothing for it."""

DECLARED: dict[str, Callable[[Definitions], object]] = {
    "produced": lambda definitions: definitions.mirrors,
    "mirror_check": lambda definitions: definitions.mirrors,
    "slo": lambda definitions: definitions.objectives,
    "cost": lambda definitions: definitions.prices and (definitions.prices, definitions.owners, definitions.zones),
}
"""What of the definitions a table is made of: without that there are no rows of it, and with other ones it is made
anew."""


def undeclared(names: Collection[str], definitions: Definitions) -> list[str]:
    """Return those of the tables ``names`` that the definitions have nothing for: they are not made."""
    return [name for name in names if name in DECLARED and not DECLARED[name](definitions)]


def chosen(only: Collection[str] | None) -> tuple[str, ...]:
    """Return the names of the tables that are made, inputs before what is computed of them.

    ``only``: names of tables, which are made with all they are computed from; None: all.
    """
    names = {*(TABLES if only is None else only)}
    names |= {source for name in names for source in TABLES[name].derived_from}
    return tuple(name for name in (*schemas.STREAMED, *schemas.DERIVED) if name in names & {*STREAMED, *DERIVED})
