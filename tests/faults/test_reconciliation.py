"""Clients, sidecars and the topic count the same requests, with outages of the audit's cluster and kills on the way.

The clients write whole requests and count them by hand. What a killed sidecar had seen and had not yet on disk is the
only difference there may be, and the next run names its numbers.
"""

import asyncio
import base64
import contextlib
import json
import os
import signal
import struct
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from kafka.record.default_records import DefaultRecordBatchBuilder

from observers.account_events import GapEvent, StatusEvent
from observers.event import Envelope, RequestEvent, decoder
from observers.spool import Spool
from proxy.local import cluster as local_cluster
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from tests.faults.gate import Gate
from tests.faults.site import FULL
from tests.frames import produce
from tests.integration.logins import SECURITY, Own, add_scram_user
from tests.integration.metrics import sample
from tests.sasl import Scram, bearer, jwt, plain
from tests.tools.admin import get
from tests.tools.topic import create, messages

pytestmark = pytest.mark.kafka

AUDIT = "brokerside-audit"
CLIENTS = 8
RECORDS = 3
"""Records of each request."""

OUTAGE = 60.0 if FULL else 1.5
"""Seconds that the audit's cluster is away, twice."""

CALM = 10.0 if FULL else 1.0
"""Seconds of load in between."""

PACE = 0.002
"""Seconds between two requests of a client."""


@dataclass
class Run:
    """What clients counted while one sidecar ran."""

    written: int = 0
    answered: int = 0
    rejected: int = 0


@dataclass
class Crowd:
    """Clients that each send one request after the other, and dial again when they are cut off."""

    port: int
    topic: str
    runs: list[Run] = field(default_factory=lambda: [Run()])
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
        for n in range(RECORDS):
            builder.append(n, timestamp=1, key=None, value=b"x" * 100, headers=[])
        self.frame = produce(7, -1, bytes(builder.build()), topic=self.topic)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    async def _all(self) -> None:
        await asyncio.gather(*[self._one() for _ in range(CLIENTS)])

    async def _one(self) -> None:
        while not self.stopping.is_set():
            try:
                reader, writer = await asyncio.open_connection(HOST, self.port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            run = self.runs[-1]  # of whom it has reached: it began before that sidecar did
            try:
                while not self.stopping.is_set():
                    writer.write(self.frame)
                    run.written += 1
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    answer = await reader.readexactly(size)
                    run.answered += 1
                    # correlation id, one topic, its name, one partition, its number; then the error code
                    run.rejected += struct.unpack_from(">h", answer, 4 + 4 + 2 + len(self.topic) + 4 + 4)[0] != 0
                    await asyncio.sleep(PACE)
            except (OSError, asyncio.IncompleteReadError):
                continue
            finally:
                writer.close()


class Site(NamedTuple):
    """``internal``: the broker's INTERNAL listener, through the gate."""

    state: ClusterState
    gate: Gate
    internal: str


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Site]:
    """A broker whose INTERNAL listener is reached through a gate."""
    (port,) = free_ports(1)
    node = local_cluster.plan(tmp_path / "cluster").nodes[0]
    advertised = f"CLIENT://{node.advertised},INTERNAL://{HOST}:{port}"
    properties = {"advertised.listeners": advertised}
    state = local_cluster.up(tmp_path / "cluster", broker_properties=properties, progress=False)
    try:
        with Gate(port, int(node.internal.rpartition(":")[2])) as gate:
            yield Site(state, gate, f"{HOST}:{port}")
    finally:
        local_cluster.down(tmp_path / "cluster")


@pytest.mark.promise("README.md", "Each event is on the topic, on disk, in memory, or dropped and counted.")
@pytest.mark.timeout(600)
def test_every_request_is_accounted_for(cluster: Site, tmp_path: Path) -> None:
    gate, internal, node = cluster.gate, cluster.internal, cluster.state.nodes[0]
    topic = f"ledger-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": internal})
    create(admin, NewTopic(topic, 1, 1))

    config = yaml.safe_load((tmp_path / "cluster" / "sidecar-1.yaml").read_text())
    config["internal.bootstrap.servers"] = internal
    config["audit"] |= {"spool.path": str(tmp_path / "spool")}
    config["observer.shutdown.timeout.ms"] = 20_000
    path = tmp_path / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config))

    def start() -> SidecarProcess:
        return SidecarProcess.start(path, tmp_path / "sidecar.log", node.admin)

    def kill(sidecar: SidecarProcess) -> None:
        os.kill(sidecar.process.pid, signal.SIGKILL)
        sidecar.stop()

    sidecar = start()
    crowd = Crowd(int(node.advertised.rpartition(":")[2]), topic)
    try:
        time.sleep(CALM)
        gate.shut()
        time.sleep(OUTAGE)
        gate.open()
        time.sleep(CALM)
        kill(sidecar)  # with everything well
        crowd.runs.append(Run())
        sidecar = start()
        time.sleep(CALM)
        gate.shut()
        time.sleep(OUTAGE)
        kill(sidecar)  # with all of the outage on disk
        crowd.runs.append(Run())
        sidecar = start()
        time.sleep(CALM)
        gate.open()
        time.sleep(CALM)
        crowd.stop()
        wait_delivered(sidecar)
    finally:
        crowd.stop()
        assert sidecar.stop()

    received = read(internal)
    boots = list(received)
    assert len(boots) == 3
    gaps = [event for events in received.values() for event in events.values() if isinstance(event, GapEvent)]
    assert {gap.reason for gap in gaps} <= {"killed"}
    assert {gap.lost_boot_id for gap in gaps} <= set(boots[:2])
    for boot, run in zip(boots, crowd.runs, strict=True):
        events = received[boot]
        lost = [number for gap in gaps if gap.lost_boot_id == boot for number in whole(gap)]
        assert sorted([*events, *lost]) == list(range(1, len(events) + len(lost) + 1)), "numbers without a gap"
        requests = [event for event in events.values() if isinstance(event, RequestEvent) and event.topics]
        assert {event.request_bytes for event in requests} == {len(crowd.frame)}
        assert {part.records for event in requests for part in event.topics} == {RECORDS}
        if boot == boots[-1]:
            assert run.answered == len(requests)
            acknowledged = [e for e in requests if e.outcome == "answered" and not e.topics[0].error_code]
            assert len(acknowledged) == run.answered - run.rejected
            last = max(events)
            assert isinstance(status := events[last], StatusEvent)
            assert status.last
            assert status.dropped == {}
        else:  # killed: what it answered has an event, or is among the numbers that the next run names
            # A response is sent before it is observed, and a client that it wakes may run first.
            assert run.answered <= len(requests) + len(lost) + 1
            assert len(requests) <= run.written
            assert len(lost) < run.answered / 2


def whole(gap: GapEvent) -> range:
    return range(gap.lost_first_seq, gap.lost_last_seq + 1)


def wait_delivered(sidecar: SidecarProcess, patience: float = 120) -> None:
    deadline = time.monotonic() + patience
    while True:
        text = sidecar.metrics()
        if not sample(text, "brokerside_audit_queued") and not sample(text, "brokerside_audit_spooled"):
            return
        assert time.monotonic() < deadline, "events still wait"
        time.sleep(0.2)


def read(bootstrap: str) -> dict[str, dict[int, object]]:
    """The events of the audit topic by run, in the order of the runs, and by number."""
    received: dict[str, dict[int, object]] = defaultdict(dict)
    first: dict[str, int] = {}
    for envelope in envelopes(bootstrap):
        first[envelope.boot_id] = min(first.get(envelope.boot_id, envelope.sent_at), envelope.sent_at)
        for event in envelope.events:
            held = received[envelope.boot_id].setdefault(event.seq, event)
            assert held == event, "one number, two events"
    return {boot: received[boot] for boot in sorted(received, key=lambda boot: first[boot])}


def envelopes(bootstrap: str) -> Iterator[Envelope]:
    return map(decoder.decode, envelopes_raw(bootstrap))


def envelopes_raw(bootstrap: str) -> Iterator[bytes]:
    return (message.value() or b"" for message in messages(bootstrap, AUDIT))


# ---- secrets that pass through are nowhere afterwards: logs, answers, events, the disk -------------------------------

NAMES = ("plain", "scram", "wrong", "token", "internal", "key", "value", "header", "config", "added")
MECHANISM = "SCRAM-SHA-256"


class SecuredSite(NamedTuple):
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
def site(tmp_path: Path, canaries: dict[str, str]) -> Iterator[SecuredSite]:
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
            yield SecuredSite(state, gate, f"{HOST}:{port}", f"{HOST}:{before}", f"{HOST}:{behind}")
    finally:
        local_cluster.down(folder)


@pytest.mark.promise("README.md", "Events, logs and the spool never contain records, passwords or tokens.")
def test_no_secret_leaves_the_process(site: SecuredSite, canaries: dict[str, str], tmp_path: Path) -> None:
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
        answers = "".join(answer(node.admin, path) for path in ("metrics", "config", "quotas", "readyz", "livez"))
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
    create(admin, NewTopic(topic, 1, 1))
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
    )["carol"].result(180)
    entry = ConfigEntry("ssl.truststore.password", canaries["config"], incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    with contextlib.suppress(KafkaException):  # refused or not, it has passed
        admin.incremental_alter_configs([resource])[resource].result(180)

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


def answer(admin: str, path: str) -> str:
    try:
        return get(f"http://{admin}/{path}")[1]
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
