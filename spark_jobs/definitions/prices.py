"""``kind: Prices``, ``Owners``, ``Zones``: what is charged, to whom, and in which zones clients and brokers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from ipaddress import ip_network
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from spark_jobs.definitions.model import Pattern, StrictModel

MONEY_DECIMALS = 10
"""Decimal places of money, in prices and in the table."""

PRICE_LIMIT = Decimal(10) ** 12
"""Prices are less than this, so that all products fit into the 38 digits of Spark's decimals."""

CURRENCIES = (
    "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF"
    " CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL"
    " HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD"
    " MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG"
    " QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD"
    " TWD TZS UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XOF XPF YER ZAR ZMW ZWG"
)
"""Currency codes of ISO 4217."""


@dataclass(frozen=True)
class Dimension:
    """A quantity that can have a price."""

    unit: str
    """Unit of the price, in the notation of FOCUS."""
    description: str
    size: int = 1
    """Measured quantity of one ``unit``."""
    consumed_unit: str | None = None
    """Unit of the consumed quantity, whose measured quantity is ``consumed_size``; None if nothing is consumed."""
    consumed_size: int = 1
    shared: bool = False
    """Whether it is a fixed cost, which is split among those who use the cluster."""
    selectors: tuple[str, ...] = ()
    """Selectors that are allowed besides ``clusters``."""


_DATA_SELECTORS = ("listeners", "topics", "principals")
_CLIENT_SELECTORS = ("listeners", "principals")

DIMENSIONS = {
    "data_in_gb": Dimension("GB", "Data produced", 10**9, "B", selectors=_DATA_SELECTORS),
    "data_out_gb": Dimension("GB", "Data consumed", 10**9, "B", selectors=_DATA_SELECTORS),
    "cross_zone_gb": Dimension("GB", "Data between zones", 10**9, "B", selectors=_DATA_SELECTORS),
    "requests": Dimension("1000 Requests", "Requests", 1_000, "Requests", selectors=_CLIENT_SELECTORS),
    "connection_hours": Dimension(
        "Connection-Hours",
        "Open connections",
        3_600_000_000,
        "Connection-Seconds",
        1_000_000,
        selectors=_CLIENT_SELECTORS,
    ),
    "partition_hours": Dimension("Partition-Hours", "Partitions", 1, "Partition-Hours", selectors=("topics",)),
    "cluster_hours": Dimension(
        "Cluster-Hours", "Running clusters", 1, "Cluster-Hours", shared=True, selectors=_CLIENT_SELECTORS
    ),
    "fixed_daily": Dimension("Days", "Fixed daily amount", shared=True, selectors=_CLIENT_SELECTORS),
    "fixed_monthly": Dimension("Months", "Fixed monthly amount", shared=True, selectors=_CLIENT_SELECTORS),
}
"""By name. Connection time is measured in µs, data in bytes."""

SELECTORS = ("clusters", "listeners", "topics", "principals")


def _parse_amount(value: object) -> Decimal:
    allowed = f"must be an amount from 0 to below {PRICE_LIMIT:,} with at most {MONEY_DECIMALS} decimals"
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise ValueError(allowed)
    try:
        amount = Decimal(str(value))  # the decimal text of a YAML number, not its binary value
    except InvalidOperation:
        raise ValueError(allowed) from None
    if not amount.is_finite() or not 0 <= amount < PRICE_LIMIT or amount != round(amount, MONEY_DECIMALS):
        raise ValueError(allowed)
    return amount


def _parse_day(value: object) -> date:
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            value = None
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError("must be a day such as 2026-01-31")
    return value


Amount = Annotated[Decimal, BeforeValidator(_parse_amount)]
"""An amount of money: exact, as written."""

Day = Annotated[date, BeforeValidator(_parse_day)]
"""A day; it begins at midnight UTC."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""A name of a price or a team."""


class NamedId(StrictModel):
    """An id with a display name."""

    id: str = Field(min_length=1)
    name: str = ""


class Split(StrictModel):
    """How a shared cost is split."""

    by: Literal["bytes", "requests", "even"] = "bytes"
    among: Literal["rows", "teams"] = "rows"
    """``rows``: every combination of cluster, topic, principal and client id with usage."""


class Price(StrictModel):
    """One price. It is valid until ``valid_to`` or until the next price of the same name and selection."""

    name: Name
    dimension: Literal[
        "data_in_gb", "data_out_gb", "cross_zone_gb", "requests", "connection_hours", "partition_hours",
        "cluster_hours", "fixed_daily", "fixed_monthly",
    ]  # fmt: skip
    price: Amount
    valid_from: Day = Field(alias="validFrom")
    valid_to: Day | None = Field(default=None, alias="validTo")
    """The first day on which it is no longer valid."""
    clusters: tuple[Pattern, ...] = ()
    listeners: tuple[Pattern, ...] = ()
    topics: tuple[Pattern, ...] = ()
    principals: tuple[Pattern, ...] = ()
    split: Split | None = None

    @property
    def selection(self) -> str:
        """The selectors as text; empty if there are none."""
        return "; ".join(f"{name}={'|'.join(getattr(self, name))}" for name in SELECTORS if getattr(self, name))

    @property
    def id(self) -> str:
        """Name, first day and selection. It is unique."""
        return f"{self.name}@{self.valid_from}{f' [{self.selection}]' if self.selection else ''}"

    @property
    def shared(self) -> Split | None:
        """How it is split; None if it is charged to the client that caused it."""
        return (self.split or Split()) if DIMENSIONS[self.dimension].shared else None

    @model_validator(mode="after")
    def _fits_its_dimension(self) -> Self:
        wrong = []
        if self.split and not self.shared:
            shared = ", ".join(name for name, each in DIMENSIONS.items() if each.shared)
            wrong.append(
                f"split: {self.dimension} is charged to the client that caused it; split is allowed for {shared}"
            )
        by = DIMENSIONS[self.dimension].selectors
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


class Prices(StrictModel):
    """The prices of one account, all in one currency."""

    name: str = ""
    """From ``metadata.name``."""
    currency: str
    account: NamedId
    provider: str = Field(min_length=1)
    region: NamedId | None = None
    prices: tuple[Price, ...]

    @field_validator("currency")
    @classmethod
    def _is_a_currency(cls, value: str) -> str:
        if value not in CURRENCIES.split():
            raise ValueError("must be a currency code of ISO 4217 such as EUR")
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
                raise ValueError(
                    f"{price.name}: is a price of {other} and of {price.dimension}; use one name for each dimension"
                )
        for before, after in _consecutive_prices(value):
            if before.valid_from == after.valid_from or (before.valid_to and before.valid_to > after.valid_from):
                until = f" to {before.valid_to}" if before.valid_to else ""
                raise ValueError(
                    f"{after.id}: {before.name} already has a price from {before.valid_from}{until};"
                    " only one price may be valid on one day for the same selection"
                )
        return value

    def periods(self) -> list[tuple[Price, date | None]]:
        """Return every price with the first day on which it is no longer valid, None if it has no end."""
        next_from = {before.id: after.valid_from for before, after in _consecutive_prices(self.prices)}
        return [(price, price.valid_to or next_from.get(price.id)) for price in self.prices]

    def gaps(self) -> list[tuple[Price, date, date]]:
        """Return each price with a gap before the next one of its name and selection, and both ends of the gap."""
        return [
            (before, before.valid_to, after.valid_from)
            for before, after in _consecutive_prices(self.prices)
            if before.valid_to and before.valid_to < after.valid_from
        ]


def _consecutive_prices(prices: Sequence[Price]) -> list[tuple[Price, Price]]:
    """Return each price with the one of the same name and selection that follows it."""
    ordered = sorted(prices, key=lambda each: (each.name, each.selection, each.valid_from))
    return [
        (before, after)
        for before, after in pairwise(ordered)
        if (before.name, before.selection) == (after.name, after.selection)
    ]


class OwnerRule(StrictModel):
    """What belongs to a team. All given fields must match. A field that a charge does not have matches nothing."""

    team: Name
    clusters: tuple[Pattern, ...] = ()
    topics: tuple[Pattern, ...] = ()
    principals: tuple[Pattern, ...] = ()
    client_ids: tuple[Pattern, ...] = Field(default=(), alias="clientIds")


class Owners(StrictModel):
    """Who owns what. The first matching rule determines the team; without a match it is ``unowned``."""

    rules: tuple[OwnerRule, ...] = ()
    tags: dict[Name, dict[str, str]] = Field(default_factory=dict)
    """Tags of teams."""

    @model_validator(mode="after")
    def _tags_are_of_teams(self) -> Self:
        unknown = sorted(set(self.tags) - {rule.team for rule in self.rules})
        if unknown:
            raise ValueError("\n".join(f"tags: {team}: no rule names this team" for team in unknown))
        return self


def _parse_network(value: str) -> str:
    try:
        return str(ip_network(value))
    except ValueError as error:
        raise ValueError(f"must be an address range such as 10.0.0.0/8: {error}") from None


Zone = Annotated[str, Field(min_length=1)]


class Zones(StrictModel):
    """Zones of clients and brokers. If several ranges contain an address, the smallest range is used."""

    clients: dict[Annotated[str, BeforeValidator(_parse_network)], Zone] = Field(default_factory=dict)
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
                continue  # reported by the validator of the range
            if network in seen:
                raise ValueError(f"{text}: is the same range as {seen[network]}")
            seen[network] = text
        return value
