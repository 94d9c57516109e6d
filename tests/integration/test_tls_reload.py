"""Reloads of TLS: other certificates, and listeners that begin or end it, with one and with two workers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from proxy import admin_client
from proxy.config import Endpoint, load
from proxy.errors import LocalError
from proxy.local import process
from proxy.local.ports import free_ports
from proxy.net.tls_contexts import TlsContexts
from tests.frames import METADATA, request, response
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame, upstream
from tests.integration.test_tls import HandMade
from tests.integration.tls_bench import silent_sidecar, tls_bench  # noqa: F401
from tests.tools.authority import Authority
from tests.tools.bench.measure import children

CLIENTS = 6
"""Clients that connect at once, so that each of two workers gets some."""


class Site:
    """A sidecar in processes of its own."""

    def __init__(self, folder: Path, workers: int, plain_port: int) -> None:
        self.authority = Authority(folder)
        self.pair = self.authority.issue("sidecar")
        self.path, self.log = folder / "sidecar.yaml", folder / "sidecar.log"
        self.port, admin = free_ports(2)
        self.admin = Endpoint("127.0.0.1", admin)
        self.workers, self.plain_port = workers, plain_port
        self.tls = {
            "ssl.certificate.location": self.pair.certificate.name,
            "ssl.key.location": self.pair.key.name,
        }

    def write(self, *, limit: int = 100, to: int | None = None, **keys: Any) -> None:
        """``to``: port of the broker. ``keys``: of the listener, with ``_`` for ``.``."""
        listener = {
            "name": "CLIENT",
            "bind": f"127.0.0.1:{self.port}",
            "upstream": f"127.0.0.1:{to or self.plain_port}",
        }
        listener |= {name.replace("_", "."): value for name, value in keys.items()}
        config = {"broker.id": 1, "listeners": [listener], "workers": self.workers}
        config |= {"admin": {"bind": str(self.admin)}, "quotas": {"max.connections": limit}}
        self.path.write_text(yaml.safe_dump(config))

    async def reload(self) -> Any:
        return await asyncio.to_thread(admin_client.post_reload, self.admin)

    async def dial(self, *, tls: bool) -> tuple[Reader, Writer]:
        if not tls:
            return await asyncio.open_connection("127.0.0.1", self.port)
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname="localhost")

    @contextlib.asynccontextmanager
    async def run(self):  # type: ignore[no-untyped-def]
        running = process.spawn([sys.executable, "-m", "proxy", "run", "-c", str(self.path)], self.log)
        try:
            async with asyncio.timeout(60):
                while '"started"' not in (self.log.read_text() if self.log.exists() else ""):
                    assert running.alive(), self.log.read_text()
                    await asyncio.sleep(0.05)
            yield running.pid
        finally:
            assert await asyncio.to_thread(process.stop, [running], 60)


async def ask(client: tuple[Reader, Writer], number: int) -> None:
    reader, writer = client
    writer.write(request(METADATA, 1, number))
    async with asyncio.timeout(60):
        assert await read_frame(reader) == response(number)


class Broker:
    """Answers in order. ``clients``: the connections over which a client asked; the sidecar itself asks over others."""

    def __init__(self) -> None:
        self.clients = 0

    async def serve(self, reader: Reader, writer: Writer) -> None:
        first = await read_frame(reader)
        self.clients += b"brokerside" not in first
        writer.write(response(int.from_bytes(first[8:12], "big")))
        await answer_in_order(reader, writer)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_reload_begins_and_ends_tls_for_new_connections_alone(tmp_path: Path, workers: int) -> None:
    authority = Authority(tmp_path / "brokers")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("broker", names=("kafka-1.example",)))
    plain, encrypted = Broker(), Broker()
    async with upstream(plain.serve) as plain_port, upstream(encrypted.serve, context) as tls_port:
        site = Site(tmp_path, workers, plain_port)
        upstream_tls = {"ssl.truststore.location": str(authority.ca), "ssl.server.name": "kafka-1.example"}
        clients: list[tuple[Reader, Writer]] = []

        async def connect(*, tls: bool) -> None:
            """New clients are served, and so are all that were there."""
            clients.extend(await asyncio.gather(*(site.dial(tls=tls) for _ in range(CLIENTS))))
            for number, client in enumerate(clients):
                await ask(client, number)

        site.write()
        async with site.run():
            await connect(tls=False)

            site.write(security_protocol="SSL", tls=site.tls)
            assert (await site.reload()).result == "applied"
            await connect(tls=True)
            assert (plain.clients, encrypted.clients) == (2 * CLIENTS, 0)

            site.write(to=tls_port, security_protocol="SSL", tls=site.tls, upstream_tls=upstream_tls)
            assert (await site.reload()).result == "applied"
            await connect(tls=True)
            assert (plain.clients, encrypted.clients) == (2 * CLIENTS, CLIENTS)

            site.write()
            assert (await site.reload()).result == "applied"
            await connect(tls=False)
            assert (plain.clients, encrypted.clients) == (3 * CLIENTS, CLIENTS)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await site.dial(tls=True)
            for _, writer in clients:
                writer.close()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mistake", ["key", "expired"])
async def test_a_pair_that_cannot_be_used_refuses_the_whole_reload(tmp_path: Path, workers: int, mistake: str) -> None:
    async with upstream(answer_in_order) as plain_port:
        site = Site(tmp_path, workers, plain_port)
        if mistake == "expired":
            site.authority.issue("sidecar", days=-0.5)
        else:
            site.authority.issue("other")
            site.tls["ssl.key.location"] = "other.key"
        site.write()
        async with site.run():
            site.write(limit=7, security_protocol="SSL", tls=site.tls)
            reloaded = await site.reload()
            assert reloaded.result == "rejected"
            why = {"key": "is not the key of ssl.certificate.location", "expired": "has expired at"}[mistake]
            (error,) = reloaded.errors
            assert error.startswith("listeners[0].tls.ssl.")
            assert why in error
            quotas = await asyncio.to_thread(admin_client.get_quotas, site.admin)
            assert next(one.limit for one in quotas.limits if one.quota == "connections") == 100
            client = await site.dial(tls=False)
            await ask(client, 1)
            client[1].close()


async def test_a_handshake_ends_as_it_began_where_a_reload_ends_tls(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running, upstream(answer_in_order) as other:
        client = await HandMade.dial(running)
        await running.until(lambda: running.counters.active == 1)
        config = yaml.safe_load((tmp_path / "sidecar.yaml").read_text())
        del config["listeners"][0]["tls"]  # SSL passes through from now on, to a port with TLS
        config["listeners"][0]["upstream"] = f"127.0.0.1:{other}"
        (tmp_path / "sidecar.yaml").write_text(yaml.safe_dump(config))
        running.manager.update_config(load(tmp_path / "sidecar.yaml", {}), running.sink)

        await client.shake_hands()
        client.tls.write(request(METADATA, 1, 5))

        assert await client.read(8) == response(5)
        await running.until(lambda: len(running.exchanges) == 1)
        client.writer.close()


async def test_a_client_is_unauthenticated_once_a_reload_has_asked_for_certificates(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        config = yaml.safe_load((tmp_path / "sidecar.yaml").read_text())
        config["listeners"][0]["tls"] |= {"ssl.client.auth": "required", "ssl.truststore.location": "ca.pem"}
        (tmp_path / "sidecar.yaml").write_text(yaml.safe_dump(config))
        running.manager.update_config(load(tmp_path / "sidecar.yaml", {}), running.sink)

        _, writer = await running.dial(running.context(name="CN=alice"))

        await running.until(lambda: len(running.changes) == 2)
        assert [one.connection.principal_source for one in running.changes] == ["unauthenticated", "mtls"]
        writer.close()


async def test_a_context_that_cannot_be_built_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with tls_bench(tmp_path, answer_in_order, **{"security.protocol": "PLAINTEXT"}) as running:
        config = yaml.safe_load((tmp_path / "sidecar.yaml").read_text())
        pair = running.authority.issue("late")
        config["listeners"][0] |= {
            "security.protocol": "SSL",
            "tls": {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)},
        }
        (tmp_path / "sidecar.yaml").write_text(yaml.safe_dump(config))
        wanted = load(tmp_path / "sidecar.yaml", {})
        with monkeypatch.context() as patched:
            patched.setattr(os, "memfd_create", fail)
            with pytest.raises(LocalError, match="TLS: Too many open files"):
                await running.manager.prepare_config(wanted)
            with pytest.raises(LocalError, match="TLS: Too many open files"):
                running.manager.update_config(wanted, running.sink)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(request(METADATA, 1, 1))
        assert await read_frame(reader) == response(1)
        writer.close()


async def test_a_new_certificate_is_shown_to_new_clients_and_closes_no_connection(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        reader, writer = await running.dial()
        before = writer.get_extra_info("ssl_object").getpeercert(True)
        running.authority.issue("broker")
        running.manager.update_config(load(tmp_path / "sidecar.yaml", {}), running.sink)

        _, other = await running.dial()
        assert other.get_extra_info("ssl_object").getpeercert(True) != before
        other.close()
        writer.write(request(METADATA, 1, 5))
        assert await read_frame(reader) == response(5)
        writer.close()


async def test_contexts_of_a_prepared_reload_are_used_and_others_kept(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        contexts = TlsContexts(running.config)
        first = contexts["CLIENT"]
        contexts.update_config(running.config)
        assert contexts["CLIENT"] is first
        running.authority.issue("broker")
        renewed = load(tmp_path / "sidecar.yaml", {})
        await contexts.prepare_config(renewed)
        with capture_logs() as lines, pytest.MonkeyPatch.context() as patched:
            patched.setattr("proxy.net.tls_contexts._build", None)  # nothing is built on the loop
            contexts.update_config(renewed)
        assert contexts["CLIENT"].server is not first.server
        assert [line["listeners"] for line in lines if line["event"] == "tls_updated"] == [["CLIENT"]]


async def test_contexts_of_a_refused_reload_are_forgotten_also_those_that_come_late(tmp_path: Path) -> None:
    async with tls_bench(tmp_path, answer_in_order) as running:
        contexts = TlsContexts(running.config)
        running.authority.issue("broker")
        renewed = load(tmp_path / "sidecar.yaml", {})
        await contexts.prepare_config(renewed)
        assert contexts._prepared
        contexts.discard()
        assert not contexts._prepared
        late = asyncio.create_task(contexts.prepare_config(renewed))
        await asyncio.sleep(0)
        contexts.discard()
        await late
        assert not contexts._prepared


async def test_a_client_in_its_handshake_keeps_the_truststore_towards_the_broker(tmp_path: Path) -> None:
    """A reload replaces the upstream of new connections, and changes nothing in the one that others have."""
    async with tls_bench(
        tmp_path, answer_in_order, **{"upstream.tls": {"ssl.truststore.location": "ca.pem"}}
    ) as running:
        before = running.manager.listeners.by_name["CLIENT"]
        tls = before.upstream._tls
        running.authority.issue("broker")
        running.manager.update_config(load(tmp_path / "sidecar.yaml", {}), running.sink)
        after = running.manager.listeners.by_name["CLIENT"]
        assert after.tls is not before.tls
        assert (before.upstream._tls, after.upstream._tls) == (tls, after.tls)


async def test_a_worker_that_cannot_prepare_a_reload_refuses_it_for_both(tmp_path: Path) -> None:
    async with upstream(answer_in_order) as plain_port:
        site = Site(tmp_path, 2, plain_port)
        site.write()
        async with site.run() as pid:
            worker = children(pid)[-1]
            _, hard = resource.prlimit(worker, resource.RLIMIT_NOFILE)
            before = resource.prlimit(worker, resource.RLIMIT_NOFILE, (0, hard))
            site.write(limit=7, security_protocol="SSL", tls=site.tls)
            reloaded = await site.reload()
            resource.prlimit(worker, resource.RLIMIT_NOFILE, before)
            assert (reloaded.result, reloaded.errors) == ("rejected", ["TLS: Too many open files"])
            clients = await asyncio.gather(*(site.dial(tls=False) for _ in range(CLIENTS)))
            for number, client in enumerate(clients):
                await ask(client, number)
                client[1].close()
