"""Generates docs/tables.md and a page for each table from their descriptions."""

from __future__ import annotations

from collections.abc import Mapping

from spark_jobs.schemas import DEAD_LETTER_REASONS, DEAD_LETTERS, DERIVED, STREAMED, TABLES
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


def pages() -> dict[str, str]:
    """Return the text of each page by its path below docs/: the list of all tables, and one page for each."""
    found = {f"tables/{table.name}.md": _table_page(table) for table in TABLES.values()}
    index = [_PAGE_HEADER, "## Written from the audit topic\n", *_list_tables(STREAMED)]
    index += ["\n## Computed from those\n", *_list_tables(DERIVED)]
    return {"tables.md": "\n".join(index) + "\n", **found}


def _list_tables(tables: Mapping[str, Table]) -> list[str]:
    rows = [
        f"| [`{name}`](tables/{name}.md) | {table.meaning.partition('. ')[0].rstrip('.')}. |"
        for name, table in tables.items()
    ]
    return ["| table | rows |", "|---|---|", *rows]


def _table_page(table: Table) -> str:
    parts = _describe_table(table)
    if table is DEAD_LETTERS:
        parts.append("## Reasons\n\n| `reason` | meaning |\n|---|---|")
        parts += [f"| `{reason}` | {meaning} |" for reason, meaning in DEAD_LETTER_REASONS.items()]
    return "\n".join(parts).rstrip() + "\n"


def _describe_table(table: Table) -> list[str]:
    parts = [f"# `{table.name}`\n", f"{table.meaning}\n"]
    if table.derived_from:
        sources = ", ".join(f"[`{name}`]({name}.md)" for name in table.derived_from)
        parts.append(f"Computed from {sources}.\n")
    parts.append(f"Kept for {table.retention_days:,} days unless a `Retention` says otherwise.\n")
    merges = bool(table.keys)
    parts.append(f"| column | type |{' merged |' if merges else ''} unit | source | meaning |")
    parts.append(f"|---|---|{'---|' if merges else ''}---|---|---|")
    for column in table.columns:
        merge = f" {_MERGE_NAMES[column.merge]} |" if merges else ""
        cells = (column.unit, column.source, column.meaning)
        parts.append(f"| `{column.name}` | {column.type} |{merge} {' | '.join(cells)} |")
    answer = f"[Its answer](../answers-of-tables.md#{table.name}) for a scripted load; [all tables](../tables.md)."
    return [*parts, "\n## Example\n", f"```sql\n{table.example}\n```\n", f"{answer}\n"]


_PAGE_HEADER = """# Tables

Generated from `spark_jobs/schemas/`. `brokerside tables` lists the existing tables, and with a NAME its stored columns.

All tables are Delta tables below one root folder. They are written exactly once by `brokerside jobs run`. Any engine
that reads Delta can read them; `brokerside query "SELECT …"` does so without a JVM. Times are UTC.

Tables that are written from the audit topic are stored as partial rows: each batch of the job adds its own, so several
stored rows may have the same key. The column `merged` says how their values are merged. `brokerside query` shows merged
rows. Other engines see the stored rows: group by the key, which is correct in either case. How to delete the rows of a
person is in [jobs.md](jobs.md#delete-a-persons-rows).

Of equally recent values the greatest one holds. Within a batch the times of the events decide what is most recent,
between batches those of the stored rows. So if events arrive out of order, a last value may depend on the batches.

Sources are fields of the [audit event](audit-event.md) unless stated otherwise: fields of a request, and
the fields of a rollup with their sums.
"""
