"""The table ``cost``: prices applied to usage.

Money is counted in integers of 10⁻¹⁰ of the currency. Only a charge as a whole is rounded, once. The difference between
the charge and the sum of its rows, which are rounded down, goes to the rows with the greatest remainders.
"""

from __future__ import annotations

from datetime import date

from spark_jobs.definitions import Definitions
from spark_jobs.definitions.prices import DIMENSIONS, MONEY_DECIMALS, SELECTORS, Owners, Price, Prices
from spark_jobs.schemas import COST
from spark_jobs.tables.sql import literal, matches, table_columns, values
from spark_jobs.tables.usage import usage

UNOWNED_TEAM = "unowned"

PRICE_TYPES = {
    "charge": "INTEGER",
    "dimension": "VARCHAR",
    "price": "HUGEINT",
    "unit_price": "DECIMAL(38, 10)",
    "size": "HUGEINT",
    "consumed_size": "HUGEINT",
    "split_by": "VARCHAR",
    **dict.fromkeys(
        ("name", "id", "unit", "consumed_unit", "words", "account_id", "account_name", "currency", "provider",
         "region_id", "region_name"), "VARCHAR"),
}  # fmt: skip
"""Types of the columns of a price period. ``price`` is in 10⁻¹⁰ of the currency."""

ROW_KEYS = (
    *["x_ClusterId", "x_Topic", "x_PrincipalId", "x_ClientId", "x_Team", "x_Direction"],
    *["AvailabilityZone", "x_ClientZone"],
)
"""Columns in which the rows of one charge differ."""

CHARGE_KEYS = ("charge", "day", "pool", "unknown")
"""Columns that identify one charge. Its rows add up to it."""


def cost(definitions: Definitions) -> str:
    """Return SQL of the rows of ``cost``, of the days of ``traffic`` (stored rows) and ``completeness``.

    ``connections`` has all earlier days, too, and ``inventory`` one more. All but ``traffic`` have merged rows.
    """
    periods = [(price_list, price, until) for price_list in definitions.prices for price, until in price_list.periods()]
    rows = [_period_row(number, *period) for number, period in enumerate(periods)]
    charged = [_charged_rows(number, price, until) for number, (_, price, until) in enumerate(periods)]
    return f"""
WITH {usage({_meter(price) for _, price, _ in periods}, definitions.zones)},
{values("prices", PRICE_TYPES, rows)},
owned AS MATERIALIZED (SELECT *, {_owning_team(definitions.owners)} AS team FROM used),
charged AS ({" UNION ALL ".join(charged)}),
{_SPLIT_CHARGES}
SELECT {table_columns(COST, **_FOCUS_COLUMNS, Tags=_tags(definitions.owners))} FROM split JOIN prices USING (charge)
"""


def _meter(price: Price) -> str:
    """Return the meter that ``price`` is applied to."""
    return f"shared_{price.shared.by}" if price.shared else price.dimension


def _period_row(number: int, price_list: Prices, price: Price, until: date | None) -> dict[str, object]:
    dimension, split = DIMENSIONS[price.dimension], price.shared
    return {
        "charge": number,
        "dimension": price.dimension,
        "unit_price": f"{price.price:f}",
        "price": f"{price.price.scaleb(MONEY_DECIMALS):.0f}",
        "size": dimension.size,
        "consumed_size": dimension.consumed_size,
        "split_by": split and split.by,
        "name": price.name,
        "id": price.id,
        "unit": dimension.unit,
        "consumed_unit": dimension.consumed_unit,
        "words": dimension.description,
        "account_id": price_list.account.id,
        "account_name": price_list.account.name or price_list.account.id,
        "currency": price_list.currency,
        "provider": price_list.provider,
        "region_id": price_list.region and price_list.region.id,
        "region_name": price_list.region and (price_list.region.name or price_list.region.id),
    }


def _charged_rows(charge: int, price: Price, until: date | None) -> str:
    """Return SQL of the rows of the charges of one price with their ``weight``."""
    names = dict(zip(SELECTORS, ("cluster_id", "listener", "topic", "principal"), strict=True))
    selected = {name: matches(name, getattr(price, field)) for field, name in names.items() if getattr(price, field)}
    of_cluster = selected.pop("cluster_id", "true")
    of_client = " AND ".join(selected.values()) or "true"
    conditions = [f"meter = '{_meter(price)}'", of_cluster, f"(nobody OR ({of_client}))"]
    conditions += [f"day >= {literal(price.valid_from)}"] + ([f"day < {literal(until)}"] if until else [])
    of_teams = price.shared is not None and price.shared.among == "teams"
    pool = "cluster_id" if price.dimension == "cluster_hours" else "NULL::VARCHAR"
    keys = {
        "charge": f"{charge}",
        "day": "day",
        "pool": pool,
        "unknown": "meter = 'cross_zone_gb' AND (zone IS NULL OR client_zone IS NULL)",
        "x_ClusterId": pool if of_teams else "cluster_id",
        "x_Topic": "NULL" if of_teams else "topic",
        "x_PrincipalId": "NULL" if of_teams else "principal",
        "x_ClientId": "NULL" if of_teams else "client_id",
        "x_Team": "team",
        "x_Direction": "direction",
        "AvailabilityZone": "zone",
        "x_ClientZone": "client_zone",
        "nobody": "nobody",
    }
    weight = "sum(quantity)"
    if price.shared and price.shared.by == "even":
        weight = "CASE WHEN sum(quantity) > 0 THEN 1 ELSE 0 END::HUGEINT"
    columns = ", ".join(f"{sql} AS {name}" for name, sql in keys.items())
    return f"SELECT {columns}, {weight} AS weight FROM owned WHERE {' AND '.join(conditions)} GROUP BY ALL"


def _owning_team(owners: Owners) -> str:
    """Return the team of the first owner rule that matches a row."""
    names = {"clusters": "cluster_id", "topics": "topic", "principals": "principal", "client_ids": "client_id"}
    rules = ""
    for rule in owners.rules:
        asked = [matches(name, getattr(rule, field)) for field, name in names.items() if getattr(rule, field)]
        rules += f" WHEN {' AND '.join(asked) or 'true'} THEN {literal(rule.team)}"
    return f"CASE{rules} ELSE '{UNOWNED_TEAM}' END" if rules else f"'{UNOWNED_TEAM}'"


def _tags(owners: Owners) -> str:
    teams = ""
    for team, tags in owners.tags.items():
        names, texts = (", ".join(map(literal, each)) for each in (tags, tags.values()))
        teams += f" WHEN {literal(team)} THEN MAP([{names}]::VARCHAR[], [{texts}]::VARCHAR[])"
    return f"CASE x_Team{teams} END" if teams else "NULL"


_UNIT = 10**MONEY_DECIMALS
_MONTH_DAYS = "day(last_day(day))"

_CHARGE_AMOUNT = f"""CASE dimension
        WHEN 'fixed_daily' THEN price
        WHEN 'fixed_monthly' THEN price * day(day) // {_MONTH_DAYS} - price * (day(day) - 1) // {_MONTH_DAYS}
        WHEN 'cluster_hours' THEN price * 24
        ELSE whole * price // size + CASE WHEN 2 * (whole * price % size) >= size THEN 1 ELSE 0 END END"""
"""SQL of the charge as a whole. A monthly amount is spread over the days of the month so that they add up to it."""


def _rounded(dividend: str, divisor: str) -> str:
    """Return SQL of a quotient in 10⁻¹⁰, rounded half up."""
    return f"({2 * _UNIT} * ({dividend}) + {divisor}) // (2 * {divisor})"


_PRICING_QUANTITY = f"""CASE dimension
        WHEN 'fixed_daily' THEN {_rounded("weight", "whole")}
        WHEN 'fixed_monthly' THEN {_rounded("weight", f"(whole * {_MONTH_DAYS})")}
        WHEN 'cluster_hours' THEN {_rounded("weight * 24", "whole")}
        ELSE {_rounded("weight", "size")} END"""

_CHARGE = f"(PARTITION BY {', '.join(CHARGE_KEYS)})"

_SPLIT_CHARGES = f"""
weighed AS (
    SELECT * REPLACE (CASE WHEN sum(weight) OVER {_CHARGE} = 0 THEN 1 ELSE weight END AS weight) FROM charged
),
wholes AS (
    SELECT *, sum(weight) OVER {_CHARGE} AS whole, split_by IS NOT NULL AS shared
    FROM weighed JOIN prices USING (charge) WHERE weight > 0
),
amounts AS (SELECT *, CASE WHEN unknown THEN 0::HUGEINT ELSE {_CHARGE_AMOUNT} END AS amount FROM wholes),
-- The amount of a row: for a usage price the price per size of its unit, for a shared cost the cost per total weight.
products AS (
    SELECT *, weight * CASE WHEN shared THEN amount WHEN unknown THEN 0 ELSE price END AS product,
        CASE WHEN shared THEN whole ELSE size END AS divisor
    FROM amounts
),
quotients AS (SELECT *, product // divisor AS floor, product % divisor AS remainder FROM products),
places AS (
    SELECT *, amount - sum(floor) OVER {_CHARGE} AS missing, row_number() OVER (PARTITION BY {", ".join(CHARGE_KEYS)}
        ORDER BY remainder DESC, {" NULLS FIRST, ".join(ROW_KEYS)} NULLS FIRST) AS place
    FROM quotients
),
split AS (
    SELECT {", ".join((*CHARGE_KEYS, *ROW_KEYS))}, shared, floor + CASE WHEN place <= missing THEN 1 ELSE 0 END AS paid,
        {_PRICING_QUANTITY} AS priced,
        CASE WHEN shared THEN priced ELSE {_rounded("weight", "consumed_size")} END AS consumed
    FROM places
)"""
"""The amount of each row of ``charged``: ``paid``, in 10⁻¹⁰ of the currency, and its quantities in 10⁻¹⁰ of a unit."""


def _decimal(units: str) -> str:
    """Return SQL of an integer of 10⁻¹⁰ as a decimal."""
    whole = f"({units} // {_UNIT})::DECIMAL(28, 0)::DECIMAL(38, 10)"
    return f"{whole} + (({units} % {_UNIT})::DECIMAL(11, 0) * 0.0000000001::DECIMAL(11, 10))::DECIMAL(38, 10)"


_PAID_AMOUNT = _decimal("paid")
_IS_FIXED = "dimension LIKE 'fixed%'"

_FOCUS_COLUMNS = {
    "BillingAccountId": "account_id",
    "BillingAccountName": "account_name",
    "BillingCurrency": "currency",
    "BillingPeriodStart": "date_trunc('month', day)",
    "BillingPeriodEnd": "date_trunc('month', day) + INTERVAL 1 MONTH",
    "ChargePeriodStart": "day",
    "ChargePeriodEnd": "day + 1",
    "ChargeCategory": f"CASE WHEN {_IS_FIXED} THEN 'Purchase' ELSE 'Usage' END",
    "ChargeClass": "NULL",
    "ChargeDescription": "concat(words, CASE WHEN unknown THEN ', not charged as a zone is not known' END, ': ', name)",
    "ChargeFrequency": f"CASE WHEN {_IS_FIXED} THEN 'Recurring' ELSE 'Usage-Based' END",
    "InvoiceIssuerName": "provider",
    "ProviderName": "provider",
    "PublisherName": "provider",
    "ServiceCategory": "'Integration'",
    "ServiceSubcategory": "'Messaging'",
    "ServiceName": "'Apache Kafka'",
    "SubAccountId": "x_Team",
    "SubAccountName": "x_Team",
    "RegionId": "region_id",
    "RegionName": "region_name",
    "ResourceId": "nullif(concat_ws('/', x_ClusterId, x_Topic), '')",
    "ResourceName": "coalesce(x_Topic, x_ClusterId)",
    "ResourceType": "CASE WHEN x_Topic IS NOT NULL THEN 'Topic' WHEN x_ClusterId IS NOT NULL THEN 'Cluster' END",
    "SkuId": "concat(name, CASE WHEN unknown THEN '/unknown-zone' END)",
    "SkuMeter": "CASE WHEN unknown THEN 'unknown_zone_gb' ELSE dimension END",
    "SkuPriceId": "concat(id, CASE WHEN unknown THEN '/unknown-zone' END)",
    "PricingCategory": "'Standard'",
    "PricingQuantity": _decimal("priced"),
    "PricingUnit": "unit",
    "ConsumedQuantity": f"CASE WHEN NOT {_IS_FIXED} THEN {_decimal('consumed')} END",
    "ConsumedUnit": "consumed_unit",
    "ListUnitPrice": "CASE WHEN unknown THEN 0 ELSE unit_price END",
    "ListCost": _PAID_AMOUNT,
    "ContractedUnitPrice": "CASE WHEN unknown THEN 0 ELSE unit_price END",
    "ContractedCost": _PAID_AMOUNT,
    "EffectiveCost": _PAID_AMOUNT,
    "BilledCost": _PAID_AMOUNT,
    "x_AllocatedMethodId": "CASE WHEN split_by = 'even' THEN 'even' ELSE 'by_' || split_by END",
}
"""SQL of each FOCUS column."""
