"""Every table that the jobs write, column by column. Imports nothing but Python.

model.py      what a table and a column are.
traffic.py    what passed: ``traffic`` and ``latency``.
clients.py    who the clients are: ``clients``, ``connections``, ``throttles``, ``quota_advice``.
topics.py     what becomes of topics: ``inventory``, ``topics``, ``produced``, ``mirror_check``.
slo.py        objectives and how they are met: ``slo``.
cost.py       who costs what: ``cost``.
health.py     how far the tables can be believed: ``completeness``, ``dead_letters``.
reference.py  docs/tables.md, of the same descriptions that the tables carry as comments.
"""

from __future__ import annotations

from spark_jobs.schemas.clients import CLIENTS, CONNECTIONS, QUOTA_ADVICE, THROTTLES
from spark_jobs.schemas.cost import COST
from spark_jobs.schemas.health import COMPLETENESS, DEAD_LETTERS, REASONS
from spark_jobs.schemas.model import Column, Table
from spark_jobs.schemas.slo import SLO
from spark_jobs.schemas.topics import INVENTORY, MIRROR_CHECK, PRODUCED, TOPICS
from spark_jobs.schemas.traffic import LATENCY, TRAFFIC

__all__ = [
    "CLIENTS",
    "COMPLETENESS",
    "CONNECTIONS",
    "COST",
    "DEAD_LETTERS",
    "DERIVED",
    "INVENTORY",
    "LATENCY",
    "MIRROR_CHECK",
    "PRODUCED",
    "QUOTA_ADVICE",
    "REASONS",
    "SLO",
    "STREAMED",
    "TABLES",
    "THROTTLES",
    "TOPICS",
    "TRAFFIC",
    "Column",
    "Table",
]

STREAMED = {
    table.name: table
    for table in (
        COMPLETENESS, TRAFFIC, LATENCY, CLIENTS, CONNECTIONS, THROTTLES, INVENTORY, PRODUCED, DEAD_LETTERS,
    )
}  # fmt: skip
"""Tables that each batch of the audit topic adds to, by name. The first of them gets every batch."""

DERIVED = {table.name: table for table in (SLO, COST, TOPICS, MIRROR_CHECK, QUOTA_ADVICE)}
"""Tables that are computed from those, by name."""

TABLES = STREAMED | DERIVED
"""Every table, by name."""
