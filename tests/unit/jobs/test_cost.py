"""Bills: what is used is written down row by row, what it costs is worked out here by hand or with whole numbers."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow
import pytest

from spark_jobs.definitions import Definitions
from spark_jobs.definitions.prices import Owners, Prices, Zones
from spark_jobs.schemas import COMPLETENESS, CONNECTIONS, INVENTORY, TRAFFIC, Table
from tests.spark import derived, stored
from tests.spark.stored import Row

Given = dict[str, Any]

DAY = date(2026, 9, 22)
NEXT = date(2026, 9, 23)


def at(day: date, hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=UTC)


def data(bytes: int, api: str = "Produce", topic: str = "orders", **given: Any) -> Given:
    return {"api": api, "topic": topic, "bytes": bytes, "topic_requests": 1, **given}


def alive(*hours: int, day: date = DAY, **given: Any) -> list[Given]:
    return [{"day": day, "minute": at(day, hour, 59), **given} for hour in hours]


COMMON = {"day": DAY, "cluster_id": "c1", "broker_id": 1}
DEFAULTS: dict[str, Given] = {
    "traffic": {**COMMON, "minute": at(DAY, 12), "listener": "CLIENT", "principal": "User:a", "client_id": "app",
                "client_ip": "10.1.0.7", "topic": None},
    "connections": {**COMMON, "boot_id": "b1", "listener": "CLIENT", "principal": "User:a"},
    "inventory": {**COMMON, "internal": False, "partitions": 1},
    "completeness": {**COMMON, "boot_id": "b1", "reason": None},
}  # fmt: skip


def rows_of(table: Table, given: list[Given]) -> pyarrow.Table:
    names = {column.name for column in table.columns}
    defaults = {name: value for name, value in DEFAULTS[table.name].items() if name in names}
    return stored.rows(table, *[{**defaults, **row} for row in given])


def billed(*prices: Any, owners: Any = None, zones: Any = None, since: Any = None, **given: Any) -> tuple[Any, ...]:
    """What ``derived`` computes ``cost`` of; ``heard`` are rows of completeness: one of ``DAY`` if nothing is said."""
    declared = tuple(each for each in prices if isinstance(each, Prices))
    plain = [each for each in prices if not isinstance(each, Prices)]
    given = {"completeness": given.pop("heard", alive(12)), **given}
    inputs = {
        each.name: rows_of(each, given.get(each.name, [])) for each in (TRAFFIC, CONNECTIONS, INVENTORY, COMPLETENESS)
    }
    bill = (*declared, *([sheet(*plain)] if plain else []))
    return "cost", inputs, Definitions(prices=bill, owners=Owners(**owners or {}), zones=Zones(**zones or {})), since


def sheet(*prices: Given, **given: Any) -> Prices:
    # An account's id of digits alone is taken for a number by programs that read the CSV, the validator among them.
    spec = {
        "currency": "EUR", "account": {"id": "acct-4711", "name": "Platform"}, "provider": "Example", "prices": prices,
    }  # fmt: skip
    return Prices(**{**spec, **given})


def price(dimension: str, amount: str, **given: Any) -> Given:
    return {"name": dimension, "dimension": dimension, "price": amount, "validFrom": "2026-01-01", **given}


TINY = Decimal("0.0000000001")


def bill(*prices: Given | Prices, **given: Any) -> list[Row]:
    return sorted(derived.rows(*billed(*prices, **given)), key=str)


def owed(rows: list[Row], *by: str) -> dict[Any, Decimal]:
    found: dict[Any, Decimal] = {}
    for row in rows:
        key = tuple(row[name] for name in by) if len(by) > 1 else row[by[0]]
        found[key] = found.get(key, Decimal(0)) + row.BilledCost
    return found


@pytest.mark.promise(
    "cost.md", "Each dimension of a price is charged to the principal that caused it, by its quantity."
)
def test_a_bill_by_hand() -> None:
    """1.5 GB in at 0.05, 3 GB out at 0.02, 2,500 requests at 0.40 for 1,000, 90 minutes at 0.10, 48 hours at 0.0015."""
    rows = bill(
        *(price("data_in_gb", "0.05"), price("data_out_gb", "0.02"), price("requests", "0.40")),
        *(price("connection_hours", "0.10"), price("partition_hours", "0.0015")),
        traffic=[
            data(1_000_000_000), data(500_000_000, minute=at(DAY, 13)),
            data(3_000_000_000, "Fetch", principal="User:b"),
            data(0, rejected_bytes=9_000_000_000, unconfirmed_bytes=9_000_000_000),
            {"api": "Produce", "requests": 2_000}, {"api": "Metadata", "requests": 500, "principal": "User:b"},
        ],
        connections=[{"connection_id": "1", "opened_at": at(DAY, 9), "closed_at": at(DAY, 10, 30)}],
        inventory=[{"hour": at(DAY, 0), "topic": "orders", "partitions": 2}],
        heard=alive(*range(24)),
    )  # fmt: skip
    assert owed(rows, "SkuMeter", "x_PrincipalId") == {
        ("data_in_gb", "User:a"): Decimal("0.075"), ("data_out_gb", "User:b"): Decimal("0.06"),
        ("requests", "User:a"): Decimal("0.80"), ("requests", "User:b"): Decimal("0.20"),
        ("connection_hours", "User:a"): Decimal("0.15"), ("partition_hours", None): Decimal("0.072"),
    }  # fmt: skip
    assert sum(row.BilledCost for row in rows) == Decimal("1.357")
    for row in rows:
        assert row.BilledCost == row.EffectiveCost == row.ListCost == row.ContractedCost
        assert row.ListCost == row.PricingQuantity * row.ListUnitPrice
    assert {
        row.SkuMeter: (row.ConsumedQuantity, row.ConsumedUnit) for row in rows if row.x_PrincipalId != "User:b"
    } == {
        "data_in_gb": (1_500_000_000, "B"), "requests": (2_000, "Requests"),
        "connection_hours": (5_400, "Connection-Seconds"), "partition_hours": (48, "Partition-Hours"),
    }  # fmt: skip


@pytest.mark.promise(
    "cost.md", "Rows of `cost` have the columns of FOCUS, and the team, principal, client id and topic."
)
def test_a_row_says_what_focus_asks_for() -> None:
    prices = sheet(price("data_in_gb", "0.05"), region={"id": "eu-central-1", "name": "Frankfurt"})
    (row,) = bill(
        prices,
        traffic=[data(2_000_000_000)],
        owners={"rules": [{"team": "shop", "topics": ["orders"]}], "tags": {"shop": {"cost-center": "12"}}},
    )
    assert {name: value for name, value in row.items() if value is not None} == {
        "day": DAY, "BillingAccountId": "acct-4711", "BillingAccountName": "Platform", "BillingCurrency": "EUR",
        "BillingPeriodStart": datetime(2026, 9, 1), "BillingPeriodEnd": datetime(2026, 10, 1),
        "ChargePeriodStart": datetime(2026, 9, 22), "ChargePeriodEnd": datetime(2026, 9, 23), "ChargeCategory": "Usage",
        "ChargeDescription": "Data produced: data_in_gb", "ChargeFrequency": "Usage-Based",
        **dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName"), "Example"),
        "ServiceCategory": "Integration", "ServiceSubcategory": "Messaging", "ServiceName": "Apache Kafka",
        **dict.fromkeys(("SubAccountId", "SubAccountName", "x_Team"), "shop"), "RegionId": "eu-central-1",
        "RegionName": "Frankfurt", "ResourceId": "c1/orders", "ResourceName": "orders", "ResourceType": "Topic",
        "SkuId": "data_in_gb", "SkuMeter": "data_in_gb", "SkuPriceId": "data_in_gb@2026-01-01",
        "PricingCategory": "Standard", "PricingQuantity": 2, "PricingUnit": "GB", "ConsumedQuantity": 2_000_000_000,
        "ConsumedUnit": "B", **dict.fromkeys(("ListUnitPrice", "ContractedUnitPrice"), Decimal("0.05")),
        **dict.fromkeys(("ListCost", "ContractedCost", "EffectiveCost", "BilledCost"), Decimal("0.1")),
        "Tags": {"cost-center": "12"}, "x_ClusterId": "c1", "x_PrincipalId": "User:a", "x_ClientId": "app",
        "x_Topic": "orders", "x_Direction": "in",
    }  # fmt: skip


@pytest.mark.promise("cost.md", "A price is valid from midnight UTC of `validFrom`.")
def test_prices_change_at_midnight() -> None:
    prices = [
        price("data_in_gb", "1", validFrom="2026-09-01"),
        price("data_in_gb", "2", validFrom="2026-09-23", validTo="2026-09-24"),
        price("data_in_gb", "4", validFrom="2026-09-25"),
    ]
    used = [data(10**9, day=date(2026, 9, day), minute=at(date(2026, 9, day), 23, 59)) for day in (22, 23, 24, 25)]
    rows = bill(*prices, traffic=used)
    assert owed(rows, "day") == {DAY: 1, NEXT: 2, date(2026, 9, 25): 4}
    assert {row.SkuPriceId for row in rows} == {f"data_in_gb@2026-09-{day}" for day in ("01", "23", "25")}
    assert owed(bill(*prices, traffic=used, since=NEXT), "day") == {NEXT: 2, date(2026, 9, 25): 4}


@pytest.mark.promise("cost.md", "The rows of a day and a price add up to the charge to the last digit.")
def test_any_charge_is_split_by_the_largest_remainder() -> None:
    """Each day has a price and weights of its own; the expected amounts are made with whole numbers here."""
    rng = random.Random(7)
    days = [date(2026, 3, number) for number in range(1, 32)]
    each = {day: rng.randrange(10 ** rng.randrange(1, 16)) for day in days}
    weights = {day: [rng.randrange(1, 10 ** rng.randrange(1, 14)) for _ in range(rng.randrange(1, 40))] for day in days}
    prices = [
        price(dimension, f"{Decimal(each[day]) * TINY:f}", validFrom=str(day))
        for dimension in ("data_in_gb", "fixed_daily")
        for day in days
    ]
    traffic = [
        data(bytes, topic=f"t{place:02}", day=day, minute=at(day, 5))
        for day in days
        for place, bytes in enumerate(weights[day])
    ]
    expected = {}
    for day in days:
        for meter, factor, divisor in (("data_in_gb", each[day], 10**9), ("fixed_daily", each[day], sum(weights[day]))):
            parts = [divmod(weight * factor, divisor) for weight in weights[day]]
            missing = (2 * sum(weights[day]) * factor + divisor) // (2 * divisor) - sum(whole for whole, _ in parts)
            first = sorted(range(len(parts)), key=lambda place, parts=parts: (-parts[place][1], place))[:missing]
            for place, (whole, _) in enumerate(parts):
                expected[meter, day, f"t{place:02}"] = (whole + (place in first)) * TINY
    assert owed(bill(*prices, traffic=traffic, heard=[]), "SkuMeter", "day", "x_Topic") == expected


@pytest.mark.promise("cost.md", "Shared sums are split by bytes, by requests or in even parts.")
def test_what_is_shared_is_split_to_the_last_digit() -> None:
    rows = bill(
        *(price("fixed_daily", "100", name=by, split={"by": by}) for by in ("bytes", "requests", "even")),
        traffic=[
            data(10, topic="a"), data(20, "Fetch", topic="b", principal="User:b"),
            data(0, "Fetch", topic="c", principal="User:b"), {"api": "Produce", "requests": 3},
            {"api": "Fetch", "requests": 1, "principal": "User:b"},
        ],
    )  # fmt: skip
    assert owed(rows, "x_AllocatedMethodId", "x_Topic", "x_PrincipalId") == {
        ("by_bytes", "a", "User:a"): Decimal("33.3333333333"), ("by_bytes", "b", "User:b"): Decimal("66.6666666667"),
        ("by_requests", None, "User:a"): 75, ("by_requests", None, "User:b"): 25,
        ("even", "a", "User:a"): Decimal("33.3333333334"), ("even", "b", "User:b"): Decimal("33.3333333333"),
        ("even", "c", "User:b"): Decimal("33.3333333333"),
    }  # fmt: skip
    assert {(row.ChargeCategory, row.ChargeFrequency, row.ConsumedQuantity) for row in rows} == {
        ("Purchase", "Recurring", None)
    }


@pytest.mark.promise(
    "cost.md", "The days of a month add up to its fixed amount, and a day without clients is paid by nobody."
)
def test_the_days_of_a_month_add_up_and_idle_ones_are_nobodys() -> None:
    days = [date(2026, 2, day) for day in range(1, 29)]
    rows = bill(
        price("fixed_monthly", "100"),
        traffic=[data(5, day=days[7])],
        heard=[row for day in days for row in alive(1, day=day)],
    )
    amounts = owed(rows, "day")
    assert sorted(amounts) == days
    assert set(amounts.values()) <= {Decimal("3.5714285714"), Decimal("3.5714285715")}
    assert sum(amounts.values()) == 100
    assert {(row.PricingQuantity, row.PricingUnit) for row in rows} == {(Decimal("0.0357142857"), "Months")}
    assert {row.day: (row.x_PrincipalId, row.x_ClusterId) for row in rows} == {
        **dict.fromkeys(days, (None, "c1")),
        days[7]: ("User:a", "c1"),
    }


@pytest.mark.promise("cost.md", "The first rule of the owners that matches says whose a row is.")
def test_the_first_rule_that_matches_owns() -> None:
    rules = [
        {"team": "mirrors", "clientIds": ["mm2-.*"]},
        {"team": "shop", "topics": ["shop\\..+"], "principals": ["User:shop-.*"]},
        {"team": "data", "topics": ["shop\\..+"]}, {"team": "east", "clusters": ["c2"]},
    ]  # fmt: skip
    who: dict[str, Given] = {
        "mirrors": {"topic": "shop.orders", "client_id": "mm2-1"},
        "shop": {"topic": "shop.orders", "principal": "User:shop-web"},
        "data": {"topic": "shop.orders", "principal": "User:x"},
        "unowned": {"topic": "myshop.orders", "principal": "User:shop-web\n"},
        "east": {"topic": "other", "cluster_id": "c2", "client_id": None},
    }
    rows = bill(
        price("data_in_gb", "1"),
        traffic=[data(10**9 * place, **given) for place, given in enumerate(who.values(), 1)],
        owners={"rules": rules},
    )
    assert owed(rows, "x_Team") == {team: place for place, team in enumerate(who, 1)}


@pytest.mark.promise("cost.md", "A price may be limited to clusters, listeners, topics and principals.")
def test_prices_are_of_what_they_select_and_in_their_own_currency() -> None:
    dollars = sheet(price("requests", "5", name="dollars"), currency="USD", account={"id": "us"})
    rows = bill(
        dollars,
        price("data_in_gb", "1", name="inside", listeners=["INTERNAL"]),
        price("data_in_gb", "10", name="outside", listeners=["PUBLIC|EDGE"], topics=["orders"]),
        price("requests", "1000", principals=["User:b"], clusters=["c1"]),
        traffic=[
            data(10**9, listener="INTERNAL"), data(10**9, listener="EDGE"),
            data(10**9, listener="EDGE", topic="orders2"), {"api": "Fetch", "requests": 1},
            {"api": "Fetch", "requests": 2, "principal": "User:b"},
            {"api": "Fetch", "requests": 4, "principal": "User:b", "cluster_id": "c2"},
        ],
    )  # fmt: skip
    assert owed(rows, "SkuId", "BillingCurrency", "BillingAccountName") == {
        ("inside", "EUR", "Platform"): 1, ("outside", "EUR", "Platform"): 10, ("requests", "EUR", "Platform"): 2,
        ("dollars", "USD", "us"): Decimal("0.035"),
    }  # fmt: skip
    assert "outside@2026-01-01 [listeners=PUBLIC|EDGE; topics=orders]" in {row.SkuPriceId for row in rows}


@pytest.mark.promise("cost.md", "Data between two known and different zones is charged in both directions.")
def test_data_between_zones_is_charged_both_ways() -> None:
    zones = {
        "clients": {"10.0.0.0/8": "a", "10.2.0.0/16": "b", "2001:db8::/32": "b", "2001:db8:1::/48": "a"},
        "brokers": {"c1": {1: "a", 2: "b"}},
    }
    traffic = [
        data(1 * 10**9, client_ip="10.2.0.1"),
        data(2 * 10**9, "Fetch", client_ip="10.2.0.1"),
        data(4 * 10**9, "Fetch", client_ip="10.3.0.1"),  # the same zone
        data(8 * 10**9, "ShareFetch", client_ip="2001:DB8::7"),
        data(16 * 10**9, client_ip="2001:db8:1::7"),  # the same zone
        data(32 * 10**9, client_ip="::ffff:10.2.9.9"), data(64 * 10**9, client_ip="10.1.2.3", broker_id=2),
        data(128 * 10**9, client_ip="192.168.0.1"), data(256 * 10**9, client_ip="10.2.0.1", broker_id=3),
        data(512 * 10**9, client_ip="*"),
    ]  # fmt: skip
    rows = bill(price("cross_zone_gb", "0.01"), traffic=traffic, zones=zones)
    crossed = [row for row in rows if row.SkuMeter == "cross_zone_gb"]
    assert owed(crossed, "x_Direction", "AvailabilityZone", "x_ClientZone") == {
        ("in", "a", "b"): Decimal("0.33"), ("out", "a", "b"): Decimal("0.10"), ("in", "b", "a"): Decimal("0.64"),
    }  # fmt: skip
    unknown = {(row.AvailabilityZone, row.x_ClientZone): row for row in rows if row.SkuMeter == "unknown_zone_gb"}
    assert {zones: row.PricingQuantity for zones, row in unknown.items()} == {("a", None): 640, (None, "b"): 256}
    assert {(row.BilledCost, row.ListUnitPrice) for row in unknown.values()} == {(0, 0)}


@pytest.mark.promise(
    "cost.md", "A connection is charged by the time that it was open, as far as its sidecar was heard of."
)
def test_connections_are_charged_by_the_hours_of_each_day() -> None:
    heard = [*alive(*range(24)), *alive(*range(15), day=NEXT), *alive(3, boot_id="b2"), *alive(9, boot_id="b3")]
    heard.append({"day": NEXT, "minute": at(NEXT, 23, 59), "boot_id": "b2", "reason": "crash"})
    connections = [
        {"principal": "overnight", "opened_at": at(DAY, 22), "closed_at": at(NEXT, 1, 30)},
        {"principal": "still open", "opened_at": at(DAY, 23, 59, 30)},
        {"principal": "at midnight", "opened_at": at(DAY, 23), "closed_at": at(NEXT, 0)},
        {"principal": "sidecar died", "opened_at": at(DAY, 3), "boot_id": "b2"},
        {"principal": "never seen to open", "closed_at": at(DAY, 5), "boot_id": "b3"},
    ]
    rows = bill(price("connection_hours", "1"), connections=connections, heard=heard)
    assert {(row.x_PrincipalId, row.day): row.ConsumedQuantity for row in rows} == {
        ("overnight", DAY): 2 * 3600, ("overnight", NEXT): 5400, ("still open", DAY): 30,
        ("still open", NEXT): 15 * 3600, ("at midnight", DAY): 3600, ("sidecar died", DAY): 3600,
    }  # fmt: skip
    evening = [row for row in heard if row["day"] == DAY]
    yesterday = bill(price("connection_hours", "1"), connections=connections, heard=evening)
    assert yesterday == [row for row in rows if row.day == DAY]


@pytest.mark.promise("cost.md", "Partitions are charged for each hour in which a sidecar of the cluster was heard of.")
def test_partitions_are_charged_as_last_listed() -> None:
    evening, night = {"hour": at(DAY, 22)}, {"hour": at(NEXT, 1)}
    inventory = [
        {**evening, "topic": "orders", "partitions": 3}, {**evening, "topic": "gone", "partitions": 1},
        {**evening, "topic": "__internal", "partitions": 50, "internal": True},
        {**night, "topic": "orders", "partitions": 6},
    ]  # fmt: skip
    heard = [*alive(20, 21, 22, 23), *alive(0, 1, 3, day=NEXT), *alive(3, day=NEXT, boot_id="b2")]
    rows = bill(price("partition_hours", "1"), inventory=inventory, heard=heard)
    assert {(row.x_Topic, row.day): row.PricingQuantity for row in rows} == {
        ("orders", DAY): 6, ("gone", DAY): 2, ("orders", NEXT): 3 + 6 + 6, ("gone", NEXT): 1,
    }  # fmt: skip
