"""``cost`` as custom costs of OpenCost: JSON of its ``CustomCostResponse``, one for each day and currency."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from spark_jobs.export.costs import read_costs_by_day

COST_DOMAIN = "brokerside"

RESPONSE_VERSION = "1"
"""Version of the content of this plugin; the format itself has no version."""

COST_FIELDS = {
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
"""Column by field."""

EXTENDED_ATTRIBUTES = {
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

LABEL_COLUMNS = {
    "kafka_cluster": "x_ClusterId",
    "kafka_topic": "x_Topic",
    "kafka_principal": "x_PrincipalId",
    "kafka_client_id": "x_ClientId",
    "kafka_direction": "x_Direction",
    "kafka_client_zone": "x_ClientZone",
    "team": "x_Team",
}
"""Column by label. The tags of the team are added as labels and do not replace these."""


def opencost_json(root: Path | str, first: date | None = None, last: date | None = None) -> str:
    """Return the costs of ``first`` to ``last`` below ``root`` as a JSON array of responses, ordered by time.

    Raises QueryError with one sentence on the cause.
    """
    return msgspec.json.format(_JSON.encode(list(cost_responses(root, first, last))), indent=1).decode()


def cost_responses(root: Path | str, first: date | None = None, last: date | None = None) -> Iterator[dict[str, Any]]:
    """Yield the responses of ``opencost_json`` as dicts."""
    for _, rows in read_costs_by_day(root, first, last):
        currency_of = itemgetter("BillingCurrency")
        for currency, of_currency in groupby(sorted(rows, key=currency_of), key=currency_of):
            some = list(of_currency)
            yield {
                "metadata": {"source": "brokerside"},
                "costSource": "messaging",
                "domain": COST_DOMAIN,
                "version": RESPONSE_VERSION,
                "currency": currency,
                "start": some[0]["ChargePeriodStart"],
                "end": some[0]["ChargePeriodEnd"],
                "costs": [_cost_object(row) for row in some],
                "errors": [],
            }


def _cost_object(row: Mapping[str, Any]) -> dict[str, Any]:
    labels = {**(row["Tags"] or {}), **_present_values(row, LABEL_COLUMNS)}
    return {
        "id": _cost_id(row),
        **_present_values(row, COST_FIELDS),
        "labels": labels,
        "extendedAttributes": _present_values(row, EXTENDED_ATTRIBUTES),
    }


def _present_values(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    return {field: row[column] for field, column in columns.items() if row[column] is not None}


def _cost_id(row: Mapping[str, Any]) -> str:
    """Return a unique id of the row, which stays the same when the row is computed again."""
    keys = ("day", "BillingAccountId", "SkuPriceId", *LABEL_COLUMNS.values(), "AvailabilityZone")
    encoded = msgspec.json.encode([row[key] for key in keys])
    return hashlib.sha256(encoded).hexdigest()[:32]


_JSON = msgspec.json.Encoder(decimal_format="number")
"""Encodes decimals with all their digits."""
