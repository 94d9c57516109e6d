"""Three brokers with a sidecar process before each, and what the topic of features says about them."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from proxy.core.apis import API_VERSIONS
from proxy.core.struct import view
from proxy.features.catalog import PREFIX
from proxy.features.records import (
    CONTROLLER_KEY,
    FEATURES_KEY,
    FeatureUpdate,
    FinalizedFeatures,
    UpdateOutcome,
    UpdateProposal,
    decode,
)
from proxy.features.updates import UpdateRequest, UpdateResult
from proxy.interceptors.update_features import UPDATE_FEATURES, decode_response, encode_request
from proxy.local import cluster, process
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState
from tests.integration.feature_sidecars import committed
from tests.integration.quotas import Peer
from tests.tools.admin import get
from tests.tools.record_ranges import ask_body

BROKERSIDE = ("-m", "proxy")
"""What a sidecar runs: this release."""


class FeatureFleet:
    """The sidecars that were started, by broker id. ``settings``: of their configuration, beside the cluster's own;
    None takes one away. ``prefix``: of the names of their configurations and logs."""

    prefix = "sidecar"

    def __init__(self, state: ClusterState, settings: Mapping[str, Any]) -> None:
        self.state = state
        self.folder = state.nodes[0].home.parent
        self.sidecars: dict[int, SidecarProcess] = {}
        self._starts = Counter[int]()
        for node in state.nodes:
            config = yaml.safe_load((self.folder / f"sidecar-{node.id}.yaml").read_text())
            for section, values in settings.items():
                config[section] = {**config.get(section, {}), **values} if isinstance(values, Mapping) else values
            kept = {section: values for section, values in config.items() if values is not None}
            self.config(node.id).write_text(yaml.safe_dump(kept))

    def config(self, broker_id: int) -> Path:
        return self.folder / f"{self.prefix}-{broker_id}.yaml"

    def _log(self, broker_id: int, start: int) -> Path:
        """Of one start of a sidecar, by its number."""
        return self.folder / f"{self.prefix}-{broker_id}-{start}.log"

    def spawn(self, broker_id: int, program: Sequence[str] = BROKERSIDE, *options: str) -> SidecarProcess:
        """Start the sidecar before a broker, with a log of its own, and wait for nothing."""
        self._starts[broker_id] += 1
        config, log = self.config(broker_id), self._log(broker_id, self._starts[broker_id])
        command = [*self.host(f"sidecar-{broker_id}"), sys.executable, *program, "run", *options, "-c", str(config)]
        started = process.spawn(command, log)
        self.sidecars[broker_id] = SidecarProcess(started, config, log, self.state.node(broker_id).admin)
        return self.sidecars[broker_id]

    def host(self, name: str) -> list[str]:
        """What the command line of a process begins with."""
        return []

    def start(self, *broker_ids: int, program: Sequence[str] = BROKERSIDE) -> None:
        """Start sidecars, and wait until all are ready."""
        for sidecar in [self.spawn(broker_id, program) for broker_id in broker_ids]:
            sidecar.wait_ready()

    def stop(self, broker_id: int, *, kill: bool = False) -> None:
        process.stop([self.sidecars[broker_id].process], 20, kill=kill)

    def address(self, broker_id: int) -> str:
        return self.state.node(broker_id).advertised

    def ask(self, broker_id: int, path: str, *, post: bool = False, timeout: float = 20) -> dict[str, Any]:
        """What the admin endpoint of a sidecar answers. Raises OSError."""
        url = f"http://{self.sidecars[broker_id].admin}{path}"
        found: dict[str, Any] = json.loads(get(url, timeout, b"" if post else None)[1] or "{}")
        return found

    def status(self, broker_id: int, timeout: float = 20) -> dict[str, Any]:
        return self.ask(broker_id, "/features", timeout=timeout)

    def readiness(self, broker_id: int) -> tuple[int, str]:
        try:
            return get(f"http://{self.sidecars[broker_id].admin}/readyz", 20)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def applied(self) -> set[int]:
        """The epochs that all sidecars follow, by their own account."""
        return {self.status(broker_id)["applied_epoch"] for broker_id in self.sidecars}

    def controller(self) -> int:
        """Broker id of the sidecar that has claimed the topic last, by the account of any."""
        found: int = self.status(next(iter(self.sidecars)))["controller"]
        return found

    def is_controller(self, broker_id: int) -> bool:
        try:
            return self.status(broker_id)["state"] not in ("away", "opening")
        except OSError:
            return False

    def runs(self, broker_id: int, asked: int) -> bool:
        """Whether the sidecar ``asked`` finds that another one runs."""
        found = {one["name"]: one["running"] for one in self.status(asked)["participants"]}
        return bool(found[f"sidecar/{broker_id}"])

    def update(
        self,
        broker_id: int,
        *updates: FeatureUpdate,
        version: int = 2,
        timeout_ms: int = 20_000,
        validate_only: bool = False,
    ) -> UpdateResult:
        """Ask for updates at the sidecar of a broker, in one request."""
        request = UpdateRequest(version, timeout_ms, updates, validate_only=validate_only)
        with Peer(self.address(broker_id), timeout=30) as peer:
            return decode_response(version, peer.ask(UPDATE_FEATURES, version, encode_request(request))[1:])

    def shown(self, broker_id: int) -> dict[str, int]:
        """The finalized maxima of the fleet's features that ApiVersions shows."""
        with Peer(self.address(broker_id)) as peer:
            message = view(API_VERSIONS, 3, ask_body(peer, 3), response=True)
        found = {one.get("Name"): one.get("MaxVersionLevel") for one in message.get("FinalizedFeatures")}
        return {name: level for name, level in found.items() if name.startswith(PREFIX)}

    def records(self) -> list[tuple[bytes, Any]]:
        """Key and content of all committed records of the topic of features; content None: a tombstone, or none."""
        found = committed(self.state.internal_bootstrap)
        return [(key, decode(key, value) if value else None) for key, value in found]

    def finalized(self) -> FinalizedFeatures:
        """The last record of the finalized levels that any sidecar has read."""
        found: list[FinalizedFeatures] = []
        while not found:
            for broker_id in self.sidecars:
                with contextlib.suppress(OSError):  # some may be stopped
                    found.append(msgspec.convert(self.status(broker_id, 1)["record"], FinalizedFeatures))
        return max(found, key=lambda one: one.epoch)

    def log_events(self, broker_id: int, event: str, start: int = 0) -> list[dict[str, Any]]:
        """Lines of the log of one start of a sidecar with this event. ``start``: its number, by default the last."""
        lines = self._log(broker_id, start or self._starts[broker_id]).read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [one for one in found if one.get("event") == event]

    def logged(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """Lines of all logs of all sidecars with this event and these fields, with the sidecar's ``broker_id``."""
        found = [
            {**one, "broker_id": broker_id}
            for broker_id, starts in self._starts.items()
            for start in range(1, starts + 1)
            for one in self.log_events(broker_id, event, start)
        ]
        return [one for one in found if one | fields == one]

    def check_logs(self) -> None:
        for broker_id, starts in self._starts.items():
            for text in [self._log(broker_id, start).read_text() for start in range(1, starts + 1)]:
                assert "Traceback" not in text, text
                errors = [one for one in text.splitlines() if '"level": "error"' in one]
                # A worker that is held still for some seconds is one that the sidecar has to name.
                errors = [one for one in errors if not re.search('"(config_rejected|worker_silent)"', one)]
                assert not errors, errors


@contextmanager
def feature_fleet(folder: Path, **settings: Mapping[str, Any]) -> Iterator[FeatureFleet]:
    """Start three brokers; no sidecar runs yet. ``settings``: sections of the sidecars' configuration."""
    state = cluster.up(folder, nodes=3, progress=False)
    fleet = FeatureFleet(state, settings)
    try:
        yield fleet
    finally:
        process.stop([one.process for one in fleet.sidecars.values()], 15, kill=True)
        cluster.discard(folder)


def check_records(records: Sequence[tuple[bytes, Any]]) -> None:
    """Epochs have neither a gap nor a repetition, each update has one outcome, and one controller writes at a time."""
    before = FinalizedFeatures(0, {}) if any(key == FEATURES_KEY for key, _ in records) else None
    claimed, controller = 0, -1
    outcomes = Counter[bytes]()
    for key, record in records:
        if key == CONTROLLER_KEY:
            assert record.claim == claimed + 1, records
            claimed, controller = record.claim, record.broker_id
        elif isinstance(record, UpdateOutcome):
            outcomes[key] += 1
        elif isinstance(record, FinalizedFeatures):
            assert record.epoch == before.epoch + (record.features != before.features), records
            assert record.controller == controller, records
            before = record
    asked = {key for key, record in records if isinstance(record, UpdateProposal)}
    assert outcomes == Counter(asked), records


PATIENCE = 180
"""Seconds within which what is waited for happens on a machine that is busy."""


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until a condition of other processes is true. Looking never takes them more than half of a core."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        ended = time.monotonic()
        assert ended < deadline, "it never became true"
        time.sleep(max(0.05, ended - began))
