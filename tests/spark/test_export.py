"""Costs in the formats of others, over a table written without a JVM."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.errors import QueryError
from spark_jobs.export import focus, opencost
from tests.spark.stored import write

DAY, NEXT = date(2026, 9, 22), date(2026, 9, 23)


def row(day: date = DAY, **given: Any) -> dict[str, Any]:
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    texts = {
        "BillingAccountId": "4711",
        "BillingAccountName": "Platform",
        "BillingCurrency": "EUR",
        "ChargeCategory": "Usage",
        "ChargeDescription": "Data produced: ingress",
        "ChargeFrequency": "Usage-Based",
        **dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName"), "Example"),
        "ServiceCategory": "Integration",
        "ServiceSubcategory": "Messaging",
        "ServiceName": "Apache Kafka",
        **dict.fromkeys(("SubAccountId", "SubAccountName", "x_Team"), "shop"),
        "ResourceId": "c1/orders",
        "ResourceName": "orders",
        "ResourceType": "Topic",
        "SkuId": "ingress",
        "SkuMeter": "data_in_gb",
        "SkuPriceId": "ingress@2026-01-01",
        "PricingCategory": "Standard",
        "PricingUnit": "GB",
        "ConsumedUnit": "B",
        "x_ClusterId": "c1",
        "x_PrincipalId": "User:a",
        "x_ClientId": "app",
        "x_Topic": "orders",
        "x_Direction": "in",
    }
    amounts = {
        "PricingQuantity": Decimal("1.5"),
        "ConsumedQuantity": Decimal(1_500_000_000),
        **dict.fromkeys(("ListUnitPrice", "ContractedUnitPrice"), Decimal("0.05")),
        **dict.fromkeys(("ListCost", "ContractedCost", "EffectiveCost", "BilledCost"), Decimal("0.075")),
    }
    times = {
        "BillingPeriodStart": midnight.replace(day=1),
        "BillingPeriodEnd": midnight.replace(day=1, month=midnight.month + 1),
        "ChargePeriodStart": midnight,
        "ChargePeriodEnd": midnight.replace(day=midnight.day + 1),
    }
    return {"day": day, **texts, **amounts, **times, "Tags": {"b": "2", "a": 'q"1'}, **given}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    strange = 'a,"b"\nc'
    write(tmp_path, "cost", row(), row(NEXT, x_ClientId=strange, Tags=None, BilledCost=Decimal("0.0000000001")))
    return tmp_path


def exported(root: Path, *limits: date | None) -> list[dict[str, str]]:
    out = io.StringIO(newline="")
    count = focus.write_focus_csv(root, out, *limits)
    rows = list(csv.DictReader(io.StringIO(out.getvalue(), newline="")))
    assert len(rows) == count
    return rows


def test_values_are_as_focus_writes_them(root: Path) -> None:
    first, second = exported(root)
    assert {name: value for name, value in first.items() if value} == {
        **{name: str(value) for name, value in row().items() if isinstance(value, str)},
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), "0.075"),
        **dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), "0.05"),
        "PricingQuantity": "1.5",
        "ConsumedQuantity": "1500000000",
        "BillingPeriodStart": "2026-09-01T00:00:00Z",
        "BillingPeriodEnd": "2026-10-01T00:00:00Z",
        "ChargePeriodStart": "2026-09-22T00:00:00Z",
        "ChargePeriodEnd": "2026-09-23T00:00:00Z",
        "Tags": '{"a":"q\\"1","b":"2"}',
    }
    assert (second["x_ClientId"], second["Tags"], second["BilledCost"]) == ('a,"b"\nc', "", "0.0000000001")


def test_no_text_of_ours_is_a_formula_and_those_of_focus_are_as_they_are(tmp_path: Path) -> None:
    client = "=cmd|' /C calc'!A0"
    write(tmp_path, "cost", row(x_ClientId=client, x_PrincipalId="@a", x_Topic="a\r=1", ResourceName="-x"))
    (only,) = exported(tmp_path)
    assert [only[name] for name in ("x_ClientId", "x_PrincipalId", "x_Topic")] == [f"'{client}", "'@a", "a\r=1"]
    assert only["ResourceName"] == "-x"


def test_days_are_chosen(root: Path) -> None:
    assert [row["ChargePeriodStart"][:10] for row in exported(root, NEXT, None)] == ["2026-09-23"]
    assert [row["ChargePeriodStart"][:10] for row in exported(root, None, DAY)] == ["2026-09-22"]
    assert exported(root, date(2026, 9, 24), date(2026, 9, 25)) == []
    with pytest.raises(QueryError, match="the last day, 2026-09-22, is before the first one, 2026-09-23"):
        exported(root, NEXT, DAY)


def test_without_costs_it_is_said_what_makes_them(tmp_path: Path) -> None:
    write(tmp_path, "traffic", {"day": DAY})
    with pytest.raises(QueryError, match=r"there is no table cost: .* of kind Prices"):
        exported(tmp_path)


def test_opencost_gets_a_response_for_each_day_and_currency(root: Path) -> None:
    write(root, "cost", row(BillingCurrency="USD", BilledCost=Decimal("2"), Tags={"team": "of the tag"}))
    responses = json.loads(opencost.opencost_json(root))
    assert [(each["start"], each["end"], each["currency"], len(each["costs"])) for each in responses] == [
        ("2026-09-22T00:00:00Z", "2026-09-23T00:00:00Z", "EUR", 1),
        ("2026-09-22T00:00:00Z", "2026-09-23T00:00:00Z", "USD", 1),
        ("2026-09-23T00:00:00Z", "2026-09-24T00:00:00Z", "EUR", 1),
    ]
    (first,), (dollars,), _ = (each["costs"] for each in responses)
    assert (first["billedCost"], first["usageQuantity"], first["usageUnit"]) == (0.075, 1.5, "GB")
    assert first["labels"] == {
        "a": 'q"1',
        "b": "2",
        "kafka_cluster": "c1",
        "kafka_topic": "orders",
        "kafka_principal": "User:a",
        "kafka_client_id": "app",
        "kafka_direction": "in",
        "team": "shop",
    }
    assert dollars["labels"]["team"] == "shop"
    assert "zone" not in first
    assert first["extendedAttributes"]["skuPriceId"] == "ingress@2026-01-01"


def test_ids_of_costs_are_their_own_and_stay(root: Path) -> None:
    ids = [cost["id"] for each in opencost.cost_responses(root) for cost in each["costs"]]
    assert len(set(ids)) == 2
    assert ids == [cost["id"] for each in opencost.cost_responses(root) for cost in each["costs"]]


def test_no_digit_of_money_is_lost(tmp_path: Path) -> None:
    write(tmp_path, "cost", row(BilledCost=Decimal("12345678901234567890.0123456789")))
    assert '"billedCost": 12345678901234567890.0123456789' in opencost.opencost_json(tmp_path)
    assert exported(tmp_path)[0]["BilledCost"] == "12345678901234567890.0123456789"
