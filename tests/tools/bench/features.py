"""What features of the fleet cost the requests of clients, and how long an update of them takes.

Cost: two sidecars with the same configuration but for ``features.enabled``, each beside a real broker of its own with
finalized levels, carry the loads of the other scenarios between load generator and stub broker, in turns.

Idle: the same two, at the same time, before the loads.

Updates: three brokers with three sidecars, all with ``audit.mode: rollup``. The audit's schema is lowered and raised in
turn through one sidecar after the other; between two of these, the same client lowers and raises a feature of Kafka's
own at the broker itself.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from tempfile import mkdtemp

from proxy.client.features import FeaturesClient
from proxy.errors import LocalError
from proxy.features.catalog import AUDIT_EVENT_SCHEMA
from proxy.features.records import SAFE_DOWNGRADE, UPGRADE, FeatureUpdate
from proxy.local.ports import HOST, free_ports
from proxy.local.tools import tool
from tests.integration.feature_fleet import FeatureFleet, feature_fleet
from tests.tools.bench.contestants import Contestant, Running, listener
from tests.tools.bench.scenarios import CONNECTIONS, Figures, Measured, Scenario
from tests.tools.bench.stage import Outcome, Stage

LOADS = {"small": ("requests", "small", CONNECTIONS), "storm": ("storm", "hello", 8)}
"""As the scenarios of these names: what the load generator does, the request, and how many connections at a time."""

GROUP_VERSION = "group.version"
"""A feature of Kafka's own with the levels 0 and 1."""

FINALIZED_TIMEOUT = 180.0
"""Seconds until a new fleet has finalized levels; it takes 15, and more on a busy machine."""

TOOL_TIMEOUT = 180.0

IDLE_WATCHES = 4
"""How often ``Sizes.watch`` fits into the time in which idle sidecars are watched."""

UPDATED = {"update": (AUDIT_EVENT_SCHEMA, 1), "kafka_update": (GROUP_VERSION, 0)}
"""The feature that is updated, and the lower of its two levels, by the figures' name."""


class Features(Scenario):
    name, whom = "features", ("brokerside",)

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        outcomes: dict[str, list[Outcome]] = defaultdict(list)
        with ExitStack() as stack:
            sides = {side: stack.enter_context(_side(stage, contestant, side)) for side in ("on", "off")}
            idle = _idle_figures(stage, sides)
            for load, (mode, request, connections) in LOADS.items():
                for turn in range(stage.sizes.feature_turns):
                    for side in ("on", "off") if turn % 2 else ("off", "on"):
                        seconds = stage.sizes.seconds / 2
                        outcome = stage.load(sides[side], mode, request, conns=connections, secs=seconds)
                        sides[side].pause()
                        outcomes[f"{load}_{side}"].append(outcome)
        figures = idle | _cost_figures(outcomes)
        with _started_fleet(stage) as fleet:
            figures |= _update_figures(fleet, stage.sizes.feature_updates)
        return Measured(figures, max(one.foreign for each in outcomes.values() for one in each))


def _cost_figures(outcomes: Mapping[str, Sequence[Outcome]]) -> Figures:
    """CPU µs for each request, by load and side, and for each load the ratio of the sides. ``outcomes``: all turns."""
    figures: Figures = {}
    for name, turns in outcomes.items():
        requests = sum(one.load["requests"] for one in turns)
        figures[name] = sum(one.cpu for one in turns) / requests * 1e6
        if errors := sum(one.load["errors"] for one in turns):
            figures[f"{name}_errors"] = errors
    for load in LOADS:
        figures[f"{load}_more"] = figures[f"{load}_on"] / figures[f"{load}_off"]
    return figures


@contextmanager
def _side(stage: Stage, contestant: Contestant, side: str) -> Iterator[Running]:
    """A sidecar with or without features, warm, and stopped with SIGSTOP.

    It has two listeners: one before its broker, by which it finds out that it is the right one, and the measured one
    before the stub.
    """
    (port,) = free_ports(1)
    with stage.brokers() as state:
        [node] = state.nodes
        keys = {
            "internal.bootstrap.servers": node.internal,
            "features": {"enabled": side == "on"},
            "listeners": [
                listener("CLIENT", node.advertised, node.upstream),
                listener("MEASURED", f"{HOST}:{port}", f"{HOST}:{stage.stub_port}"),
            ],
        }
        with stage.started(contestant, keys=keys, listen=port) as running:
            if side == "on":
                _wait_until(lambda: json.loads(running.get("/features"))["applied_epoch"] > 0)
            for mode, request, connections in LOADS.values():
                stage.load(running, mode, request, conns=connections, warm=0.0, secs=0.3)
            running.pause()
            yield running


def _idle_figures(stage: Stage, sides: Mapping[str, Running]) -> Figures:
    """CPU ms each second of both sides at the same time, unused; with features it is the controller."""
    for running in sides.values():
        running.resume()
    time.sleep(stage.sizes.calm)
    before = {side: stage.read(running.pids) for side, running in sides.items()}
    time.sleep(IDLE_WATCHES * stage.sizes.watch)
    idle = {side: stage.read(running.pids).cores(before[side]) * 1000 for side, running in sides.items()}
    for running in sides.values():
        running.pause()
    return {f"idle_{side}": value for side, value in idle.items()} | {"idle_more": idle["on"] - idle["off"]}


def _wait_until(finalized: Callable[[], bool]) -> None:
    deadline = time.monotonic() + FINALIZED_TIMEOUT
    while time.monotonic() < deadline:
        with suppress(OSError, LocalError):  # no answer in time from a sidecar that is busy
            if finalized():
                return
        time.sleep(0.1)
    raise LocalError(f"no levels were finalized within {FINALIZED_TIMEOUT:.0f} s")


@contextmanager
def _started_fleet(stage: Stage) -> Iterator[FeatureFleet]:
    folder = Path(mkdtemp(prefix="features-fleet-", dir=stage.folder))  # each has its levels from the beginning
    with feature_fleet(folder, audit={"mode": "rollup"}) as fleet:
        fleet.start(*(node.id for node in fleet.state.nodes))
        _wait_until(lambda: fleet.applied() == {1})
        sidecars = [one.process.pid for one in fleet.sidecars.values()]
        with stage.belonging([*(node.pid for node in fleet.state.nodes), *sidecars]):
            yield fleet


def _update_figures(fleet: FeatureFleet, count: int) -> Figures:
    """Milliseconds of ``count`` updates of each kind, an even number, and of one by Kafka's tool, its start included.

    Features are at the higher of their two levels before and after.
    """
    figures: Figures = {}
    times: dict[str, list[float]] = defaultdict(list)
    nodes = fleet.state.nodes
    addresses = {"update": [one.advertised for one in nodes], "kafka_update": [one.upstream for one in nodes]}
    with ExitStack() as stack:
        clients = {name: [stack.enter_context(FeaturesClient(one)) for one in all_] for name, all_ in addresses.items()}
        for number in range(count):
            for name, (feature, lowest) in UPDATED.items():
                client = clients[name][number % len(nodes)]
                times[name].append(_update(client, feature, lowest + number % 2))
        for name, (feature, lowest) in UPDATED.items():
            figures[f"{name}_p50"] = median(times[name])
            figures[f"{name}_p99"] = quantiles(times[name], n=100)[98]
            asked = ("--bootstrap-server", addresses[name][0], "downgrade", "--feature", f"{feature}={lowest}")
            begun = time.perf_counter()
            done = subprocess.run(tool("features", *asked), capture_output=True, timeout=TOOL_TIMEOUT, check=False)
            figures[f"{name}_tool"] = (time.perf_counter() - begun) * 1000
            if done.returncode:
                raise LocalError(f"{' '.join(asked)}: exit {done.returncode}: {done.stderr.decode()[-500:]}")
            _update(clients[name][0], feature, lowest + 1)
    return figures


def _update(client: FeaturesClient, feature: str, level: int) -> float:
    """Change a feature to one of its levels in ``UPDATED``; return the milliseconds it took. Raises LocalError."""
    lowers = (feature, level) in UPDATED.values()
    update = FeatureUpdate(feature, level, SAFE_DOWNGRADE if lowers else UPGRADE)
    begun = time.perf_counter()
    result = client.update([update])[feature]
    took = (time.perf_counter() - begun) * 1000
    if result.error_code:
        raise LocalError(f"{feature}={level}: {result.error_code}, {result.message}")
    return took
