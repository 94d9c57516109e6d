"""``brokerside top``: what a sidecar does, live in a terminal or once as plain text."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

from proxy import admin_client
from proxy.errors import LocalError
from proxy.text_table import fold, format_table, printable, terminal_width
from proxy.top import GROUPINGS, SORT_COLUMNS, ClientRow, Sample, Totals, api_rows, client_rows, parse_metrics, totals

if TYPE_CHECKING:
    from proxy.config import Endpoint

ROWS_WITHOUT_TERMINAL = 20
APIS = 8
KEY_LINES = 2
"""Lines of the screen below the page."""

NUMBERS_WIDTH = 66
"""Characters of a line that are no name, mostly."""

MIN_NAME, MAX_NAME = 14, 60
LISTED = 10_000
"""Connections that are asked for: those that were active last."""

KEYS = "q quit   s sort   b group by"


def show(admin: Endpoint, by: str, sort: str, interval: float) -> None:
    """Show it until ``q`` or Ctrl-C; without a terminal once. Raises LocalError if no sidecar answers at first."""
    if not 0.1 <= interval <= 60:
        raise LocalError(f"--interval is {interval:g}; allowed are 0.1 to 60 seconds")
    before = _sample(admin)
    if not sys.stdout.isatty():
        time.sleep(interval)
        print(_page(before, _sample(admin), by, sort))
        return
    _run_live(admin, before, by, sort, interval)


def _sample(admin: Endpoint) -> Sample:
    connections = admin_client.get_connections(admin, {"limit": str(LISTED)})
    return Sample(time.monotonic(), connections, parse_metrics(admin_client.get_metrics(admin)))


def _run_live(admin: Endpoint, before: Sample, by: str, sort: str, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    page = "collecting …"
    after: Sample | None = None
    with _keys(), Live(Text(page), console=console, screen=True, auto_refresh=False) as live:
        next_at = time.monotonic() + interval
        while True:
            key = _read_key(max(0.0, next_at - time.monotonic()))
            if key == "q":
                return
            if key == "s":
                sort = _following(SORT_COLUMNS, sort)
            elif key == "b":
                by = _following(GROUPINGS, by)
            elif time.monotonic() >= next_at:
                next_at = time.monotonic() + interval
                try:
                    sampled = _sample(admin)
                except LocalError as error:  # it restarts
                    live.update(Text(f"brokerside: {error}"), refresh=True)
                    continue
                before, after = after or before, sampled
            if after is not None:
                page = _page(before, after, by, sort, console.size.height)
                live.update(Text(f"{page}\n\n{KEYS}", no_wrap=True, overflow="ellipsis"), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Let single keys be read, where standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    saved = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)


def _read_key(timeout: float) -> str:
    """Return the next key within ``timeout`` seconds, or an empty text."""
    if not sys.stdin.isatty():
        time.sleep(timeout)
        return ""
    ready = select.select([sys.stdin], [], [], timeout)[0]
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") if ready else ""


def _following(values: tuple[str, ...], value: str) -> str:
    return values[(values.index(value) + 1) % len(values)]


def _page(before: Sample, after: Sample, by: str, sort: str, height: int | None = None) -> str:
    clients = client_rows(before, after, by, sort)
    most = ROWS_WITHOUT_TERMINAL if height is None else height
    page = _rows(before, after, clients[:most], by, sort, len(clients))
    while height is not None and most > 1 and len(page.splitlines()) > height - KEY_LINES:
        most -= 1
        page = _rows(before, after, clients[:most], by, sort, len(clients))
    return page


def _rows(before: Sample, after: Sample, shown: Sequence[ClientRow], by: str, sort: str, clients: int) -> str:
    """``shown``: the first of so many ``clients``."""
    head = (by.upper().replace("_", " "), "CONNECTIONS", "IN FLIGHT", "REQUESTS/S", "BYTES IN/S", "BYTES OUT/S")
    rows = [
        (_cut(row.name), f"{row.connections:,}", f"{row.in_flight:,}", f"{row.requests:,.0f}",
         f"{row.received_bytes:,.0f}", f"{row.sent_bytes:,.0f}")
        for row in shown
    ]  # fmt: skip
    apis = [
        (row.api, f"{row.requests:,.0f}", _rate(row.errors), _milliseconds(row.p50_ms), _milliseconds(row.p99_ms))
        for row in api_rows(before, after)[:APIS]
    ]
    parts = [_summary(totals(before, after)), format_table(head, rows)]
    if apis:
        parts.append(format_table(("API", "REQUESTS/S", "ERRORS/S", "P50", "P99"), apis))
    if clients > len(shown):
        parts.insert(2, f"and {clients - len(shown):,} more, sorted by {sort}")
    listed, found = len(after.connections.connections), after.connections.chosen
    if listed < found:
        parts.insert(1, f"of the {listed:,} connections that were active last; {found - listed:,} are idle for longer")
    if after.connections.unanswered:
        parts.append(f"workers that do not answer: {', '.join(map(str, after.connections.unanswered))}")
    return "\n\n".join(parts)


def _summary(found: Totals) -> str:
    texts = [
        f"{found.connections:,} connections",
        f"{found.requests:,.0f} requests/s",
        "errors not measured" if found.errors is None else f"{found.errors:,.1f} errors/s",
        f"{found.throttled:,.1f} connections/s throttled",
        f"event loop {found.loop_lag_ms:,.0f} ms late",
    ]
    if found.audit_waiting is not None:
        texts.append(f"audit: {found.audit_waiting:,} events wait, {found.audit_lost:,} lost")
    return fold(texts, gap="   ")


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}"


def _milliseconds(time_ms: float | None) -> str:
    if time_ms is None:
        return "-"
    return "more" if time_ms == inf else f"{time_ms:,.1f} ms"


def _cut(name: str) -> str:
    shown = printable(name)
    most = int(max(MIN_NAME, min(MAX_NAME, terminal_width() - NUMBERS_WIDTH)))
    return shown if len(shown) <= most else shown[: most - 1] + "…"
