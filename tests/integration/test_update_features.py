"""UpdateFeatures and ApiVersions through a sidecar: with a login and without, and by Kafka's own tool."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest
import yaml
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]  # untyped

from proxy.core.apis import API_VERSIONS
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP, SUPPORTED
from proxy.features.records import FeatureUpdate
from proxy.features.updates import CLUSTER_AUTHORIZATION_FAILED, NONE, UpdateRequest, UpdateResult
from proxy.interceptors.update_features import UPDATE_FEATURES, decode_response, encode_request, encode_response
from proxy.local import broker, process
from proxy.local.cluster import Node
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.brokers import Acl, Listener, SharedBroker
from tests.integration.controller_in_memory import MARK
from tests.integration.quotas import Peer
from tests.integration.sidecars import until
from tests.integration.tap import Tapped, frames, tap
from tests.tools.kafka_tools import KafkaTools

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

VERSIONS = (0, 1, 2)
MAY_ALTER = Acl("User:operator", AclOperation.ALTER, ResourceType.BROKER, "kafka-cluster")
RAISE = FeatureUpdate(AUDIT_EVENT_SCHEMA, 2)


@dataclass(frozen=True)
class Site:
    """A broker and a sidecar before it. ``sasl``: where the broker and the sidecar listen for clients that log in.
    ``bind``: where the sidecar listens for others; ``node.advertised``, which clients dial, is left to a tap.
    ``upstream``: what passes between the sidecar and the broker for those others.
    """

    node: Node
    sasl: Listener
    bind: str
    upstream: list[Tapped]
    sidecar: SidecarProcess

    def updates(self) -> list[UpdateRequest]:
        """What the feature controller was asked for so far."""
        lines = self.sidecar.log.read_text().splitlines()
        return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]


@pytest.fixture(scope="module")
def site(secured: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Without a cluster of its own: the feature controller is in the sidecar's memory. ``operator`` may alter it."""
    folder = tmp_path_factory.mktemp("features")
    node, sasl = secured.node, secured.listeners["SASL"]
    bind, upstream = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = broker.sidecar_config(node) | {"workers": 2}
    for key in ("internal.bootstrap.servers", "observer.class.names", "audit"):
        del config[key]
    config["listeners"][0] |= {"bind": bind, "advertised": node.advertised, "upstream": upstream}
    config["listeners"].append(
        {"name": "SASL", "bind": sasl.advertised, "upstream": sasl.address, "security.protocol": "SASL_PLAINTEXT"}
    )
    path = folder / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "tests.integration.controller_in_memory", str(path)]
    secured.allow(MAY_ALTER)
    with tap(upstream, node.upstream) as tapped:
        started = process.spawn(command, folder / "sidecar.log")
        sidecar = SidecarProcess(started, path, folder / "sidecar.log", node.admin)
        try:
            sidecar.wait_ready()
            yield Site(node, sasl, bind, tapped, sidecar)
        finally:
            assert sidecar.stop()
            secured.revoke(MAY_ALTER)


def update(peer: Peer, version: int) -> tuple[int, str | None]:
    """Error code and message of a raise."""
    asked = UpdateRequest(version, 10_000, (RAISE,))
    answer = peer.ask(UPDATE_FEATURES, version, encode_request(asked))
    assert answer[:1] == b"\0"
    result = decode_response(version, answer[1:])
    return result.error_code, result.message


@pytest.mark.promise(
    "features.md",
    "A sidecar asks the broker, as the client, whether this client may update features, before it does anything.",
)
def test_who_may_update_features_is_the_broker_s_decision(site: Site) -> None:
    def update_as(user: str, address: str, version: int) -> tuple[int, str | None]:
        with Peer(address, user=(user, f"{user}-secret")) as peer:
            return update(peer, version)

    for version in VERSIONS:
        asked = len(site.updates())
        refused = [update_as("guest", address, version) for address in site.sasl]
        assert {code for code, _ in refused} == {CLUSTER_AUTHORIZATION_FAILED}, version
        assert len({(message or "").rpartition(")")[2] for _, message in refused}) == 1, "after names of connections"
        assert len(site.updates()) == asked, version
        assert update_as("operator", site.sasl.advertised, version) == (NONE, None), version
        assert site.updates()[-1][4:] == ["User:operator", "127.0.0.1", "SASL"], version
    with Peer(site.sasl.advertised) as stranger, pytest.raises(ConnectionError):
        update(stranger, 1)  # before a login


@pytest.mark.promise(
    "architecture.md",
    "What a client sends behind an UpdateFeatures waits, and answers keep the order of their requests.",
)
def test_requests_behind_it_wait_and_answers_keep_their_order(site: Site) -> None:
    random = Random(20)
    update = (UPDATE_FEATURES, 1, encode_request(UpdateRequest(1, 10_000, (RAISE,), validate_only=True)))
    with Peer(site.bind) as peer:
        versions = {version: (peer.ask(API_VERSIONS, version, b""), (API_VERSIONS, version, b"")) for version in (0, 2)}
        success = b"\0" + encode_response(UpdateRequest(1, 0, (RAISE,)), UpdateResult(NONE))
        for _ in range(5):
            expected = [random.choice([(success, update), *versions.values()]) for _ in range(30)]
            assert peer.ask_all([request for _, request in expected]) == [answer for answer, _ in expected]


class KafkaFeatures:
    """``kafka-features.sh`` at the address that clients dial."""

    def __init__(self, site: Site, tools: KafkaTools) -> None:
        self._site, self._tools = site, tools

    def run(self, *arguments: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """``ok``: it has to succeed."""
        done = self._tools.run("features", "--bootstrap-server", self._site.node.advertised, *arguments)
        assert (done.returncode == 0) is ok, done.stdout + done.stderr
        return done

    def described(self) -> dict[str, list[str]]:
        """What ``describe`` says of each feature: a column each, without the epoch."""
        lines = [
            re.split(r"\t|  +", line)
            for line in self.run("describe").stdout.splitlines()
            if line.startswith("Feature: ")
        ]
        return {line[0].removeprefix("Feature: "): line[1:-1] for line in lines}

    def until_described(self, feature: str, *last: str) -> None:
        """Wait until the last columns are these: the worker that was not asked hears of an update later."""
        until(lambda: tuple(self.described()[feature])[-len(last) :] == last, 120)


@pytest.mark.promise("features.md", "`kafka-features.sh` shows and changes the features of the fleet.")
def test_kafkas_tool_updates_features_of_the_fleet(site: Site, tools: KafkaTools) -> None:
    tool = KafkaFeatures(site, tools)
    with tap(site.node.advertised, site.bind):
        for command, level in (("upgrade", 2), ("downgrade", 1)):
            tool.run(command, "--feature", f"{AUDIT_EVENT_SCHEMA}={level}")
            columns = "SupportedMinVersion: 1", "SupportedMaxVersion: 2", f"FinalizedVersionLevel: {level}"
            tool.until_described(AUDIT_EVENT_SCHEMA, *columns)
        asked = len(site.updates())
        tool.run("upgrade", "--dry-run", "--feature", f"{AUDIT_EVENT_SCHEMA}=2")
        assert site.updates()[asked:][0][3] is True
        tool.run("disable", "--feature", QUOTA_IP)
        tool.until_described(QUOTA_IP, "FinalizedVersionLevel: 0")
        tool.run("upgrade", "--feature", f"{QUOTA_IP}=1")
        done = tool.run("upgrade", "--feature", f"{AUDIT_EVENT_SCHEMA}=3", ok=False)
        assert f"{AUDIT_EVENT_SCHEMA}: 3" in done.stdout + done.stderr


TIMES = re.compile(rb"(?<=^\0\x39\0.)....|(?<=adminclient-\d\0)....|(?<=adminclient-\d\d\0)....", re.DOTALL)
"""Of a request of Kafka's tool: its correlation id, and the time that is left for it."""


@pytest.mark.promise("features.md", "A sidecar forwards updates of the brokers' own features unchanged.")
def test_kafkas_own_features_are_as_without_a_sidecar(site: Site, tools: KafkaTools) -> None:
    """Kafka's tool sends the same requests and gets the same responses, and its output is the same."""
    tool = KafkaFeatures(site, tools)
    levels = {"downgrade": 0, "upgrade": 1}
    changes = [(command, "--feature", f"group.version={level}") for command, level in levels.items()]
    seen = []
    for onward in (site.node.upstream, site.bind):
        earlier = len(site.upstream)
        with tap(site.node.advertised, onward) as tapped:
            outputs = [tool.run(*change) for change in changes]
            listed = {name: line for name, line in tool.described().items() if name not in SUPPORTED}
        pairs = [pair for one in tapped for pair in updates_in(one)]
        texts = [(done.returncode, done.stdout, done.stderr) for done in outputs]
        asked = [(NAMES.sub(b"", TIMES.sub(b"", request)), answer[4:]) for request, answer in pairs]
        seen.append((texts, listed, asked))
    direct, proxied = seen
    assert direct == proxied
    assert len(direct[2]) == len(changes)
    assert direct[1], "the broker's own"
    assert [pair for one in site.upstream[earlier:] for pair in updates_in(one)] == pairs, "of the sidecar, all bytes"


NAMES = re.compile(rb"\0.adminclient-\d+", re.DOTALL)
"""Client ids, which the tools of one JVM count."""


def updates_in(tapped: Tapped) -> list[tuple[bytes, bytes]]:
    """The UpdateFeatures of a connection, and their responses."""
    answers = {frame[:4]: frame for frame in frames(tapped.responses)}
    updates = [frame for frame in frames(tapped.requests) if frame[:2] == UPDATE_FEATURES.to_bytes(2, "big")]
    return [(frame, answers[frame[4:8]]) for frame in updates]
