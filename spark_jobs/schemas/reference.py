"""docs/tables.md, made of the descriptions of the tables."""

from __future__ import annotations

from spark_jobs.schemas import DERIVED, REASONS, STREAMED
from spark_jobs.schemas.model import Table

_MERGES = {
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
    parts = [_HEAD, "## Written from the audit topic\n"]
    for table in STREAMED.values():
        parts += _described(table)
    parts.append("#### Reasons\n\n| `reason` | meaning |\n|---|---|")
    parts += [f"| `{reason}` | {meaning} |" for reason, meaning in REASONS.items()]
    parts.append("\n## Computed from those\n")
    for table in DERIVED.values():
        parts += _described(table)
    return "\n".join(parts).rstrip() + "\n"


def _described(table: Table) -> list[str]:
    parts = [f"### `{table.name}`\n", f"{table.meaning}\n"]
    if table.derived_from:
        parts.append(f"Computed from {', '.join(f'`{name}`' for name in table.derived_from)}.\n")
    parts.append(f"Kept for {table.retention_days:,} days unless a `Retention` says otherwise.\n")
    merges = bool(table.keys)
    parts.append(f"| column | type |{' merged |' if merges else ''} unit | source | meaning |")
    parts.append(f"|---|---|{'---|' if merges else ''}---|---|---|")
    parts += [
        f"| `{c.name}` | {c.type} |{f' {_MERGES[c.merge]} |' if merges else ''} {c.unit} | {c.source} | {c.meaning} |"
        for c in table.columns
    ]
    return [*parts, "", f"```sql\n{table.example}\n```\n"]


_HEAD = """# Tables

Generated from `spark_jobs/schemas/`. `brokerside tables` lists the tables that exist, and their
columns as they are stored.

All tables are Delta tables below one root folder, written exactly once by `brokerside jobs run`. Any engine that reads
Delta can read them; `brokerside query "SELECT …"` does so without a JVM. Times are UTC.

Tables that are written from the audit topic are stored as partial rows: each batch of the job adds its own, so several
stored rows may have the same key. How they become one is said of each column under `merged`. `brokerside query` shows
them merged. Other engines see the stored rows: group by the key, which is right in either case.

The sources are fields of the [audit event](audit-event.md) unless said otherwise: of a request, and of a rollup those
that sum them up.
"""
