"""Open connections as text for a person."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.net.open_connections import ConnectionsView, KafkaConnection
from proxy.text_table import format_table, printable

COLUMNS = ("ID", "CLIENT", "PRINCIPAL", "CLIENT ID", "SOFTWARE", "GROUP", "STATE", "AGE", "IDLE", "IN FLIGHT")
TOTALS = ("REQUESTS", "BYTES IN", "BYTES OUT")
RATES = ("REQUESTS/S", "BYTES IN/S", "BYTES OUT/S")
LEFT = tuple(range(7))

MAX_CELL = 40
"""Characters of a text in the table; longer ones are cut and end in ``…``."""

Counts = tuple[int, int, int]


def counts_of(view: ConnectionsView) -> dict[str, Counts]:
    """Return requests and bytes of each connection, to compute rates from."""
    return {one.id: (one.request_count, one.received_bytes, one.sent_bytes) for one in view.connections}


def format_text(view: ConnectionsView, now: float, before: Mapping[str, Counts] | None, seconds: float) -> str:
    """Return the table of ``view``.

    ``now``: seconds since 1970. ``before``: counts of ``seconds`` ago, for rates; None: totals are shown. A connection
    that was opened since has no rates.
    """
    parts = []
    if view.connections:
        rows = [_row(one, now, before, seconds) for one in view.connections]
        parts.append(format_table((*COLUMNS, *(TOTALS if before is None else RATES)), rows, left=LEFT))
    shown = len(view.connections)
    others = "" if shown == view.chosen else f", of {view.chosen:,} that match"
    noun, verb = ("connection" if shown == 1 else "connections"), ("is" if view.open == 1 else "are")
    parts.append(f"{shown:,} {noun}{others}; {view.open:,} {verb} open")
    if view.unanswered:
        parts.append(
            f"workers that do not answer, whose connections are missing: {', '.join(map(str, view.unanswered))}"
        )
    return "\n\n".join(parts)


def _row(one: KafkaConnection, now: float, before: Mapping[str, Counts] | None, seconds: float) -> tuple[str, ...]:
    software = " ".join(filter(None, (one.client_software_name, one.client_software_version)))
    counts = (one.request_count, one.received_bytes, one.sent_bytes)
    if before is None:
        numbers = [f"{count:,}" for count in counts]
    elif one.id in before:
        numbers = [f"{(count - earlier) / seconds:,.0f}" for count, earlier in zip(counts, before[one.id], strict=True)]
    else:
        numbers = ["-"] * 3
    return (
        one.id.rpartition("-")[2],
        f"{one.client_ip}:{one.client_port}",
        _cell(one.principal),
        _cell(one.client_id),
        _cell(software),
        _cell(one.group_id or one.transactional_id),
        one.state,
        _duration(now - one.open_time),
        _duration(one.idle_duration_ms / 1000),
        f"{one.in_flight:,}",
        *numbers,
    )


def _cell(text: str | None) -> str:
    shown = printable(text or "-")
    return shown if len(shown) <= MAX_CELL else shown[: MAX_CELL - 1] + "…"


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
