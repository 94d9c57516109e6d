"""Kafka's metrics of connection limits (KIP-612), scraped from a running sidecar."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.config import Config, load
from proxy.limits.model import QuotasState
from proxy.net.data_plane import DataPlane
from proxy.net.listener_manager import ListenerManager
from proxy.net.ticker import Ticker
from proxy.telemetry.metrics import render
from proxy.telemetry.snapshot import Snapshot
from tests.integration.conftest import free_port
from tests.integration.metrics import sample, unbalanced
from tests.integration.peer import answer_in_order, upstream

WAITED = "connection_accept_throttle_time_seconds"
BLOCKED = "acceptor_blocked_seconds_total"


class Limited:
    """A sidecar with the listeners A and B."""

    def __init__(self, path: Path, broker: int, quotas: dict[str, Any]) -> None:
        self._path = path
        self._settings: dict[str, Any] = {
            "broker.id": 1,
            "listeners": [
                {"name": name, "bind": f"127.0.0.1:{free_port()}", "upstream": f"127.0.0.1:{broker}"} for name in "AB"
            ],
        }
        config, ticker = self.config(quotas), Ticker()
        self._ports = {listener.name: listener.bind.port for listener in config.listeners}
        self._data_plane = DataPlane(config, ticker)
        self.sidecar = ListenerManager(config, self._data_plane, ticker)
        self.sidecar.start()
        self._clients: list[asyncio.StreamWriter] = []

    def config(self, quotas: dict[str, Any]) -> Config:
        self._path.write_text(yaml.safe_dump({**self._settings, "quotas": quotas}))
        return load(self._path, environ={})

    async def dial(self, listener: str, count: int, source: str = "127.0.0.1") -> None:
        for _ in range(count):
            port = self._ports[listener]
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
            self._clients.append(writer)

    async def scrape(self) -> Callable[..., float]:
        text = render(await self.sidecar.snapshot()).decode()
        return lambda name, **labels: sample(text, f"brokerside_{name}", **labels)

    async def until(self, condition: Callable[[Callable[..., float]], object]) -> Callable[..., float]:
        """The first scrape of which it is true."""
        async with asyncio.timeout(60):
            while not condition(found := await self.scrape()):  # noqa: ASYNC110  # a counter has no event to wait for
                await asyncio.sleep(0.01)
        return found

    async def close(self) -> None:
        self.sidecar.close()
        for writer in self._clients:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        now = asyncio.Event()
        now.set()
        await self._data_plane.stop(now)


@asynccontextmanager
async def limited(folder: Path, **quotas: Any) -> AsyncIterator[Limited]:
    async with upstream(answer_in_order) as broker:
        site = Limited(folder / "brokerside.yaml", broker, {name.replace("_", "."): v for name, v in quotas.items()})
        try:
            yield site
        finally:
            await site.close()


@pytest.mark.promise(
    "limits-operation.md", "The delays and blocked time of a listener are metrics of that listener alone."
)
async def test_only_the_listener_that_is_over_its_rate_is_delayed_and_blocked(tmp_path: Path) -> None:
    rate = {"listener_name_a_max_connection_creation_rate": 10}
    async with limited(tmp_path, quota_window_num=2, **rate) as site:
        await site.dial("B", 15)
        await site.dial("A", 25)
        found = await site.until(lambda found: found("connections_admitted_total") == 40)
    delays = found(f"{WAITED}_count", listener="A")
    assert 1 <= delays <= 15
    assert 0 < found(f"{WAITED}_sum", listener="A") <= delays
    assert found(BLOCKED, listener="A") >= found(f"{WAITED}_sum", listener="A") - 0.001 * delays
    throttled = "connections_throttled_total"
    assert found(throttled) == found(throttled, listener="A", scope="listener", action="delay") == delays
    for name in (f"{WAITED}_count", f"{WAITED}_sum", BLOCKED):
        assert found(name, listener="B") == 0


@pytest.mark.promise(
    "metrics.md", "On each page of `/metrics` every accepted connection is active, waiting, held or closed."
)
async def test_connections_that_come_while_a_snapshot_is_taken_are_in_all_of_it_or_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ips = {"127.0.0.9": {"connection_creation_rate": 1}}
    async with limited(tmp_path, quota_window_num=2, ips=ips) as site:
        take = site._data_plane.snapshot

        async def take_slowly(quotas_state: Callable[[], QuotasState]) -> Snapshot:
            taken = await take(quotas_state)
            async with asyncio.timeout(60):
                while not site.sidecar.admission.waiting_connections:  # a hold may be over before somebody looks
                    await site.dial("A", 5, source="127.0.0.9")
            return taken

        monkeypatch.setattr(site._data_plane, "snapshot", take_slowly)
        assert unbalanced(render(await site.sidecar.snapshot()).decode()) == []
