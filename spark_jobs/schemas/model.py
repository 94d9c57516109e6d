"""The description of tables and columns, for jobs, queries and docs. Imports only the standard library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Merge = Literal["key", "sum", "min", "max", "last", "counts"]
"""How the values of stored rows with equal keys are merged into one value. NULL values are ignored.

``key``: a key column. ``last``: the value of the row with the greatest value in the column ``Table.order``. ``counts``:
arrays, which are added element by element.
"""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: str
    """Spark's name of the type, one of ``spark_jobs.spark_types.ARROW_TYPES``."""
    meaning: str
    unit: str = ""
    source: str = ""
    merge: Merge | None = None
    """None in a table without keys, whose rows are never merged."""


@dataclass(frozen=True)
class Table:
    """One table. It is partitioned by its column ``day``."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    example: str
    """A SELECT over the tables with merged rows, as in ``brokerside query``."""
    retention_days: int = 400
    """Days of ``day`` that are retained, unless a definition overrides it."""
    derived_from: tuple[str, ...] = ()
    """Tables that this one is computed from; empty for streamed tables."""
    whole: bool = False
    """Only for derived tables: it is always computed as a whole, not from the first changed day on."""
    order: str = ""
    """Column by which the last of several stored rows is determined; required for the merge rule ``last``."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns in order; empty if rows are never merged."""
        return tuple(column.name for column in self.columns if column.merge == "key")


def key_column(name: str, type: str, meaning: str, unit: str = "", source: str | None = None) -> Column:
    """Return a key column. ``source``: default ``name``."""
    return merged_column("key", name, type, meaning, unit, source)


def sum_column(name: str, meaning: str, unit: str, source: str | None = None) -> Column:
    """Return a column of counts that are summed. ``source``: default ``name``."""
    return merged_column("sum", name, "bigint", meaning, unit, source)


def merged_column(
    merge: Merge, name: str, type: str, meaning: str, unit: str = "", source: str | None = None
) -> Column:
    """Return a column with any merge rule. ``source``: default ``name``."""
    return Column(name, type, meaning, unit, name if source is None else source, merge)


DAY = key_column("day", "date", "Day of `minute`; the table is partitioned by it.", "UTC", "")
CLUSTER = key_column("cluster_id", "string", "The Kafka cluster's own id.")
BROKER = key_column("broker_id", "int", "The broker whose sidecar sent the events.")
BOOT = key_column("boot_id", "string", "Boot of the sidecar, or of one of its workers.")
LISTENER = key_column("listener", "string", "Listener that the client connected to.")
API = key_column("api", "string", "Kind of request: `Produce`, `Fetch`, `Metadata`, …")
PRINCIPAL = key_column("principal", "string", "Principal of the client, `User:<name>`.")
CLIENT_ID = key_column("client_id", "string", "Client id chosen by the client; may be NULL.")
CLIENT_IP = key_column("client_ip", "string", "Address of the client.")
