"""Every table that the jobs write, with its columns. Imports only the standard library.

model.py      the description of tables and columns.
traffic.py    traffic by minute: ``traffic`` and ``latency``.
clients.py    clients and their connections: ``clients``, ``connections``, ``throttles``, ``quota_advice``.
changes.py    changes and denials: ``changes``.
topics.py     topics and their mirrors: ``inventory``, ``topics``, ``produced``, ``mirror_check``.
groups.py     consumer groups: ``group_members``, ``committed_offsets``, ``end_offsets``, ``groups``, ``lag``.
slo.py        objectives and how they are met: ``slo``.
cost.py       costs: ``cost``.
health.py     completeness of the data: ``completeness``, ``dead_letters``.
reference.py  generates docs/tables.md from these descriptions, which the tables have as comments.
"""

from __future__ import annotations

from spark_jobs.schemas.changes import CHANGES
from spark_jobs.schemas.clients import CLIENTS, CONNECTIONS, QUOTA_ADVICE, THROTTLES
from spark_jobs.schemas.cost import COST
from spark_jobs.schemas.groups import COMMITTED_OFFSETS, END_OFFSETS, GROUP_MEMBERS, GROUPS, LAG
from spark_jobs.schemas.health import COMPLETENESS, DEAD_LETTER_REASONS, DEAD_LETTERS
from spark_jobs.schemas.model import Column, Table
from spark_jobs.schemas.slo import SLO
from spark_jobs.schemas.topics import INVENTORY, MIRROR_CHECK, PRODUCED, TOPICS
from spark_jobs.schemas.traffic import LATENCY, TRAFFIC

__all__ = [
    "CHANGES", "CLIENTS", "COMMITTED_OFFSETS", "COMPLETENESS", "CONNECTIONS", "COST", "DEAD_LETTERS",
    "DEAD_LETTER_REASONS", "DERIVED", "END_OFFSETS", "GROUPS", "GROUP_MEMBERS", "INVENTORY", "LAG", "LATENCY",
    "MIRROR_CHECK", "PRODUCED", "QUOTA_ADVICE", "SLO", "STREAMED", "TABLES", "THROTTLES", "TOPICS", "TRAFFIC",
    "Column", "Table",
]  # fmt: skip

STREAMED = {
    table.name: table
    for table in (
        COMPLETENESS, TRAFFIC, LATENCY, CLIENTS, CONNECTIONS, THROTTLES, CHANGES, GROUP_MEMBERS, COMMITTED_OFFSETS,
        END_OFFSETS, INVENTORY, PRODUCED, DEAD_LETTERS,
    )
}  # fmt: skip
"""Tables that each batch of the audit topic adds to, by name. The first one is written with every batch."""

DERIVED = {table.name: table for table in (SLO, COST, TOPICS, GROUPS, LAG, MIRROR_CHECK, QUOTA_ADVICE)}
"""Tables that are computed from streamed tables, by name."""

TABLES = STREAMED | DERIVED
"""Every table, by name."""
