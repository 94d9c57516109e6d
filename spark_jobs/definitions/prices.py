"""``kind: Prices``, ``Owners``, ``Zones``: what is charged, to whom, and where clients and brokers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from ipaddress import ip_network
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from spark_jobs.definitions.model import Pattern, Strict

DECIMALS = 10
"""Digits after the point that money has, in prices and in the table."""

LIMIT = Decimal(10) ** 12
"""Prices are below it, so that all products fit into the 38 digits of Spark's decimals."""

CURRENCIES = (
    "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF"
    " CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL"
    " HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD"
    " MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG"
    " QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD"
    " TWD TZS UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XOF XPF YER ZAR ZMW ZWG"
)
"""ISO 4217."""


@dataclass(frozen=True)
class Dimension:
    """What a price may be of."""

    unit: str
    """What the price is of, as FOCUS writes units."""
    words: str
    size: int = 1
    """How many of what is counted make one of ``unit``."""
    consumed_unit: str | None = None
    """``consumed_size`` of what is counted make one of it; None where nothing is used up."""
    consumed_size: int = 1
    shared: bool = False
    """A sum that is there whoever does what, and is split among those who do something."""
    by: tuple[str, ...] = ()
    """What may be selected by, besides clusters."""


_DATA = ("listeners", "topics", "principals")
_CLIENT = ("listeners", "principals")

DIMENSIONS = {
    "data_in_gb": Dimension("GB", "Data produced", 10**9, "B", by=_DATA),
    "data_out_gb": Dimension("GB", "Data consumed", 10**9, "B", by=_DATA),
    "cross_zone_gb": Dimension("GB", "Data between zones", 10**9, "B", by=_DATA),
    "requests": Dimension("1000 Requests", "Requests", 1_000, "Requests", by=_CLIENT),
    "connection_hours": Dimension(
        "Connection-Hours", "Open connections", 3_600_000_000, "Connection-Seconds", 1_000_000, by=_CLIENT
    ),
    "partition_hours": Dimension("Partition-Hours", "Partitions", 1, "Partition-Hours", by=("topics",)),
    "cluster_hours": Dimension("Cluster-Hours", "Running clusters", 1, "Cluster-Hours", shared=True, by=_CLIENT),
    "fixed_daily": Dimension("Days", "Fixed daily amount", shared=True, by=_CLIENT),
    "fixed_monthly": Dimension("Months", "Fixed monthly amount", shared=True, by=_CLIENT),
}
"""By name: connections are counted in µs, data in bytes."""

SELECTORS = ("clusters", "listeners", "topics", "principals")


def _amount(value: object) -> Decimal:
    allowed = f"must be an amount from 0 to below {LIMIT:,} with at most {DECIMALS} decimals"
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise ValueError(allowed)
    try:
        amount = Decimal(str(value))  # of a YAML number what is written, not what its binary form is
    except InvalidOperation:
        raise ValueError(allowed) from None
    if not amount.is_finite() or not 0 <= amount < LIMIT or amount != round(amount, DECIMALS):
        raise ValueError(allowed)
    return amount


def _day(value: object) -> date:
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            value = None
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError("must be a day as 2026-01-31")
    return value


Amount = Annotated[Decimal, BeforeValidator(_amount)]
"""An amount of money: exact, as written."""

Day = Annotated[date, BeforeValidator(_day)]
"""A day; it begins at midnight UTC."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""A name of a price or a team."""


class Account(Strict):
    """An id and what people call it."""

    id: str = Field(min_length=1)
    name: str = ""


class Split(Strict):
    """How a sum that is shared is split."""

    by: Literal["bytes", "requests", "even"] = "bytes"
    among: Literal["rows", "teams"] = "rows"
    """``rows``: everyone who did something, by cluster, topic, principal and client id."""


class Price(Strict):
    """One price, from a day on: until ``valid_to`` or the next of the same name and selection."""

    name: Name
    dimension: Literal[
        "data_in_gb", "data_out_gb", "cross_zone_gb", "requests", "connection_hours", "partition_hours",
        "cluster_hours", "fixed_daily", "fixed_monthly",
    ]  # fmt: skip
    price: Amount
    valid_from: Day = Field(alias="validFrom")
    valid_to: Day | None = Field(default=None, alias="validTo")
    """The first day on which it is not valid any more."""
    clusters: tuple[Pattern, ...] = ()
    listeners: tuple[Pattern, ...] = ()
    topics: tuple[Pattern, ...] = ()
    principals: tuple[Pattern, ...] = ()
    split: Split | None = None

    @property
    def selection(self) -> str:
        """What it is limited to, in words; empty without limits."""
        return "; ".join(f"{name}={'|'.join(getattr(self, name))}" for name in SELECTORS if getattr(self, name))

    @property
    def id(self) -> str:
        """Name, first day and selection: no other price has the same."""
        return f"{self.name}@{self.valid_from}{f' [{self.selection}]' if self.selection else ''}"

    @property
    def shared(self) -> Split | None:
        """How it is split; None where it is charged to who caused it."""
        return (self.split or Split()) if DIMENSIONS[self.dimension].shared else None

    @model_validator(mode="after")
    def _fits_its_dimension(self) -> Self:
        wrong = []
        if self.split and not self.shared:
            shared = ", ".join(name for name, each in DIMENSIONS.items() if each.shared)
            wrong.append(f"split: {self.dimension} is charged to who caused it; split is for {shared}")
        by = DIMENSIONS[self.dimension].by
        if self.shared and self.shared.by != "requests":
            by = (*by, "topics")
        wrong += [
            f"{name}: {self.dimension} can be limited to {', '.join(('clusters', *by))}"
            for name in SELECTORS[1:]
            if getattr(self, name) and name not in by
        ]
        if self.valid_to is not None and self.valid_to <= self.valid_from:
            wrong.append(f"validTo: {self.valid_to} must be after validFrom, {self.valid_from}")
        if wrong:
            raise ValueError("\n".join(wrong))
        return self


class Prices(Strict):
    """The prices of one account, all in one currency."""

    name: str = ""
    """From ``metadata.name``."""
    currency: str
    account: Account
    provider: str = Field(min_length=1)
    region: Account | None = None
    prices: tuple[Price, ...]

    @field_validator("currency")
    @classmethod
    def _is_a_currency(cls, value: str) -> str:
        if value not in CURRENCIES.split():
            raise ValueError("must be a currency of ISO 4217 as EUR")
        return value

    @field_validator("prices")
    @classmethod
    def _follow_each_other(cls, value: tuple[Price, ...]) -> tuple[Price, ...]:
        if not value:
            raise ValueError("must have at least one price")
        dimensions: dict[str, str] = {}
        for price in value:
            other = dimensions.setdefault(price.name, price.dimension)
            if other != price.dimension:
                raise ValueError(f"{price.name}: is a price of {other} and of {price.dimension}; one name is of one")
        for before, after in _pairs(value):
            if before.valid_from == after.valid_from or (before.valid_to and before.valid_to > after.valid_from):
                until = f" to {before.valid_to}" if before.valid_to else ""
                raise ValueError(
                    f"{after.id}: {before.name} has a price from {before.valid_from}{until} already; two may not be"
                    " valid on one day for the same selection"
                )
        return value

    def periods(self) -> list[tuple[Price, date | None]]:
        """Return every price with the first day on which it is not valid any more; None: valid until further notice."""
        next_from = {before.id: after.valid_from for before, after in _pairs(self.prices)}
        return [(price, price.valid_to or next_from.get(price.id)) for price in self.prices]

    def gaps(self) -> list[tuple[Price, date, date]]:
        """Return each price that ends before the next of its name and selection begins, with first and last day."""
        return [
            (before, before.valid_to, after.valid_from)
            for before, after in _pairs(self.prices)
            if before.valid_to and before.valid_to < after.valid_from
        ]


def _pairs(prices: Sequence[Price]) -> list[tuple[Price, Price]]:
    """Return each price with the one of the same name and selection that follows it."""
    ordered = sorted(prices, key=lambda each: (each.name, each.selection, each.valid_from))
    return [
        (before, after)
        for before, after in pairwise(ordered)
        if (before.name, before.selection) == (after.name, after.selection)
    ]


class Rule(Strict):
    """What belongs to a team: all that is given must match. What a charge does not have matches nothing."""

    team: Name
    clusters: tuple[Pattern, ...] = ()
    topics: tuple[Pattern, ...] = ()
    principals: tuple[Pattern, ...] = ()
    client_ids: tuple[Pattern, ...] = Field(default=(), alias="clientIds")


class Owners(Strict):
    """Who owns what: the first rule that matches says the team; where none does it is ``unowned``."""

    rules: tuple[Rule, ...] = ()
    tags: dict[Name, dict[str, str]] = Field(default_factory=dict)
    """Tags of teams."""

    @model_validator(mode="after")
    def _tags_are_of_teams(self) -> Self:
        unknown = sorted(set(self.tags) - {rule.team for rule in self.rules})
        if unknown:
            raise ValueError("\n".join(f"tags: {team}: no rule names this team" for team in unknown))
        return self


def _network(value: str) -> str:
    try:
        return str(ip_network(value))
    except ValueError as error:
        raise ValueError(f"must be a range of addresses as 10.0.0.0/8: {error}") from None


Zone = Annotated[str, Field(min_length=1)]


class Zones(Strict):
    """In which zone clients and brokers are. Of several ranges that have an address, the smallest one counts."""

    clients: dict[Annotated[str, BeforeValidator(_network)], Zone] = Field(default_factory=dict)
    """Zones by range of addresses."""
    brokers: dict[str, dict[Annotated[int, Field(ge=0)], Zone]] = Field(default_factory=dict)
    """Zones by cluster id and broker id."""

    @field_validator("clients", mode="before")
    @classmethod
    def _once(cls, value: Any) -> Any:
        seen: dict[str, str] = {}
        for text in value if isinstance(value, Mapping) else ():
            try:
                network = str(ip_network(text))
            except ValueError:
                continue  # said by its own validator
            if network in seen:
                raise ValueError(f"{text}: is the same range as {seen[network]}")
            seen[network] = text
        return value
