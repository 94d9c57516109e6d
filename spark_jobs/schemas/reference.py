"""Generates docs/tables.md from the descriptions of the tables."""

from __future__ import annotations

from spark_jobs.schemas import DEAD_LETTER_REASONS, DERIVED, STREAMED
from spark_jobs.schemas.model import Table

_MERGE_NAMES = {
    "key": "key",
    "sum": "sum",
    "min": "least",
    "max": "greatest",
    "last": "last",
    "counts": "sum of each element",
    None: "",
}


def markdown() -> str:
    """Return the text of docs/tables.md."""
    parts = [_PAGE_HEADER, "## Written from the audit topic\n"]
    for table in STREAMED.values():
        parts += _describe_table(table)
    parts.append("#### Reasons\n\n| `reason` | meaning |\n|---|---|")
    parts += [f"| `{reason}` | {meaning} |" for reason, meaning in DEAD_LETTER_REASONS.items()]
    parts.append("\n## Computed from those\n")
    for table in DERIVED.values():
        parts += _describe_table(table)
    return "\n".join(parts).rstrip() + "\n"


def _describe_table(table: Table) -> list[str]:
    parts = [f"### `{table.name}`\n", f"{table.meaning}\n"]
    if table.derived_from:
        parts.append(f"Computed from {', '.join(f'`{name}`' for name in table.derived_from)}.\n")
    parts.append(f"Kept for {table.retention_days:,} days unless a `Retention` says otherwise.\n")
    merges = bool(table.keys)
    parts.append(f"| column | type |{' merged |' if merges else ''} unit | source | meaning |")
    parts.append(f"|---|---|{'---|' if merges else ''}---|---|---|")
    for column in table.columns:
        merge = f" {_MERGE_NAMES[column.merge]} |" if merges else ""
        cells = (column.unit, column.source, column.meaning)
        parts.append(f"| `{column.name}` | {column.type} |{merge} {' | '.join(cells)} |")
    return [*parts, "", f"```sql\n{table.example}\n```\n"]


_PAGE_HEADER = """# Tables

Generated from `spark_jobs/schemas/`. `brokerside tables` lists the existing tables with their stored columns.

All tables are Delta tables below one root folder. They are written exactly once by `brokerside jobs run`. Any engine
that reads Delta can read them; `brokerside query "SELECT …"` does so without a JVM. Times are UTC.

Tables that are written from the audit topic are stored as partial rows: each batch of the job adds its own, so several
stored rows may have the same key. The column `merged` says how their values are merged. `brokerside query` shows merged
rows. Other engines see the stored rows: group by the key, which is correct in either case.

Sources are fields of the [audit event](audit-event.md) unless stated otherwise: fields of a request, and
the fields of a rollup with their sums.
"""
