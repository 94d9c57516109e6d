"""The table ``cost``: prices applied to usage.

Money is counted in integers of 10⁻¹⁰ of the currency. Only a charge as a whole is rounded, once. The difference between
the charge and the sum of its rows, which are rounded down, goes to the rows with the greatest remainders.
"""

from __future__ import annotations

import json
from datetime import date

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.definitions import Definitions
from spark_jobs.definitions.prices import DIMENSIONS, MONEY_DECIMALS, SELECTORS, Owners, Price, Prices
from spark_jobs.schemas import COST
from spark_jobs.tables.columns import DAY_US, table_columns
from spark_jobs.tables.usage import UsageInputs, measure_usage

UNOWNED_TEAM = "unowned"

PRICE_COLUMN_TYPES = {
    "charge": "INT",
    "valid_from": "DATE",
    "valid_to": "DATE",
    "unit_price": "DECIMAL(38, 10)",
    "price": "DECIMAL(22, 0)",
    "size": "DECIMAL(10, 0)",
    "consumed_size": "DECIMAL(10, 0)",
}
"""Types of the columns of a price period that are not text. ``price`` is in 10⁻¹⁰ of the currency."""

ROW_KEYS = (
    *["x_ClusterId", "x_Topic", "x_PrincipalId", "x_ClientId", "x_Team", "x_Direction"],
    *["AvailabilityZone", "x_ClientZone"],
)
"""Columns in which the rows of one charge differ."""

CHARGE_KEYS = ("charge", "day", "pool", "unknown")
"""Columns that identify one charge. Its rows add up to it."""


def cost(
    traffic: DataFrame,
    connections: DataFrame,
    inventory: DataFrame,
    completeness: DataFrame,
    definitions: Definitions,
    since: date | None,
) -> DataFrame:
    """Return the rows of ``cost`` from the day ``since`` on (None: all days), from merged rows of the other tables."""
    prices = _price_periods(traffic.sparkSession, definitions.prices)
    meters = {_meter(price) for each in definitions.prices for price in each.prices}
    used = measure_usage(meters, definitions.zones, UsageInputs(traffic, connections, inventory, completeness, since))
    rows = _split_charges(_charged_rows(used, prices, definitions.owners))
    rows = rows.join(F.broadcast(prices), "charge").select("*", *_focus_columns(definitions.owners))
    return rows.select(*table_columns(COST))


def _meter(price: Price) -> str:
    """Return the meter that ``price`` is applied to."""
    return f"shared_{price.shared.by}" if price.shared else price.dimension


def _price_periods(spark: SparkSession, definitions: tuple[Prices, ...]) -> DataFrame:
    periods = [
        _period_row(price_list, price, until) for price_list in definitions for price, until in price_list.periods()
    ]
    rows = [{"charge": number, **period} for number, period in enumerate(periods)]
    schema = ", ".join(f"{name}: {PRICE_COLUMN_TYPES.get(name, 'STRING')}" for name in rows[0])
    # Rows created from Python objects would need Python in the executors.
    return spark.range(1).select(F.inline(F.from_json(F.lit(json.dumps(rows)), f"array<struct<{schema}>>")))


def _period_row(price_list: Prices, price: Price, until: date | None) -> dict[str, object]:
    dimension, split = DIMENSIONS[price.dimension], price.shared
    patterns = {name: "|".join(f"(?:{each})" for each in getattr(price, name)) or None for name in SELECTORS}
    return patterns | {
        "meter": _meter(price),
        "dimension": price.dimension,
        "unit_price": f"{price.price:f}",
        "price": f"{price.price.scaleb(MONEY_DECIMALS):.0f}",
        "size": dimension.size,
        "consumed_size": dimension.consumed_size,
        "split_by": split and split.by,
        "among": split and split.among,
        "valid_from": str(price.valid_from),
        "valid_to": until and str(until),
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


def _charged_rows(used: DataFrame, prices: DataFrame, owners: Owners) -> DataFrame:
    """Return the rows of each charge with their ``weight``."""
    matched = used.join(F.broadcast(prices), "meter").where(
        f"day >= valid_from AND coalesce(day < valid_to, true) AND {_matches('clusters', 'cluster_id')} AND (nobody OR"
        f" ({_matches('listeners', 'listener')} AND {_matches('topics', 'topic')}"
        f" AND {_matches('principals', 'principal')}))"
    )
    of_all = F.coalesce(F.col("among") == "teams", F.lit(False))
    pool = F.when(F.col("dimension") == "cluster_hours", F.col("cluster_id"))
    keys = {
        "pool": pool,
        "unknown": F.expr("meter = 'cross_zone_gb' AND (zone IS NULL OR client_zone IS NULL)"),
        "x_Team": _owning_team(owners),
        "x_ClusterId": F.when(of_all, pool).otherwise(F.col("cluster_id")),
        "x_Topic": F.when(~of_all, F.col("topic")),
        "x_PrincipalId": F.when(~of_all, F.col("principal")),
        "x_ClientId": F.when(~of_all, F.col("client_id")),
        "x_Direction": F.col("direction"),
        "AvailabilityZone": F.col("zone"),
        "x_ClientZone": F.col("client_zone"),
    }
    rows = matched.select("*", *[value.alias(name) for name, value in keys.items()])
    of_price = ("dimension", "price", "size", "consumed_size", "split_by")
    return rows.groupBy(*CHARGE_KEYS, *ROW_KEYS, "nobody", *of_price).agg(
        F.expr("CAST(if(split_by = 'even' AND sum(quantity) > 0, 1, sum(quantity)) AS DECIMAL(19, 0)) AS weight")
    )


def _matches(selector: str, name: str) -> str:
    return f"({selector} IS NULL OR coalesce({name} RLIKE concat('^(?:', {selector}, ')\\\\z'), false))"


def _owning_team(owners: Owners) -> Column:
    """Return the team of the first owner rule that matches a row."""
    asked = {"clusters": "cluster_id", "topics": "topic", "principals": "principal", "client_ids": "client_id"}
    teams = []
    for rule in owners.rules:
        matches = F.lit(True)
        for field, name in asked.items():
            if patterns := getattr(rule, field):
                matches &= F.coalesce(F.col(name).rlike(rf"^(?:{'|'.join(patterns)})\z"), F.lit(False))
        teams.append(F.when(matches, F.lit(rule.team)))
    return F.coalesce(*teams, F.lit(UNOWNED_TEAM))


def _split_charges(rows: DataFrame) -> DataFrame:
    """Return ``rows`` with the amount of each: ``paid``, in 10⁻¹⁰ of the currency, and its quantity in pricing units.

    The amount of a row is ``weight * factor / divisor``. For a usage price this is the price per size of its unit, for
    a shared cost the cost per total weight.
    """
    rows = rows.withColumn("idle", F.expr(f"sum(weight) OVER ({_CHARGE_PARTITION}) = 0"))
    rows = rows.withColumn("weight", F.expr("CAST(if(idle, 1, weight) AS DECIMAL(19, 0))")).where("weight > 0")
    rows = rows.withColumn("whole", F.expr(f"CAST(sum(weight) OVER ({_CHARGE_PARTITION}) AS DECIMAL(19, 0))"))
    rows = rows.selectExpr("*", f"if(unknown, 0, {_CHARGE_AMOUNT}) AS amount", "split_by IS NOT NULL AS shared")
    rows = rows.selectExpr(
        "*", "weight * if(shared, amount, if(unknown, 0, price)) AS product", "if(shared, whole, size) AS divisor"
    )
    rows = rows.selectExpr("*", f"{_quotient('product', 'divisor')} AS least", "product % divisor AS lost")
    rows = rows.selectExpr(
        "*",
        f"amount - sum(least) OVER ({_CHARGE_PARTITION}) AS missing",
        f"row_number() OVER ({_CHARGE_PARTITION} ORDER BY lost DESC, {', '.join(ROW_KEYS)}) AS place",
    )
    return rows.selectExpr(
        *CHARGE_KEYS,
        *ROW_KEYS,
        "CAST(least + if(place <= missing, 1, 0) AS DECIMAL(27, 0)) AS paid",
        f"{_PRICING_QUANTITY} AS priced",
        f"if(shared, {_PRICING_QUANTITY}, CAST(weight / consumed_size AS DECIMAL(38, 10))) AS consumed",
    )


_CHARGE_PARTITION = f"PARTITION BY {', '.join(CHARGE_KEYS)}"


def _quotient(dividend: str, divisor: str) -> str:
    """Return SQL of the integer part of a quotient of decimals: ``div`` has only 64 bits, and ``/`` rounds."""
    dividend, divisor = (f"CAST({each} AS DECIMAL(38, 0))" for each in (dividend, divisor))
    return f"CAST(({dividend} - {dividend} % {divisor}) / {divisor} AS DECIMAL(38, 0))"


_MONTH_DAYS = "CAST(day(last_day(day)) AS DECIMAL(2, 0))"
_UP_TO_DAY = "price * CAST(day(day) - {before} AS DECIMAL(2, 0))"

_CHARGE_AMOUNT = f"""CASE dimension
    WHEN 'fixed_daily' THEN CAST(price AS DECIMAL(38, 0))
    WHEN 'fixed_monthly' THEN {_quotient(_UP_TO_DAY.format(before=0), _MONTH_DAYS)}
        - {_quotient(_UP_TO_DAY.format(before=1), _MONTH_DAYS)}
    WHEN 'cluster_hours' THEN CAST(price * 24BD AS DECIMAL(38, 0))
    ELSE {_quotient("whole * price", "size")} + if(2 * (whole * price % size) >= size, 1, 0) END"""
"""SQL of the charge as a whole. A monthly amount is spread over the days of the month so that they add up to it."""

_PRICING_QUANTITY = f"""CASE dimension
    WHEN 'fixed_daily' THEN CAST(weight / whole AS DECIMAL(38, 10))
    WHEN 'fixed_monthly' THEN CAST(weight / (whole * {_MONTH_DAYS}) AS DECIMAL(38, 10))
    WHEN 'cluster_hours' THEN CAST(weight * 24BD / whole AS DECIMAL(38, 10))
    ELSE CAST(weight / size AS DECIMAL(38, 10)) END"""


def _focus_columns(owners: Owners) -> list[Column]:
    tags = F.from_json(F.lit(json.dumps(owners.tags)), "map<string, map<string, string>>")
    return [F.expr(f"{sql} AS {name}") for name, sql in _FOCUS_COLUMNS.items()] + [
        F.try_element_at(tags, F.col("x_Team")).alias("Tags")
    ]


def _midnight_of(day: str) -> str:
    return f"timestamp_micros(unix_date({day}) * {DAY_US}L)"


_PAID_AMOUNT = "CAST(paid * 0.0000000001BD AS DECIMAL(38, 10))"
_IS_FIXED = "dimension LIKE 'fixed%'"

_FOCUS_COLUMNS = {
    "BillingAccountId": "account_id",
    "BillingAccountName": "account_name",
    "BillingCurrency": "currency",
    "BillingPeriodStart": _midnight_of("trunc(day, 'MM')"),
    "BillingPeriodEnd": _midnight_of("add_months(trunc(day, 'MM'), 1)"),
    "ChargePeriodStart": _midnight_of("day"),
    "ChargePeriodEnd": _midnight_of("date_add(day, 1)"),
    "ChargeCategory": f"if({_IS_FIXED}, 'Purchase', 'Usage')",
    "ChargeClass": "CAST(NULL AS STRING)",
    "ChargeDescription": "concat(words, if(unknown, ', not charged as a zone is not known', ''), ': ', name)",
    "ChargeFrequency": f"if({_IS_FIXED}, 'Recurring', 'Usage-Based')",
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
    "SkuId": "if(unknown, concat(name, '/unknown-zone'), name)",
    "SkuMeter": "if(unknown, 'unknown_zone_gb', dimension)",
    "SkuPriceId": "if(unknown, concat(id, '/unknown-zone'), id)",
    "PricingCategory": "'Standard'",
    "PricingQuantity": "priced",
    "PricingUnit": "unit",
    "ConsumedQuantity": f"if({_IS_FIXED}, NULL, consumed)",
    "ConsumedUnit": "consumed_unit",
    "ListUnitPrice": "if(unknown, 0BD, unit_price)",
    "ListCost": _PAID_AMOUNT,
    "ContractedUnitPrice": "if(unknown, 0BD, unit_price)",
    "ContractedCost": _PAID_AMOUNT,
    "EffectiveCost": _PAID_AMOUNT,
    "BilledCost": _PAID_AMOUNT,
    "x_AllocatedMethodId": "if(split_by IS NULL, NULL, if(split_by = 'even', 'even', concat('by_', split_by)))",
}
"""SQL of each FOCUS column."""
