"""What a table and a column are. Imports nothing but Python: read by the jobs, by queries, and by the docs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Merge = Literal["key", "sum", "min", "max", "last", "counts"]
"""How values of stored rows with equal keys become one. NULL is passed over by all of them.

``key``: what the row is about. ``last``: that of the row whose column ``Table.order`` is greatest. ``counts``: arrays,
added element by element.
"""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: str
    """Spark's name of the type; see ``spark_jobs.spark_types.SPARK_TYPES``."""
    meaning: str
    unit: str = ""
    source: str = ""
    merge: Merge | None = None
    """None in a table whose rows each stand for themselves."""


@dataclass(frozen=True)
class Table:
    """One table."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    example: str
    """A SELECT over the tables as ``brokerside query`` shows them; its answer on the test's ledger is in the docs."""
    partitioned_by: tuple[str, ...] = ("day",)
    retention_days: int = 400
    """Days that are kept, by ``day``, unless the definitions say otherwise."""
    derived_from: tuple[str, ...] = ()
    """Tables that this one is computed from; empty where the audit topic itself is read."""
    whole: bool = False
    """Of a derived table: computed anew as a whole, not from the first day on whose inputs changed."""
    order: str = ""
    """Column that says which of several stored rows is the last; needed for ``last``."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns, in order; empty where each row stands for itself."""
        return tuple(column.name for column in self.columns if column.merge == "key")

    @property
    def merged(self) -> tuple[Column, ...]:
        """The columns that are merged over rows with equal keys; empty where each row stands for itself."""
        return tuple(column for column in self.columns if column.merge not in (None, "key"))


def key(name: str, type: str, meaning: str, unit: str = "", source: str = "") -> Column:
    """Return a column that is part of what a row is about."""
    return Column(name, type, meaning, unit, source, "key")


def total(name: str, meaning: str, unit: str, source: str = "") -> Column:
    """Return a column of counts that add up."""
    return Column(name, "bigint", meaning, unit, source, "sum")


def merged(merge: Merge, name: str, type: str, meaning: str, unit: str = "", source: str = "") -> Column:
    """Return a column that is merged in another way."""
    return Column(name, type, meaning, unit, source, merge)


DAY = key("day", "date", "Day of `minute`; the table is partitioned by it.", "UTC")
CLUSTER = key("cluster_id", "string", "The Kafka cluster's own id.", source="cluster_id")
BROKER = key("broker_id", "int", "The broker whose sidecar told it.", source="broker_id")
BOOT = key("boot_id", "string", "Run of the sidecar, or of one of its workers.", source="boot_id")
LISTENER = key("listener", "string", "Listener the client came in by.", source="listener")
API = key("api", "string", "Kind of request: `Produce`, `Fetch`, `Metadata`, …", source="api")
PRINCIPAL = key("principal", "string", "Who the client is, `User:<name>`.", source="principal")
CLIENT_ID = key("client_id", "string", "Client id as the client chose it; may be NULL.", source="client_id")
CLIENT_IP = key("client_ip", "string", "Address of the client.", source="client_ip")
