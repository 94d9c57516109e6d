"""What is measured: each scenario takes one contestant and returns figures by name."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proxy.errors import LocalError
from tests.tools.bench.contestants import Contestant
from tests.tools.bench.measure import memory
from tests.tools.bench.stage import Outcome, Stage

MIB = 1024 * 1024
CONNECTIONS = 32
RATE = 10_000

Figures = dict[str, float]


@dataclass(frozen=True)
class Measured:
    """``figures`` by name, and the CPU of others meanwhile as a share of one CPU. ``error``: why there are none."""

    figures: Figures
    foreign: float
    error: str = ""


class Scenario:
    """One thing to measure, by its ``name`` in results and on the command line. ``whom``: contestants; empty: all.
    ``most_rounds``: in so many it is measured at most."""

    name: str
    whom: tuple[str, ...]
    most_rounds = sys.maxsize

    def takes(self, contestant: Contestant) -> bool:
        return not self.whom or contestant.name in self.whom

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        """Raises MissingError, LocalError."""
        raise NotImplementedError


@dataclass(frozen=True)
class Load(Scenario):
    """A scenario of one load on a contestant that keeps running, stopped, until the next one."""

    name: str
    mode: str
    request: str
    numbers: Mapping[str, float]
    figures: Callable[[Outcome], Figures]
    whom = ()

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


def _requests(outcome: Outcome) -> Figures:
    load = outcome.load
    latencies = {name: load[name] for name in ("p50_us", "p99_us", "p999_us")}
    return {"cpu_us": outcome.cpu / load["requests"] * 1e6, "per_s": load["per_s"], **latencies}


def _bulk(outcome: Outcome) -> Figures:
    return {"cpu_ms_mib": outcome.cpu / outcome.load["bytes"] * MIB * 1e3, "mb_s": outcome.load["mb_s"]}


LOADS = (
    Load("small", "requests", "small", {"conns": CONNECTIONS}, _requests),
    Load("produce", "requests", "produce", {"conns": 4, "depth": 5}, _bulk),
    Load("fetch", "requests", "fetch", {"conns": 4}, _bulk),
    Load("paced", "requests", "small", {"conns": CONNECTIONS, "rate": RATE}, _requests),
    Load("storm", "storm", "hello", {"conns": 8}, _requests),
)


class Footprint(Scenario):
    """Start to the first accepted connection, memory and CPU of a process that nobody has used yet."""

    name, most_rounds = "footprint", 3

    def takes(self, contestant: Contestant) -> bool:
        return contestant.command is not None

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        with stage.started(contestant) as running:
            time.sleep(stage.sizes.calm)
            pids = running.pids
            before = stage.read(pids)
            time.sleep(stage.sizes.watch)
            after = stage.read(pids)
            used = memory(pids)
        sizes = {"rss_mib": used.rss, "pss_mib": used.pss}
        idle = {"idle_ms_s": after.cores(before) * 1000}
        return Measured({"start_ms": running.start_ms, **sizes, **idle}, after.foreign(before))


class Idle(Footprint):
    """Memory for each of many connections that have had one request and then stay open."""

    name = "idle"

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        figures: dict[str, float] = {}
        with stage.started(contestant) as running:
            stage.load(running, "requests", "small", conns=8, warm=0.0, secs=0.2)
            time.sleep(stage.sizes.calm)
            pids = running.pids
            empty = memory(pids).rss
            try:
                for count in stage.sizes.idle:
                    stage.check_descriptors(2 * count)
                    with stage.holding_idle(running, count):
                        time.sleep(0.5)
                        figures[f"kib_{count}"] = (memory(pids).rss - empty) * 1024 / count
                    time.sleep(0.5)
            except (LocalError, OSError) as reason:  # of fewer connections there are figures
                return Measured(figures, 0.0, str(reason))
        return Measured(figures, 0.0)


class Workers(Scenario):
    """Small requests through sidecars of 1 and 2 workers. Stub and load take their share of the same CPUs."""

    name, whom = "workers", ("brokerside", "brokerside-audit")

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        figures, foreign = {}, 0.0
        for count in (1, 2):
            with stage.everywhere(), stage.started(contestant, cpus=stage.cpus, keys={"workers": count}) as running:
                stage.load(running, "requests", "small", conns=CONNECTIONS, warm=0.0, secs=0.3)
                outcome = stage.load(running, "requests", "small", conns=CONNECTIONS)
            figures[f"per_s_{count}"] = outcome.load["per_s"]
            figures[f"cpu_us_{count}"] = outcome.cpu / outcome.load["requests"] * 1e6
            foreign = max(foreign, outcome.foreign)
        return Measured(figures, foreign)
