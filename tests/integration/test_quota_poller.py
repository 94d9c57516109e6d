"""The sidecar's own questions to a real broker: over every kind of listener, and as a user who may not ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from proxy import admin_client
from proxy.config import Config, Endpoint
from proxy.core.protected_topics import REGISTRY
from proxy.fleet.quota_poller import QuotaPoller
from proxy.limits.model import ClusterQuotas
from tests.brokers import SCRAM_PASSWORD, SCRAM_USER, TlsBroker
from tests.integration.quotas import ALTER, ALTER_CONFIGS, CREATION, RATE, Peer, alter, set_config
from tests.integration.sidecars import running, until, until_async
from tests.interop.wire import audited
from tests.tools.admin import get
from tests.tools.topic import messages

pytestmark = pytest.mark.kafka

ADDRESSES = (None, "127.0.0.1", "127.0.0.9", "10.0.0.1", "localhost")
PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "sidecar"}
PLAIN |= {"sasl.password": "sidecar-secret"}
TLS = {"security.protocol": "SSL", "ssl.ca.location": "CA"}
MTLS = {**TLS, "ssl.certificate.location": "CERTIFICATE", "ssl.key.location": "KEY"}


def scram(protocol: str, bits: int, password: str = SCRAM_PASSWORD) -> dict[str, str]:
    login = {"sasl.mechanism": f"SCRAM-SHA-{bits}", "sasl.username": SCRAM_USER, "sasl.password": password}
    return {"security.protocol": protocol, **({"ssl.ca.location": "CA"} if protocol == "SASL_SSL" else {}), **login}


@pytest.fixture(autouse=True)
def no_quotas(tls_broker: TlsBroker) -> Iterator[None]:
    yield
    with Peer(tls_broker.node.internal) as peer:
        for name in ADDRESSES:
            peer.ask(ALTER, 0, alter([("ip", name)], (RATE, 0.0, True)))
        peer.ask(ALTER_CONFIGS, 0, set_config(1, CREATION, None))


def config_of(broker: TlsBroker, listener: str = "", internal: dict[str, str] | None = None, **quotas: Any) -> Config:
    """Of a sidecar whose cluster is behind this listener; by default INTERNAL."""
    values = {
        "broker.id": 1,
        "internal.bootstrap.servers": broker.listeners[listener].address if listener else broker.node.internal,
        "internal": with_files(broker, internal or {}),
        "listeners": [{"name": "CLIENT", "bind": "127.0.0.1:1", "upstream": "127.0.0.1:2"}],
        "quotas": {name.replace("_", "."): value for name, value in quotas.items()},
    }
    return Config.model_validate(values)


def with_files(broker: TlsBroker, settings: dict[str, str]) -> dict[str, str]:
    """``settings`` with the files in place of their names."""
    files = {"CA": broker.authority.ca, "CERTIFICATE": broker.pair.certificate, "KEY": broker.pair.key}
    return {key: str(files.get(value, value)) for key, value in settings.items()}


class PolledQuotas:
    def __init__(self, config: Config) -> None:
        self.quotas = ClusterQuotas()
        self.watch = QuotaPoller(config, self._change, lambda problem: None)

    def _change(self, quotas: ClusterQuotas) -> None:
        self.quotas = quotas


@asynccontextmanager
async def watching(config: Config) -> AsyncIterator[PolledQuotas]:
    """Poll until the first poll is over, and then on."""
    polled = PolledQuotas(config)
    polled.watch.start()
    try:
        await until_async(lambda: polled.watch.state.ok or polled.watch.state.error)
        yield polled
    finally:
        await polled.watch.close()


async def becomes(polled: PolledQuotas, wanted: ClusterQuotas) -> None:
    polled.watch.refresh()
    await until_async(lambda: polled.quotas == wanted)


def store(broker: TlsBroker, address: str | None, rate: int) -> None:
    with Peer(broker.node.internal) as peer:
        peer.ask(ALTER, 0, alter([("ip", address)], (RATE, rate, False)))


@pytest.mark.promise(
    "limits.md", "The sidecar reads the cluster's quotas over plaintext or TLS, with SASL PLAIN, SCRAM or none."
)
async def test_quotas_are_read_over_every_kind_of_listener(tls_broker: TlsBroker) -> None:
    store(tls_broker, "10.0.0.1", 5)
    for listener, settings in (
        ("SASL", PLAIN),
        ("SASL", scram("sasl_plaintext", 256)),
        ("SASL", scram("SASL_PLAINTEXT", 512)),
        ("SASL_TLS", scram("SASL_SSL", 512)),
        ("MTLS", MTLS),
        ("TLS", TLS),
        ("TLS", {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}),
    ):
        async with watching(config_of(tls_broker, listener, settings)) as polled:
            assert polled.watch.state.error is None, (listener, settings)
            await becomes(polled, ClusterQuotas({"10.0.0.1": 5}))


async def test_a_broker_that_does_not_let_it_in_is_an_error_that_says_so(tls_broker: TlsBroker) -> None:
    guest = {**PLAIN, "sasl.username": "guest", "sasl.password": "guest-secret"}
    for listener, settings, said in (
        ("SASL", scram("SASL_PLAINTEXT", 512, "wrong"), "Authentication failed"),
        ("SASL", guest, "needs DescribeConfigs and AlterConfigs on the cluster (error 31)"),
        ("MTLS", TLS, "CERTIFICATE"),
    ):
        async with watching(config_of(tls_broker, listener, settings)) as polled:
            error = polled.watch.state.error or ""
            assert said in error, (listener, settings)
            assert not any(secret in error for secret in (SCRAM_PASSWORD, "-secret")), (listener, settings)


@pytest.mark.promise(
    "limits.md", "With `source: broker` the broker's own `max.connection.creation.rate` is taken over."
)
async def test_a_rate_of_the_broker_s_own_is_taken_over(tls_broker: TlsBroker) -> None:
    async with watching(config_of(tls_broker, source="broker")) as polled:
        with Peer(tls_broker.node.internal) as peer:
            peer.ask(ALTER_CONFIGS, 0, set_config(1, CREATION, "1000"))
            peer.ask(ALTER_CONFIGS, 0, set_config(1, f"listener.name.client.{CREATION}", "500"))
            await becomes(polled, ClusterQuotas(rate=1000, listener_rates={"client": 500}))
            peer.ask(ALTER_CONFIGS, 0, set_config(1, f"listener.name.client.{CREATION}", None))
            await becomes(polled, ClusterQuotas(rate=1000))


@pytest.mark.promise(
    "tls.md", "Registry, quotas and audit of a sidecar work over `SSL` with a certificate, and over `SASL_SSL`."
)
@pytest.mark.parametrize(
    ("listener", "settings"), [("SASL_TLS", scram("SASL_SSL", 512)), pytest.param("MTLS", MTLS, marks=pytest.mark.slow)]
)
def test_a_sidecar_talks_to_its_cluster_over_tls_alone(
    tls_broker: TlsBroker, tmp_path: Path, listener: str, settings: dict[str, str]
) -> None:
    """Registry, quotas, audit and names of topics: by librdkafka, and by the calls of the sidecar itself."""
    node = tls_broker.node
    internal: dict[str, Any] = with_files(tls_broker, settings)
    for name in internal.keys() & {"sasl.password"}:
        (tmp_path / name).write_text(internal[name])
        internal[name] = {"file": name}
    audit, written = f"audit-over-{listener}", f"written-{listener}"
    config = {
        "broker.id": 1,
        "internal.bootstrap.servers": tls_broker.listeners[listener].address,
        "internal": internal,
        "listeners": [{"name": "CLIENT", "bind": node.advertised, "upstream": node.upstream}],
        "admin": {"bind": node.admin},
        "observer.class.names": ["observers.audit:AuditObserver"],
        "audit": {"topic": audit},
    }
    store(tls_broker, "127.0.0.9", 1000)
    boots = registered(tls_broker)
    with running(config, tmp_path) as sidecar:
        producer = Producer({"bootstrap.servers": node.advertised, "client.id": "over-tls"})
        producer.produce(written, b"x")
        assert producer.flush(30) == 0
        until(lambda: registered(tls_broker) > boots)
        until(lambda: sidecar.metric("brokerside_audit_delivered_total"))
        until(lambda: any(one.api == "Produce" for one in audited(node.internal, audit, "over-tls")))
        with Peer(node.advertised, source="127.0.0.9"):
            until(lambda: rate_limits(node.admin).get("127.0.0.9") == 1000)
        assert get(f"http://{sidecar.admin}/readyz") == (200, "ok\n")
    produced = [one for one in audited(node.internal, audit, "over-tls") if one.api == "Produce"]
    assert [part.topic for one in produced for part in one.topics] == [written]


def rate_limits(admin: str) -> dict[str, int | None]:
    return {one.address: one.rate_limit for one in admin_client.get_quotas(Endpoint.parse(admin)).addresses}


def registered(broker: TlsBroker) -> int:
    """The number of the last record in the topic of the registry, which is compacted; 0 where it is not there yet."""
    if REGISTRY not in broker.admin().list_topics(timeout=30).topics:
        return 0
    return max((1 + (one.offset() or 0) for one in messages(broker.node.internal, REGISTRY)), default=0)
