"""What ``cost`` charges, counted. Each day is told by what was heard of it and of days before, never by later ones: it
is the same whether it is computed in the evening or a month later.
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
from spark_jobs.tables.columns import DAY_US, HOUR_US, MINUTE_US, day_of, start_of

WHO = ("cluster_id", "listener", "topic", "principal", "client_id", "direction", "zone", "client_zone")
"""Whose usage it is; NULL where that is not known, or not asked."""

DATA = "api IN ('Produce', 'Fetch', 'ShareFetch')"
DIRECTION = "if(api = 'Produce', 'in', 'out')"

LISTED_FOR = "24 HOURS"
"""How long a list of topics stands for the hours without one that follow it."""


@dataclass(frozen=True)
class Inputs:
    """The tables that usage is counted of, merged, and the first day that is asked for; None: all."""

    traffic: DataFrame
    connections: DataFrame
    inventory: DataFrame
    completeness: DataFrame
    since: date | None

    def asked(self, rows: DataFrame) -> DataFrame:
        """Return ``rows`` of the days that are asked for."""
        return rows if self.since is None else rows.where(F.col("day") >= F.lit(self.since))

    @property
    def heard(self) -> DataFrame:
        """Minutes in which a sidecar was heard of."""
        return self.asked(self.completeness.where("reason IS NULL"))


def usage(meters: Collection[str], zones: Zones, inputs: Inputs) -> DataFrame:
    """Return one row of ``quantity`` for each ``day``, ``meter`` and ``WHO``.

    ``meters``: dimensions of prices, counted as ``definitions.prices.DIMENSIONS`` says; and ``shared_bytes``,
    ``shared_requests``, ``shared_even``, by which shared sums are split. Of those there is also one row of 0 for each
    cluster and day in which a sidecar of it was heard of: ``nobody`` is true on it.
    """
    traffic = inputs.asked(inputs.traffic)
    whole, of_topics = traffic.where("topic IS NULL"), traffic.where("topic IS NOT NULL")
    data = of_topics.where(DATA).selectExpr("*", f"{DIRECTION} AS direction", "bytes AS q")
    counted: dict[str, Callable[[], DataFrame]] = {
        "data_in_gb": lambda: data.where("direction = 'in'"),
        "data_out_gb": lambda: data.where("direction = 'out'"),
        "cross_zone_gb": lambda: _between_zones(data, zones),
        "requests": lambda: whole.selectExpr("*", "requests AS q"),
        "connection_hours": lambda: _connected(inputs),
        "partition_hours": lambda: _partitions(inputs),
        "shared_bytes": lambda: data.drop("direction"),
        "shared_requests": lambda: whole.selectExpr("*", "requests AS q"),
        "shared_even": lambda: of_topics.selectExpr("*", "1 AS q"),
    }
    parts = [_summed(meter, count().where("q > 0")) for meter, count in counted.items() if meter in meters]
    nobody = inputs.heard.select("day", "cluster_id").distinct().selectExpr("*", "0 AS q", "true AS nobody")
    parts += [_summed(meter, nobody) for meter in sorted(meters) if meter.startswith("shared_")]
    return reduce(DataFrame.unionByName, parts)


def _summed(meter: str, rows: DataFrame) -> DataFrame:
    missing = [F.lit(None).cast("string").alias(name) for name in WHO if name not in rows.columns]
    nobody = [] if "nobody" in rows.columns else [F.lit(False).alias("nobody")]
    rows = rows.select("*", F.lit(meter).alias("meter"), *missing, *nobody)
    # Sums of 64 bits might not hold what hostile clients add up to.
    return rows.groupBy("day", "meter", "nobody", *WHO).agg(F.expr("sum(CAST(q AS DECIMAL(19, 0))) AS quantity"))


def _between_zones(data: DataFrame, zones: Zones) -> DataFrame:
    """Data of clients that are in another zone than the broker, or that are not known to be in the same one."""
    by_broker = json.dumps(
        {cluster: {str(id): zone for id, zone in each.items()} for cluster, each in zones.brokers.items()}
    )
    zones_of_brokers = F.from_json(F.lit(by_broker), "map<string, map<string, string>>")
    of_cluster = F.try_element_at(zones_of_brokers, F.col("cluster_id"))
    asked = [name for name in WHO if name in data.columns]
    rows = data.groupBy("day", *asked, "broker_id", "client_ip").agg(F.sum("q").alias("q"))
    return (
        rows.withColumn("zone", F.try_element_at(of_cluster, F.col("broker_id").cast("string")))
        .withColumn("address", F.expr(_ADDRESS))
        .withColumn("client_zone", _zone_of_client(zones))
        .where("zone IS NULL OR client_zone IS NULL OR zone != client_zone")
    )


def _zone_of_client(zones: Zones) -> Column:
    networks = sorted(((ip_network(range), zone) for range, zone in zones.clients.items()), key=_size)
    found = [
        F.when(F.col("address").between(_digits(network[0]), _digits(network[-1])), F.lit(zone))
        for network, zone in networks
    ]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _size(entry: tuple[IPv4Network | IPv6Network, str]) -> int:
    return entry[0].num_addresses


def _digits(address: IPv4Address | IPv6Address) -> str:
    """Return ``address`` as the 32 hexadecimal digits that ``_ADDRESS`` makes."""
    value = int(address)
    return f"{value + (0xFFFF << 32) if address.version == 4 else value:032x}"


# An IPv4 address is what IPv6 maps it to; text that is none of both has other than 32 digits, or is NULL.
_V4 = """concat('00000000000000000000ffff', array_join(transform(split(substring_index(client_ip, ':', -1), '[.]'),
    part -> lpad(lower(hex(CAST(part AS INT))), 2, '0')), ''))"""
_GROUPS = "filter(split({part}, ':'), group -> group != '')"
_LEFT = _GROUPS.format(part="substring_index(lower(substring_index(client_ip, '%', 1)), '::', 1)")
_RIGHT = _GROUPS.format(
    part="if(contains(client_ip, '::'), substring_index(lower(substring_index(client_ip, '%', 1)), '::', -1), '')"
)
_V6 = f"""array_join(transform(concat({_LEFT}, array_repeat('0', 8 - size({_LEFT}) - size({_RIGHT})), {_RIGHT}),
    group -> lpad(group, 4, '0')), '')"""
_ADDRESS = f"""CASE WHEN client_ip RLIKE '^(?:::[fF]{{4}}:)?(?:[0-9]{{1,3}}[.]){{3}}[0-9]{{1,3}}$' THEN {_V4}
    WHEN client_ip RLIKE '^[0-9a-fA-F:]*:[0-9a-fA-F:]*(?:%.*)?$' THEN {_V6} END"""


def _connected(inputs: Inputs) -> DataFrame:
    """How long connections were open, in µs: up to their end, or the last minute in which their run was heard of."""
    alive = inputs.heard.groupBy("cluster_id", "boot_id", "day").agg(
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


def _partitions(inputs: Inputs) -> DataFrame:
    """The partitions of each topic in each hour in which a sidecar of the cluster was heard of, as last listed."""
    hours = inputs.heard.selectExpr("cluster_id", f"{start_of('unix_micros(minute)', HOUR_US)} AS hour").distinct()
    lists = inputs.inventory.select("cluster_id", "hour").distinct().selectExpr("*", "hour AS listed", "false AS asked")
    of_hours = (
        hours.selectExpr("*", "CAST(NULL AS TIMESTAMP) AS listed", "true AS asked")
        .unionByName(lists)
        .withColumn(
            "listed",
            F.expr(
                "max(listed) OVER (PARTITION BY cluster_id ORDER BY hour"
                f" RANGE BETWEEN INTERVAL {LISTED_FOR} PRECEDING AND CURRENT ROW)"
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
