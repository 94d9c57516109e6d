"""Which function makes which table, and of what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date

from pyspark.sql import DataFrame

from spark_jobs.definitions import Definitions
from spark_jobs.parse import dead_letters
from spark_jobs.tables.slo import slo
from spark_jobs.tables.traffic import traffic


@dataclass(frozen=True)
class Batch:
    """What one batch of the stream, or a whole backfill, has to give."""

    parsed: DataFrame
    """The records, as ``parse.deduplicate`` gives them."""
    definitions: Definitions


@dataclass(frozen=True)
class Stored:
    """What the tables that were written from the audit topic say, merged."""

    tables: Mapping[str, DataFrame]
    definitions: Definitions
    since: date | None
    """The first day that is computed again; None: all of them."""


STREAMED: dict[str, Callable[[Batch], DataFrame]] = {
    "traffic": lambda batch: traffic(batch.parsed),
    "dead_letters": lambda batch: dead_letters(batch.parsed),
}
"""Makes partial rows of one batch, by table; see ``schemas.STREAMED``."""

DERIVED: dict[str, Callable[[Stored], DataFrame]] = {
    "slo": lambda stored: slo(
        stored.tables["latency"], stored.tables["traffic"], stored.definitions.objectives, stored.since
    ),
}
"""Makes all rows of ``since`` and later, by table; see ``schemas.DERIVED``."""
