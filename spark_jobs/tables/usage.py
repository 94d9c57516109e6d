"""Measures the usage that ``cost`` charges.

The usage of a day depends only on data of this day and earlier days. So it is the same whether it is computed in the
evening or a month later.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_network

from spark_jobs.definitions.prices import Zones
from spark_jobs.tables.sql import literal

USAGE_KEYS = ("cluster_id", "listener", "topic", "principal", "client_id", "direction", "zone", "client_zone")
"""Key columns of usage. NULL: not known, or not relevant for the meter."""

INVENTORY_VALIDITY = "24 HOURS"
"""How long a topic inventory is used for following hours without an inventory."""

_DIRECTION = "CASE WHEN api = 'Produce' THEN 'in' WHEN api IN ('Fetch', 'ShareFetch') THEN 'out' END"

_REQUESTER = "cluster_id, listener, topic, principal, client_id"
_DATA = "FROM traffic_sums WHERE topic IS NOT NULL AND direction"
_REQUESTS = f"SELECT day, {_REQUESTER}, requests AS q FROM traffic_sums WHERE topic IS NULL"

_METERS = {
    "data_in_gb": f"SELECT day, {_REQUESTER}, direction, bytes AS q {_DATA} = 'in'",
    "data_out_gb": f"SELECT day, {_REQUESTER}, direction, bytes AS q {_DATA} = 'out'",
    "cross_zone_gb": f"SELECT day, {_REQUESTER}, direction, zone, client_zone, bytes AS q FROM zoned"
    " WHERE zone IS NULL OR client_zone IS NULL OR zone <> client_zone",
    "requests": _REQUESTS,
    "connection_hours": "SELECT day, cluster_id, listener, principal, until - greatest(opened, begins) AS q FROM open",
    "partition_hours": "SELECT hour::DATE AS day, cluster_id, topic, partitions AS q FROM listed_partitions",
    "shared_bytes": f"SELECT day, {_REQUESTER}, bytes AS q {_DATA} IS NOT NULL",
    "shared_requests": _REQUESTS,
    "shared_even": f"SELECT day, {_REQUESTER}, 1 AS q FROM traffic_sums WHERE topic IS NOT NULL",
}
"""By meter, SQL of the quantity ``q`` with those of ``USAGE_KEYS`` that are relevant."""

_MINUTES_ALIVE = """
minutes_alive AS MATERIALIZED (
    SELECT DISTINCT cluster_id, boot_id, day, minute FROM completeness WHERE reason IS NULL
)"""
"""The minutes in which a sidecar sent events."""

_OPEN_CONNECTIONS = """
heard AS (
    SELECT cluster_id, boot_id, day, epoch_us(day::TIMESTAMP) AS begins, max(epoch_us(minute)) + 60000000 AS heard_until
    FROM minutes_alive GROUP BY ALL
),
open AS (
    SELECT heard.day, cluster_id, listener, principal, begins, epoch_us(opened_at) AS opened,
        CASE WHEN epoch_us(closed_at) < begins + 86400000000 THEN epoch_us(closed_at) ELSE heard_until END AS until
    FROM connections JOIN heard USING (cluster_id, boot_id)
    WHERE epoch_us(opened_at) < begins + 86400000000 AND coalesce(epoch_us(closed_at) >= begins, true)
)"""
"""How long connections were open, in µs: until they closed, or until the last minute of their boot."""

_LISTED_PARTITIONS = f"""
hours AS (
    SELECT DISTINCT cluster_id, date_trunc('hour', minute) AS hour, NULL::TIMESTAMP AS listed, true AS asked
    FROM minutes_alive
    UNION ALL
    SELECT DISTINCT cluster_id, hour, hour, false FROM inventory
),
lists AS (
    SELECT * REPLACE (max(listed) OVER (
        PARTITION BY cluster_id ORDER BY hour RANGE BETWEEN INTERVAL {INVENTORY_VALIDITY} PRECEDING AND CURRENT ROW
    ) AS listed) FROM hours
),
listed_partitions AS (
    SELECT lists.hour, cluster_id, topic, partitions FROM lists JOIN inventory USING (cluster_id)
    WHERE asked AND lists.listed = inventory.hour AND NOT coalesce(internal, false)
)"""
"""The partitions of each topic in each hour with events of a sidecar, from the last inventory."""


def usage(meters: Collection[str], zones: Zones) -> str:
    """Return common table expressions, the last one ``used``: ``quantity`` by ``day``, ``meter`` and ``USAGE_KEYS``.

    ``meters``: dimensions of prices, in the units of ``definitions.prices.DIMENSIONS``; and ``shared_bytes``,
    ``shared_requests``, ``shared_even``, by which shared costs are split. The shared meters also have one row with the
    quantity 0 and ``nobody`` = true for each cluster and day with events of a sidecar.
    """
    by_address = ", broker_id, client_ip" if "cross_zone_gb" in meters else ""
    # Hostile clients could overflow sums of 64 bits; those of BIGINT have 128.
    traffic_sums = f"""
traffic_sums AS MATERIALIZED (
    SELECT day, {_REQUESTER}, {_DIRECTION} AS direction{by_address},
        sum(bytes) FILTER (bytes > 0) AS bytes, sum(requests) FILTER (requests > 0) AS requests
    FROM traffic GROUP BY ALL
)"""
    ctes = [_MINUTES_ALIVE, traffic_sums]
    ctes += [_zoned(zones)] if "cross_zone_gb" in meters else []
    ctes += [_OPEN_CONNECTIONS] if "connection_hours" in meters else []
    ctes += [_LISTED_PARTITIONS] if "partition_hours" in meters else []
    parts = [f"SELECT NULL::VARCHAR AS {', NULL::VARCHAR AS '.join(USAGE_KEYS)} WHERE false"]
    parts += [
        f"SELECT * EXCLUDE (q), '{meter}' AS meter, false AS nobody, sum(q) AS quantity FROM ({_METERS[meter]})"
        " WHERE q > 0 GROUP BY ALL"
        for meter in sorted(meters)
    ]
    parts += [
        f"SELECT DISTINCT day, cluster_id, '{meter}' AS meter, true AS nobody, 0 AS quantity FROM minutes_alive"
        for meter in sorted(meters)
        if meter.startswith("shared_")
    ]
    return ",\n".join([*ctes, f"used AS MATERIALIZED ({' UNION ALL BY NAME '.join(parts)})"])


def _zoned(zones: Zones) -> str:
    """Return ``traffic_sums`` of data with ``zone``, of the broker, and ``client_zone``. NULL: not known."""
    of_brokers = [
        f"WHEN cluster_id = {literal(cluster)} AND broker_id = {id} THEN {literal(zone)}"
        for cluster, each in zones.brokers.items()
        for id, zone in each.items()
    ]
    networks = {ip_network(range): zone for range, zone in zones.clients.items()}
    of_clients = [
        f"WHEN address BETWEEN '{_digits(each[0])}' AND '{_digits(each[-1])}' THEN {literal(networks[each])}"
        for each in sorted(networks, key=lambda network: network.num_addresses)
    ]
    return f"""
addresses AS (SELECT client_ip, {_ADDRESS_DIGITS} AS address FROM (SELECT DISTINCT client_ip FROM traffic_sums)),
client_zones AS (SELECT client_ip, CASE {" ".join(of_clients)} WHEN false THEN '' END AS client_zone FROM addresses),
zoned AS (
    SELECT traffic_sums.*, client_zone, CASE {" ".join(of_brokers)} WHEN false THEN '' END AS zone
    FROM traffic_sums LEFT JOIN client_zones USING (client_ip) WHERE topic IS NOT NULL AND direction IS NOT NULL
)"""


def _digits(address: IPv4Address | IPv6Address) -> str:
    """Return ``address`` as 32 hexadecimal digits, the format of ``_ADDRESS_DIGITS``."""
    value = int(address)
    return f"{value + (0xFFFF << 32) if address.version == 4 else value:032x}"


# SQL of ``client_ip`` as 32 hexadecimal digits. An IPv4 address is mapped to IPv6. Text that is no address gives NULL
# or another number of digits.
_IPV4_DIGITS = """concat('00000000000000000000ffff', array_to_string(list_transform(
    string_split(split_part(client_ip, ':', -1), '.'), lambda part: lpad(lower(hex(part::INTEGER)), 2, '0')), ''))"""
_IPV6_GROUPS = "list_filter(string_split(split_part(lower(split_part(client_ip, '%', 1)), '::', {side}), ':'), \
lambda part: part <> '')"
_LEFT_GROUPS = _IPV6_GROUPS.format(side=1)
_RIGHT_GROUPS = f"CASE WHEN contains(client_ip, '::') THEN {_IPV6_GROUPS.format(side=-1)} ELSE [] END"
_IPV6_DIGITS = f"""array_to_string(list_transform(
    list_concat({_LEFT_GROUPS}, list_transform(range(8 - len({_LEFT_GROUPS}) - len({_RIGHT_GROUPS})), lambda n: '0'),
    {_RIGHT_GROUPS}), lambda part: lpad(part, 4, '0')), '')"""
_ADDRESS_DIGITS = f"""CASE
    WHEN regexp_full_match(client_ip, '(?:::[fF]{{4}}:)?(?:[0-9]{{1,3}}[.]){{3}}[0-9]{{1,3}}') THEN {_IPV4_DIGITS}
    WHEN regexp_full_match(client_ip, '[0-9a-fA-F:]*:[0-9a-fA-F:]*(?:%.*)?') THEN {_IPV6_DIGITS} END"""
