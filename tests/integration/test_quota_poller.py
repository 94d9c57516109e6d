"""The sidecar's own questions to a real broker: over every kind of listener, and as a user who may not ask."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are exported, untyped
    AdminClient,
)

from proxy.config import Config
from proxy.core.protected_topics import REGISTRY
from proxy.fleet.quota_poller import QuotaPoller
from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED, ClusterQuotas
from proxy.local import cluster as local_cluster
from proxy.local.cluster import Node
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.integration.certificates import certificate
from tests.integration.conftest import free_port
from tests.integration.logins import add_scram_user
from tests.integration.metrics import sample
from tests.integration.quotas import ALTER, ANY, CREATION, DESCRIBE, RATE, Peer, alter, describe, error_of, set_config
from tests.interop.wire import audited
from tests.tools.authority import Authority, Pair
from tests.tools.topic import messages

pytestmark = pytest.mark.kafka

SECURITY = "org.apache.kafka.common.security"
USER, PASSWORD = "s,i=decar", "pä,ss=word"
"""With what SCRAM has to escape, and what is not ASCII."""


@dataclass(frozen=True)
class Secured:
    """A broker with a listener of every kind: ``sasl``, ``sasl_ssl``, ``ssl``, ``mtls`` are host:port; ``ca`` and
    those of ``pair`` are files. ``mtls`` wants the certificate ``pair``."""

    node: Node
    sasl: str
    sasl_ssl: str
    ssl: str
    mtls: str
    sasl_advertised: str
    """Where a sidecar may listen before ``sasl``."""
    ca: str
    pair: Pair

    def internal(self, settings: dict[str, str]) -> dict[str, str]:
        """``settings`` with the files in place of their names."""
        files = {"CA": self.ca, "CERTIFICATE": str(self.pair.certificate), "KEY": str(self.pair.key)}
        return {key: files.get(value, value) for key, value in settings.items()}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    node = local_cluster.plan(folder).nodes[0]
    store, ca = certificate(folder)
    authority = Authority(folder / "clients")
    pair = authority.issue("sidecar", "CN=sidecar")
    found = Secured(node, *(f"127.0.0.1:{port}" for port in free_ports(5)), str(ca), pair)
    own = {"SASL": found.sasl, "BOTH": found.sasl_ssl, "TLS": found.ssl, "MTLS": found.mtls}
    listeners = {"CLIENT": node.upstream, "INTERNAL": node.internal, "CONTROLLER": node.controller, **own}
    advertised = {**own, "CLIENT": node.advertised, "INTERNAL": node.internal, "SASL": found.sasl_advertised}
    protocols = dict.fromkeys(listeners, "PLAINTEXT")
    protocols |= {"SASL": "SASL_PLAINTEXT", "BOTH": "SASL_SSL", "TLS": "SSL", "MTLS": "SSL"}
    properties = {
        "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": "changeit",
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.mtls.ssl.truststore.type": "PEM",
        "listener.name.mtls.ssl.truststore.location": str(authority.ca),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:admin;User:CN=sidecar",
    }
    for name in ("sasl", "both"):
        jaas = f"listener.name.{name}.%s.sasl.jaas.config"
        users = 'user_admin="admin-secret" user_alice="alice-secret"'
        properties[jaas % "plain"] = f"{SECURITY}.plain.PlainLoginModule required {users};"
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            properties[jaas % mechanism] = f"{SECURITY}.scram.ScramLoginModule required;"
    try:
        local_cluster.up(folder, broker_properties=properties, progress=False)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            add_scram_user(node.internal, found.sasl, mechanism, USER, PASSWORD)
        yield found
    finally:
        local_cluster.down(folder)


@pytest.fixture(autouse=True)
def no_quotas(secured: Secured) -> Iterator[None]:
    yield
    with Peer(secured.node.internal) as peer:
        for name in (None, "127.0.0.1", "127.0.0.9", "10.0.0.1", "localhost"):
            peer.ask(ALTER, 0, alter([("ip", name)], (RATE, 0.0, True)))
        peer.ask(44, 0, set_config(1, CREATION, None))


def config_of(bootstrap: str, internal: dict[str, str] | None = None, **quotas: Any) -> Config:
    values = {
        "broker.id": 1,
        "internal.bootstrap.servers": bootstrap,
        "internal": internal or {},
        "listeners": [{"name": "CLIENT", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2"}],
        "quotas": {name.replace("_", "."): value for name, value in quotas.items()},
    }
    return Config.model_validate(values)


class PolledQuotas:
    """What a poller has reported."""

    def __init__(self, config: Config) -> None:
        self.quotas = ClusterQuotas()
        self.problem: str | None = None
        self.watch = QuotaPoller(config, self._change, self._report)

    def _change(self, quotas: ClusterQuotas) -> None:
        self.quotas = quotas

    def _report(self, problem: str | None) -> None:
        self.problem = problem


@asynccontextmanager
async def watching(config: Config) -> AsyncIterator[PolledQuotas]:
    """Poll until the first poll is over, and then on."""
    polled = PolledQuotas(config)
    polled.watch.start()
    try:
        async with asyncio.timeout(60):
            while not (polled.watch.state.ok or polled.watch.state.error):  # noqa: ASYNC110 - a poll that fails has no event
                await asyncio.sleep(0.01)
        yield polled
    finally:
        await polled.watch.close()


async def until(polled: PolledQuotas, wanted: ClusterQuotas) -> None:
    polled.watch.refresh()
    async with asyncio.timeout(60):
        while polled.quotas != wanted:  # noqa: ASYNC110 - it is reported between the checks of this loop
            await asyncio.sleep(0.01)


def store(secured: Secured, address: str | None, rate: int) -> None:
    with Peer(secured.node.internal) as peer:
        peer.ask(ALTER, 0, alter([("ip", address)], (RATE, rate, False)))


def scram(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}


BOTH = {"security.protocol": "SASL_SSL", "ssl.ca.location": "CA", **scram("SCRAM-SHA-512")}
MTLS = {
    "security.protocol": "SSL", "ssl.ca.location": "CA", "ssl.certificate.location": "CERTIFICATE",
    "ssl.key.location": "KEY",
}  # fmt: skip
PLAIN = {"sasl.mechanisms": "PLAIN", "sasl.username": "admin", "sasl.password": "admin-secret"}


@pytest.mark.parametrize(
    ("listener", "settings"),
    [
        ("sasl", {"security.protocol": "sasl_plaintext", **PLAIN}),
        ("sasl", {"security.protocol": "SASL_PLAINTEXT", **scram("SCRAM-SHA-256")}),
        ("sasl", {"security.protocol": "SASL_PLAINTEXT", **scram("SCRAM-SHA-512")}),
        ("sasl_ssl", BOTH),
        ("mtls", MTLS),
        ("ssl", {"security.protocol": "SSL", "ssl.ca.location": "CA"}),
        ("ssl", {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value,
)
async def test_quotas_are_read_over_every_kind_of_listener(
    secured: Secured, listener: str, settings: dict[str, str]
) -> None:
    store(secured, "10.0.0.1", 5)
    async with watching(config_of(getattr(secured, listener), secured.internal(settings))) as polled:
        assert polled.watch.state.error is None
        await until(polled, ClusterQuotas({"10.0.0.1": 5}))


@pytest.mark.parametrize(
    ("listener", "settings", "said"),
    [
        ("sasl", {"security.protocol": "SASL_PLAINTEXT", **scram("SCRAM-SHA-512", "wrong")}, "Authentication failed"),
        ("sasl", {"security.protocol": "SASL_PLAINTEXT", **PLAIN, "sasl.username": "eve"}, "Authentication failed"),
        ("sasl", {}, "the connection was closed"),
        ("ssl", {"security.protocol": "SSL"}, "TLS: self-signed certificate"),
        ("mtls", {"security.protocol": "SSL", "ssl.ca.location": "CA"}, "CERTIFICATE"),
        ("ssl", {}, "an answer of 352518912 bytes"),
    ],
    ids=["password", "user", "no-sasl", "not-trusted", "no-certificate", "no-tls"],
)
async def test_a_broker_that_does_not_let_it_in_is_an_error_that_says_so(
    secured: Secured, listener: str, settings: dict[str, str], said: str
) -> None:
    async with watching(config_of(getattr(secured, listener), secured.internal(settings))) as polled:
        error = polled.watch.state.error or ""
        assert said in error
        assert PASSWORD not in error


async def test_a_user_without_rights_is_refused_in_words(secured: Secured) -> None:
    alice = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    async with watching(config_of(secured.sasl, alice | {"sasl.password": "alice-secret"})) as polled:
        assert "needs DescribeConfigs and AlterConfigs on the cluster (error 31)" in (polled.watch.state.error or "")


async def test_an_override_is_stored_when_a_default_quota_appears(secured: Secured) -> None:
    async with watching(config_of(secured.node.internal)) as polled:
        store(secured, None, 100)
        await until(polled, ClusterQuotas({DEFAULT_ADDRESS: 100}))
        async with watching(config_of(secured.node.internal, protect_upstream=False)) as everything:
            await until(everything, ClusterQuotas({DEFAULT_ADDRESS: 100, "127.0.0.1": UNLIMITED}))
        store(secured, "localhost", 7)
        await until(polled, ClusterQuotas({DEFAULT_ADDRESS: 100, "127.0.0.1": 7}))
        async with asyncio.timeout(60):
            while "upstream.source" not in (polled.watch.state.problem or ""):  # noqa: ASYNC110 - found out after that
                await asyncio.sleep(0.01)
        assert polled.problem is None


async def test_a_rate_of_the_broker_s_own_is_taken_over(secured: Secured) -> None:
    async with watching(config_of(secured.node.internal, source="broker")) as polled:
        with Peer(secured.node.internal) as peer:
            peer.ask(44, 0, set_config(1, CREATION, "1000"))
            peer.ask(44, 0, set_config(1, f"listener.name.client.{CREATION}", "500"))
            await until(polled, ClusterQuotas(rate=1000, listener_rates={"client": 500}))
            peer.ask(44, 0, set_config(1, f"listener.name.client.{CREATION}", None))
            await until(polled, ClusterQuotas(rate=1000))


@pytest.fixture
def behind(secured: Secured, tmp_path: Path) -> Iterator[str]:
    """The address of a sidecar before the broker's SASL listener."""
    admin = f"127.0.0.1:{free_port()}"
    listener = {"name": "SASL", "bind": secured.sasl_advertised, "upstream": secured.sasl}
    config = {
        "broker.id": 1,
        "internal.bootstrap.servers": secured.node.internal,
        "listeners": [listener | {"security.protocol": "SASL_PLAINTEXT"}],
        "admin": {"bind": admin},
    }
    (tmp_path / "sidecar.yaml").write_text(yaml.safe_dump(config))
    process = SidecarProcess.start(tmp_path / "sidecar.yaml", tmp_path / "sidecar.log", admin)
    yield secured.sasl_advertised
    assert process.stop()


def test_a_client_without_rights_gets_the_broker_s_refusal(secured: Secured, behind: str) -> None:
    requests = [
        (ALTER, alter([("ip", "10.0.0.1")], (RATE, 5.0, False))),
        (ALTER, alter([("user", "u")], ("producer_byte_rate", 5.0, False))),
        (DESCRIBE, describe(("ip", ANY, None))),
    ]
    alice = ("alice", "alice-secret")
    with Peer(secured.sasl, user=alice) as direct, Peer(behind, user=alice) as through:
        for key, body in requests:
            answer = through.ask(key, 0, body)
            assert error_of(key, 0, answer)[0] == 31
            assert answer == direct.ask(key, 0, body)
    with Peer(behind, user=("admin", "admin-secret")) as peer:
        assert error_of(ALTER, 0, peer.ask(ALTER, 0, requests[0][1])) == (0, "")


@pytest.mark.parametrize(("listener", "settings"), [("mtls", MTLS), ("sasl_ssl", BOTH)], ids=["mtls", "sasl_ssl"])
def test_a_sidecar_talks_to_its_cluster_over_tls_alone(
    secured: Secured, tmp_path: Path, listener: str, settings: dict[str, str]
) -> None:
    """Registry, quotas, audit and names of topics: by librdkafka, and by the calls of the sidecar itself."""
    settings = secured.internal(settings)
    for name in settings.keys() & {"sasl.password"}:
        (tmp_path / name).write_text(settings[name])
        settings[name] = {"file": name}  # type: ignore[assignment]
    audit = f"audit-over-{listener}"
    config = {
        "broker.id": 1,
        "internal.bootstrap.servers": getattr(secured, listener),
        "internal": settings,
        "listeners": [{"name": "CLIENT", "bind": secured.node.advertised, "upstream": secured.node.upstream}],
        "admin": {"bind": secured.node.admin},
        "observer.class.names": ["observers.audit:AuditObserver"],
        "audit": {"topic": audit},
    }
    (tmp_path / "sidecar.yaml").write_text(yaml.safe_dump(config))
    store(secured, "127.0.0.9", 1000)
    boots = registered(secured)
    sidecar = SidecarProcess.start(tmp_path / "sidecar.yaml", tmp_path / "sidecar.log", secured.node.admin)
    try:
        producer = Producer({"bootstrap.servers": secured.node.advertised, "client.id": "over-tls"})
        producer.produce(f"written-{listener}", b"x")
        assert producer.flush(30) == 0
        wait(lambda: registered(secured) > boots, sidecar)
        wait(lambda: sample(sidecar.metrics(), "brokerside_audit_delivered_total") > 0, sidecar)
        wait(lambda: any(one.api == "Produce" for one in audited(secured.node.internal, audit, "over-tls")), sidecar)
        host, _, port = secured.node.advertised.rpartition(":")
        with socket.create_connection((host, int(port)), source_address=("127.0.0.9", 0)):
            wait(lambda: rate_limits(sidecar).get("127.0.0.9") == 1000, sidecar)
        with urllib.request.urlopen(f"http://{sidecar.admin}/readyz", timeout=10) as answer:
            assert answer.read() == b"ok\n"
    finally:
        assert sidecar.stop()
    produced = [one for one in audited(secured.node.internal, audit, "over-tls") if one.api == "Produce"]
    assert [part.topic for one in produced for part in one.topics] == [f"written-{listener}"]


def rate_limits(sidecar: SidecarProcess) -> dict[str, int | None]:
    """By address of a client."""
    with urllib.request.urlopen(f"http://{sidecar.admin}/quotas", timeout=10) as answer:
        return {one["address"]: one["rate_limit"] for one in json.load(answer)["addresses"]}


def registered(secured: Secured) -> int:
    """The number of the last record in the topic of the registry, which is compacted; 0 where it is not there yet."""
    admin = AdminClient({"bootstrap.servers": secured.node.internal})
    if REGISTRY not in admin.list_topics(timeout=30).topics:
        return 0
    return max((1 + (one.offset() or 0) for one in messages(secured.node.internal, REGISTRY)), default=0)


def wait(condition: Callable[[], bool], sidecar: SidecarProcess) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, sidecar.log.read_text()[-3000:]
        time.sleep(0.2)
