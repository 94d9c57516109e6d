"""``cost`` as OpenCost takes custom costs: the JSON of its ``CustomCostResponse``, one for each day and currency."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from spark_jobs.export.costs import days

DOMAIN = "brokerside"

VERSION = "1"
"""Of what is said here, as the shape itself has no version."""

COST = {
    "zone": "AvailabilityZone",
    "accountName": "BillingAccountName",
    "chargeCategory": "ChargeCategory",
    "description": "ChargeDescription",
    "resourceName": "ResourceName",
    "resourceType": "ResourceType",
    "providerId": "ResourceId",
    "billedCost": "BilledCost",
    "listCost": "ListCost",
    "listUnitPrice": "ListUnitPrice",
    "usageQuantity": "PricingQuantity",
    "usageUnit": "PricingUnit",
}
"""Columns by field."""

EXTENDED = {
    "billingPeriodStart": "BillingPeriodStart",
    "billingPeriodEnd": "BillingPeriodEnd",
    "accountId": "BillingAccountId",
    "chargeFrequency": "ChargeFrequency",
    "effectiveCost": "EffectiveCost",
    "invoiceIssuer": "InvoiceIssuerName",
    "provider": "ProviderName",
    "publisher": "PublisherName",
    "serviceCategory": "ServiceCategory",
    "serviceName": "ServiceName",
    "skuId": "SkuId",
    "skuPriceId": "SkuPriceId",
    "subAccountId": "SubAccountId",
    "subAccountName": "SubAccountName",
    "pricingQuantity": "PricingQuantity",
    "pricingUnit": "PricingUnit",
    "pricingCategory": "PricingCategory",
}

LABELS = {
    "kafka_cluster": "x_ClusterId",
    "kafka_topic": "x_Topic",
    "kafka_principal": "x_PrincipalId",
    "kafka_client_id": "x_ClientId",
    "kafka_direction": "x_Direction",
    "kafka_client_zone": "x_ClientZone",
    "team": "x_Team",
}
"""Labels besides the team's tags, which do not replace them."""


def text(root: Path | str, first: date | None = None, last: date | None = None) -> str:
    """Return the costs of ``first`` to ``last`` below ``root`` as a JSON array of responses, in order of time.

    Raises QueryError, with one sentence on what is wrong.
    """
    return msgspec.json.format(_JSON.encode(list(responses(root, first, last))), indent=1).decode()


def responses(root: Path | str, first: date | None = None, last: date | None = None) -> Iterator[dict[str, Any]]:
    """Give the responses as objects."""
    for _, rows in days(root, first, last):
        by_currency = sorted(rows, key=_currency)
        for currency, of_currency in groupby(by_currency, key=_currency):
            some = list(of_currency)
            yield {
                "metadata": {"source": "brokerside"},
                "costSource": "messaging",
                "domain": DOMAIN,
                "version": VERSION,
                "currency": currency,
                "start": some[0]["ChargePeriodStart"],
                "end": some[0]["ChargePeriodEnd"],
                "costs": [_cost(row) for row in some],
                "errors": [],
            }


def _currency(row: Mapping[str, Any]) -> str:
    return str(row["BillingCurrency"])


def _cost(row: Mapping[str, Any]) -> dict[str, Any]:
    labels = {**(row["Tags"] or {}), **_present(row, LABELS)}
    return {
        "id": _id(row),
        **_present(row, COST),
        "labels": labels,
        "extendedAttributes": _present(row, EXTENDED),
    }


def _present(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    return {field: row[column] for field, column in columns.items() if row[column] is not None}


def _id(row: Mapping[str, Any]) -> str:
    """Return what tells the row from all others, and stays when it is computed again."""
    keys = ("day", "BillingAccountId", "SkuPriceId", *LABELS.values(), "AvailabilityZone")
    told = msgspec.json.encode([row[key] for key in keys])
    return hashlib.sha256(told).hexdigest()[:32]


_JSON = msgspec.json.Encoder(decimal_format="number")
"""Money keeps its digits."""
