"""What is declared of prices, owners and zones, and what is refused."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_jobs.definitions import Definitions, load
from spark_jobs.definitions.prices import Price
from spark_jobs.errors import JobError

PRICE = {"name": "in", "dimension": "data_in_gb", "price": "0.05", "validFrom": date(2026, 1, 1)}
SPEC = {"currency": "EUR", "account": {"id": "a"}, "provider": "p", "prices": [PRICE]}


def loaded(folder: Path, kind: str, spec: dict[str, Any]) -> Definitions:
    document = {"apiVersion": "brokerside/v1", "kind": kind, "metadata": {"name": "one"}, "spec": spec}
    (folder / "one.yaml").write_text(yaml.safe_dump(document))
    return load([folder / "one.yaml"])


def refused(folder: Path, kind: str, spec: dict[str, Any]) -> list[str]:
    """The mistakes that are reported, without the file's name."""
    with pytest.raises(JobError) as error:
        loaded(folder, kind, spec)
    return [
        re.fullmatch(r".*document 1: (.*) at line \d+, column \d+", line)[1] for line in str(error.value).splitlines()
    ]


def priced(*changes: dict[str, Any]) -> dict[str, Any]:
    return {**SPEC, "prices": [{**PRICE, **each} for each in changes]}


AMOUNT = "must be an amount from 0 to below 1,000,000,000,000 with at most 10 decimals"


OVERLAP = "only one price may be valid on one day for the same selection"
DAY = "must be a day such as 2026-01-31"
CODE = "must be a currency code of ISO 4217 such as EUR"
LIMITS = "can be limited to clusters, listeners, principals"
SPLIT = "is charged to the client that caused it; split is allowed for cluster_hours, fixed_daily, fixed_monthly"

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**SPEC, "currency": "EURO"}, f"spec.currency: 'EURO': {CODE}"),
    ({**SPEC, "currency": "ABC"}, f"spec.currency: 'ABC': {CODE}"),
    ({**SPEC, "prices": []}, "spec.prices: must have at least one price"),
    (priced({"price": "-0.01"}), f"spec.prices.0.price: '-0.01': {AMOUNT}"),
    (priced({"price": "0.00000000001"}), f"spec.prices.0.price: '0.00000000001': {AMOUNT}"),
    (priced({"price": 1e-11}), f"spec.prices.0.price: 1e-11: {AMOUNT}"),
    (priced({"price": "1000000000000"}), f"spec.prices.0.price: '1000000000000': {AMOUNT}"),
    (priced({"price": "much"}), f"spec.prices.0.price: 'much': {AMOUNT}"),
    (priced({"price": "NaN"}), f"spec.prices.0.price: 'NaN': {AMOUNT}"),
    (priced({"price": True}), f"spec.prices.0.price: true: {AMOUNT}"),
    (priced({"validFrom": "soon"}), f"spec.prices.0.validFrom: 'soon': {DAY}"),
    (priced({"validFrom": 20260101}), f"spec.prices.0.validFrom: 20260101: {DAY}"),
    (priced({"validTo": date(2026, 1, 1)}), "spec.prices.0: validTo: 2026-01-01 must be after validFrom, 2026-01-01"),
    (priced({"dimension": "requests", "topics": ["orders"]}), f"spec.prices.0: topics: requests {LIMITS}"),
    (
        priced({"dimension": "fixed_daily", "topics": ["orders"], "split": {"by": "requests"}}),
        f"spec.prices.0: topics: fixed_daily {LIMITS}",
    ),
    (priced({"split": {"by": "even"}}), f"spec.prices.0: split: data_in_gb {SPLIT}"),
    (
        priced({}, {"price": 2}),
        f"spec.prices: in@2026-01-01: in already has a price from 2026-01-01; {OVERLAP}",
    ),
    (
        priced({"validTo": date(2026, 3, 1), "topics": ["t"]}, {"validFrom": date(2026, 2, 28), "topics": ["t"]}),
        f"spec.prices: in@2026-02-28 [topics=t]: in already has a price from 2026-01-01 to 2026-03-01; {OVERLAP}",
    ),
    (
        priced({}, {"dimension": "data_out_gb", "validFrom": date(2027, 1, 1)}),
        "spec.prices: in: is a price of data_in_gb and of data_out_gb; use one name for each dimension",
    ),
]


@pytest.mark.promise("cost.md", "Prices of which two would be valid at once are refused.")
def test_prices_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    for spec, said in REFUSED:
        assert refused(tmp_path, "Prices", spec) == [said]


def test_owners_and_zones_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    twice = {"clients": {"2001:db8::/32": "a", "2001:0db8::/32": "b"}}
    for kind, spec, said in (
        ("Owners", {"rules": [{"team": "a"}], "tags": {"b": {}}}, "spec: tags: b: no rule names this team"),
        ("Owners", {"rules": [{"team": "a b"}]}, "spec.rules.0.team: 'a b': "),
        ("Owners", {"rules": [{"team": "a", "topics": ["("]}]}, "spec.rules.0.topics.0: '(': must be a regular"),
        ("Zones", {"clients": {"10.0.0.1/8": "a"}}, "spec.clients.10.0.0.1/8: '10.0.0.1/8': must be an address range"),
        ("Zones", twice, "spec.clients: 2001:db8::/32: is the same range as 2001:0db8::/32"),
        ("Zones", {"brokers": {"c": {-1: "a"}}}, "spec.brokers.c.-1: -1: must be at least 0"),
    ):
        (mistake,) = refused(tmp_path, kind, spec)
        assert mistake.startswith(said), mistake


@pytest.mark.promise("cost.md", "A price is exactly what is written, with up to 10 decimals.")
def test_a_price_is_what_is_written(tmp_path: Path) -> None:
    prices = priced({"price": 0.1, "name": "a"}, {"price": "1.0000000000000", "name": "b"}, {"price": 7, "name": "c"})
    (made,) = loaded(tmp_path, "Prices", prices).prices
    assert [price.price for price in made.prices] == [Decimal("0.1"), 1, 7]
    for amount in (Decimal(10**12 - 1) + Decimal("0.9999999999"), Decimal("0.0000000001"), Decimal(0)):
        price = Price(name="a", dimension="requests", price=str(amount), valid_from=date(2026, 1, 1))
        assert price.price == amount


@pytest.mark.promise(
    "cost.md", "A price is valid until its `validTo`, or until the next one of the same name and limits begins."
)
def test_a_price_ends_where_it_says_or_where_the_next_begins(tmp_path: Path) -> None:
    days = [date(2026, month, 1) for month in (1, 3, 5, 8)]
    prices = priced(
        {"validFrom": days[2], "price": 3, "validTo": date(2026, 6, 1)}, {"validFrom": days[0], "price": 1},
        {"validFrom": days[1], "price": 2}, {"validFrom": days[3], "price": 4},
        {"validFrom": days[0], "price": 5, "topics": ["orders"]},
    )  # fmt: skip
    (made,) = loaded(tmp_path, "Prices", prices).prices
    assert {int(price.price): until for price, until in made.periods()} == {
        1: days[1], 2: days[2], 3: date(2026, 6, 1), 4: None, 5: None
    }  # fmt: skip
    assert [(price.name, first, last) for price, first, last in made.gaps()] == [("in", date(2026, 6, 1), days[3])]
