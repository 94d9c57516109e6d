"""Results as a run would leave them."""

from __future__ import annotations

from typing import Any

from tests.bench.results import Measurement, Results


def results(figures: dict[tuple[str, str], dict[str, list[float]]], **others: Any) -> Results:
    """Results with, for each scenario and contestant, figures by name, one value for each round."""
    measurements = [
        Measurement(scenario, contestant, number, {name: values[number] for name, values in named.items()})
        for (scenario, contestant), named in figures.items()
        for number in range(len(next(iter(named.values()))))
    ]
    titles = {contestant: f"the {contestant}" for _, contestant in figures}
    return Results("2026-11-21", {"cpu": "2 CPUs"}, 3, titles=titles, measurements=measurements, **others)
