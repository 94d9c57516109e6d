"""Tables for a terminal that are Markdown too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.tools.conformance.reload import Reload
from tests.tools.conformance.storm import LIMIT, RATE, Beside, Cost
from tests.tools.conformance.verdicts import Check, Row, quantile

HEAD = ("", "model", "broker", "sidecar", "sidecar, `recheck: false`")


def side_by_side(rows: Iterable[Row]) -> Iterator[str]:
    return table([HEAD, *((row.what, row.model, row.broker, row.sidecar, row.kafka) for row in rows)])


def beside_rows(all_: Iterable[Beside]) -> list[tuple[str, ...]]:
    """Return the table of the storms beside a producer."""
    rows: list[tuple[str, ...]] = [(f"a producer beside {RATE:,.0f} connects/s", "before", "during", "ratio")]
    for one in all_:
        rows.append((f"{one.setting.title}, {one.offered:,} connects", "", "", ""))
        rows += _latency_rows("", one.before, one.during)
        if not one.setting.broker:
            rows += _latency_rows(", past the sidecar", one.past_before, one.past_during)
        if not one.setting.broker:
            rows.append((f"– let through, with a limit of {LIMIT}/s", "", f"{one.admitted:,} of {one.allowed:,}", ""))
        rows.append(("– answered", "", f"{one.answered:,}", ""))
    return rows


def _latency_rows(where: str, before: Sequence[float], during: Sequence[float]) -> Iterator[tuple[str, ...]]:
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)):
        calm, stormy = quantile(sorted(before), share), quantile(sorted(during), share)
        yield f"– {name}{where}", f"{1000 * calm:.2f} ms", f"{1000 * stormy:.2f} ms", f"{stormy / calm:.2f}"


def cost_rows(cost: Cost) -> list[tuple[str, ...]]:
    return [
        ("a connection costs", "CPU of the sidecar"),
        (f"accepted, with one request ({cost.accepts:,.0f}/s, of the whole machine)", f"{cost.accepted_us:.0f} µs"),
        ("held, looked at again, refused", f"{cost.held_us:.0f} µs"),
        ("refused at once", f"{cost.dropped_us:.0f} µs"),
    ]


def reload_rows(reload: Reload) -> list[tuple[str, ...]]:
    return [
        ("a higher limit, from SIGHUP", "sidecar"),
        ("– until it acts", f"{1000 * reload.acts:.0f} ms"),
        (f"– of {reload.connections} connections closed", f"{reload.closed}"),
    ]


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
