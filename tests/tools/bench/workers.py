"""Throughput by number of workers, everything on all CPUs."""

from __future__ import annotations

from dataclasses import dataclass

from tests.tools.bench.contestants import Contestant, has_key
from tests.tools.bench.scenarios import CONNECTIONS, Measured
from tests.tools.bench.stage import Sizes, Stage

COUNTS = (1, 2)


@dataclass(frozen=True)
class Workers:
    """Small requests through sidecars of 1 and 2 workers. Stub and load take their share of the same CPUs."""

    name: str = "workers"

    def rounds(self, sizes: Sizes) -> int:
        return sizes.kafka_rounds

    def impossible(self) -> str:
        return "" if has_key("workers") else "this version has no key workers"

    def takes(self, contestant: Contestant) -> bool:
        return contestant.name in ("brokerside", "brokerside-audit")

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        figures, foreign = {}, 0.0
        for count in COUNTS:
            with stage.everywhere():
                running = stage.start(contestant, cpus=stage.cpus, keys={"workers": count})
                try:
                    stage.load(running, "requests", "small", conns=CONNECTIONS, warm=0.0, secs=0.3)
                    outcome = stage.load(running, "requests", "small", conns=CONNECTIONS)
                finally:
                    stage.stop(running)
            figures[f"per_s_{count}"] = outcome.load["per_s"]
            figures[f"cpu_us_{count}"] = outcome.cpu / outcome.load["requests"] * 1e6
            foreign = max(foreign, outcome.foreign)
        return Measured(figures, foreign)
