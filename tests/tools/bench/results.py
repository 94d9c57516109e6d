"""What a run has measured, as it stands in its JSON file, and the figures that follow from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from msgspec import Struct, field, json

Item = TypeVar("Item")

REFERENCE = "haproxy"
"""What the others are compared with."""


class Measurement(Struct, frozen=True):
    """One scenario on one contestant in one round. ``foreign``: CPU of others meanwhile, as a share of one CPU."""

    scenario: str
    contestant: str
    round: int
    figures: dict[str, float]
    foreign: float = 0.0
    error: str = ""


class Results(Struct):
    """A whole run. ``quick``: too small for its figures to mean anything. ``versions``: of those who took part.
    ``missing``: why others did not."""

    made: str
    machine: dict[str, str]
    rounds: int
    quick: bool = False
    titles: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def processor(self) -> str:
        return self.machine.get("cpu", "")

    def save(self, path: Path) -> None:
        path.write_bytes(json.format(json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        return json.decode(path.read_bytes(), type=cls)

    def by_round(self, scenario: str, contestant: str, figure: str) -> dict[int, float]:
        """One figure of one contestant, by round; the audit's own cost is what its CPU is more than without it."""
        if scenario == "audit":
            return self._audit(contestant, figure)
        return {
            one.round: one.figures[figure]
            for one in self.measurements
            if (one.scenario, one.contestant) == (scenario, contestant) and figure in one.figures
        }

    def _audit(self, contestant: str, figure: str) -> dict[int, float]:
        observed = self.by_round("small", contestant, figure)
        if figure != "cpu_us":
            return observed
        if not contestant.endswith("-audit"):
            return {}
        plain = self.by_round("small", contestant.removesuffix("-audit"), figure)
        return {number: observed[number] - plain[number] for number in observed.keys() & plain.keys()}


class Summary(Struct, frozen=True):
    """Median, least and greatest of one figure over the rounds."""

    median: float
    least: float
    greatest: float


def summary(values: Collection[float]) -> Summary | None:
    return Summary(median(values), min(values), max(values)) if values else None


def ratios_within(own: dict[int, float], reference: dict[int, float]) -> list[float]:
    return [own[number] / reference[number] for number in sorted(own.keys() & reference.keys()) if reference[number]]


def rotated(items: Sequence[Item], by: int) -> list[Item]:
    """``items`` beginning with another one each time, so that none is always first."""
    start = by % len(items) if items else 0
    return [*items[start:], *items[:start]]
