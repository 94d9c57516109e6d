"""What is declared of prices, owners and zones, and what is refused. Needs no Spark."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.definitions import Definitions, load
from spark_jobs.errors import JobError

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples" / "definitions"

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


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({**SPEC, "currency": "EURO"}, "spec.currency: 'EURO': must be a currency code of ISO 4217 such as EUR"),
        ({**SPEC, "currency": "ABC"}, "spec.currency: 'ABC': must be a currency code of ISO 4217 such as EUR"),
        ({**SPEC, "prices": []}, "spec.prices: must have at least one price"),
        (priced({"price": "-0.01"}), f"spec.prices.0.price: '-0.01': {AMOUNT}"),
        (priced({"price": "0.00000000001"}), f"spec.prices.0.price: '0.00000000001': {AMOUNT}"),
        (priced({"price": 1e-11}), f"spec.prices.0.price: 1e-11: {AMOUNT}"),
        (priced({"price": "1000000000000"}), f"spec.prices.0.price: '1000000000000': {AMOUNT}"),
        (priced({"price": "much"}), f"spec.prices.0.price: 'much': {AMOUNT}"),
        (priced({"price": "NaN"}), f"spec.prices.0.price: 'NaN': {AMOUNT}"),
        (priced({"price": True}), f"spec.prices.0.price: true: {AMOUNT}"),
        (priced({"validFrom": "soon"}), "spec.prices.0.validFrom: 'soon': must be a day such as 2026-01-31"),
        (priced({"validFrom": 20260101}), "spec.prices.0.validFrom: 20260101: must be a day such as 2026-01-31"),
        (
            priced({"validTo": date(2026, 1, 1)}),
            "spec.prices.0: validTo: 2026-01-01 must be after validFrom, 2026-01-01",
        ),
        (
            priced({"dimension": "requests", "topics": ["orders"]}),
            "spec.prices.0: topics: requests can be limited to clusters, listeners, principals",
        ),
        (
            priced({"dimension": "fixed_daily", "topics": ["orders"], "split": {"by": "requests"}}),
            "spec.prices.0: topics: fixed_daily can be limited to clusters, listeners, principals",
        ),
        (
            priced({"split": {"by": "even"}}),
            (
                "spec.prices.0: split: data_in_gb is charged to the client that caused it;"
                " split is allowed for cluster_hours, fixed_daily,"
                " fixed_monthly"
            ),
        ),
        (
            priced({}, {"price": 2}),
            (
                "spec.prices: in@2026-01-01: in already has a price from 2026-01-01; only one price may be"
                " valid on one day for the same selection"
            ),
        ),
        (
            priced({"validTo": date(2026, 3, 1), "topics": ["t"]}, {"validFrom": date(2026, 2, 28), "topics": ["t"]}),
            (
                "spec.prices: in@2026-02-28 [topics=t]: in already has a price from 2026-01-01 to 2026-03-01;"
                " only one price may be valid on one day for the same selection"
            ),
        ),
        (
            priced({}, {"dimension": "data_out_gb", "validFrom": date(2027, 1, 1)}),
            "spec.prices: in: is a price of data_in_gb and of data_out_gb; use one name for each dimension",
        ),
    ],
)
def test_prices_are_refused(tmp_path: Path, spec: dict[str, Any], said: str) -> None:
    assert refused(tmp_path, "Prices", spec) == [said]


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("Owners", {"rules": [{"team": "a"}], "tags": {"b": {}}}, "spec: tags: b: no rule names this team"),
        ("Owners", {"rules": [{"team": "a b"}]}, "spec.rules.0.team: 'a b': "),
        ("Owners", {"rules": [{"team": "a", "topics": ["("]}]}, "spec.rules.0.topics.0: '(': must be a regular"),
        ("Zones", {"clients": {"10.0.0.1/8": "a"}}, "spec.clients.10.0.0.1/8: '10.0.0.1/8': must be an address range"),
        (
            "Zones",
            {"clients": {"2001:db8::/32": "a", "2001:0db8::/32": "b"}},
            "spec.clients: 2001:db8::/32: is the same range as 2001:0db8::/32",
        ),
        ("Zones", {"brokers": {"c": {-1: "a"}}}, "spec.brokers.c.-1: -1: must be at least 0"),
    ],
)
def test_owners_and_zones_are_refused(tmp_path: Path, kind: str, spec: dict[str, Any], said: str) -> None:
    (mistake,) = refused(tmp_path, kind, spec)
    assert mistake.startswith(said)


def test_a_price_is_what_is_written(tmp_path: Path) -> None:
    prices = priced({"price": 0.1, "name": "a"}, {"price": "1.0000000000000", "name": "b"}, {"price": 7, "name": "c"})
    (made,) = loaded(tmp_path, "Prices", prices).prices
    assert [price.price for price in made.prices] == [Decimal("0.1"), 1, 7]


def test_a_price_ends_where_it_says_or_where_the_next_begins(tmp_path: Path) -> None:
    days = [date(2026, month, 1) for month in (1, 3, 5, 8)]
    prices = priced(
        {"validFrom": days[2], "price": 3, "validTo": date(2026, 6, 1)},
        {"validFrom": days[0], "price": 1},
        {"validFrom": days[1], "price": 2},
        {"validFrom": days[3], "price": 4},
        {"validFrom": days[0], "price": 5, "topics": ["orders"]},
    )
    (made,) = loaded(tmp_path, "Prices", prices).prices
    assert {int(price.price): until for price, until in made.periods()} == {
        1: days[1], 2: days[2], 3: date(2026, 6, 1), 4: None, 5: None
    }  # fmt: skip
    assert [(price.name, first, last) for price, first, last in made.gaps()] == [("in", date(2026, 6, 1), days[3])]


@given(st.decimals(min_value=0, max_value=10**12 - 1, places=10))
def test_no_digit_of_a_price_is_lost(amount: Decimal) -> None:
    from spark_jobs.definitions.prices import Price

    made = Price(name="a", dimension="requests", price=str(amount), valid_from=date(2026, 1, 1))
    assert made.price == amount


def test_the_examples_are_right() -> None:
    made = load([EXAMPLES / f"{name}.yaml" for name in ("prices", "owners", "zones")])
    assert made.prices
    assert made.owners.rules
    assert made.zones.clients


def test_the_page_shows_what_the_examples_say() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()
    shown = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert shown == [(EXAMPLES / f"{name}.yaml").read_text() for name in ("prices", "owners", "zones")]
