"""UpdateFeatures and ApiVersions through a sidecar: with a login and without, and by Kafka's own tool."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import yaml

from proxy.core.apis import API_VERSIONS
from proxy.core.struct import view
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP, SUPPORTED
from proxy.features.records import SAFE_DOWNGRADE, FeatureUpdate
from proxy.features.updates import (
    CLUSTER_AUTHORIZATION_FAILED,
    INVALID_UPDATE_VERSION,
    NONE,
    UpdateRequest,
    UpdateResult,
)
from proxy.interceptors.update_features import UPDATE_FEATURES, decode_response, encode_request, encode_response
from proxy.local import broker, process
from proxy.local import cluster as local_cluster
from proxy.local.cluster import Node
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.tools import tool
from tests.integration.authorizer import DECISION, secured_properties
from tests.integration.controller_in_memory import MARK
from tests.integration.quotas import Peer
from tests.integration.tap import Tapped, frames, tap
from tests.integration.test_struct_oracles import compare, reencoded
from tests.tools.kafka_tools import KafkaTools
from tests.tools.random_messages import Drawn
from tests.tools.record_ranges import ask_body, recorded_bodies

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

VERSIONS = {"4.3.1": (0, 1, 2), "3.9.2": (0, 1)}
"""Of UpdateFeatures, by version of the broker."""

USERS = ("operator", "guest")
RAISE = FeatureUpdate(AUDIT_EVENT_SCHEMA, 2)
LOWER = FeatureUpdate(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)


@dataclass(frozen=True)
class Site:
    """A broker and a sidecar before it. ``sasl``: where the broker and the sidecar listen for clients that log in.

    ``bind``: where the sidecar listens for others; ``node.advertised``, which clients dial, is left to a tap.
    ``upstream``: what passes between the sidecar and the broker for those others.
    """

    kafka: str
    folder: Path
    node: Node
    sasl: tuple[str, str]
    bind: str
    upstream: list[Tapped]
    sidecar: SidecarProcess

    def updates(self) -> list[UpdateRequest]:
        """What the feature controller was asked for so far."""
        lines = self.sidecar.log.read_text().splitlines()
        return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]


@pytest.fixture(scope="module", params=VERSIONS)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tools: KafkaTools) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("features")
    kafka = str(request.param)
    node = local_cluster.plan(folder, kafka_version=kafka).nodes[0]
    properties, behind, before = secured_properties(node, USERS)
    try:
        local_cluster.up(folder, kafka_version=kafka, broker_properties=properties, progress=False)
        prepare_authorizer(node, tools)
        path = folder / "sidecar.yaml"
        bind, upstream = (f"127.0.0.1:{port}" for port in free_ports(2))
        path.write_text(yaml.safe_dump(sidecar_config(node, bind, upstream, (behind, before))))
        command = [sys.executable, "-m", "tests.integration.controller_in_memory", str(path)]
        with tap(upstream, node.upstream) as tapped:
            started = process.spawn(command, folder / "sidecar.log")
            sidecar = SidecarProcess(started, path, folder / "sidecar.log", node.admin)
            sidecar.wait_ready()
            yield Site(kafka, folder, node, (behind, before), bind, tapped, sidecar)
            assert sidecar.stop()
    finally:
        local_cluster.down(folder)


def sidecar_config(node: Node, bind: str, upstream: str, sasl: tuple[str, str]) -> dict[str, object]:
    """Without a cluster of its own: the feature controller is in its memory."""
    config = broker.sidecar_config(node)
    for key in ("internal.bootstrap.servers", "observer.class.names", "audit"):
        del config[key]
    config["workers"] = 2
    config["listeners"][0] |= {"bind": bind, "advertised": node.advertised, "upstream": upstream}
    behind, before = sasl
    config["listeners"].append(
        {"name": "SASL", "bind": before, "upstream": behind, "security.protocol": "SASL_PLAINTEXT"}
    )
    return config


def prepare_authorizer(node: Node, tools: KafkaTools) -> None:
    """Let ``operator`` alter the cluster, and the authorizer log what it allows."""
    allow = ("--add", "--allow-principal", "User:operator", "--operation", "Alter", "--cluster")
    logger = ("--entity-type", "broker-loggers", "--entity-name", str(node.id))
    setting = ("--alter", "--add-config", "kafka.authorizer.logger=DEBUG")
    for name, arguments in (("acls", allow), ("configs", (*logger, *setting))):
        done = tools.run(name, "--bootstrap-server", node.internal, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    deadline = time.monotonic() + 60  # the broker goes by it later than the controller
    listed = ("--list", "--principal", "User:operator")
    while "operation=ALTER" not in tools.run("acls", "--bootstrap-server", node.internal, *listed).stdout:
        assert time.monotonic() < deadline


def update(peer: Peer, version: int, *updates: FeatureUpdate, validate_only: bool = False) -> tuple[int, str | None]:
    """Error code and message of an UpdateFeatures."""
    asked = UpdateRequest(version, 10_000, updates, validate_only=validate_only)
    answer = peer.ask(UPDATE_FEATURES, version, encode_request(asked))
    assert answer[:1] == b"\0"
    result = decode_response(version, answer[1:])
    return result.error_code, result.message


def finalized(peer: Peer) -> dict[str, tuple[int, int]]:
    """Finalized levels, minimum and maximum, by feature."""
    message = view(API_VERSIONS, 3, ask_body(peer, 3), response=True)
    return {
        one.get("Name"): (one.get("MinVersionLevel"), one.get("MaxVersionLevel"))
        for one in message.get("FinalizedFeatures")
    }


def test_levels_are_raised_and_lowered(site: Site) -> None:
    for version in VERSIONS[site.kafka]:
        with Peer(site.bind) as peer:
            theirs = {name: levels for name, levels in finalized(peer).items() if name not in SUPPORTED}
            assert theirs, "the broker's own"
            for change, level in ((RAISE, 2), (LOWER, 1)):
                assert update(peer, version, change) == (NONE, None)
                assert finalized(peer) == {**theirs, **dict.fromkeys(SUPPORTED, (1, 1)), AUDIT_EVENT_SCHEMA: (1, level)}
            code, message = update(peer, version, FeatureUpdate(QUOTA_IP, 9))
            assert (code, message) == (INVALID_UPDATE_VERSION, f"{QUOTA_IP}: 9")


def test_a_mixed_list_changes_neither(site: Site) -> None:
    for version in VERSIONS[site.kafka]:
        with Peer(site.bind) as peer:
            before, asked = finalized(peer), len(site.updates())
            code, message = update(peer, version, RAISE, FeatureUpdate("metadata.version", 21))
            assert code == INVALID_UPDATE_VERSION
            assert message is not None
            assert message.endswith("cannot be updated in one request: metadata.version")
            assert (finalized(peer), len(site.updates())) == (before, asked)


def test_a_request_that_updates_nothing_is_allowed_by_the_broker(site: Site) -> None:
    """What the sidecar asks. Version 0 has no ValidateOnly."""
    for version in VERSIONS[site.kafka]:
        with Peer(site.node.upstream) as peer:
            before = finalized(peer)
            assert update(peer, version, validate_only=version > 0)[0] == NONE
            assert finalized(peer) == before


def test_who_may_update_features_is_the_broker_s_decision(site: Site) -> None:
    behind, before = site.sasl
    for version in VERSIONS[site.kafka]:
        asked = len(site.updates())
        refused = [update_as("guest", address, version) for address in (before, behind)]
        assert {code for code, _ in refused} == {CLUSTER_AUTHORIZATION_FAILED}
        assert len({(message or "").rpartition(")")[2] for _, message in refused}) == 1, "after names of connections"
        assert len(site.updates()) == asked
        assert update_as("operator", before, version) == (NONE, None)
        assert site.updates()[-1][4:] == ["User:operator", "127.0.0.1", "SASL"]


def update_as(user: str, address: str, version: int) -> tuple[int, str | None]:
    with Peer(address, user=(user, f"{user}-secret")) as peer:
        return update(peer, version, RAISE)


def test_the_broker_is_asked_as_the_client(site: Site) -> None:
    for user in USERS:
        with Peer(site.sasl[1], user=(user, f"{user}-secret")) as peer:
            update(peer, 1, RAISE, validate_only=True)
    expected = {("User:guest", "Denied"), ("User:operator", "Allowed")}
    deadline = time.monotonic() + 60
    while not expected <= (found := decisions(site)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found & {(user, decision) for user, decision in found if user != "User:ANONYMOUS"} == expected


def decisions(site: Site) -> set[tuple[str, str]]:
    return {
        (one["principal"], one["decision"])
        for one in DECISION.finditer(site.node.log.read_text())
        if (one["api"], one["operation"], one["type"]) == ("UpdateFeatures", "ALTER", "Cluster")
    }


def test_a_version_that_the_broker_does_not_have_is_unsupported(site: Site) -> None:
    with Peer(site.bind) as peer:
        asked = encode_request(UpdateRequest(2, 10_000, (RAISE,), validate_only=True))
        answer = peer.ask(UPDATE_FEATURES, 2, asked)
        assert (answer == b"") == (2 not in VERSIONS[site.kafka])


def test_before_a_login_the_broker_ends_the_connection(site: Site) -> None:
    with Peer(site.sasl[1]) as stranger, pytest.raises(ConnectionError):
        update(stranger, 1, RAISE)


def test_requests_behind_it_wait_and_answers_keep_their_order(site: Site) -> None:
    random = Random(20)
    update = (UPDATE_FEATURES, 1, encode_request(UpdateRequest(1, 10_000, (RAISE,), validate_only=True)))
    with Peer(site.bind) as peer:
        versions = {version: (peer.ask(API_VERSIONS, version, b""), (API_VERSIONS, version, b"")) for version in (0, 2)}
        success = b"\0" + encode_response(UpdateRequest(1, 0, (RAISE,)), UpdateResult(NONE))
        for _ in range(5):
            expected = [random.choice([(success, update), *versions.values()]) for _ in range(30)]
            assert peer.ask_all([request for _, request in expected]) == [answer for answer, _ in expected]


def kafka_features(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = tool("features", "--bootstrap-server", site.node.advertised, *arguments, kafka_version=site.kafka)
    return subprocess.run(command, check=False, timeout=120, capture_output=True, text=True)


def described(site: Site) -> dict[str, list[str]]:
    """What ``kafka-features.sh describe`` says of each feature: a column each, without the epoch."""
    done = kafka_features(site, "describe")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [re.split(r"\t|  +", line) for line in done.stdout.splitlines() if line.startswith("Feature: ")]
    return {line[0].removeprefix("Feature: "): line[1:-1] for line in lines}


def until_described(site: Site, feature: str, last: list[str]) -> None:
    """Wait until the last columns of a feature are these: the worker that was not asked hears of an update later."""
    deadline = time.monotonic() + 120
    while (found := described(site)[feature])[-len(last) :] != last:
        assert time.monotonic() < deadline, found


def test_kafkas_tool_updates_features_of_the_fleet(site: Site) -> None:
    with tap(site.node.advertised, site.bind):
        for command, level in (("upgrade", 2), ("downgrade", 1)):
            done = kafka_features(site, command, "--feature", f"{AUDIT_EVENT_SCHEMA}={level}")
            assert done.returncode == 0, done.stdout + done.stderr
            expected = ["SupportedMinVersion: 1", "SupportedMaxVersion: 2", f"FinalizedVersionLevel: {level}"]
            until_described(site, AUDIT_EVENT_SCHEMA, expected)
        asked = len(site.updates())
        done = kafka_features(site, "upgrade", "--dry-run", "--feature", f"{AUDIT_EVENT_SCHEMA}=2")
        assert done.returncode == 0, done.stdout + done.stderr
        assert site.updates()[asked:][0][3] is True
        done = kafka_features(site, "disable", "--feature", QUOTA_IP)
        assert done.returncode == 0, done.stdout + done.stderr
        until_described(site, QUOTA_IP, ["FinalizedVersionLevel: 0"])
        done = kafka_features(site, "upgrade", "--feature", f"{QUOTA_IP}=1")
        assert done.returncode == 0, done.stdout + done.stderr
        done = kafka_features(site, "upgrade", "--feature", f"{AUDIT_EVENT_SCHEMA}=3")
        assert done.returncode == 1
        assert f"{AUDIT_EVENT_SCHEMA}: 3" in done.stdout + done.stderr


def test_kafkas_own_features_are_as_without_a_sidecar(site: Site) -> None:
    """Kafka's tool sends the same requests and gets the same responses, and its output is the same."""
    levels = {"downgrade": 0, "upgrade": 1}
    changes = [(command, "--feature", f"group.version={level}") for command, level in levels.items()]
    seen = []
    for onward in (site.node.upstream, site.bind):
        earlier = len(site.upstream)
        with tap(site.node.advertised, onward) as tapped:
            outputs = [kafka_features(site, *change) for change in changes]
            listed = {name: line for name, line in described(site).items() if name not in SUPPORTED}
        pairs = [pair for one in tapped for pair in updates_in(one)]
        texts = [(done.returncode, done.stdout, done.stderr) for done in outputs]
        seen.append((texts, listed, [(TIMES.sub(b"", request), answer[4:]) for request, answer in pairs]))
    direct, proxied = seen
    assert direct == proxied
    assert len(direct[2]) == len(changes)
    assert direct[1], "the broker's own"
    assert [pair for one in site.upstream[earlier:] for pair in updates_in(one)] == pairs, "of the sidecar, all bytes"


TIMES = re.compile(rb"(?<=^\0\x39\0.)....|(?<=adminclient-1\0)....", re.DOTALL)
"""Of a request of Kafka's tool: its correlation id, and the time that is left for it."""


def updates_in(tapped: Tapped) -> list[tuple[bytes, bytes]]:
    """The UpdateFeatures of a connection, and their responses."""
    answers = {frame[:4]: frame for frame in frames(tapped.responses)}
    updates = [frame for frame in frames(tapped.requests) if frame[:2] == UPDATE_FEATURES.to_bytes(2, "big")]
    return [(frame, answers[frame[4:8]]) for frame in updates]


def test_kafkas_own_classes_read_the_features() -> None:
    """Each field, and the bytes when they write them again."""
    for kafka, known in (("4.4.0", 5), ("3.9.2", 4)):
        drawn = [
            Drawn(API_VERSIONS, version, True, after, {})
            for (_, version), (_, after) in recorded_bodies().items()
            if version <= known and after.startswith(b"\0\0")
        ]
        assert len(drawn) > 4
        for one, line in zip(drawn, reencoded(kafka, drawn), strict=True):
            assert line.startswith("{"), line
            compare(view(API_VERSIONS, one.version, one.body, response=True), json.loads(line), f"v{one.version}")
            assert {row["name"] for row in json.loads(line)["supportedFeatures"]} >= SUPPORTED.keys()
