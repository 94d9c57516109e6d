"""Reloads of TLS: other certificates, listeners that begin or end it, and what refuses one."""

from __future__ import annotations

import asyncio
import resource
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy import admin_client
from proxy.config import Endpoint
from proxy.local import process
from proxy.local.ports import HOST, free_ports
from tests.frames import METADATA, request, response
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame, upstream
from tests.integration.test_tls import HandMade, asks
from tests.integration.tls_bench import silent_sidecar, tls_bench  # noqa: F401
from tests.tools.authority import Authority
from tests.tools.bench.measure import children

CLIENTS = 6
"""Clients that connect at once, so that each of two workers gets some."""


class Site:
    """A sidecar of two workers in processes of its own, and all clients that have connected so far."""

    def __init__(self, folder: Path, upstream_port: int) -> None:
        self.authority = Authority(folder)
        self.pair = self.authority.issue("sidecar")
        self.path, self.log = folder / "sidecar.yaml", folder / "sidecar.log"
        self.port, admin = free_ports(2)
        self.admin = Endpoint(HOST, admin)
        self.upstream_port = upstream_port
        self.tls = {"ssl.certificate.location": self.pair.certificate.name, "ssl.key.location": self.pair.key.name}
        self.clients: list[tuple[Reader, Writer]] = []

    def write(self, *, limit: int = 100, to: int | None = None, **keys: Any) -> None:
        """``to``: port of the broker. ``keys``: of the listener, with ``_`` for ``.``."""
        listener = {"name": "CLIENT", "bind": f"{HOST}:{self.port}", "upstream": f"{HOST}:{to or self.upstream_port}"}
        listener |= {name.replace("_", "."): value for name, value in keys.items()}
        config = {"broker.id": 1, "listeners": [listener], "workers": 2}
        config |= {"admin": {"bind": str(self.admin)}, "quotas": {"max.connections": limit}}
        self.path.write_text(yaml.safe_dump(config))

    async def reload(self, *errors: str, **keys: Any) -> None:
        """Write another configuration and read it, which is refused with ``errors``, if there are any."""
        self.write(limit=7 if errors else 100, **keys)
        reloaded = await asyncio.to_thread(admin_client.post_reload, self.admin)
        assert reloaded.result == ("rejected" if errors else "applied"), reloaded
        assert len(reloaded.errors) == len(errors)
        assert all(said in error for said, error in zip(errors, reloaded.errors, strict=True)), reloaded.errors
        quotas = await asyncio.to_thread(admin_client.get_quotas, self.admin)
        assert next(one.limit for one in quotas.limits if one.quota == "connections") == 100

    async def dial(self, *, tls: bool) -> tuple[Reader, Writer]:
        if not tls:
            return await asyncio.open_connection(HOST, self.port)
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        return await asyncio.open_connection(HOST, self.port, ssl=context, server_hostname="localhost")

    async def serves(self, *, tls: bool) -> None:
        """New clients are served, and so are all that were there."""
        self.clients.extend(await asyncio.gather(*(self.dial(tls=tls) for _ in range(CLIENTS))))
        for number, client in enumerate(self.clients):
            await asks(*client, number)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[int]:
        running = process.spawn([sys.executable, "-m", "proxy", "run", "-c", str(self.path)], self.log)
        try:
            async with asyncio.timeout(60):
                while '"started"' not in (self.log.read_text() if self.log.exists() else ""):
                    assert running.alive(), self.log.read_text()
                    await asyncio.sleep(0.05)
            yield running.pid
            for _, writer in self.clients:
                writer.close()
        finally:
            assert await asyncio.to_thread(process.stop, [running], 60)


class Broker:
    """Answers in order. ``clients``: the connections over which a client asked; the sidecar itself asks over others."""

    def __init__(self) -> None:
        self.clients = 0

    async def serve(self, reader: Reader, writer: Writer) -> None:
        first = await read_frame(reader)
        self.clients += b"brokerside" not in first
        writer.write(response(int.from_bytes(first[8:12], "big")))
        await answer_in_order(reader, writer)


@pytest.mark.promise(
    "tls.md", "A reload begins and ends TLS on both sides of a listener for new connections alone, in all workers."
)
async def test_a_reload_begins_and_ends_tls_for_new_connections_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "brokers")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("broker", names=("kafka-1.example",)))
    upstream_tls = {"ssl.truststore.location": str(authority.ca), "ssl.server.name": "kafka-1.example"}
    plain, encrypted = Broker(), Broker()
    async with upstream(plain.serve) as plain_port, upstream(encrypted.serve, context) as tls_port:
        site = Site(tmp_path, plain_port)
        site.write()
        async with site.run():
            await site.serves(tls=False)
            await site.reload(security_protocol="SSL", tls=site.tls)
            await site.serves(tls=True)
            assert (plain.clients, encrypted.clients) == (2 * CLIENTS, 0)
            await site.reload(to=tls_port, security_protocol="SSL", tls=site.tls, upstream_tls=upstream_tls)
            await site.serves(tls=True)
            assert (plain.clients, encrypted.clients) == (2 * CLIENTS, CLIENTS)
            await site.reload()
            await site.serves(tls=False)
            assert (plain.clients, encrypted.clients) == (3 * CLIENTS, CLIENTS)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await site.dial(tls=True)


@pytest.mark.promise(
    "tls.md", "A pair that does not match, or a certificate that has expired, rejects the whole file of a reload."
)
async def test_a_pair_that_cannot_be_used_refuses_the_whole_reload(tmp_path: Path) -> None:
    """Also where only one worker cannot prepare it."""
    async with upstream(answer_in_order) as plain_port:
        site = Site(tmp_path, plain_port)
        expired, other = site.authority.issue("expired", days=-0.5), site.authority.issue("other")
        site.write()
        async with site.run() as pid:
            tls = {"ssl.certificate.location": expired.certificate.name, "ssl.key.location": expired.key.name}
            await site.reload("has expired at", security_protocol="SSL", tls=tls)
            tls = site.tls | {"ssl.key.location": other.key.name}
            await site.reload("is not the key of ssl.certificate.location", security_protocol="SSL", tls=tls)
            worker = children(pid)[-1]
            _, hard = resource.prlimit(worker, resource.RLIMIT_NOFILE)
            before = resource.prlimit(worker, resource.RLIMIT_NOFILE, (0, hard))
            try:
                await site.reload("TLS: Too many open files", security_protocol="SSL", tls=site.tls)
            finally:
                resource.prlimit(worker, resource.RLIMIT_NOFILE, before)
            await site.serves(tls=False)


@pytest.mark.promise("tls.md", "Connections in their handshake stay as they began when a reload ends TLS.")
async def test_a_handshake_ends_as_it_began_where_a_reload_ends_tls(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running, upstream(answer_in_order) as other:
        client = await HandMade.dial(running)
        await running.until(lambda: running.counters.active == 1)
        running.reload(tls=None, upstream=f"{HOST}:{other}")  # SSL passes through from now on, to a port with TLS
        await client.shake_hands()
        client.tls.write(request(METADATA, 1, 5))
        assert await client.read(8) == response(5)
        await running.until(lambda: len(running.exchanges) == 1)


@pytest.mark.promise("tls.md", "A reload with a new pair shows it to new clients, and closes no connection.")
async def test_a_new_certificate_is_shown_to_new_clients_and_closes_no_connection(tmp_path: Path) -> None:
    """Those in their handshake keep what they began with towards the broker, too."""
    trust = {"upstream.tls": {"ssl.truststore.location": "ca.pem"}}
    async with tls_bench(tmp_path, answer_in_order) as running:
        reader, writer = await running.dial()
        shown = writer.get_extra_info("ssl_object").getpeercert(True)
        running.authority.issue("broker")
        running.reload()
        _, other = await running.dial()
        assert other.get_extra_info("ssl_object").getpeercert(True) != shown
        other.close()
        await asks(reader, writer, 5)
    async with tls_bench(tmp_path, answer_in_order, **trust) as running:
        before = running.manager.listeners.by_name["CLIENT"]
        tls = before.upstream._tls
        running.authority.issue("broker")
        running.reload()
        after = running.manager.listeners.by_name["CLIENT"]
        assert after.tls is not before.tls
        assert (before.upstream._tls, after.upstream._tls) == (tls, after.tls)
