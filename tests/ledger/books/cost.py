"""``cost``, as definitions/prices.yaml asks for it: exact shares of exact charges, in fractions."""

from __future__ import annotations

import re
from calendar import monthrange
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from fractions import Fraction
from ipaddress import ip_address, ip_network
from typing import Any

import yaml

from observers.account_events import StatusEvent
from observers.event import Envelope
from tests.ledger.acts import DAY, HOUR, MINUTE, Act, Change, Listing, Run
from tests.ledger.books import day
from tests.ledger.books.traffic import calls
from tests.ledger.build import DEFINITIONS

PRICES, OWNERS, ZONES = (
    each["spec"] for each in yaml.load_all((DEFINITIONS / "prices.yaml").read_text(), yaml.BaseLoader)
)

UNIT = Fraction(1, 10**10)
"""The smallest part of money."""

NOBODY = (None,) * 7

Who = tuple[Any, ...]
"""Cluster, topic, principal, client id, direction, zone of the broker, zone of the client."""


@dataclass(frozen=True)
class Charge:
    """What a price asks for on a day."""

    price: str
    valid_from: str
    day: date
    cluster: str | None = None
    """Of charges that a cluster has of its own."""
    unknown: bool = False
    """Of data between zones of which one is not known: nothing is asked."""


@dataclass
class Bill:
    """Rows of a charge: by who it is of, and his team, how much of the unit it is, and what is paid."""

    amount: Fraction
    """The charge as a whole, rounded."""
    quantities: dict[tuple[Who, str], Fraction]
    paid: dict[tuple[Who, str], Fraction]
    """Before the last digit is given to somebody."""


def bills(acts: Iterable[Act], envelopes: Iterable[tuple[Run, Envelope]]) -> dict[Charge, Bill]:
    acts, envelopes = list(acts), list(envelopes)
    usage = {
        "data_in_gb": list(_data(acts, "Produce")),
        "data_out_gb": list(_data(acts, "Fetch")),
        "requests": [(day(call.at), _of(call), 1) for call in calls(acts)],
        "connection_hours": list(_connected(acts, envelopes)),
        "partition_hours": list(_partitions(acts, envelopes)),
    }
    usage["cross_zone_gb"] = list(_between_zones(acts))
    result: dict[Charge, Bill] = {}
    for price in PRICES["prices"]:
        for today in {day(envelope.sent_at) for _, envelope in envelopes}:
            if _valid(price, today):
                result |= _bills(price, today, usage, {envelope.cluster_id for _, envelope in envelopes})
    return result


def _valid(price: Mapping[str, str], today: date) -> bool:
    starts = [each["validFrom"] for each in PRICES["prices"] if each["name"] == price["name"]]
    return bool(price["validFrom"] == max(start for start in starts if start <= str(today)))


def _bills(
    price: Mapping[str, Any], today: date, usage: Mapping[str, list[Any]], clusters: Iterable[str]
) -> dict[Charge, Bill]:
    name, valid, dimension, each = price["name"], price["validFrom"], price["dimension"], Fraction(price["price"])
    if dimension == "cluster_hours":
        shared = {}
        for cluster in clusters:
            weights = _summed((who, n) for at, who, n in usage["requests"] if at == today and who[0] == cluster)
            shared[Charge(name, valid, today, cluster)] = _split(each * 24, Fraction(24), weights)
        return shared
    if dimension == "fixed_monthly":
        days = monthrange(today.year, today.month)[1]
        amount = _floor(each * today.day / days) - _floor(each * (today.day - 1) / days)
        data = [*usage["data_in_gb"], *usage["data_out_gb"]]
        by_team: dict[tuple[Who, str], int] = defaultdict(int)
        for at, who, n in data:
            if at == today:
                by_team[NOBODY, _team(who)] += n
        return {Charge(name, valid, today): _split(amount, Fraction(1, days), by_team)}
    size = {"requests": 1000, "connection_hours": HOUR, "partition_hours": 1}.get(dimension, 10**9)
    of_today = [
        (who, n) for at, who, n in usage[dimension] if at == today and who[0] in price.get("clusters", ["east", "west"])
    ]
    charges: dict[bool, list[tuple[Who, int]]] = defaultdict(list)
    for who, n in of_today:
        charges[dimension == "cross_zone_gb" and None in who[5:]].append((who, n))
    result = {}
    for unknown, rows in charges.items():
        weights = _summed(rows)
        asked = Fraction(0) if unknown else each
        result[Charge(name, valid, today, None, unknown)] = Bill(
            _rounded(sum(weights.values()) * asked / size),
            {row: Fraction(n) / size for row, n in weights.items()},
            {row: Fraction(n) * asked / size for row, n in weights.items()},
        )
    return result


def _split(amount: Fraction, quantity: Fraction, weights: Mapping[tuple[Who, str], int]) -> Bill:
    total = sum(weights.values())
    shares = {row: Fraction(n, total) for row, n in weights.items()}
    return Bill(
        amount,
        {row: share * quantity for row, share in shares.items()},
        {row: share * amount for row, share in shares.items()},
    )


def _summed(rows: Iterable[tuple[Who, int]]) -> dict[tuple[Who, str], int]:
    sums: dict[tuple[Who, str], int] = defaultdict(int)
    for who, n in rows:
        sums[who, _team(who)] += n
    return sums


def _floor(money: Fraction) -> Fraction:
    return money // UNIT * UNIT


def _rounded(money: Fraction) -> Fraction:
    return (2 * money + UNIT) // (2 * UNIT) * UNIT


def _team(who: Who) -> str:
    cluster, topic, principal, client_id = who[:4]
    has = {"clusters": cluster, "topics": topic, "principals": principal, "clientIds": client_id}
    for rule in OWNERS["rules"]:
        asked = [(has[name], patterns) for name, patterns in rule.items() if name != "team"]
        if all(value is not None and any(re.fullmatch(each, value) for each in some) for value, some in asked):
            return str(rule["team"])
    return "unowned"


def _of(call: Any, topic: str | None = None, direction: str | None = None, zones: Who = (None, None)) -> Who:
    who = call.visit.client
    return (call.visit.run.cluster, topic, who.principal, who.client_id, direction, *zones)


def _data(acts: Iterable[Act], api: str) -> Iterator[tuple[date, Who, int]]:
    for call in calls(acts):
        if call.api == api and call.answered:
            for part in call.parts:
                if not part.error and part.bytes:
                    yield day(call.at), _of(call, part.topic, "in" if api == "Produce" else "out"), part.bytes


def _between_zones(acts: Iterable[Act]) -> Iterator[tuple[date, Who, int]]:
    networks = sorted(ZONES["clients"], key=lambda text: -ip_network(text).prefixlen)
    for call in calls(acts):
        run, address = call.visit.run, ip_address(call.visit.client.ip)
        there = next((ZONES["clients"][each] for each in networks if address in ip_network(each)), None)
        here = ZONES["brokers"][run.cluster].get(str(run.broker))
        if call.answered and (here is None or here != there):
            for part in call.parts:
                if not part.error and part.bytes:
                    direction = "in" if call.api == "Produce" else "out"
                    yield day(call.at), _of(call, part.topic, direction, (here, there)), part.bytes


def _connected(acts: Iterable[Act], envelopes: Iterable[tuple[Run, Envelope]]) -> Iterator[tuple[date, Who, int]]:
    """µs on each day: to the end, or to the end of the last minute in which the sidecar was heard of."""
    heard: dict[tuple[Run, date], int] = {}
    for run, at in _heard(envelopes):
        heard[run, day(at)] = max(heard.get((run, day(at)), 0), at // MINUTE * MINUTE + MINUTE)
    opened = {act.visit: act.at for act in acts if isinstance(act, Change) and act.what == "opened"}
    closed = {act.visit: act.at for act in acts if isinstance(act, Change) and act.what == "closed"}
    logged_in = {act.visit for act in acts if isinstance(act, Change) and act.what != "opened"}
    for visit, begins in opened.items():
        who = visit.client.principal if visit in logged_in else "User:ANONYMOUS"
        for (run, today), until in heard.items():
            midnight = until // DAY * DAY if until % DAY else until - DAY
            if run is visit.run and begins < midnight + DAY and closed.get(visit, midnight) >= midnight:
                end = closed[visit] if closed.get(visit, midnight + DAY) < midnight + DAY else until
                yield today, (run.cluster, None, who, None, None, None, None), end - max(begins, midnight)


def _heard(envelopes: Iterable[tuple[Run, Envelope]]) -> Iterator[tuple[Run, int]]:
    for run, envelope in envelopes:
        yield run, envelope.sent_at
        for event in envelope.events:
            if isinstance(event, StatusEvent):
                yield run, event.ts


def _partitions(acts: Iterable[Act], envelopes: Iterable[tuple[Run, Envelope]]) -> Iterator[tuple[date, Who, int]]:
    """Of each hour in which the cluster was heard of; in the script each of them has a list."""
    hours = {(run.cluster, at // HOUR) for run, at in _heard(envelopes)}
    listed: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    for act in acts:
        if isinstance(act, Listing):
            for topic in (topic for part in act.parts for topic in part if not topic.internal):
                listed[act.run.cluster, act.at // HOUR][topic.name] = topic.partitions
    for cluster, hour in hours:
        for name, partitions in listed[cluster, hour].items():
            yield day(hour * HOUR), (cluster, name, None, None, None, None, None), partitions


def stored(row: Mapping[str, Any]) -> tuple[Charge, tuple[Who, str]]:
    """Which charge a row of the table is of, and which row of it."""
    price, _, valid_from = row["SkuPriceId"].partition("@")
    start: datetime = row["ChargePeriodStart"]
    charge = Charge(
        price,
        valid_from[:10],
        start.date(),
        row["x_ClusterId"] if row["SkuMeter"] == "cluster_hours" else None,
        row["SkuMeter"] == "unknown_zone_gb",
    )
    who = (row["x_ClusterId"], row["x_Topic"], row["x_PrincipalId"], row["x_ClientId"], row["x_Direction"])
    return charge, ((*who, row["AvailabilityZone"], row["x_ClientZone"]), row["x_Team"])
