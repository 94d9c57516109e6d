"""What the admin endpoint returns about the limits and the configuration, and how it reloads."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.config import Config, Endpoint, load
from proxy.core.counters import ListenerCounters
from proxy.fleet.quota_poller import QuotaPollerState
from proxy.limits.model import QuotasState
from proxy.net.admin import AdminEndpoint
from proxy.net.listener_manager import ListenerManager
from proxy.net.listening_sockets import bind_listening_socket
from proxy.reload import ConfigFileMonitor, Reloader
from proxy.telemetry.snapshot import Snapshot
from tests.integration.conftest import free_port
from tests.unit.quotas_states import busy


class Gated:
    """Of a sidecar, what the endpoint asks."""

    readiness_problem = None
    degradation = ""

    def quotas_state(self) -> QuotasState:
        return busy()

    async def snapshot(self) -> Snapshot:
        return Snapshot({"CLIENT": ListenerCounters()}, quotas=busy())


class Served:
    """An endpoint before a configuration in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()
        self.applied: list[Config] = []
        self.write(max_connections=100)
        self.reloader = Reloader(ConfigFileMonitor(path), load(path), self._apply)
        self.watched = QuotaPollerState()
        self.admin = AdminEndpoint(cast(ListenerManager, Gated()), self.reloader, self.watched)

    async def _apply(self, config: Config) -> bool:
        self.applied.append(config)
        return True

    def write(self, max_connections: object, broker_id: int = 1) -> None:
        self.path.write_text(
            f"broker.id: {broker_id}\nadmin: {{bind: '127.0.0.1:{self.port}'}}\n"
            "internal.bootstrap.servers: 127.0.0.1:3\ninternal: {sasl.password: {file: secret}}\n"
            "listeners: [{name: CLIENT, bind: '127.0.0.1:1', upstream: '127.0.0.1:2'}]\n"
            f"quotas: {{max.connections: {max_connections}}}\n"
        )

    async def ask(self, method: str, path: str) -> tuple[int, str]:
        """The status and the body of an answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body.decode()

    async def json(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        status, body = await self.ask(method, path)
        return status, json.loads(body)

    async def metrics(self) -> dict[str, float]:
        """Samples without labels, or with one, by name and label."""
        _, text = await self.ask("GET", "/metrics")
        return {
            " ".join([sample.name.removeprefix("brokerside_"), *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
async def served(tmp_path: Path, late_requests: None) -> AsyncIterator[Served]:
    (tmp_path / "secret").write_text("c4n4ry-hunter2")
    served = Served(tmp_path / "brokerside.yaml")
    served.admin.start(bind_listening_socket(Endpoint("127.0.0.1", served.port), 16))
    yield served
    await served.admin.close()


@pytest.mark.promise("rollout.md", "A sidecar whose audit works in part only is ready, and says what is degraded.")
async def test_readiness_has_a_sentence_for_each_reason(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    async def find_problems() -> list[str]:
        return found

    monkeypatch.setattr(served.admin, "find_problems", find_problems)
    assert await served.ask("GET", "/readyz") == (200, "ok\n")
    monkeypatch.setattr(Gated, "degradation", "the spool cannot be used")
    assert await served.ask("GET", "/readyz") == (200, "degraded: the spool cannot be used\n")
    found += ["the broker does not answer", "broker.id is 9"]
    said = "the broker does not answer\nbroker.id is 9\ndegraded: the spool cannot be used\n"
    assert await served.ask("GET", "/readyz") == (503, said)
    monkeypatch.setattr(Gated, "readiness_problem", "draining")
    assert await served.ask("GET", "/readyz") == (503, "draining\ndegraded: the spool cannot be used\n")
    assert await served.ask("GET", "/livez") == (200, "ok\n")


@pytest.mark.promise("security.md", "GET /config shows the running configuration, its secrets as ***.")
async def test_the_running_configuration_is_reported_without_secrets(served: Served) -> None:
    status, reported = await served.json("GET", "/config")
    assert (status, reported["hash"]) == (200, served.reloader.state.hash)
    assert reported["loaded_at"] == pytest.approx(time.time(), abs=60)
    assert reported["config"]["quotas"]["max.connections"] == 100
    assert reported["config"]["internal"] == {"sasl.password": "***"}
    assert "c4n4ry" not in json.dumps(reported)


@pytest.mark.promise("config.md", "POST /reload reloads the file, and reports what changed or why nothing did.")
async def test_a_reload_reports_what_changed_and_the_new_configuration_runs(served: Served) -> None:
    nothing = {"result": "unchanged", "changed": [], "changes": []}
    assert await served.json("POST", "/reload") == (200, nothing)
    _, before = await served.json("GET", "/config")
    served.write(max_connections=200)
    assert (await served.ask("GET", "/reload"))[0] == 405
    assert served.applied == []
    key = "quotas.max.connections"
    applied = {"result": "applied", "changed": [key], "changes": [[key, "100", "200"]]}
    assert await served.json("POST", "/reload") == (200, applied)
    _, after = await served.json("GET", "/config")
    assert [config.quotas.max_connections for config in served.applied] == [200]
    assert (after["config"]["quotas"]["max.connections"], after["hash"] == before["hash"]) == (200, False)

    for max_connections, broker_id, wrong in ((0, 1, key), (200, 2, "broker.id")):
        served.write(max_connections, broker_id)
        status, done = await served.json("POST", "/reload")
        assert (status, done["result"], len(done["errors"])) == (422, "rejected", 1)
        assert wrong in done["errors"][0]
    assert (await served.json("GET", "/config"))[1] == after
    assert len(served.applied) == 1

    served.write(max_connections=300)
    await served.reloader.reload("file")  # as the watch of the file does
    status, done = await served.json("POST", "/reload")
    last = done.pop("last_applied")
    assert (status, done) == (200, nothing)
    assert (last["changed"], last["reason"]) == ([key], "file")
    assert last["at"] == pytest.approx(time.time(), abs=60)

    served.reloader.stop()
    served.write(max_connections=400)
    assert await served.json("POST", "/reload") == (503, {"result": "draining", "changed": [], "changes": []})
    assert len(served.applied) == 2


@pytest.mark.promise("restart.md", "Metrics say how the last reload went, when, and how many had which result.")
async def test_reloads_are_metrics(served: Served) -> None:
    found = await served.metrics()
    assert found[f"config_info {served.reloader.state.hash}"] == 1
    assert found["config_last_reload_successful"] == 1
    assert {key: value for key, value in found.items() if key.startswith("config_reloads_total")} == {
        f"config_reloads_total {result}": 0 for result in ("applied", "unchanged", "rejected")
    }
    served.write(max_connections=0)
    await served.ask("POST", "/reload")
    found = await served.metrics()
    assert (found["config_reloads_total rejected"], found["config_last_reload_successful"]) == (1, 0)
    assert found["config_last_reload_success_timestamp_seconds"] == served.reloader.state.loaded_at


async def test_asking_the_cluster_is_in_the_metrics(served: Served) -> None:
    found = await served.metrics()
    assert found["quota_source_up"] == 0
    assert math.isnan(found["quota_source_last_success_timestamp_seconds"])
    assert found["quota_source_problem"] == 0
    served.watched.ok, served.watched.problem = True, "something is wrong"
    served.watched.last_ok_at = asyncio.get_running_loop().time() - 500
    found = await served.metrics()
    assert (found["quota_source_up"], found["quota_source_problem"]) == (1, 1)
    assert found["quota_source_last_success_timestamp_seconds"] == pytest.approx(time.time() - 500, abs=60)
