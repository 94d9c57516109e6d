"""Describes definitions in plain text for their author."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from spark_jobs.definitions.load import Definitions
from spark_jobs.definitions.mirror import Mirror
from spark_jobs.definitions.prices import DIMENSIONS, OwnerRule, Owners, Prices, Zones


def describe_definitions(declared: Definitions) -> list[str]:
    """Return a line for each definition, and a line for each omission that may not be intended."""
    lines = [f"objective {line}" for objective in declared.objectives for line in objective.describe()]
    for prices in declared.prices:
        lines += [f"prices {prices.name}: {line}" for line in _price_lines(prices)]
    lines += [f"owner {_rule_line(rule)}" for rule in declared.owners.rules]
    lines += [f"zone {line}" for line in _zone_lines(declared.zones)]
    lines += [f"mirror {_mirror_line(mirror)}" for mirror in declared.mirrors]
    lines += [f"retention {table}: {_format_duration(kept)}" for table, kept in declared.retention.items()]
    if declared.prices and declared.owners == Owners():
        lines.append("no owners: all costs are unowned")
    metered = {price.dimension for prices in declared.prices for price in prices.prices}
    if "cross_zone_gb" in metered and declared.zones == Zones():
        lines.append("no zones: nothing is charged for traffic between them")
    return lines or ["nothing is declared"]


def _price_lines(prices: Prices) -> Iterator[str]:
    for price, until in prices.periods():
        dimension = DIMENSIONS[price.dimension]
        unit = dimension.unit if dimension.unit[0].isdigit() else dimension.unit.removesuffix("s")
        text = f"{price.name}: {price.price:f} {prices.currency} per {unit}"
        text += f" ({dimension.description.lower()}) from {price.valid_from}{f' until {until}' if until else ''}"
        text += f", for {price.selection}" if price.selection else ""
        if price.shared:
            text += f", split by {price.shared.by} among {price.shared.among}"
        yield text
    for price, first, until in prices.gaps():
        yield f"{price.name}: nothing is charged from {first} until {until}"


def _rule_line(rule: OwnerRule) -> str:
    limits = {"clusters": rule.clusters, "topics": rule.topics, "principals": rule.principals}
    limits["client ids"] = rule.client_ids
    return f"{rule.team}: {'; '.join(f'{name} {_join(values)}' for name, values in limits.items() if values) or 'all'}"


def _zone_lines(zones: Zones) -> Iterator[str]:
    for network, zone in zones.clients.items():
        yield f"{zone}: clients of {network}"
    for cluster, brokers in zones.brokers.items():
        for zone in sorted(set(brokers.values())):
            yield f"{zone}: brokers {_join(str(one) for one, its in brokers.items() if its == zone)} of {cluster}"


def _mirror_line(mirror: Mirror) -> str:
    text = f"{mirror.name}: topics {mirror.topics} of {mirror.source_cluster_id} are {mirror.prefix}… in"
    text += f" {mirror.target_cluster_id} within {_format_duration(mirror.lag)}"
    who = (*mirror.principals, *mirror.client_ids)
    return f"{text}, by {_join(who)}" if who else text


def _format_duration(time: timedelta) -> str:
    """Return a duration in the greatest unit of which it is a multiple."""
    seconds = time // timedelta(seconds=1)
    units = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
    unit, size = next((unit, size) for unit, size in units.items() if seconds % size == 0)
    return f"{seconds // size} {unit}{'' if seconds == size else 's'}"


def _join(values: Iterable[str]) -> str:
    return ", ".join(values)
