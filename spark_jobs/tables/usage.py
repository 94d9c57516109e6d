"""Measures the usage that ``cost`` charges.

The usage of a day depends only on data of this day and earlier days. So it is the same whether it is computed in the
evening or a month later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import date
from functools import reduce
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.definitions.prices import Zones
from spark_jobs.tables.columns import DAY_US, HOUR_US, MINUTE_US, day_of, start_of_interval

USAGE_KEYS = ("cluster_id", "listener", "topic", "principal", "client_id", "direction", "zone", "client_zone")
"""Key columns of usage. NULL: not known, or not relevant for the meter."""

IS_DATA = "api IN ('Produce', 'Fetch', 'ShareFetch')"
DIRECTION_SQL = "if(api = 'Produce', 'in', 'out')"

INVENTORY_VALIDITY = "24 HOURS"
"""How long a topic inventory is used for following hours without an inventory."""


@dataclass(frozen=True)
class UsageInputs:
    """The tables that usage is measured from, with merged rows, and the first day to be measured (None: all days)."""

    traffic: DataFrame
    connections: DataFrame
    inventory: DataFrame
    completeness: DataFrame
    since: date | None

    def within_days(self, rows: DataFrame) -> DataFrame:
        """Return those of ``rows`` that are of a day to be measured."""
        return rows if self.since is None else rows.where(F.col("day") >= F.lit(self.since))

    @property
    def minutes_alive(self) -> DataFrame:
        """Rows of ``completeness`` for the minutes in which a sidecar sent events."""
        return self.within_days(self.completeness.where("reason IS NULL"))


def measure_usage(meters: Collection[str], zones: Zones, inputs: UsageInputs) -> DataFrame:
    """Return one row of ``quantity`` for each ``day``, ``meter`` and ``USAGE_KEYS``.

    ``meters``: dimensions of prices, in the units of ``definitions.prices.DIMENSIONS``; and ``shared_bytes``,
    ``shared_requests``, ``shared_even``, by which shared costs are split. The shared meters also have one row with the
    quantity 0 and ``nobody`` = true for each cluster and day with events of a sidecar.
    """
    traffic = inputs.within_days(inputs.traffic)
    whole, of_topics = traffic.where("topic IS NULL"), traffic.where("topic IS NOT NULL")
    data = of_topics.where(IS_DATA).selectExpr("*", f"{DIRECTION_SQL} AS direction", "bytes AS q")
    counted: dict[str, Callable[[], DataFrame]] = {
        "data_in_gb": lambda: data.where("direction = 'in'"),
        "data_out_gb": lambda: data.where("direction = 'out'"),
        "cross_zone_gb": lambda: _cross_zone_data(data, zones),
        "requests": lambda: whole.selectExpr("*", "requests AS q"),
        "connection_hours": lambda: _connection_time(inputs),
        "partition_hours": lambda: _partition_hours(inputs),
        "shared_bytes": lambda: data.drop("direction"),
        "shared_requests": lambda: whole.selectExpr("*", "requests AS q"),
        "shared_even": lambda: of_topics.selectExpr("*", "1 AS q"),
    }
    parts = [_sum_usage(meter, count().where("q > 0")) for meter, count in counted.items() if meter in meters]
    nobody = inputs.minutes_alive.select("day", "cluster_id").distinct().selectExpr("*", "0 AS q", "true AS nobody")
    parts += [_sum_usage(meter, nobody) for meter in sorted(meters) if meter.startswith("shared_")]
    return reduce(DataFrame.unionByName, parts)


def _sum_usage(meter: str, rows: DataFrame) -> DataFrame:
    missing = [F.lit(None).cast("string").alias(name) for name in USAGE_KEYS if name not in rows.columns]
    nobody = [] if "nobody" in rows.columns else [F.lit(False).alias("nobody")]
    rows = rows.select("*", F.lit(meter).alias("meter"), *missing, *nobody)
    # Hostile clients could overflow sums of 64 bits.
    return rows.groupBy("day", "meter", "nobody", *USAGE_KEYS).agg(F.expr("sum(CAST(q AS DECIMAL(19, 0))) AS quantity"))


def _cross_zone_data(data: DataFrame, zones: Zones) -> DataFrame:
    """Return data of clients in another zone than the broker, or whose zone or broker zone is not known."""
    by_broker = json.dumps(
        {cluster: {str(id): zone for id, zone in each.items()} for cluster, each in zones.brokers.items()}
    )
    zones_of_brokers = F.from_json(F.lit(by_broker), "map<string, map<string, string>>")
    of_cluster = F.try_element_at(zones_of_brokers, F.col("cluster_id"))
    asked = [name for name in USAGE_KEYS if name in data.columns]
    rows = data.groupBy("day", *asked, "broker_id", "client_ip").agg(F.sum("q").alias("q"))
    return (
        rows.withColumn("zone", F.try_element_at(of_cluster, F.col("broker_id").cast("string")))
        .withColumn("address", F.expr(_ADDRESS_DIGITS))
        .withColumn("client_zone", _client_zone(zones))
        .where("zone IS NULL OR client_zone IS NULL OR zone != client_zone")
    )


def _client_zone(zones: Zones) -> Column:
    networks = sorted(((ip_network(range), zone) for range, zone in zones.clients.items()), key=_network_size)
    found = [
        F.when(F.col("address").between(_address_digits(network[0]), _address_digits(network[-1])), F.lit(zone))
        for network, zone in networks
    ]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _network_size(entry: tuple[IPv4Network | IPv6Network, str]) -> int:
    return entry[0].num_addresses


def _address_digits(address: IPv4Address | IPv6Address) -> str:
    """Return ``address`` as 32 hexadecimal digits, the format of ``_ADDRESS_DIGITS``."""
    value = int(address)
    return f"{value + (0xFFFF << 32) if address.version == 4 else value:032x}"


# SQL of ``client_ip`` as 32 hexadecimal digits. An IPv4 address is mapped to IPv6. Text that is no address gives NULL
# or another number of digits.
_IPV4_DIGITS = """concat('00000000000000000000ffff', array_join(transform(
    split(substring_index(client_ip, ':', -1), '[.]'), part -> lpad(lower(hex(CAST(part AS INT))), 2, '0')), ''))"""
_IPV6_GROUPS = "filter(split({part}, ':'), group -> group != '')"
_LEFT_GROUPS = _IPV6_GROUPS.format(part="substring_index(lower(substring_index(client_ip, '%', 1)), '::', 1)")
_RIGHT_GROUPS = _IPV6_GROUPS.format(
    part="if(contains(client_ip, '::'), substring_index(lower(substring_index(client_ip, '%', 1)), '::', -1), '')"
)
_IPV6_DIGITS = f"""array_join(transform(
    concat({_LEFT_GROUPS}, array_repeat('0', 8 - size({_LEFT_GROUPS}) - size({_RIGHT_GROUPS})), {_RIGHT_GROUPS}),
    group -> lpad(group, 4, '0')), '')"""
_ADDRESS_DIGITS = f"""CASE
    WHEN client_ip RLIKE '^(?:::[fF]{{4}}:)?(?:[0-9]{{1,3}}[.]){{3}}[0-9]{{1,3}}$' THEN {_IPV4_DIGITS}
    WHEN client_ip RLIKE '^[0-9a-fA-F:]*:[0-9a-fA-F:]*(?:%.*)?$' THEN {_IPV6_DIGITS} END"""


def _connection_time(inputs: UsageInputs) -> DataFrame:
    """Return how long connections were open, in µs: until they closed, or until the last minute of their boot."""
    alive = inputs.minutes_alive.groupBy("cluster_id", "boot_id", "day").agg(
        F.expr(f"max(unix_micros(minute)) + {MINUTE_US} AS heard_until")
    )
    opened = inputs.connections.where("opened_at IS NOT NULL").selectExpr(
        "cluster_id",
        "boot_id",
        "listener",
        "principal",
        "unix_micros(opened_at) AS opened",
        "unix_micros(closed_at) AS closed",
    )
    begins = f"unix_date(day) * {DAY_US}L"
    return (
        opened.join(alive, ["cluster_id", "boot_id"])
        .where(f"opened < {begins} + {DAY_US} AND coalesce(closed >= {begins}, true)")
        .withColumn("until", F.expr(f"if(coalesce(closed < {begins} + {DAY_US}, false), closed, heard_until)"))
        .selectExpr("day", "cluster_id", "listener", "principal", f"until - greatest(opened, {begins}) AS q")
    )


def _partition_hours(inputs: UsageInputs) -> DataFrame:
    """Return the partitions of each topic in each hour with events of a sidecar, from the last inventory."""
    hours = inputs.minutes_alive.selectExpr(
        "cluster_id", f"{start_of_interval('unix_micros(minute)', HOUR_US)} AS hour"
    ).distinct()
    lists = inputs.inventory.select("cluster_id", "hour").distinct().selectExpr("*", "hour AS listed", "false AS asked")
    of_hours = (
        hours.selectExpr("*", "CAST(NULL AS TIMESTAMP) AS listed", "true AS asked")
        .unionByName(lists)
        .withColumn(
            "listed",
            F.expr(
                "max(listed) OVER (PARTITION BY cluster_id ORDER BY hour"
                f" RANGE BETWEEN INTERVAL {INVENTORY_VALIDITY} PRECEDING AND CURRENT ROW)"
            ),
        )
        .where("asked")
    )
    topics = inputs.inventory.where("NOT coalesce(internal, false)").selectExpr(
        "cluster_id", "hour AS listed", "topic", "partitions"
    )
    return of_hours.join(topics, ["cluster_id", "listed"]).selectExpr(
        f"{day_of('unix_micros(hour)')} AS day", "cluster_id", "topic", "partitions AS q"
    )
