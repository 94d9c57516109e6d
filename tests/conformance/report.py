"""Tables for a terminal that are Markdown too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.conformance.verdicts import Check, Row

HEAD = ("", "model", "broker", "sidecar", "sidecar, `recheck: false`")


def side_by_side(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of the table."""
    return table([HEAD, *((row.what, row.model, row.broker, row.sidecar, row.kafka) for row in rows)])


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; the first row is its head, the first column is what the others are of."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield f"| {' | '.join(cells)} |"
        if not number:
            yield f"|{'-' * (widths[0] + 2)}|{'|'.join('-' * (width + 1) + ':' for width in widths[1:])}|"


def judged(checks: Sequence[Check]) -> Iterator[str]:
    """Yield how many hold, and each that does not."""
    failed = [check for check in checks if not check.ok]
    yield f"{len(checks) - len(failed)} of {len(checks)} checks hold"
    for check in failed:
        yield f"NOT: {check.what}"
