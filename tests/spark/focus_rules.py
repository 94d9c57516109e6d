"""What FOCUS 1.2 asks of each row of usage and purchases, as far as it concerns columns that we have.

In our own words, of the specification's pages of columns and attributes; of what it asks of corrections, taxes,
credits, discounts and foreign currencies nothing is here, as there are none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal

MANDATORY = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost",
    "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ServiceCategory", "ServiceName",
)  # fmt: skip
"""Columns that must be there."""

NEVER_NULL = (
    *(name for name in MANDATORY if name != "ChargeClass"),
    *("PricingCategory", "ListUnitPrice", "ContractedUnitPrice", "ServiceSubcategory", "SkuId", "SkuMeter"),
    *("SkuPriceId", "ChargeFrequency"),
)
"""In rows of usage and purchases that are no corrections."""

INSTANTS = ("BillingPeriodStart", "ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodEnd")
COSTS = {"ListCost": "ListUnitPrice", "ContractedCost": "ContractedUnitPrice"}
AMOUNTS = (*COSTS, *COSTS.values(), "BilledCost", "EffectiveCost", "PricingQuantity")

ROUNDING = Decimal("0.00000000005")
"""Half of the last digit of a quantity."""

LAST_DIGIT = Decimal("0.0000000001")
"""Of a cost: it may go to another row of the same charge."""

_UNIT = re.compile(r"(?:[1-9][0-9]* )?(?:[KMGTPE]i?)?B|(?:[1-9][0-9]* )?(?:[A-Z][a-z]+-)?[A-Z][a-z]+s")

Row = Mapping[str, str]

RULES: dict[str, Callable[[Row], bool]] = {
    "never null": lambda row: all(row[name] for name in NEVER_NULL),
    "numbers": lambda row: all(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", row[name]) for name in AMOUNTS),
    "instants": lambda row: all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row[name]) for name in INSTANTS),
    "periods": lambda row: sorted(row[name] for name in INSTANTS) == [row[name] for name in INSTANTS],
    "ChargeCategory": lambda row: row["ChargeCategory"] in ("Usage", "Purchase"),
    "ChargeClass": lambda row: row["ChargeClass"] in ("", "Correction"),
    "ChargeFrequency": lambda row: (
        row["ChargeFrequency"] in ("One-Time", "Recurring", "Usage-Based")
        and not (row["ChargeCategory"] == "Purchase" and row["ChargeFrequency"] == "Usage-Based")
    ),
    "PricingCategory": lambda row: row["PricingCategory"] in ("Standard", "Dynamic", "Committed", "Other"),
    "ServiceCategory": lambda row: row["ServiceCategory"] == "Integration",
    "ServiceSubcategory": lambda row: row["ServiceSubcategory"] == "Messaging",
    "BillingCurrency": lambda row: re.fullmatch("[A-Z]{3}", row["BillingCurrency"]) is not None,
    "units": lambda row: all(_UNIT.fullmatch(row[name]) for name in ("PricingUnit", "ConsumedUnit") if row[name]),
    "ConsumedQuantity of usage": lambda row: bool(row["ConsumedQuantity"]) == (row["ChargeCategory"] == "Usage"),
    "ConsumedQuantity is positive": lambda row: not row["ConsumedQuantity"] or Decimal(row["ConsumedQuantity"]) > 0,
    "ConsumedUnit": lambda row: bool(row["ConsumedUnit"]) == bool(row["ConsumedQuantity"]),
    "unit prices": lambda row: all(Decimal(row[name]) >= 0 for name in COSTS.values()),
    "cost is price by quantity": lambda row: all(
        abs(Decimal(row[cost]) - Decimal(row[price]) * Decimal(row["PricingQuantity"]))
        <= Decimal(row[price]) * ROUNDING + LAST_DIGIT
        for cost, price in COSTS.items()
    ),
    "RegionName": lambda row: bool(row["RegionName"]) == bool(row["RegionId"]),
    "ResourceName": lambda row: bool(row["ResourceName"]) <= bool(row["ResourceId"]),
    "ResourceType": lambda row: bool(row["ResourceType"]) == bool(row["ResourceId"]),
    "SubAccountName": lambda row: bool(row["SubAccountName"]) == bool(row["SubAccountId"]),
    "Tags": lambda row: not row["Tags"] or isinstance(json.loads(row["Tags"]), dict),
}  # fmt: skip


def broken(columns: Collection[str], rows: Iterable[Row]) -> list[str]:
    """Return each rule that is broken, with the first row that does."""
    found = [f"{name} is missing" for name in MANDATORY if name not in columns]
    foreign = [name for name in columns if not re.fullmatch(r"(?:[A-Z][a-z]+)+|x_\w+", name)]
    found += [f"{name} is not how columns are named" for name in foreign]
    first = {name: row for row in reversed(list(rows)) for name in RULES if not _holds(name, row)}
    return found + [f"{name}: {row}" for name, row in first.items()]


def _holds(name: str, row: Row) -> bool:
    try:
        return RULES[name](row)
    except (ArithmeticError, ValueError):
        return False
