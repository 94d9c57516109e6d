"""``slo``, as definitions/slo.yaml asks for it: each request judged one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tests.ledger.acts import DAY, MINUTE, Act, Call
from tests.ledger.books import Book, day, instant
from tests.ledger.books.traffic import ENDS, calls

WINDOWS = {"5m": 5, "30m": 30, "1h": 60, "2h": 120, "6h": 360, "1d": 1440, "3d": 4320}


@dataclass(frozen=True)
class Objective:
    """One of definitions/slo.yaml, in the words of the script."""

    slo: str
    name: str
    target: Fraction
    days: int
    judged: Callable[[Call], Iterable[tuple[Any, Any, Any, Any]]]
    """The api, topic, principal and client id by which a call is judged; none where it is not."""
    good: Callable[[Call], bool]
    slices: tuple[int, float] | None = None
    """Length in µs, and the share of good calls in a good one."""


def _bucket_end(us: int) -> int:
    return next((end for end in ENDS if us <= end), 1 << 60)


def _within(threshold_us: int) -> Callable[[Call], bool]:
    return lambda call: _bucket_end(call.service_us) <= threshold_us


def _in_histograms(call: Call) -> bool:
    return call.answered and not call.idle


def _by_topic(call: Call) -> list[tuple[Any, Any, Any, Any]]:
    if call.api != "Produce" or not _in_histograms(call):
        return []
    return [(None, topic, None, None) for topic in call.topics if topic in ("orders", "payments")]


def _by_principal(call: Call) -> list[tuple[Any, Any, Any, Any]]:
    judged = call.outcome != "no_response" and call.api != "JoinGroup"
    return [(None, None, call.visit.client.principal, None)] if judged else []


def _by_client(call: Call) -> list[tuple[Any, Any, Any, Any]]:
    return [(None, None, None, call.visit.client.client_id)] if call.api == "Fetch" and _in_histograms(call) else []


OBJECTIVES = (
    Objective("produce-latency", "in 8 ms", Fraction("0.9"), 30, _by_topic, _within(8_192)),
    Objective("produce-latency", "in 50 ms", Fraction("0.98"), 30, _by_topic, _within(50_000)),
    Objective("no-errors", "1", Fraction("0.99"), 7, _by_principal, lambda call: call.answered and not call.failed),
    Objective("fetch-in-time", "half hours", Fraction("0.8"), 1, _by_client, _within(1_024), (30 * MINUTE, 0.95)),
)

KEYS = ("day", "cluster_id", "slo", "objective", "api", "topic", "principal", "client_id")


def slo(acts: Iterable[Act]) -> Book:
    observed = list(calls(acts))
    newest: dict[tuple[str, Any], int] = {}
    for call in observed:
        key = (call.visit.run.cluster, day(call.at))
        newest[key] = max(newest.get(key, 0), call.at // MINUTE * MINUTE)
    book: Book = {}
    for objective in OBJECTIVES:
        for (cluster, *by), units in _units(objective, observed).items():
            for (of, today), as_of in newest.items():
                row = _row(objective, units, as_of) if of == cluster else None
                if row:
                    book[today, cluster, objective.slo, objective.name, *by] = row
    return book


def _units(objective: Objective, observed: Iterable[Call]) -> dict[tuple[Any, ...], list[tuple[int, bool]]]:
    """What is counted, by group: when, and whether it is good. A slice is counted at its last minute."""
    judged: dict[tuple[Any, ...], list[tuple[int, bool]]] = defaultdict(list)
    for call in observed:
        for by in objective.judged(call):
            judged[call.visit.run.cluster, *by].append((call.at // MINUTE * MINUTE, objective.good(call)))
    if objective.slices is None:
        return judged
    length, least = objective.slices
    return {group: list(_sliced(units, length, least)) for group, units in judged.items()}


def _sliced(units: Iterable[tuple[int, bool]], length: int, least: float) -> Iterator[tuple[int, bool]]:
    slices: dict[int, list[bool]] = defaultdict(list)
    for at, good in units:
        slices[at // length].append(good)
    for number, verdicts in slices.items():
        yield (number + 1) * length - MINUTE, sum(verdicts) / len(verdicts) >= least


def _row(objective: Objective, units: list[tuple[int, bool]], as_of: int) -> dict[str, Any] | None:
    today = [good for at, good in units if day(at) == day(as_of)]
    # A slice that is not over yet belongs to the day that it lies in.
    until = max(as_of, (as_of // DAY + 1) * DAY - 1)
    period = [good for at, good in units if as_of - objective.days * DAY < at <= until]
    if not period:
        return None
    budget = 1 - objective.target
    row: dict[str, Any] = {
        "as_of": instant(as_of),
        "day_total": len(today),
        "day_good": sum(today),
        "total": len(period),
        "good": sum(period),
        "attainment": sum(period) / len(period),
        "period_error_budget_remaining_ratio": float(1 - _burnt(period) / budget),
    }
    for name, minutes in WINDOWS.items():
        window = [good for at, good in units if as_of - minutes * MINUTE < at <= until]
        row[f"burn_rate_{name}"] = float(_burnt(window) / budget) if window else None
    return row


def _burnt(verdicts: list[bool]) -> Fraction:
    return Fraction(len(verdicts) - sum(verdicts), len(verdicts))
