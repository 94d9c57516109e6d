"""A sidecar that terminates TLS, inside the test's own loop, before a peer that behaves as the test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from proxy.compiled.exchange import Exchange
from proxy.config import Config, load
from proxy.core.exchange import ConnectionTransition
from proxy.net.api_versions_probe import ApiVersionsProbe
from proxy.net.connection_manager import ConnectionManager
from proxy.net.listener_manager import ListenerManager
from proxy.net.ticker import Ticker
from tests.integration.conftest import free_port
from tests.integration.peer import Behaviour, Reader, Writer, upstream
from tests.tools.authority import Authority
from tests.tools.observation_sinks import watching

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
every_version = pytest.mark.parametrize("version", VERSIONS, ids=[version.name for version in VERSIONS])


@pytest.fixture(autouse=True)
def silent_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is imported, a peer is asked by clients alone."""
    monkeypatch.setattr(ApiVersionsProbe, "start", lambda self: None)


class Handler(ConnectionManager):
    """A manager as a sidecar wants it."""

    is_available = True
    is_full = False

    def on_capacity(self, call: Callable[[], None]) -> None:
        pass


class TlsBench:
    """``authority``: has signed the certificate of the listener. ``changes``: of connections, as observers get them."""

    def __init__(self, config: Config, authority: Authority) -> None:
        self.config = config
        self.authority = authority
        self.exchanges: list[Exchange] = []
        self.changes: list[ConnectionTransition] = []
        self.sink = watching(self.exchanges.append, self.changes.append)
        self.manager = Handler(config, self.sink)
        self.ticker = Ticker()
        self.sidecar = ListenerManager(config, self.manager, self.ticker)
        self.ticker.callbacks.append(self.manager.on_tick)
        self.port = config.listeners[0].bind.port
        self.counters = self.manager.listener_counters["CLIENT"]

    def context(self, *, version: ssl.TLSVersion | None = None, name: str | None = None) -> ssl.SSLContext:
        """Of a client. ``name``: the subject of its certificate."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if version is not None:
            context.minimum_version = context.maximum_version = version
        if name is not None:
            context.load_cert_chain(*self.authority.issue("a-client", name))
        return context

    async def dial(self, context: ssl.SSLContext | None = None) -> tuple[Reader, Writer]:
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context or self.context(), server_hostname="localhost"
        )

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until ``condition()`` holds."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  # a counter has no event to wait for
                await asyncio.sleep(0.005)


@asynccontextmanager
async def tls_bench(
    folder: Path, behaviour: Behaviour, tls: dict[str, object] | None = None, *, to: str = "", **settings: object
) -> AsyncIterator[TlsBench]:
    """``tls``: further keys of the listener's ``tls``. ``to``: the upstream, where it is not to be the peer.
    ``settings``: of the listener, or at the top."""
    authority = Authority(folder)
    pair = authority.issue("broker")
    async with upstream(behaviour) as peer_port:
        listener: dict[str, object] = {
            "name": "CLIENT",
            "bind": f"127.0.0.1:{free_port()}",
            "upstream": to or f"127.0.0.1:{peer_port}",
            "security.protocol": "SSL",
            "tls": {
                "ssl.certificate.location": pair.certificate.name,
                "ssl.key.location": pair.key.name,
                **(tls or {}),
            },
        }
        of_listener = {"security.protocol", "upstream.tls"}
        listener |= {name: value for name, value in settings.items() if name in of_listener}
        top = {name: value for name, value in settings.items() if name not in of_listener}
        if listener["security.protocol"] == "PLAINTEXT":
            del listener["tls"]
        keys = {"broker.id": 1, "listeners": [listener], "admin": {"bind": f"127.0.0.1:{free_port()}"}, **top}
        path = folder / "sidecar.yaml"
        path.write_text(yaml.safe_dump(keys))
        running = TlsBench(load(path, {}), authority)
        running.sidecar.start()
        running.ticker.start()
        try:
            yield running
        finally:
            running.sidecar.close()
            await running.manager.drain(0.2)
            await running.until(lambda: running.counters.active == 0)
            running.ticker.stop()
