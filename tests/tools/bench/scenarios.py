"""What is measured: each scenario takes one contestant and returns figures by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tests.tools.bench.contestants import Contestant
from tests.tools.bench.stage import Outcome, Sizes, Stage

MIB = 1024 * 1024
CONNECTIONS = 32
RATE = 10_000
SIZED = ("haproxy", "nginx", "brokerside", "brokerside-audit")
"""Whom loads of other sizes are put on."""

Figures = dict[str, float]


@dataclass(frozen=True)
class Measured:
    """``figures`` by name, and the CPU of others meanwhile as a share of one CPU. ``error``: why there are none."""

    figures: Figures
    foreign: float
    error: str = ""


class Scenario(Protocol):
    """One thing to measure."""

    @property
    def name(self) -> str:
        """Its name in results and on the command line."""

    def rounds(self, sizes: Sizes) -> int:
        """In how many rounds it is measured at most."""

    def impossible(self) -> str:
        """Why it cannot be measured here at all; empty if it can."""

    def takes(self, contestant: Contestant) -> bool:
        """Whether it means anything for a contestant."""

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        """Raises MissingError, LocalError."""


@dataclass(frozen=True)
class Load:
    """A scenario of one load on a contestant that keeps running, stopped, until the next one."""

    name: str
    mode: str
    request: str
    numbers: Mapping[str, float]
    figures: Callable[[Outcome], Figures]

    def rounds(self, sizes: Sizes) -> int:
        return sys.maxsize

    def impossible(self) -> str:
        return ""

    def takes(self, contestant: Contestant) -> bool:
        return True

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        running = stage.kept(contestant)
        try:
            outcome = stage.load(running, self.mode, self.request, **self.numbers)
        finally:
            running.pause()
        figures = self.figures(outcome)
        for unit in [name.removeprefix("cpu_") for name in figures if name.startswith("cpu_")]:
            cpu = figures.pop(f"cpu_{unit}")
            if outcome.cpu:
                system = cpu * outcome.system_share
                figures |= {f"cpu_{unit}": cpu, f"user_{unit}": cpu - system, f"system_{unit}": system}
        if outcome.load["errors"]:
            figures["errors"] = outcome.load["errors"]
        if contestant.audited:
            figures["events_per_request"] = outcome.events / outcome.load["requests"]
            figures["log_bytes_per_event"] = outcome.log_bytes / max(1.0, outcome.events)
        return Measured(figures, outcome.foreign)


@dataclass(frozen=True)
class Size(Load):
    """A load of another size, on fewer contestants and in fewer rounds."""

    def rounds(self, sizes: Sizes) -> int:
        return sizes.footprint_rounds

    def takes(self, contestant: Contestant) -> bool:
        return contestant.name in SIZED


def _requests(outcome: Outcome) -> Figures:
    load = outcome.load
    latencies = {name: load[name] for name in ("p50_us", "p99_us", "p999_us")}
    return {"cpu_us": outcome.cpu / load["requests"] * 1e6, "per_s": load["per_s"], **latencies}


def _bulk(outcome: Outcome) -> Figures:
    return {"cpu_ms_mib": outcome.cpu / outcome.load["bytes"] * MIB * 1e3, "mb_s": outcome.load["mb_s"]}


LOADS = (
    Load("small", "requests", "small", {"conns": CONNECTIONS}, _requests),
    Size("small-1", "requests", "small", {"conns": 1}, _requests),
    Size("small-1000", "requests", "small", {"conns": 1_000}, _requests),
    Size("partitions-10", "requests", "small-10", {"conns": CONNECTIONS}, _requests),
    Size("partitions-50", "requests", "small-50", {"conns": CONNECTIONS}, _requests),
    Load("produce", "requests", "produce", {"conns": 4, "depth": 5}, _bulk),
    Load("fetch", "requests", "fetch", {"conns": 4}, _bulk),
    Load("paced", "requests", "small", {"conns": CONNECTIONS, "rate": RATE}, _requests),
    Load("storm", "storm", "hello", {"conns": 8}, _requests),
)
