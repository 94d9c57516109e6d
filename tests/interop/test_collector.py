"""The real OpenTelemetry Collector takes the log records, and hands them on as they are."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.local import cluster as local
from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.local.process import spawn, stop
from proxy.local.sidecars import SidecarProcess
from tests.integration.collector import Collector
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample
from tests.integration.test_audit import until
from tests.integration.test_opentelemetry import AUDIT, OBSERVER, SMALL_BATCHES, audited, comparable, waiting
from tests.integration.topics import new_topic
from tests.interop.clients import BUILDING, go

pytestmark = [pytest.mark.kafka, pytest.mark.slow, BUILDING]


class OpenTelemetryCollector:
    """One that sends what it takes by OTLP/HTTP, in JSON, to ``behind``."""

    def __init__(self, folder: Path, behind: Collector) -> None:
        (port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{port}"
        self._log = folder / "collector.log"
        self._command = [*go("otel_collector"), "--config", f"file:{folder / 'collector.yaml'}"]
        config: dict[str, Any] = {
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
            "exporters": {"otlp_http": {"endpoint": behind.endpoint, "encoding": "json", "compression": "none"}},
            "service": {
                "pipelines": {"logs": {"receivers": ["otlp"], "exporters": ["otlp_http"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        }
        (folder / "collector.yaml").write_text(yaml.safe_dump(config))

    def start(self) -> None:
        self._process = spawn(self._command, self._log)
        until(lambda: not self._process.alive() or "Everything is ready" in self._log.read_text())
        assert self._process.alive(), self._log.read_text()

    def stop(self) -> None:
        stop([self._process], 120)


@dataclass
class Site:
    """A broker, its sidecar with both observers, the collector, and what that sends to."""

    state: ClusterState
    sidecar: SidecarProcess
    collector: OpenTelemetryCollector
    behind: Collector


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        behind = Collector()
        stack.callback(behind.close)
        collector = OpenTelemetryCollector(tmp_path, behind)
        collector.start()
        stack.callback(collector.stop)
        state = local.up(tmp_path / "cluster", progress=False)
        stack.callback(local.down, tmp_path / "cluster")
        config = yaml.safe_load((tmp_path / "cluster" / "sidecar-1.yaml").read_text())
        spool = str(tmp_path / "collector")
        settings = {"endpoint": collector.endpoint, "compression": "gzip", "spool.path": spool}
        config |= {"observer.class.names": [AUDIT, OBSERVER], "observers": {OBSERVER: settings}}
        config["observer.shutdown.timeout.ms"] = 20_000
        path = tmp_path / "sidecar.yaml"
        path.write_text(yaml.safe_dump(config))
        sidecar = SidecarProcess.start(path, tmp_path / "sidecar.log", state.nodes[0].admin)
        stack.callback(sidecar.stop)
        yield Site(state, sidecar, collector, behind)


@pytest.mark.promise("opentelemetry.md", "The OpenTelemetry Collector takes every event, and changes none.")
def test_it_takes_every_event_and_changes_none(site: Site) -> None:
    state, sidecar, collector, behind = site.state, site.sidecar, site.collector, site.behind
    topic = new_topic(state, "collector")
    assert produce(state.bootstrap, topic, [b"v"] * 500, **SMALL_BATCHES) == 500
    until(lambda: bool(behind.taken) and waiting(sidecar) == 0)
    collector.stop()
    assert len(consume(state.bootstrap, topic, 500)) == 500
    assert produce(state.bootstrap, topic, [b"v"] * 1000, **SMALL_BATCHES) == 1000
    until(lambda: sample(sidecar.metrics(), "brokerside_opentelemetry_spooled") > 1000)
    collector.start()
    until(lambda: sample(sidecar.metrics(), "brokerside_opentelemetry_spooled") == 0)
    assert sample(sidecar.metrics(), "brokerside_opentelemetry_dropped_total") == 0
    assert sidecar.stop()
    expected = audited(state, sidecar.config)
    until(lambda: comparable(behind.events()) == comparable(expected))
    assert sum(comparable(expected).values()) > 1500
    assert len({boot_id for boot_id, _ in behind.events()}) == 1
    assert "gap" not in {event["kind"] for _, event in behind.events()}
    numbers = {event["seq"] for _, event in behind.events()}
    assert numbers == set(range(1, len(numbers) + 1))
