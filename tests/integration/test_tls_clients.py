"""Real clients over TLS that a sidecar terminates, originates or passes through, before a real broker."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are exported, untyped
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from proxy.config.regular_files import file_state
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, PREFIX
from proxy.local import cluster as local_cluster
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import Node
from tests.tools.authority import Authority
from tests.tools.kafka_tools import KafkaTools

pytestmark = pytest.mark.kafka

SECURITY = "org.apache.kafka.common.security"
PASSWORD = "canary-5ecret"
LISTENERS = {"MTLS": "SSL", "SASLTLS": "SASL_SSL", "ORIGIN": "SASL_SSL", "THROUGH": "SSL"}


@dataclass(frozen=True)
class Site:
    """``addresses``: of the sidecar's listeners, by name."""

    node: Node
    sidecar: SidecarProcess
    authority: Authority
    addresses: dict[str, str]
    topic: str

    def settings(self, listener: str, principal: str = "alice") -> dict[str, str]:
        """Of librdkafka."""
        found = {
            "bootstrap.servers": self.addresses[listener],
            "client.id": f"a-client-of-{listener}",
            "security.protocol": LISTENERS[listener],
            "ssl.ca.location": str(self.authority.ca),
        }
        if LISTENERS[listener] == "SASL_SSL":
            found |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": PASSWORD}
        else:
            files = self.authority.folder
            found |= {
                "ssl.certificate.location": str(files / f"{principal}.crt"),
                "ssl.key.location": str(files / f"{principal}.key"),
            }
        return found

    def java_settings(self, listener: str) -> Path:
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
            login = f'username="alice" password="{PASSWORD}"'
            lines |= {
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": f"{SECURITY}.scram.ScramLoginModule required {login};",
            }
        else:
            lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
        path = files / f"{listener}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return path

    def connections(self, client_id: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(
            f"http://{self.node.admin}/connections?client_id={client_id}", timeout=60
        ) as answer:
            return list(json.load(answer)["connections"])

    def metric(self, line: str) -> float:
        with urllib.request.urlopen(f"http://{self.node.admin}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(one.rpartition(" ")[2]) for one in lines if one.startswith(line))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder / "tls")
    for name in ("sidecar", "broker"):
        authority.issue(name)
    for name in ("alice", "bob"):
        authority.issue(name, f"CN={name},OU=Clients,C=DE")
    node = local_cluster.plan(folder).nodes[0]
    ports = [f"127.0.0.1:{port}" for port in free_ports(7)]
    private = {"CLIENT": node.upstream, "SASL": ports[0], "BOTH": ports[1], "TLS": ports[2]}
    addresses = dict(zip(LISTENERS, ports[3:], strict=True))
    protocols = {"CLIENT": "PLAINTEXT", "SASL": "SASL_PLAINTEXT", "BOTH": "SASL_SSL", "TLS": "SSL"}
    store = folder / "broker.pem"
    store.write_text("".join((folder / "tls" / f"broker.{kind}").read_text() for kind in ("key", "crt")))
    rest = {"INTERNAL": node.internal, "CONTROLLER": node.controller}
    advertised = dict(zip(private, addresses.values(), strict=True)) | {"INTERNAL": node.internal}
    properties = {
        "listeners": ",".join(f"{name}://{address}" for name, address in (private | rest).items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in (protocols | dict.fromkeys(rest, "PLAINTEXT")).items()
        ),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        "listener.name.tls.ssl.client.auth": "required",
        "listener.name.both.ssl.client.auth": "required",
    }
    for name in ("sasl", "both"):
        jaas = f"listener.name.{name}.scram-sha-512.sasl.jaas.config"
        properties[jaas] = f"{SECURITY}.scram.ScramLoginModule required;"
    tls = {"ssl.certificate.location": "tls/sidecar.crt", "ssl.key.location": "tls/sidecar.key"}
    trust = {"ssl.truststore.location": "tls/ca.pem"}
    mapping = {"ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=Clients.*$/$1/U, DEFAULT"}
    listeners: dict[str, dict[str, Any]] = {
        "MTLS": {"tls": tls | trust | mapping | {"ssl.client.auth": "required"}},
        "SASLTLS": {"tls": tls},
        "ORIGIN": {"tls": tls, "upstream.tls": tls | trust | {"ssl.server.name": "localhost"}},
        "THROUGH": {},
    }
    config = {
        "broker.id": node.id,
        "internal.bootstrap.servers": node.internal,
        "workers": 2,
        "listeners": [
            {
                "name": name,
                "bind": addresses[name],
                "upstream": upstream,
                "security.protocol": LISTENERS[name],
                **keys,
            }
            for (name, keys), upstream in zip(listeners.items(), private.values(), strict=True)
        ],
        "admin": {"bind": node.admin},
    }
    path = folder / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    try:
        local_cluster.up(folder, broker_properties=properties, progress=False)
        admin = AdminClient({"bootstrap.servers": node.internal})
        alice = UserScramCredentialUpsertion(
            "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
        )
        admin.alter_user_scram_credentials([alice])["alice"].result(30)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
        sidecar = SidecarProcess.start(path, folder / "sidecar.log", node.admin)
        try:
            yield Site(node, sidecar, authority, addresses, "t")
        finally:
            assert sidecar.stop()
            assert PASSWORD not in (folder / "sidecar.log").read_text()
    finally:
        local_cluster.down(folder)


def produce_and_consume(settings: dict[str, str], topic: str, value: bytes) -> None:
    producer = Producer(settings | {"linger.ms": 0})
    failed: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(30) == 0
    assert failed == [None]
    consumer = Consumer(settings | {"group.id": f"g-{time.monotonic_ns()}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        deadline = time.monotonic() + 60
        while (message := consumer.poll(1)) is None or message.error() or message.value() != value:
            assert time.monotonic() < deadline
    finally:
        consumer.close()


@pytest.mark.parametrize("listener", LISTENERS)
def test_librdkafka_produces_and_consumes(site: Site, listener: str) -> None:
    produce_and_consume(site.settings(listener), site.topic, f"by librdkafka over {listener}".encode())


@pytest.mark.parametrize("listener", ["MTLS", "SASLTLS", "ORIGIN"])
def test_javas_tools_produce_and_consume(site: Site, tools: KafkaTools, listener: str) -> None:
    value, topic = f"by java over {listener}", f"java-{listener}"
    admin = AdminClient({"bootstrap.servers": site.node.internal})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    settings = str(site.java_settings(listener))
    common = ["--bootstrap-server", site.addresses[listener], "--topic", topic, "--command-config", settings]
    produced = tools.run("console-producer", *common, text=f"{value}\n")
    assert produced.returncode == 0, produced.stderr
    listed = tools.run("console-consumer", *common, "--from-beginning", "--max-messages", "1", "--timeout-ms", "60000")
    assert listed.stdout == f"{value}\n", listed.stderr


@pytest.mark.parametrize("listener", ["MTLS", "SASLTLS"])
def test_kafka_python_produces(site: Site, listener: str) -> None:
    from kafka import KafkaProducer

    files = site.authority.folder
    security: dict[str, Any] = {"security_protocol": LISTENERS[listener], "ssl_cafile": str(site.authority.ca)}
    if listener == "MTLS":
        security |= {"ssl_certfile": str(files / "alice.crt"), "ssl_keyfile": str(files / "alice.key")}
    else:
        security |= {
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORD,
        }
    producer = KafkaProducer(bootstrap_servers=site.addresses[listener], **security)
    assert producer.send(site.topic, b"by kafka-python").get(60).offset >= 0
    producer.close()


@pytest.mark.parametrize(
    ("listener", "principal", "source"),
    [
        ("MTLS", "User:BOB", "mtls"),
        ("SASLTLS", "User:alice", "sasl"),
        ("ORIGIN", "User:alice", "sasl"),
        ("THROUGH", "User:<unknown:SSL>", "unknown"),
    ],
)
def test_connections_say_who_is_there_and_how(site: Site, listener: str, principal: str, source: str) -> None:
    settings = site.settings(listener, "bob") | {"client.id": f"named-{listener}"}
    admin = AdminClient(settings)
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    while not found:  # librdkafka leaves its first connection for another one
        assert time.monotonic() < deadline
        assert site.topic in admin.list_topics(timeout=30).topics
        with urllib.request.urlopen(f"http://{site.node.admin}/connections?listener={listener}", timeout=60) as answer:
            found = [one for one in json.load(answer)["connections"] if one["principal"] == principal]
    assert {one["principal_source"] for one in found} == {source}
    assert {one.get("tls_version") for one in found} == {None if listener == "THROUGH" else "TLSv1.3"}
    assert all(one.get("tls_cipher", "TLS_").startswith("TLS_") for one in found)
    assert {"tls_client_serial" in one for one in found} == {listener == "MTLS"}
    if listener != "THROUGH":
        assert f"named-{listener}" in {one.get("client_id") for one in found}
    del admin


def test_new_certificates_under_load_fail_no_request(site: Site) -> None:
    """Clients that keep their connections, and clients that connect all the time, while the pair changes."""
    stop = threading.Event()
    failed: list[object] = []
    delivered = [0, 0]

    def keep() -> None:
        producer = Producer(site.settings("MTLS") | {"linger.ms": 0})
        while not stop.is_set():
            producer.produce(site.topic, b"x", on_delivery=lambda error, _: error and failed.append(error))
            producer.poll(0.002)
            delivered[0] += 1
        assert producer.flush(30) == 0

    def reconnect() -> None:
        while not stop.is_set():
            producer = Producer(site.settings("SASLTLS", "alice") | {"linger.ms": 0, "error_cb": failed.append})
            producer.produce(site.topic, b"y", on_delivery=lambda error, _: error and failed.append(error))
            if producer.flush(30):
                failed.append("not delivered")
            delivered[1] += 1

    threads = [threading.Thread(target=keep), threading.Thread(target=reconnect)]
    for thread in threads:
        thread.start()
    metric = 'brokerside_tls_certificate_expiry_timestamp_seconds{listener="SASLTLS"'
    try:
        for days in (40, 50, 60):
            site.authority.issue("sidecar", days=days)
            deadline = time.monotonic() + 60
            while abs(site.metric(metric) - time.time() - days * 86_400) > 3600:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            kept, connected = delivered
            while delivered[0] <= kept + 35 or delivered[1] <= connected + 1:  # by both kinds of clients
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert failed == []
    assert delivered[0] > 100
    assert delivered[1] > 3


def replace_unnoticed(file: Path, content: str) -> None:
    """Write ``content``, with a state of the file as before: so that the watch of files does not reload it."""
    before = file.stat()
    assert len(content) <= before.st_size
    with file.open("r+") as opened:
        opened.write(content.ljust(before.st_size, "\n"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_state(file) == (before.st_mtime_ns, before.st_size, before.st_ino)


def shown_certificate(site: Site, listener: str) -> bytes:
    """The certificate that a new client is shown."""
    host, _, port = site.addresses[listener].rpartition(":")
    context = ssl.create_default_context(cafile=str(site.authority.ca))
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host) as tls:
        found = tls.getpeercert(True)
    assert found is not None
    return found


def test_sighup_shows_a_new_certificate_and_closes_no_connection(site: Site) -> None:
    failed: list[object] = []
    producer = Producer(site.settings("MTLS") | {"linger.ms": 0, "client.id": "hung-up", "error_cb": failed.append})

    def busiest() -> dict[str, Any]:
        """After one more record, the connection that carries them."""
        producer.produce(site.topic, b"z", on_delivery=lambda error, _: error and failed.append(error))
        assert producer.flush(30) == 0
        return max(site.connections("hung-up"), key=lambda one: one["request_count"])

    for _ in range(20):
        before = busiest()
    shown = shown_certificate(site, "SASLTLS")
    files = site.authority.folder
    for kind in ("crt", "key"):  # room for one whose signature is some bytes longer
        path = files / f"sidecar.{kind}"
        path.write_text(path.read_text().ljust(2048, "\n"))
    reload(site)
    renewed = site.authority.issue("renewed", days=70)
    replace_unnoticed(files / "sidecar.key", renewed.key.read_text())
    replace_unnoticed(files / "sidecar.crt", renewed.certificate.read_text())
    os.kill(site.sidecar.process.pid, signal.SIGHUP)
    deadline = time.monotonic() + 60
    while {shown_certificate(site, "SASLTLS") for _ in range(8)} & {shown}:  # of both workers
        assert time.monotonic() < deadline
        assert busiest()["id"] == before["id"]
    after = busiest()
    assert (after["id"], after["tls_client_serial"]) == (before["id"], before["tls_client_serial"])
    assert after["request_count"] > before["request_count"]
    assert failed == []

    def hung_up() -> list[dict[str, Any]]:
        whole, _, _ = site.sidecar.log.read_text().rpartition("\n")
        lines = [json.loads(line) for line in whole.splitlines()]
        return [one for one in lines if one["event"] == "config_reloaded" and one["reason"] == "SIGHUP"]

    while not hung_up():  # the log is written last
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (reloaded,) = hung_up()
    assert "listeners[0].tls.ssl.certificate.location" in str(reloaded["keys"])


def test_a_reload_ends_and_begins_tls_beside_a_client_that_stays(site: Site) -> None:
    failed: list[object] = []
    delivered: list[object] = []
    settings = site.settings("SASLTLS") | {"linger.ms": 0, "client.id": "stays", "error_cb": failed.append}
    producer = Producer(settings)

    def produce() -> None:
        producer.produce(site.topic, b"s", on_delivery=lambda error, _: delivered.append(error))
        assert producer.flush(30) == 0

    def ids() -> set[str]:
        return {one["id"] for one in site.connections("stays") if one["request_count"] > 10}

    for _ in range(20):
        produce()
    before = ids()
    config = yaml.safe_load(site.sidecar.config.read_text())
    (listener,) = [one for one in config["listeners"] if one["name"] == "SASLTLS"]
    plain = {name: value for name, value in listener.items() if name != "tls"}
    for keys, protocol in ((plain, "SASL_PLAINTEXT"), (listener, "SASL_SSL")):
        others = [one for one in config["listeners"] if one is not listener]
        changed = {**config, "listeners": [*others, {**keys, "security.protocol": protocol}]}
        site.sidecar.config.write_text(yaml.safe_dump(changed, sort_keys=False))
        reload(site)
        produce_and_consume(site.settings("SASLTLS") | {"security.protocol": protocol}, site.topic, protocol.encode())
        produce()
    assert ids() & before
    assert failed == []
    assert set(delivered) == {None}


def reload(site: Site) -> None:
    reloading = urllib.request.Request(f"http://{site.node.admin}/reload", method="POST")
    with urllib.request.urlopen(reloading, timeout=30) as answer:
        assert answer.status == 200


def test_a_key_of_another_certificate_changes_nothing(site: Site) -> None:
    before = site.metric("brokerside_tls_certificate_expiry_timestamp_seconds")
    key = site.authority.folder / "sidecar.key"
    right = key.read_text()
    key.write_text((site.authority.folder / "bob.key").read_text())
    try:
        reloading = urllib.request.Request(f"http://{site.node.admin}/reload", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(reloading, timeout=30)
        assert refused.value.code == 422
        assert "is not the key of ssl.certificate.location" in refused.value.read().decode()
        assert site.metric("brokerside_tls_certificate_expiry_timestamp_seconds") == before
        produce_and_consume(site.settings("MTLS"), site.topic, b"after a refused pair")
    finally:
        key.write_text(right)


def test_the_sidecar_is_ready_and_has_checked_the_broker_over_tls(site: Site) -> None:
    with urllib.request.urlopen(f"http://{site.node.admin}/readyz", timeout=60) as answer:
        assert answer.read() == b"ok\n"


def described(tools: KafkaTools, address: str, settings: str) -> dict[str, str]:
    """The fleet's features and their finalized maxima, by ``kafka-features.sh``."""
    done = tools.run("features", "--bootstrap-server", address, "--command-config", settings, "describe")
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    return {one[1]: one[7] for one in words if one[:1] == ["Feature:"] and one[1].startswith(PREFIX)}


@pytest.mark.parametrize("listener", ["MTLS", "SASLTLS", "ORIGIN"])
def test_feature_levels_are_shown_and_changed_over_tls(site: Site, tools: KafkaTools, listener: str) -> None:
    """By Kafka's tool and by the command, where TLS ends at the sidecar, and where it has TLS to the broker, too."""
    address, settings = site.addresses[listener], str(site.java_settings(listener))
    deadline = time.monotonic() + 120
    while AUDIT_EVENT_SCHEMA not in (found := described(tools, address, settings)) or "0" in found.values():
        assert time.monotonic() < deadline, found  # a new fleet finalizes its levels after 10 s

    for command, level in (("downgrade", "1"), ("upgrade", "2")):
        change = (command, "--feature", f"{AUDIT_EVENT_SCHEMA}={level}")
        done = tools.run("features", "--bootstrap-server", address, "--command-config", settings, *change)
        assert (done.returncode, done.stdout.strip()) == (0, f"{AUDIT_EVENT_SCHEMA} was {command}d to {level}.")
        while described(tools, address, settings)[AUDIT_EVENT_SCHEMA] != level:  # the other worker hears of it later
            assert time.monotonic() < deadline

    def features(command: str, *words: str) -> str:
        line = [sys.executable, "-m", "proxy", "features", command, address, *words, "--command-config", settings]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for command, level in (("downgrade", "1"), ("upgrade", "2")):
        assert "Result: OK" in features(command, f"{AUDIT_EVENT_SCHEMA}={level}")
        shown = re.compile(rf"{AUDIT_EVENT_SCHEMA}\t.*FinalizedMaxVersionLevel: {level}\t")
        while not shown.search(features("describe")):
            assert time.monotonic() < deadline


def test_feature_levels_of_the_fleet_are_not_there_where_tls_passes_through(site: Site, tools: KafkaTools) -> None:
    assert described(tools, site.addresses["THROUGH"], str(site.java_settings("THROUGH"))) == {}
