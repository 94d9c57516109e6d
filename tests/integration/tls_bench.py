"""A sidecar inside the test's own loop, with TLS or without, before a peer that behaves as the test says."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.compiled.exchange import Exchange
from proxy.config import Config, load
from proxy.core.exchange import ConnectionTransition
from proxy.local.ports import HOST, free_ports
from proxy.net.api_versions_probe import ApiVersionsProbe
from proxy.net.connection_manager import ConnectionManager
from proxy.net.listener_manager import ListenerManager
from proxy.net.ticker import Ticker
from tests.integration.peer import Behaviour, Reader, Writer, upstream
from tests.integration.sidecars import until_async
from tests.tools.authority import Authority
from tests.tools.observation_sinks import watching

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.fixture(autouse=True)
def silent_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is imported, a peer is asked by clients alone."""
    monkeypatch.setattr(ApiVersionsProbe, "start", lambda self: None)


class Handler(ConnectionManager):
    is_available = True
    is_full = False

    def on_capacity(self, call: Callable[[], None]) -> None:
        pass

    def report_throttles(self, reports: object) -> None:
        pass


class Bench:
    """``changes``: of connections, as observers get them. ``authority``: has signed the listener's certificate."""

    authority: Authority

    def __init__(self, path: Path, authority: Authority | None) -> None:
        self.path = path
        if authority is not None:
            self.authority = authority
        self.config: Config = load(path, {})
        self.exchanges: list[Exchange] = []
        self.changes: list[ConnectionTransition] = []
        self.sink = watching(self.exchanges.append, self.changes.append)
        self.manager = Handler(self.config, self.sink)
        self.ticker = Ticker()
        self.sidecar = ListenerManager(self.config, self.manager, self.ticker)
        self.ticker.callbacks.append(self.manager.on_tick)
        self.port = self.config.listeners[0].bind.port
        self.counters = self.manager.listener_counters["CLIENT"]
        self.writers: list[Writer] = []

    async def dial(self, context: ssl.SSLContext | None = None, *, plain: bool = False) -> tuple[Reader, Writer]:
        """A client, which ends with the bench: with TLS where the listener has it, or ``plain``."""
        options: dict[str, Any] = {}
        if self.config.listeners[0].tls is not None and not plain:
            options = {"ssl": context or self.context(), "server_hostname": "localhost"}
        reader, writer = await asyncio.open_connection(HOST, self.port, **options)
        self.writers.append(writer)
        return reader, writer

    def context(self, *, version: ssl.TLSVersion | None = None, name: str | None = None) -> ssl.SSLContext:
        """Of a client. ``name``: the subject of its certificate."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if version is not None:
            context.minimum_version = context.maximum_version = version
        if name is not None:
            context.load_cert_chain(*self.authority.issue("a-client", name))
        return context

    def reload(self, **listener: object) -> None:
        """Apply the configuration again, with other keys of the listener (``_`` for ``.``; None takes one away)."""
        keys = yaml.safe_load(self.path.read_text())
        for name, value in listener.items():
            keys["listeners"][0].pop(name.replace("_", "."), None)
            if value is not None:
                keys["listeners"][0][name.replace("_", ".")] = value
        self.path.write_text(yaml.safe_dump(keys))
        self.manager.update_config(load(self.path, {}), self.sink)

    async def drain(self, patience: float) -> None:
        self.sidecar.close()
        await self.manager.drain(patience)

    until = staticmethod(until_async)

    async def ends(self, **closed: int) -> None:
        """Wait until so many connections have ended for each cause, and no other one."""
        await self.until(lambda: self.counters.closed == closed)


@asynccontextmanager
async def bench(
    folder: Path, behaviour: Behaviour, to: str = "", *, authority: Authority | None = None, **settings: object
) -> AsyncIterator[Bench]:
    """``to``: the upstream, if not the peer. ``settings``: of the listener, or at the top."""
    async with upstream(behaviour) as peer_port:
        port, admin = free_ports(2)
        listener = {"name": "CLIENT", "bind": f"{HOST}:{port}", "upstream": to or f"{HOST}:{peer_port}"}
        top: dict[str, object] = {"broker.id": 1, "listeners": [listener], "admin": {"bind": f"{HOST}:{admin}"}}
        for name, value in settings.items():
            of = listener if name.startswith(("security.protocol", "tls", "upstream.tls", "proxy.protocol")) else top
            of[name] = value  # type: ignore[index]
        path = folder / "sidecar.yaml"
        path.write_text(yaml.safe_dump(top))
        running = Bench(path, authority)
        running.sidecar.start()
        running.ticker.start()
        try:
            yield running
        finally:
            for writer in running.writers:
                writer.close()
            if not running.sidecar.draining:
                await running.drain(0.2)
            await running.until(lambda: running.counters.active == 0)
            running.ticker.stop()


def tls_bench(
    folder: Path, behaviour: Behaviour, tls: dict[str, object] | None = None, *, to: str = "", **settings: object
) -> AbstractAsyncContextManager[Bench]:
    """``tls``: further keys of the listener's ``tls``. ``to`` and ``settings`` as of ``bench``."""
    authority = Authority(folder)
    pair = authority.issue("broker")
    files = {"ssl.certificate.location": pair.certificate.name, "ssl.key.location": pair.key.name}
    settings = {"security.protocol": "SSL", **settings}
    if settings["security.protocol"] != "PLAINTEXT":
        settings["tls"] = {**files, **(tls or {})}
    return bench(folder, behaviour, to, authority=authority, **settings)
