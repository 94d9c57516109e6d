"""Attainment, budgets and burn rates equal what plain Python makes of the same requests, one by one."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pytest

from spark_jobs.definitions import Definitions, load
from spark_jobs.definitions.objectives import SloObjective
from spark_jobs.schemas import COST, LATENCY, SLO, TRAFFIC, Table
from spark_jobs.tables import unmatched
from tests.spark import derived
from tests.spark.decoded import kafka_records, partial_rows
from tests.spark.decoded import rows_of as rows_of_events
from tests.spark.envelopes import FETCH, PRODUCE, encoded, event, partition
from tests.spark.stored import Row
from tests.spark.stored import rows as stored_rows

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
MIDNIGHT = datetime(2026, 9, 1)
TOPICS = ("orders", "orders.eu", "clicks")
BY = ("api", "topic", "principal", "client_id")
WINDOWS = {"5m": 5, "30m": 30, "1h": 60, "2h": 120, "6h": 360, "1d": 1_440, "3d": 4_320}
ALERTS = (
    ("page_quick", "5m", "1h", 14.4), ("page_slow", "30m", "6h", 6), ("ticket_quick", "2h", "1d", 3),
    ("ticket_slow", "6h", "3d", 1),
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    at: datetime
    us: int | None = 1_000
    """What counts of its latency; None if it was not answered."""
    lost: bool = False
    failed: bool = False
    idle: bool = False
    api: str = "Produce"
    topics: tuple[str, ...] = ("orders",)
    principal: str = "User:a"
    client_id: str | None = "app"
    cluster_id: str = "one"
    listener: str = "CLIENT"


Judge = Callable[[Request], bool | None]
"""Whether a request is good; None: it is not judged."""


@dataclass(frozen=True)
class Asked:
    """One objective: its YAML, and what that means."""

    good: str
    """``latency``, or the ``result``."""
    selection: str
    judge: Judge
    by: tuple[str, ...] = ()
    topics: tuple[str, ...] | None = None
    """Those that are judged, each on its own; None: whole requests are."""
    days: int = 7
    target: str = "0.9"
    value: str = ""
    slice: timedelta = MINUTE
    slice_target: str = ""

    def yaml(self, name: str) -> str:
        source = f"{{metricSource: {{type: brokerside, spec: {{{self.selection}}}}}}}"
        good = f"{{metricSource: {{type: brokerside, spec: {{result: {self.good}}}}}}}"
        latency = self.good == "latency"
        metric = f"thresholdMetric: {source}" if latency else f"ratioMetric: {{good: {good}, total: {source}}}"
        more = f", op: lte, value: {self.value}" if latency else ""
        if self.slice_target:
            more += f", timeSliceTarget: {self.slice_target}, timeSliceWindow: {self.slice // MINUTE}m"
        return (
            f"apiVersion: openslo/v1\nkind: SLO\nmetadata: {{name: {name}}}\nspec:\n  service: shop\n"
            f"  indicator: {{spec: {{{metric}}}}}\n  timeWindow: [{{duration: {self.days}d, isRolling: true}}]\n"
            f"  budgetingMethod: {'Timeslices' if self.slice_target else 'Occurrences'}\n"
            f"  objectives: [{{displayName: o, target: {self.target}{more}}}]\n"
        )


@pytest.fixture
def declared(tmp_path: Path) -> Callable[..., tuple[SloObjective, ...]]:

    def make(**asked: Asked) -> tuple[SloObjective, ...]:
        file = tmp_path / "slo.yaml"
        file.write_text("---\n".join(each.yaml(name) for name, each in asked.items()))
        return load([file]).objectives

    return make


def slo(latency: Any, traffic: Any, objectives: Sequence[SloObjective], since: date | None) -> list[Row]:
    inputs = {"latency": latency, "traffic": traffic}
    return derived.rows("slo", inputs, Definitions(objectives=tuple(objectives)), since)


def tables(requests: Iterable[Request]) -> tuple[pyarrow.Table, pyarrow.Table]:
    """The requests as rows of ``latency`` and ``traffic``, each row of one request: as they are before a merge."""
    of_latency, of_traffic = [], []
    for each in requests:
        for topic in (None, *each.topics):
            key = {"day": each.at.date(), "minute": each.at.replace(tzinfo=UTC), "api": each.api, "topic": topic}
            key |= {name: getattr(each, name) for name in ("cluster_id", "listener", "principal", "client_id")}
            if each.us is not None:
                place = sum(each.us > int(64 * 2 ** (bucket / 2)) for bucket in range(39))
                counts = [int(bucket == place and not each.idle) for bucket in range(40)]
                idle = int(each.idle and topic is None)
                of_latency.append({**key, "requests": int(not each.idle), "idle": idle, "service_latencies": counts})
            whole = topic is None
            errors = {"errors": int(each.failed and whole), "topic_errors": int(each.failed and not whole)}
            of_traffic.append({**key, **errors, "connection_lost": int(each.lost and whole)})
    return stored_rows(LATENCY, *of_latency), stored_rows(TRAFFIC, *of_traffic)


def ledger(requests: Sequence[Request], asked: Asked) -> dict[Any, dict[str, Any]]:
    verdicts: dict[Any, list[tuple[datetime, bool]]] = defaultdict(list)
    newest: dict[Any, datetime] = {}
    for each in requests:
        newest[each.cluster_id, each.at.date()] = max(newest.get((each.cluster_id, each.at.date()), each.at), each.at)
        verdict = asked.judge(each)
        for topic in (None,) if asked.topics is None else {*each.topics} & {*asked.topics}:
            reported = {"api": each.api, "topic": topic, "principal": each.principal, "client_id": each.client_id}
            if verdict is not None:
                group = (each.cluster_id, *(reported[name] if name in asked.by else None for name in BY))
                verdicts[group].append((each.at, verdict))
    rows: dict[Any, dict[str, Any]] = {
        (day, group): row
        for group, units in verdicts.items()
        for (cluster_id, day), as_of in newest.items()
        if cluster_id == group[0] and (row := judged(sliced(units, asked), asked, day, as_of))["total"]
    }
    for day in {day for _, day in newest} - {day for day, _ in rows}:
        as_of = max(at for (_, of), at in newest.items() if of == day)
        rows[day, (None,) * 5] = judged([], asked, day, as_of)
    return rows


def sliced(units: list[tuple[datetime, bool]], asked: Asked) -> list[tuple[datetime, bool]]:
    """What is counted, at its beginning."""
    if not asked.slice_target:
        return units
    slices = defaultdict(list)
    for at, verdict in units:
        slices[at - (at - MIDNIGHT) % asked.slice].append(verdict)
    return [(at, Fraction(sum(some), len(some)) >= Fraction(asked.slice_target)) for at, some in slices.items()]


def judged(units: list[tuple[datetime, bool]], asked: Asked, day: date, as_of: datetime) -> dict[str, Any]:
    budget = float(1 - Decimal(asked.target))

    def counted(length: timedelta) -> tuple[int, int]:
        """Of what has one of the minutes up to ``as_of``."""
        kept = [good for at, good in units if at <= as_of and at + asked.slice > as_of + MINUTE - length]
        return len(kept), sum(kept)

    def burnt(total: int, good: int) -> float | None:
        return (total - good) / total / budget if total else None

    total, good = counted(asked.days * DAY)
    today = [good for at, good in units if at.date() == day]
    rates = {name: burnt(*counted(minutes * MINUTE)) for name, minutes in WINDOWS.items()}
    return {
        "as_of": as_of, "window_start": as_of + MINUTE - asked.days * DAY, "window_days": asked.days,
        "day_total": len(today), "day_good": sum(today), "total": total, "good": good,
        "attainment": good / total if total else None, "objective_ratio": float(asked.target),
        "error_budget_ratio": budget,
        "period_error_budget_remaining_ratio": 1 - (burnt(total, good) or 0) if total else None,
        **{f"burn_rate_{name}": rate for name, rate in rates.items()},
        **{
            alert: all((rates[name] or 0) > rate * asked.days / 30 for name in (short, long))
            for alert, short, long, rate in ALERTS
        },
    }  # fmt: skip


def rows_of(rows: list[Row]) -> dict[str, dict[Any, dict[str, Any]]]:
    found: dict[str, dict[Any, dict[str, Any]]] = defaultdict(dict)
    names = judged([], Asked("", "", lambda _: None), date.min, MIDNIGHT)
    for row in rows:
        key = (row.day, (row.cluster_id, *(row[name] for name in BY)))
        found[row.slo][key] = {name: row[name] for name in names}
    assert sum(map(len, found.values())) == len(rows)
    return found


def days_of_two_clusters(seed: int) -> list[Request]:
    """Twelve days: the second cluster begins on the fifth, nobody is there on the eighth, and days end early."""
    chance = random.Random(seed)
    made = []
    for day in (each for each in range(12) if each != 7):
        end = chance.choice((3, 40, 700, 1_440))
        for _ in range(50):
            fate = chance.random()
            made.append(
                Request(
                    MIDNIGHT + day * DAY + chance.randrange(end) * MINUTE,
                    us=None if fate < 0.12 else int(10 ** chance.uniform(3, 5.5)), lost=fate < 0.08,
                    failed=0.12 < fate < 0.25, idle=fate > 0.95,
                    api=chance.choice(("Produce", "Fetch", "Fetch", "Metadata", "JoinGroup")),
                    topics=tuple(chance.sample(TOPICS, chance.randrange(3))),
                    principal=chance.choice(("User:a", "User:b")), client_id=chance.choice(("app", None)),
                    cluster_id=chance.choice(("one", "two")) if day > 3 else "one",
                    listener=chance.choice(("CLIENT", "BROKER")),
                )
            )  # fmt: skip
    return made


def in_time(limit_us: int) -> Judge:
    return lambda each: None if each.us is None or each.idle or each.api == "JoinGroup" else each.us <= limit_us


def of(judge: Judge, agrees: Callable[[Request], bool]) -> Judge:
    return lambda each: judge(each) if agrees(each) else None


def without_error(each: Request) -> bool | None:
    if each.api == "JoinGroup":
        return None
    # What is not answered and not lost has no answer by design, and a consumer that leaves was waiting for data.
    return not each.failed if each.us is not None else False if each.lost and each.api != "Fetch" else None


def without_error_of_topic(each: Request) -> bool | None:
    return None if each.us is None or each.idle or each.api == "JoinGroup" else not each.failed


def answered(each: Request) -> bool | None:
    return True if each.us is not None else without_error(each)


ASKED = {
    "whole": Asked("latency", "", in_time(8_192), days=4, value="8.192"),
    "between-buckets": Asked("latency", "", in_time(8_192), days=30, value="11.584"),
    "by-topic": Asked(
        "latency", "by: [topic, principal]", in_time(16_384), ("topic", "principal"), TOPICS, value="16.384"),
    "some-topics": Asked(
        "latency", r"topics: ['orders\..+', 'cl[a-z]*s']", in_time(8_192), topics=("orders.eu", "clicks"),
        value="8.192"),
    "by-client": Asked("latency", "by: [client_id]", in_time(16_384), ("client_id",), days=1, value="16.384"),
    "named-api": Asked(
        "latency", "apis: [JoinGroup]", lambda each: each.us <= 8_192 if each.us and each.api == "JoinGroup"
        and not each.idle else None, days=3, value="8.192"),
    "selected": Asked(
        "latency", "clusters: [two], listeners: [CLIENT], principals: ['User:.'], clientIds: [x, a.+]",
        of(in_time(8_192), lambda each: (each.cluster_id, each.listener, each.client_id) == ("two", "CLIENT", "app")),
        value="8.192"),
    "errors": Asked("success", "by: [api]", without_error, ("api",), days=5, target="0.95"),
    "errors-of-topic": Asked("success", "by: [topic]", without_error_of_topic, ("topic",), TOPICS, target="0.8"),
    "answered": Asked("answered", "apis: [Produce, Metadata]", of(
        answered, lambda each: each.api in ("Produce", "Metadata")), target="0.99"),
    "mistyped": Asked("latency", "topics: [oders]", in_time(8_192), topics=("oders",), value="8.192"),
    "slices": Asked("latency", "", in_time(32_768), days=2, value="32.768", slice=15 * MINUTE, slice_target="0.75"),
    "slices-of-errors": Asked(
        "success", "by: [api]", without_error, ("api",), days=3, slice=60 * MINUTE, slice_target="0.8"),
}  # fmt: skip


@pytest.mark.promise(
    "slo.md", "`slo` has a row for each day and combination that an objective is judged by, with exact counts."
)
def test_every_row_is_the_ledgers(declared: Any) -> None:
    requests = days_of_two_clusters(1)
    made = slo(*tables(requests), declared(**ASKED), None)
    rows = rows_of(made)
    for name, asked in ASKED.items():
        expected = ledger(requests, asked)
        assert rows[name] == expected, name
        assert expected, name


@pytest.mark.promise("slo.md", "A late event changes its own day and the days whose period has it.")
def test_what_is_reported_late_changes_its_day_and_those_after(declared: Any) -> None:
    requests = days_of_two_clusters(2)
    since = (MIDNIGHT + 5 * DAY).date()
    asked = {name: ASKED[name] for name in ("whole", "by-topic", "by-client", "slices")}
    late = [Request(MIDNIGHT + 5 * DAY + 90 * MINUTE, us=100_000, client_id="late")]
    rows = rows_of(slo(*tables(requests + late), declared(**asked), since))
    for name, each in asked.items():
        before, after = ledger(requests, each), ledger(requests + late, each)
        assert rows[name] == {key: row for key, row in after.items() if key[0] >= since}, name
        assert before != after, name
        assert all(row == after[key] for key, row in before.items() if key[0] < since), name


def fetch_from(table: Table, *given: dict[str, Any]) -> Callable[[str], list[Any]]:
    database = duckdb.connect()
    database.register(table.name, stored_rows(table, *given))
    return lambda sql: database.execute(sql).fetchall()


@pytest.mark.promise("slo.md", "Objectives, prices and teams that nothing matched so far are named.")
def test_what_matched_nothing_on_any_day_is_named(declared: Any, tmp_path: Path) -> None:
    objectives = declared(**{name: ASKED[name] for name in ("whole", "mistyped", "by-client")})
    reported = [{"slo": name, "objective": "o", "total": total} for name, total in (
        ("whole", 0), ("whole", 7), ("mistyped", 0), ("mistyped", 0), ("by-client", 1))]  # fmt: skip
    fetch = fetch_from(SLO, *reported)
    assert unmatched.unmatched_objectives(fetch, Definitions(objectives=objectives)) == ["objective mistyped, o"]

    (tmp_path / "prices.yaml").write_text(
        "apiVersion: brokerside/v1\nkind: Prices\nmetadata: {name: p}\nspec:\n  currency: EUR\n"
        "  account: {id: a, name: A}\n  provider: us\n  prices:\n"
        "    - {name: in, dimension: data_in_gb, price: 1, validFrom: 2026-01-01}\n"
        "    - {name: out, dimension: data_out_gb, price: 1, validFrom: 2026-01-01, topics: [oders]}\n"
        "---\napiVersion: brokerside/v1\nkind: Owners\nmetadata: {name: o}\n"
        "spec: {rules: [{team: shop, topics: [orders]}, {team: web, topics: [cliks]}]}\n"
    )
    fetch = fetch_from(COST, {"BillingAccountId": "a", "SkuId": "in", "x_Team": "shop"})
    assert unmatched.unmatched_charges(fetch, load([tmp_path / "prices.yaml"])) == ["price out", "team web"]


@pytest.mark.promise("slo.md", "A burn that is too fast pages as long as it goes on in the shorter window, too.")
def test_a_quick_burn_pages_until_it_is_over(declared: Any) -> None:
    asked = Asked("latency", "", in_time(8_192), days=30, target="0.99", value="8.192")
    requests = []
    for cluster_id, minutes in {"burns": 60, "burnt": 66}.items():
        for minute in range(minutes):
            at, us = MIDNIGHT + minute * MINUTE, 100_000 if minute % 5 == 0 and minute < 60 else 1_000
            requests.append(Request(at, us=us, cluster_id=cluster_id))
    rows = slo(*tables(requests), declared(all=asked), None)
    alerts = {row.cluster_id: {name: row[name] for name, *_ in ALERTS} for row in rows}
    slower = {"page_slow": True, "ticket_quick": True, "ticket_slow": True}
    assert alerts == {"burns": {"page_quick": True, **slower}, "burnt": {"page_quick": False, **slower}}


@pytest.mark.promise("slo.md", "Neither long polls nor throttling are breaches of an objective.")
def test_waiting_for_data_and_quotas_breach_nothing(declared: Any) -> None:
    """Of events as sidecars write them: only what the broker took long for, or answered with an error, is bad."""
    good = [
        event(PRODUCE, partition(), latency_us=900),
        event(PRODUCE, partition(), latency_us=2_000_900, muted_us=2_000_000),
        event(FETCH, partition(), latency_us=500_900, max_wait_ms=500),
        event(FETCH, partition(), latency_us=30_000, max_wait_ms=500),
    ]
    slow = event(PRODUCE, partition(), latency_us=2_000_900, muted_us=1_000_000)
    reported = [
        *good, slow, event(FETCH, latency_us=500_300, max_wait_ms=500),
        event(FETCH, latency_us=0, max_wait_ms=500, outcome="connection_lost"),
        event(PRODUCE, partition(), latency_us=0, outcome="no_response", acks=0),
        event(PRODUCE, partition(), latency_us=0, outcome="connection_lost"),
        event(PRODUCE, partition(error_code=29), latency_us=900),
    ]  # fmt: skip
    values = [encoded(each, first_seq=number) for number, each in enumerate(reported, 1)]
    partial = partial_rows(kafka_records(values))
    tables = [rows_of_events(name, partial) for name in ("latency", "traffic")]
    objectives = declared(
        latency=Asked("latency", "", in_time(1_024), value="1.024"),
        errors=Asked("success", "", without_error),
        errors_of_topic=Asked("success", "by: [topic]", without_error_of_topic),
        answered=Asked("answered", "", answered),
    )
    rows = slo(*tables, objectives, None)
    assert {row.slo: (row.good, row.total) for row in rows} == {
        "latency": (5, 6),  # one of them is an error, and quick
        "errors": (6, 8),  # the idle fetch is answered; of what was lost the Produce counts
        "errors_of_topic": (5, 6),
        "answered": (7, 8),
    }
