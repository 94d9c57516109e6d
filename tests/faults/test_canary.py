"""Secrets that pass through a sidecar are nowhere afterwards: not in its logs, answers or events, nor on its disk."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are exported, untyped
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from observers.spool import Spool
from proxy.local import cluster as local_cluster
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from tests.faults.gate import Gate
from tests.faults.test_reconciliation import envelopes_raw, wait_delivered
from tests.integration.logins import SECURITY, Own, add_scram_user
from tests.integration.metrics import sample
from tests.sasl import Scram, bearer, jwt, plain

pytestmark = pytest.mark.kafka

NAMES = ("plain", "scram", "wrong", "token", "internal", "key", "value", "header", "config", "added")
MECHANISM = "SCRAM-SHA-256"


class Site(NamedTuple):
    """``audit``: the listener for the sidecar, through the gate. Clients log in ``before`` it, or ``behind``."""

    state: ClusterState
    gate: Gate
    audit: str
    before: str
    behind: str


@pytest.fixture
def canaries() -> dict[str, str]:
    return {name: f"canary{name}{uuid.uuid4().hex}" for name in NAMES}


@pytest.fixture
def site(tmp_path: Path, canaries: dict[str, str]) -> Iterator[Site]:
    """A broker whose clients log in, as does the sidecar, through a gate."""
    folder = tmp_path / "cluster"
    node = local_cluster.plan(folder).nodes[0]
    port, own, before, behind = free_ports(4)
    plainly = f"{SECURITY}.plain.PlainLoginModule required"
    properties = {
        "listeners": f"CLIENT://{node.upstream},INTERNAL://{node.internal},CONTROLLER://{node.controller},"
        f"LOGIN://{HOST}:{behind},AUDIT://{HOST}:{own}",
        "advertised.listeners": f"CLIENT://{node.advertised},INTERNAL://{node.internal},"
        f"LOGIN://{HOST}:{before},AUDIT://{HOST}:{port}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "LOGIN:SASL_PLAINTEXT,AUDIT:SASL_PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": f"PLAIN,{MECHANISM},OAUTHBEARER",
        "listener.name.audit.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{plainly} user_bob="{canaries["plain"]}";',
        "listener.name.audit.plain.sasl.jaas.config": f'{plainly} user_sidecar="{canaries["internal"]}";',
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SECURITY}.scram.ScramLoginModule required;",
        "listener.name.login.oauthbearer.sasl.jaas.config": f"{SECURITY}.oauthbearer.OAuthBearerLoginModule "
        'required unsecuredLoginStringClaim_sub="broker";',
    }
    state = local_cluster.up(folder, broker_properties=properties, progress=False)
    try:
        add_scram_user(node.internal, f"{HOST}:{behind}", MECHANISM, "alice", canaries["scram"])
        with Gate(port, own) as gate:
            yield Site(state, gate, f"{HOST}:{port}", f"{HOST}:{before}", f"{HOST}:{behind}")
    finally:
        local_cluster.down(folder)


@pytest.mark.promise("README.md", "Events, logs and the spool never contain records, passwords or tokens.")
def test_no_secret_leaves_the_process(site: Site, canaries: dict[str, str], tmp_path: Path) -> None:
    node = site.state.nodes[0]
    config = yaml.safe_load((tmp_path / "cluster" / "sidecar-1.yaml").read_text())
    (tmp_path / "password").write_text(canaries["internal"])
    config["internal.bootstrap.servers"] = site.audit
    config["internal"] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "sidecar",
        "sasl.password": {"file": str(tmp_path / "password")},
    }
    config["listeners"][0] |= {"bind": site.before, "upstream": site.behind, "security.protocol": "SASL_PLAINTEXT"}
    config["log.level"] = "debug"
    config["audit"]["spool.path"] = str(tmp_path / "spool")
    path, log = tmp_path / "sidecar.yaml", tmp_path / "sidecar.log"
    path.write_text(yaml.safe_dump(config))

    sidecar = SidecarProcess.start(path, log, node.admin)
    try:
        use(site.before, canaries)  # the sidecar has found its topic meanwhile, or will
        wait_delivered(sidecar)
        site.gate.shut()
        use(site.before, canaries)
        wait_spooled(sidecar)
        answers = "".join(get(node.admin, page) for page in ("metrics", "config", "quotas", "readyz", "livez"))
        os.kill(sidecar.process.pid, signal.SIGKILL)
        sidecar.stop()
        spooled = on_disk(tmp_path / "spool")
        site.gate.open()
        sidecar = SidecarProcess.start(path, log, node.admin)
        wait_delivered(sidecar)
    finally:
        assert sidecar.stop()
    events = b"".join(envelopes_raw(node.internal))

    assert b"User:alice" in events
    assert b'"change":"authentication_failed"' in events
    assert b"User:alice" in spooled
    for place, found in {
        "log": log.read_bytes(),
        "answers": answers.encode(),
        "events": events,
        "spool": spooled,
    }.items():
        for name, canary in canaries.items():
            for text in (canary.encode(), base64.b64encode(canary.encode()).rstrip(b"=")[:-2]):
                assert text not in found, f"the {name} canary is in the {place}"


def use(bootstrap: str, canaries: dict[str, str]) -> None:
    """Log in in every way, produce, consume, and make calls that hold secrets."""
    common = {"bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT"}
    settings = common | {"sasl.mechanism": MECHANISM, "sasl.username": "alice", "sasl.password": canaries["scram"]}
    admin = AdminClient(settings)
    topic = f"canary-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer(settings)
    producer.produce(
        topic, canaries["value"].encode(), canaries["key"].encode(), headers={"h": canaries["header"].encode()}
    )
    assert producer.flush(30) == 0
    consumer = Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = None
    while message is None:
        message = consumer.poll(1)
    assert message.value() == canaries["value"].encode()
    consumer.close()
    admin.alter_user_scram_credentials(
        [
            UserScramCredentialUpsertion(
                "carol", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), canaries["added"].encode()
            )
        ]
    )["carol"].result(30)
    entry = ConfigEntry("ssl.truststore.password", canaries["config"], incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    with contextlib.suppress(KafkaException):  # refused or not, it has passed
        admin.incremental_alter_configs([resource])[resource].result(30)

    client_id = f"own-{topic}"
    with Own(bootstrap, client_id) as client:
        assert client.begin("PLAIN") == 0
        assert client.wrapped(plain("bob", canaries["plain"]))[0] == 0
        client.metadata()
    with Own(bootstrap, client_id) as client:
        assert client.begin("PLAIN") == 0
        assert client.wrapped(plain("bob", canaries["wrong"]))[0] == 58
    with Own(bootstrap, client_id) as client:
        scram = Scram(MECHANISM, "alice", canaries["wrong"])
        assert client.log_in(scram, MECHANISM) == 58
    now = time.time()
    with Own(bootstrap, client_id) as client:
        claims = {"sub": "dave", "iat": now - 60, "exp": now + 600, "secret": canaries["token"]}
        assert client.begin("OAUTHBEARER") == 0
        client.wrapped(bearer(jwt(claims, signature="")))


def wait_spooled(sidecar: SidecarProcess) -> None:
    """Until what has happened is on disk: a second after nothing waited any more."""
    deadline = time.monotonic() + 60
    quiet = 0
    while quiet < 5:
        assert time.monotonic() < deadline
        time.sleep(0.2)
        text = sidecar.metrics()
        waiting = sample(text, "brokerside_audit_queued") or not sample(text, "brokerside_audit_spooled")
        quiet = 0 if waiting else quiet + 1


def get(admin: str, page: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{admin}/{page}", timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:  # not ready, say
        return str(error.read().decode())


def on_disk(folder: Path) -> bytes:
    """All bytes of all files, and the events in them unpacked."""
    found = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    for boot in folder.iterdir():
        spool = Spool(boot)
        while (taken := spool.read_next()) is not None:
            found.append(taken[1])
        spool.close()
    return json.dumps([path.name for path in folder.rglob("*")]).encode() + b"".join(found)
