"""The table ``cost``: prices on what was used. Money is counted in whole 10⁻¹⁰ of the currency, so nothing is rounded
but a charge as a whole, once; what its rows lack of it goes to those that lost most by rounding down.
"""

from __future__ import annotations

import json
from datetime import date

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.definitions import Definitions
from spark_jobs.definitions.prices import DECIMALS, DIMENSIONS, SELECTORS, Owners, Price, Prices
from spark_jobs.schemas import COST
from spark_jobs.tables.columns import DAY_US, columns_of
from spark_jobs.tables.usage import Inputs, usage

UNOWNED = "unowned"

TYPES = {
    "charge": "INT",
    "valid_from": "DATE",
    "valid_to": "DATE",
    "unit_price": "DECIMAL(38, 10)",
    "price": "DECIMAL(22, 0)",
    "size": "DECIMAL(10, 0)",
    "consumed_size": "DECIMAL(10, 0)",
}
"""Of what is told of a period of a price and is no text. ``price`` is in 10⁻¹⁰ of the currency."""

ROW = (
    *["x_ClusterId", "x_Topic", "x_PrincipalId", "x_ClientId", "x_Team", "x_Direction"],
    *["AvailabilityZone", "x_ClientZone"],
)
"""Who a row is of: rows of one charge differ in these."""

CHARGE = ("charge", "day", "pool", "unknown")
"""What is one charge: its rows add up to it."""


def cost(
    traffic: DataFrame,
    connections: DataFrame,
    inventory: DataFrame,
    completeness: DataFrame,
    definitions: Definitions,
    since: date | None,
) -> DataFrame:
    """Return the rows of ``cost`` from day ``since`` on (None: all), of merged rows of the other tables."""
    prices = _prices(traffic.sparkSession, definitions.prices)
    meters = {_meter(price) for each in definitions.prices for price in each.prices}
    used = usage(meters, definitions.zones, Inputs(traffic, connections, inventory, completeness, since))
    rows = _split(_rows(used, prices, definitions.owners))
    rows = rows.join(F.broadcast(prices), "charge").select("*", *_focus(definitions.owners))
    return rows.select(*columns_of(COST))


def _meter(price: Price) -> str:
    """Return what is counted for ``price``."""
    return f"shared_{price.shared.by}" if price.shared else price.dimension


def _prices(spark: SparkSession, definitions: tuple[Prices, ...]) -> DataFrame:
    periods = [_period(of, price, until) for of in definitions for price, until in of.periods()]
    rows = [{"charge": number, **period} for number, period in enumerate(periods)]
    schema = ", ".join(f"{name}: {TYPES.get(name, 'STRING')}" for name in rows[0])
    # Rows handed over as Python objects would need Python in the executors.
    return spark.range(1).select(F.inline(F.from_json(F.lit(json.dumps(rows)), f"array<struct<{schema}>>")))


def _period(of: Prices, price: Price, until: date | None) -> dict[str, object]:
    dimension, split = DIMENSIONS[price.dimension], price.shared
    patterns = {name: "|".join(f"(?:{each})" for each in getattr(price, name)) or None for name in SELECTORS}
    return patterns | {
        "meter": _meter(price),
        "dimension": price.dimension,
        "unit_price": f"{price.price:f}",
        "price": f"{price.price.scaleb(DECIMALS):.0f}",
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
        "words": dimension.words,
        "account_id": of.account.id,
        "account_name": of.account.name or of.account.id,
        "currency": of.currency,
        "provider": of.provider,
        "region_id": of.region and of.region.id,
        "region_name": of.region and (of.region.name or of.region.id),
    }


def _rows(used: DataFrame, prices: DataFrame, owners: Owners) -> DataFrame:
    """Return what is to be charged to whom: the rows of each charge with their ``weight``."""
    matched = used.join(F.broadcast(prices), "meter").where(
        f"day >= valid_from AND coalesce(day < valid_to, true) AND {_selects('clusters', 'cluster_id')} AND (nobody OR"
        f" ({_selects('listeners', 'listener')} AND {_selects('topics', 'topic')}"
        f" AND {_selects('principals', 'principal')}))"
    )
    of_all = F.coalesce(F.col("among") == "teams", F.lit(False))
    pool = F.when(F.col("dimension") == "cluster_hours", F.col("cluster_id"))
    keys = {
        "pool": pool,
        "unknown": F.expr("meter = 'cross_zone_gb' AND (zone IS NULL OR client_zone IS NULL)"),
        "x_Team": _team(owners),
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
    return rows.groupBy(*CHARGE, *ROW, "nobody", *of_price).agg(
        F.expr("CAST(if(split_by = 'even' AND sum(quantity) > 0, 1, sum(quantity)) AS DECIMAL(19, 0)) AS weight")
    )


def _selects(selector: str, name: str) -> str:
    return f"({selector} IS NULL OR coalesce({name} RLIKE concat('^(?:', {selector}, ')\\\\z'), false))"


def _team(owners: Owners) -> Column:
    """Return the team of the first rule that matches."""
    asked = {"clusters": "cluster_id", "topics": "topic", "principals": "principal", "client_ids": "client_id"}
    teams = []
    for rule in owners.rules:
        matches = F.lit(True)
        for field, name in asked.items():
            if patterns := getattr(rule, field):
                matches &= F.coalesce(F.col(name).rlike(rf"^(?:{'|'.join(patterns)})\z"), F.lit(False))
        teams.append(F.when(matches, F.lit(rule.team)))
    return F.coalesce(*teams, F.lit(UNOWNED))


def _split(rows: DataFrame) -> DataFrame:
    """Return ``rows`` with what each has to pay: ``paid``, in 10⁻¹⁰, and how much of the price's unit that is.

    A row's part is ``weight * factor / divisor``: of a price on use the price per size of its unit, of a shared sum
    the sum per weight of all.
    """
    rows = rows.withColumn("idle", F.expr(f"sum(weight) OVER ({_OF_CHARGE}) = 0"))
    rows = rows.withColumn("weight", F.expr("CAST(if(idle, 1, weight) AS DECIMAL(19, 0))")).where("weight > 0")
    rows = rows.withColumn("whole", F.expr(f"CAST(sum(weight) OVER ({_OF_CHARGE}) AS DECIMAL(19, 0))"))
    rows = rows.selectExpr("*", f"if(unknown, 0, {_AMOUNT}) AS amount", "split_by IS NOT NULL AS shared")
    rows = rows.selectExpr(
        "*", "weight * if(shared, amount, if(unknown, 0, price)) AS product", "if(shared, whole, size) AS divisor"
    )
    rows = rows.selectExpr("*", f"{_quotient('product', 'divisor')} AS least", "product % divisor AS lost")
    rows = rows.selectExpr(
        "*",
        f"amount - sum(least) OVER ({_OF_CHARGE}) AS missing",
        f"row_number() OVER ({_OF_CHARGE} ORDER BY lost DESC, {', '.join(ROW)}) AS place",
    )
    return rows.selectExpr(
        *CHARGE,
        *ROW,
        "CAST(least + if(place <= missing, 1, 0) AS DECIMAL(27, 0)) AS paid",
        f"{_PRICED} AS priced",
        f"if(shared, {_PRICED}, CAST(weight / consumed_size AS DECIMAL(38, 10))) AS consumed",
    )


_OF_CHARGE = f"PARTITION BY {', '.join(CHARGE)}"


def _quotient(dividend: str, divisor: str) -> str:
    """Return SQL of the whole part of a quotient of decimals: ``div`` has 64 bits only, ``/`` is rounded."""
    dividend, divisor = (f"CAST({each} AS DECIMAL(38, 0))" for each in (dividend, divisor))
    return f"CAST(({dividend} - {dividend} % {divisor}) / {divisor} AS DECIMAL(38, 0))"


_DAYS = "CAST(day(last_day(day)) AS DECIMAL(2, 0))"
_UP_TO = "price * CAST(day(day) - {before} AS DECIMAL(2, 0))"

_AMOUNT = f"""CASE dimension
    WHEN 'fixed_daily' THEN CAST(price AS DECIMAL(38, 0))
    WHEN 'fixed_monthly' THEN {_quotient(_UP_TO.format(before=0), _DAYS)} - {_quotient(_UP_TO.format(before=1), _DAYS)}
    WHEN 'cluster_hours' THEN CAST(price * 24BD AS DECIMAL(38, 0))
    ELSE {_quotient("whole * price", "size")} + if(2 * (whole * price % size) >= size, 1, 0) END"""
"""The charge as a whole. A month's amount is spread over its days so that they add up to it."""

_PRICED = f"""CASE dimension
    WHEN 'fixed_daily' THEN CAST(weight / whole AS DECIMAL(38, 10))
    WHEN 'fixed_monthly' THEN CAST(weight / (whole * {_DAYS}) AS DECIMAL(38, 10))
    WHEN 'cluster_hours' THEN CAST(weight * 24BD / whole AS DECIMAL(38, 10))
    ELSE CAST(weight / size AS DECIMAL(38, 10)) END"""


def _focus(owners: Owners) -> list[Column]:
    tags = F.from_json(F.lit(json.dumps(owners.tags)), "map<string, map<string, string>>")
    return [F.expr(f"{sql} AS {name}") for name, sql in _FOCUS.items()] + [
        F.try_element_at(tags, F.col("x_Team")).alias("Tags")
    ]


def _midnight(day: str) -> str:
    return f"timestamp_micros(unix_date({day}) * {DAY_US}L)"


_PAID = "CAST(paid * 0.0000000001BD AS DECIMAL(38, 10))"
_FIXED = "dimension LIKE 'fixed%'"

_FOCUS = {
    "BillingAccountId": "account_id",
    "BillingAccountName": "account_name",
    "BillingCurrency": "currency",
    "BillingPeriodStart": _midnight("trunc(day, 'MM')"),
    "BillingPeriodEnd": _midnight("add_months(trunc(day, 'MM'), 1)"),
    "ChargePeriodStart": _midnight("day"),
    "ChargePeriodEnd": _midnight("date_add(day, 1)"),
    "ChargeCategory": f"if({_FIXED}, 'Purchase', 'Usage')",
    "ChargeClass": "CAST(NULL AS STRING)",
    "ChargeDescription": "concat(words, if(unknown, ', not charged as a zone is not known', ''), ': ', name)",
    "ChargeFrequency": f"if({_FIXED}, 'Recurring', 'Usage-Based')",
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
    "ConsumedQuantity": f"if({_FIXED}, NULL, consumed)",
    "ConsumedUnit": "consumed_unit",
    "ListUnitPrice": "if(unknown, 0BD, unit_price)",
    "ListCost": _PAID,
    "ContractedUnitPrice": "if(unknown, 0BD, unit_price)",
    "ContractedCost": _PAID,
    "EffectiveCost": _PAID,
    "BilledCost": _PAID,
    "x_AllocatedMethodId": "if(split_by IS NULL, NULL, if(split_by = 'even', 'even', concat('by_', split_by)))",
}
"""SQL of the columns of FOCUS."""
