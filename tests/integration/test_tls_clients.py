"""Real clients over TLS that a sidecar terminates, originates or passes through, before a real broker."""

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.local.sidecars import SidecarProcess
from tests.brokers import TlsBroker
from tests.integration.librdkafka import consume, produce
from tests.integration.logins import SECRET, SECURITY
from tests.integration.sidecars import running, until
from tests.tools.admin import get
from tests.tools.authority import Authority
from tests.tools.topic import create

pytestmark = pytest.mark.kafka

LISTENERS = {"MTLS": "SSL", "SASLTLS": "SASL_SSL", "ORIGIN": "SASL_SSL", "THROUGH": "SSL"}
PAIR = "listener"
"""Files of the certificate that clients see."""


@dataclass(frozen=True)
class Site:
    """``addresses``: of the sidecar's listeners, by name."""

    broker: TlsBroker
    sidecar: SidecarProcess
    addresses: dict[str, str]
    topic: str

    @property
    def authority(self) -> Authority:
        return self.broker.authority

    def settings(self, listener: str, principal: str = "alice", **more: Any) -> dict[str, Any]:
        files = self.authority.folder
        found = {
            "bootstrap.servers": self.addresses[listener],
            "security.protocol": LISTENERS[listener],
            "ssl.ca.location": str(self.authority.ca),
        }
        if LISTENERS[listener] == "SASL_SSL":
            found |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": SECRET}
        else:
            certificate, key = (str(files / f"{principal}.{kind}") for kind in ("crt", "key"))
            found |= {"ssl.certificate.location": certificate, "ssl.key.location": key}
        return found | more

    def java_settings(self, listener: str) -> str:
        """The same for Java's tools, as a file of properties."""
        files = self.authority.folder
        store = files / "alice.pem"
        store.write_text((files / "alice.key").read_text() + (files / "alice.crt").read_text())
        lines = {
            "security.protocol": LISTENERS[listener],
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca),
        }
        if LISTENERS[listener] == "SASL_SSL":
            login = f'{SECURITY}.scram.ScramLoginModule required username="alice" password="{SECRET}";'
            lines |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": login}
        else:
            lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
        path = files / f"{listener}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return str(path)

    def connections(self, query: str) -> list[dict[str, Any]]:
        return list(json.loads(get(f"http://{self.sidecar.admin}/connections?{query}")[1])["connections"])


@pytest.fixture(scope="module")
def site(tls_broker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    node, behind, authority = tls_broker.node, tls_broker.listeners, tls_broker.authority
    pair = authority.issue(PAIR)
    tls: dict[str, Any] = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    trust = {"ssl.truststore.location": str(authority.ca)}
    mapping = {"ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=Clients.*$/$1/U, DEFAULT"}
    own = {
        "ssl.certificate.location": str(tls_broker.pair.certificate),
        "ssl.key.location": str(tls_broker.pair.key),
        "ssl.server.name": "localhost",
    }
    listeners: dict[str, tuple[str, str, dict[str, Any]]] = {
        "MTLS": (node.advertised, node.upstream, {"tls": tls | trust | mapping | {"ssl.client.auth": "required"}}),
        "SASLTLS": (behind["BEHIND_SASL"].advertised, behind["BEHIND_SASL"].address, {"tls": tls}),
        "ORIGIN": (
            behind["BEHIND_SASL_MTLS"].advertised,
            behind["BEHIND_SASL_MTLS"].address,
            {"tls": tls, "upstream.tls": own | trust},
        ),
        "THROUGH": (behind["BEHIND_MTLS"].advertised, behind["BEHIND_MTLS"].address, {}),
    }
    config = {
        "broker.id": node.id,
        "internal.bootstrap.servers": node.internal,
        "workers": 2,
        "listeners": [
            {"name": name, "bind": bind, "upstream": upstream, "security.protocol": LISTENERS[name], **keys}
            for name, (bind, upstream, keys) in listeners.items()
        ],
        "admin": {"bind": node.admin},
    }
    create_topic(tls_broker, "over-tls")
    with running(config, folder) as sidecar:
        yield Site(tls_broker, sidecar, {name: bind for name, (bind, *_) in listeners.items()}, "over-tls")
    assert SECRET not in sidecar.log.read_text()


def create_topic(broker: TlsBroker, name: str) -> None:
    admin = broker.admin()
    create(admin, NewTopic(name, 1, 1))


@pytest.mark.promise(
    "tls.md",
    "Real clients produce and consume where TLS ends at the sidecar, goes on to the broker, or passes through.",
)
def test_librdkafka_produces_and_consumes(site):
    for listener in LISTENERS:
        create_topic(site.broker, f"over-{listener}")
        where = site.addresses[listener], f"over-{listener}"
        assert produce(*where, [b"by librdkafka"], **site.settings(listener)) == 1
        assert consume(*where, 1, **site.settings(listener)) == [b"by librdkafka"]


@pytest.mark.slow
@pytest.mark.promise("tls.md", "Kafka's own Java clients produce and consume over TLS that ends at the sidecar.")
def test_javas_tools_produce_and_consume(site, tools):
    for listener in ("MTLS", "SASLTLS", "ORIGIN"):
        value, topic = f"by java over {listener}", f"java-{listener}"
        create_topic(site.broker, topic)
        common = ["--bootstrap-server", site.addresses[listener], "--topic", topic]
        common += ["--command-config", site.java_settings(listener)]
        produced = tools.run("console-producer", *common, text=f"{value}\n")
        assert produced.returncode == 0, produced.stderr
        end = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "60000")
        listed = tools.run("console-consumer", *common, *end)
        assert listed.stdout == f"{value}\n", listed.stderr


@pytest.mark.promise(
    "tls.md",
    "`brokerside connections` has the TLS version, the cipher suite and the certificate's serial number of "
    "each client.",
)
def test_connections_say_who_is_there_and_how(site):
    expected = {
        "MTLS": ("User:BOB", "mtls"),
        "SASLTLS": ("User:alice", "sasl"),
        "ORIGIN": ("User:alice", "sasl"),
        "THROUGH": ("User:<unknown:SSL>", "unknown"),
    }
    for listener, (principal, source) in expected.items():
        admin = AdminClient(site.settings(listener, "bob", **{"client.id": f"named-{listener}"}))

        def look(admin=admin, listener=listener, principal=principal):
            """librdkafka leaves its first connection for another one."""
            assert site.topic in admin.list_topics(timeout=30).topics
            return [one for one in site.connections(f"listener={listener}") if one["principal"] == principal]

        found = until(look)
        assert {one["principal_source"] for one in found} == {source}, listener
        assert {one.get("tls_version") for one in found} == {None if listener == "THROUGH" else "TLSv1.3"}, listener
        assert all(one.get("tls_cipher", "TLS_").startswith("TLS_") for one in found), listener
        assert {"tls_client_serial" in one for one in found} == {listener == "MTLS"}, listener
        if listener != "THROUGH":
            assert f"named-{listener}" in {one.get("client_id") for one in found}
        del admin


@pytest.mark.promise(
    "tls.md",
    "The sidecar notices new files of a certificate by itself; no request fails, and a metric says when it expires.",
)
def test_new_certificates_under_load_fail_no_request(site):
    failed: list[object] = []

    def expires(days):
        metric = 'brokerside_tls_certificate_expiry_timestamp_seconds{listener="SASLTLS"'
        (line,) = [one for one in site.sidecar.metrics().splitlines() if one.startswith(metric)]
        return abs(float(line.rpartition(" ")[2]) - time.time() - days * 86_400) < 3600

    def client(listener):
        return Producer(site.settings(listener) | {"linger.ms": 0, "error_cb": failed.append})

    def works(producer):
        producer.produce(site.topic, b"x", on_delivery=lambda error, _: error and failed.append(error))
        assert producer.flush(60) == 0

    kept, deadline = client("MTLS"), time.monotonic() + 120
    for days in (40, 50):
        site.authority.issue(PAIR, days=days)
        is_known = False
        while not is_known:
            assert time.monotonic() < deadline
            is_known = expires(days)
            for producer in (kept, client("SASLTLS")):
                works(producer)
    assert failed == []
