"""Reads the text of ``/metrics``."""

from collections import Counter, defaultdict

from prometheus_client.parser import text_string_to_metric_families

PLACES = ("active", "waiting", "held", "closed")
"""Each accepted connection is in one of these numbers."""


def sample(text: str, name: str, **labels: str) -> float:
    """Sum of the samples called ``name`` whose labels include ``labels``."""
    return sum(
        found.value
        for family in text_string_to_metric_families(text)
        for found in family.samples
        if found.name == name and labels.items() <= found.labels.items()
    )


def unbalanced(text: str) -> list[str]:
    """Return the listeners of a page of ``/metrics`` whose accepted connections are not all active, waiting, held or
    closed, each with its numbers."""
    of_connections = (line for line in text.splitlines() if line.startswith("brokerside_connections_"))
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for family in text_string_to_metric_families("\n".join(of_connections)):
        for one in family.samples:
            name = one.name.removeprefix("brokerside_connections_").removesuffix("_total")
            found[one.labels["listener"]][name] += int(one.value)
    return [
        f"{listener}: {', '.join(f'{name} {counts[name]}' for name in ('accepted', *PLACES))}"
        for listener, counts in found.items()
        if counts["accepted"] != sum(counts[name] for name in PLACES)
    ]
