"""Costs: ``cost``, with the columns of FOCUS 1.2 (FinOps Open Cost and Usage Specification)."""

from __future__ import annotations

from spark_jobs.schemas.model import Column, Table

_MONEY = "decimal(38,10)"
_FOCUS = "FOCUS"

COST = Table(
    "cost",
    "What each day cost, by team, principal, client and topic: FOCUS rows (custom columns begin with `x_`). Money is "
    "exact: the rows of a charge add up to the charge. Only acknowledged data is charged.",
    (
        Column("day", "date", "The day charged; the table is partitioned by it.", "UTC"),
        Column("BillingAccountId", "string", "Account of the prices' definition.", source=_FOCUS),
        Column("BillingAccountName", "string", "Its name.", source=_FOCUS),
        Column("BillingCurrency", "string", "Currency of every amount, ISO 4217.", source=_FOCUS),
        Column("BillingPeriodStart", "timestamp", "First instant of the month.", "UTC", _FOCUS),
        Column("BillingPeriodEnd", "timestamp", "First instant of the next month.", "UTC", _FOCUS),
        Column("ChargePeriodStart", "timestamp", "First instant of the day.", "UTC", _FOCUS),
        Column("ChargePeriodEnd", "timestamp", "First instant of the next day.", "UTC", _FOCUS),
        Column("ChargeCategory", "string", "`Usage`; `Purchase` of fixed amounts.", source=_FOCUS),
        Column("ChargeClass", "string", "NULL: no correction.", source=_FOCUS),
        Column("ChargeDescription", "string", "What is charged, in words.", source=_FOCUS),
        Column("ChargeFrequency", "string", "`Usage-Based`; `Recurring` of fixed amounts.", source=_FOCUS),
        Column("InvoiceIssuerName", "string", "Who charges: `provider` of the definition.", source=_FOCUS),
        Column("ProviderName", "string", "Likewise.", source=_FOCUS),
        Column("PublisherName", "string", "Likewise.", source=_FOCUS),
        Column("ServiceCategory", "string", "`Integration`.", source=_FOCUS),
        Column("ServiceSubcategory", "string", "`Messaging`.", source=_FOCUS),
        Column("ServiceName", "string", "`Apache Kafka`.", source=_FOCUS),
        Column("SubAccountId", "string", "Team; `unowned` where no rule names one.", source=_FOCUS),
        Column("SubAccountName", "string", "Likewise.", source=_FOCUS),
        Column("RegionId", "string", "Region of the definition; NULL without.", source=_FOCUS),
        Column("RegionName", "string", "Likewise.", source=_FOCUS),
        Column("AvailabilityZone", "string", "Zone of the broker of data between zones; NULL of all else, and where it"
               " is not known.", source=_FOCUS),
        Column("ResourceId", "string", "`<cluster id>/<topic>`, or the cluster's id; NULL of a sum that teams share.",
               source=_FOCUS),
        Column("ResourceName", "string", "The topic, or the cluster's id; likewise.", source=_FOCUS),
        Column("ResourceType", "string", "`Topic` or `Cluster`; likewise.", source=_FOCUS),
        Column("SkuId", "string", "Name of the price.", source=_FOCUS),
        Column("SkuMeter", "string", "What is metered: the price's dimension; `unknown_zone_gb` of data that might have"
               " been between zones and is not charged.", source=_FOCUS),
        Column("SkuPriceId", "string", "Name of the price, the day it is valid from, and what it is limited to.",
               source=_FOCUS),
        Column("PricingCategory", "string", "`Standard`.", source=_FOCUS),
        Column("PricingQuantity", _MONEY, "How much of the pricing unit.", "`PricingUnit`", _FOCUS),
        Column("PricingUnit", "string", "`GB` (10⁹ bytes), `1000 Requests`, `Connection-Hours`, …", source=_FOCUS),
        Column("ConsumedQuantity", _MONEY, "How much was used; NULL of fixed amounts.", "`ConsumedUnit`", _FOCUS),
        Column("ConsumedUnit", "string", "`B` (bytes), `Requests`, `Connection-Seconds`, …", source=_FOCUS),
        Column("ListUnitPrice", _MONEY, "Price of one pricing unit.", "`BillingCurrency`", _FOCUS),
        Column("ListCost", _MONEY, "The row's part of its charge: `PricingQuantity` × `ListUnitPrice`, but that all"
               " rows of a day and `SkuPriceId` add up to the charge.", "`BillingCurrency`", _FOCUS),
        Column("ContractedUnitPrice", _MONEY, "As the list price: no contract is known.", "`BillingCurrency`", _FOCUS),
        Column("ContractedCost", _MONEY, "As `ListCost`.", "`BillingCurrency`", _FOCUS),
        Column("EffectiveCost", _MONEY, "As `ListCost`.", "`BillingCurrency`", _FOCUS),
        Column("BilledCost", _MONEY, "As `ListCost`.", "`BillingCurrency`", _FOCUS),
        Column("Tags", "map<string,string>", "Tags of the owning team.", source=_FOCUS),
        Column("x_ClusterId", "string", "The Kafka cluster's own id."),
        Column("x_Team", "string", "Team; `unowned` where no rule names one."),
        Column("x_PrincipalId", "string", "Principal; NULL where the charge is of no client."),
        Column("x_ClientId", "string", "Client id; likewise."),
        Column("x_Topic", "string", "Topic; NULL where the charge is of no topic."),
        Column("x_Direction", "string", "`in` (produced), `out` (consumed), or NULL."),
        Column("x_ClientZone", "string", "Zone of the client; as `AvailabilityZone`."),
        Column("x_AllocatedMethodId", "string", "How a shared cost was split: `by_bytes`, `by_requests`, `even`; NULL"
               " of what is charged directly."),
    ),
    example="SELECT x_Team, SkuMeter, sum(PricingQuantity) AS quantity, PricingUnit, sum(BilledCost) AS cost,"
    " BillingCurrency FROM cost GROUP BY ALL ORDER BY ALL",
    retention_days=1_100,
    derived_from=("traffic", "connections", "inventory", "completeness"),
)  # fmt: skip
