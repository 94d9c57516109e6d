"""What definitions declare, in words, for who wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from spark_jobs.definitions.load import Definitions
from spark_jobs.definitions.mirror import Mirror
from spark_jobs.definitions.prices import DIMENSIONS, Owners, Prices, Rule, Zones


def describe(declared: Definitions) -> list[str]:
    """Return a line for each thing that is declared, with what its author may not have meant."""
    lines = [f"objective {line}" for objective in declared.objectives for line in objective.described()]
    for prices in declared.prices:
        lines += [f"prices {prices.name}: {line}" for line in _prices(prices)]
    lines += [f"owner {_rule(rule)}" for rule in declared.owners.rules]
    lines += [f"zone {line}" for line in _zones(declared.zones)]
    lines += [f"mirror {_mirror(mirror)}" for mirror in declared.mirrors]
    lines += [f"retention {table}: {_long(kept)}" for table, kept in declared.retention.items()]
    if declared.prices and declared.owners == Owners():
        lines.append("no owners: all costs are unowned")
    metered = {price.dimension for prices in declared.prices for price in prices.prices}
    if "cross_zone_gb" in metered and declared.zones == Zones():
        lines.append("no zones: nothing is charged for traffic between them")
    return lines or ["nothing is declared"]


def _prices(prices: Prices) -> Iterator[str]:
    for price, until in prices.periods():
        dimension = DIMENSIONS[price.dimension]
        unit = dimension.unit if dimension.unit[0].isdigit() else dimension.unit.removesuffix("s")
        text = f"{price.name}: {price.price:f} {prices.currency} per {unit}"
        text += f" ({dimension.words.lower()}) from {price.valid_from}{f' until {until}' if until else ''}"
        text += f", for {price.selection}" if price.selection else ""
        if price.shared:
            text += f", split by {price.shared.by} among {price.shared.among}"
        yield text
    for price, first, until in prices.gaps():
        yield f"{price.name}: nothing is charged from {first} until {until}"


def _rule(rule: Rule) -> str:
    limits = {"clusters": rule.clusters, "topics": rule.topics, "principals": rule.principals}
    limits["client ids"] = rule.client_ids
    return f"{rule.team}: {'; '.join(f'{name} {_any(values)}' for name, values in limits.items() if values) or 'all'}"


def _zones(zones: Zones) -> Iterator[str]:
    for network, zone in zones.clients.items():
        yield f"{zone}: clients of {network}"
    for cluster, brokers in zones.brokers.items():
        for zone in sorted(set(brokers.values())):
            yield f"{zone}: brokers {_any(str(one) for one, its in brokers.items() if its == zone)} of {cluster}"


def _mirror(mirror: Mirror) -> str:
    text = f"{mirror.name}: topics {mirror.topics} of {mirror.source_cluster_id} are {mirror.prefix}… in"
    text += f" {mirror.target_cluster_id} within {_long(mirror.lag)}"
    who = (*mirror.principals, *mirror.client_ids)
    return f"{text}, by {_any(who)}" if who else text


def _long(time: timedelta) -> str:
    """Return a length of time in the greatest unit of which it is a whole number."""
    seconds = time // timedelta(seconds=1)
    units = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
    unit, size = next((unit, size) for unit, size in units.items() if seconds % size == 0)
    return f"{seconds // size} {unit}{'' if seconds == size else 's'}"


def _any(values: Iterable[str]) -> str:
    return ", ".join(values)
