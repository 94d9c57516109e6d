"""What is used and what it is priced at, for tests of costs; each call states only what matters."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow

from spark_jobs.definitions import Definitions
from spark_jobs.definitions.prices import Owners, Prices, Zones
from spark_jobs.schemas import COMPLETENESS, CONNECTIONS, INVENTORY, TRAFFIC, Table
from tests.spark import stored

Given = dict[str, Any]

DAY = date(2026, 9, 22)
NEXT = date(2026, 9, 23)


def at(day: date, hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=UTC)


def data(bytes: int, api: str = "Produce", topic: str = "orders", **given: Any) -> Given:
    return {"api": api, "topic": topic, "bytes": bytes, "topic_requests": 1, **given}


def alive(*hours: int, day: date = DAY, **given: Any) -> list[Given]:
    return [{"day": day, "minute": at(day, hour, 59), **given} for hour in hours]


COMMON = {"day": DAY, "cluster_id": "c1", "broker_id": 1}
DEFAULTS: dict[str, Given] = {
    "traffic": {**COMMON, "minute": at(DAY, 12), "listener": "CLIENT", "principal": "User:a", "client_id": "app",
                "client_ip": "10.1.0.7", "topic": None},
    "connections": {**COMMON, "boot_id": "b1", "listener": "CLIENT", "principal": "User:a"},
    "inventory": {**COMMON, "internal": False, "partitions": 1},
    "completeness": {**COMMON, "boot_id": "b1", "reason": None},
}  # fmt: skip


def rows_of(table: Table, given: list[Given]) -> pyarrow.Table:
    names = {column.name for column in table.columns}
    defaults = {name: value for name, value in DEFAULTS[table.name].items() if name in names}
    return stored.rows(table, *[{**defaults, **row} for row in given])


def billed(
    *prices: Given | Prices,
    traffic: list[Given] | None = None,
    connections: list[Given] | None = None,
    inventory: list[Given] | None = None,
    heard: list[Given] | None = None,
    owners: Given | None = None,
    zones: Given | None = None,
    since: date | None = None,
) -> tuple[Any, ...]:
    """What ``derived`` computes ``cost`` of; ``heard`` are rows of completeness: one of ``DAY`` if nothing is said."""
    declared = tuple(each for each in prices if isinstance(each, Prices))
    plain = [each for each in prices if not isinstance(each, Prices)]
    given = {TRAFFIC: traffic, CONNECTIONS: connections, INVENTORY: inventory}
    given[COMPLETENESS] = alive(12) if heard is None else heard
    return (
        "cost",
        {table.name: rows_of(table, rows or []) for table, rows in given.items()},
        Definitions(
            prices=(*declared, *([sheet(*plain)] if plain else [])),
            owners=Owners(**owners or {}),
            zones=Zones(**zones or {}),
        ),
        since,
    )


def sheet(*prices: Given, **given: Any) -> Prices:
    # An account's id of digits alone is taken for a number by programs that read the CSV, the validator among them.
    spec = {
        "currency": "EUR", "account": {"id": "acct-4711", "name": "Platform"}, "provider": "Example", "prices": prices,
    }  # fmt: skip
    return Prices(**{**spec, **given})


def price(dimension: str, amount: str, **given: Any) -> Given:
    return {"name": dimension, "dimension": dimension, "price": amount, "validFrom": "2026-01-01", **given}
