"""``brokerside features`` and FeaturesClient, at a broker and at its sidecar."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
import uuid
from contextlib import redirect_stderr, redirect_stdout
from typing import Literal, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.cli import main
from proxy.client import FeaturesClient
from proxy.config import hmac_keys
from proxy.core.authentication import Authenticator
from proxy.errors import LocalError
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, COORDINATOR_PROTOCOL, PREFIX, QUOTA_IP, SUPPORTED, LevelRange
from proxy.features.records import ReaderRecord, SupportedRange, encode, reader_key
from proxy.fleet import topic_commands
from proxy.fleet.topic_spec import TopicSpec
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.feature_fleet import wait_until
from tests.integration.feature_sidecars import committed
from tests.tools.kafka_tools import KafkaTools
from tests.tools.topic import create

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

GROUP_VERSION = "group.version"
RANGES = ", ".join(f"{name.removeprefix(PREFIX)} {levels.min}-{levels.max}" for name, levels in SUPPORTED.items())

OLD_RELEASE = """
from proxy.features import catalog
catalog.SUPPORTED = {name: catalog.LevelRange(1, 1) for name in catalog.SUPPORTED if name != catalog.QUOTA_IP}
from proxy.cli import main
main()
"""
"""The command of a release with level 1 of everything, and without one feature."""


def features(*arguments: str, release: str = "") -> tuple[object, list[str], str]:
    """Run ``brokerside features``, of another release in a process of its own; give its exit code, the lines of its
    output, and its errors."""
    if release:
        command = [sys.executable, "-c", release, "features", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout.splitlines(), done.stderr
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        patch.setattr(sys, "argv", ["brokerside", "features", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code or 0, output.getvalue().splitlines(), errors.getvalue()


def line(kind: str, feature: str, before: str, after: str, result: str = "OK") -> str:
    return (
        f"      [{kind}]\tFeature: {feature}\tExistingFinalizedMaxVersion: {before}\t"
        f"NewFinalizedMaxVersion: {after}\tResult: {result}"
    )


def finalized(address: str) -> dict[str, LevelRange]:
    with FeaturesClient(address) as client:
        return {name: levels for name, levels in client.describe().finalized.items() if name.startswith(PREFIX)}


@pytest.fixture
def address(cluster: ClusterState, bare_sidecar: SidecarProcess) -> str:
    """A sidecar whose fleet has finalized the highest levels of this release."""
    address = cluster.nodes[0].advertised
    wait_until(lambda: finalized(address))
    code, _, errors = features("upgrade-all", address)
    assert (code, errors) == (0, "")
    return address


@pytest.mark.promise(
    "commands.md", "`features describe` shows the features of a broker without a sidecar as `kafka-features.sh` does."
)
def test_a_broker_is_described_as_by_kafka_s_own_tool(cluster: ClusterState, tools: KafkaTools) -> None:
    internal = cluster.nodes[0].internal
    with FeaturesClient(internal) as client:
        found = client.describe()
    assert found.epoch >= 0
    assert found.supported["kraft.version"] == LevelRange(0, 1)
    said = tools.run("features", "--bootstrap-server", internal, "describe")
    lines = [one for one in said.stdout.splitlines() if one.startswith("Feature: ")]
    described = [dict(re.findall(r"(\w+): (\S+)", one)) for one in lines]
    assert {one["Feature"] for one in described} == found.supported.keys()
    for one in described:
        name = one["Feature"]
        if name == "metadata.version":
            continue  # the tool prints its levels as releases
        assert found.supported[name] == (int(one["SupportedMinVersion"]), int(one["SupportedMaxVersion"]))
        level = found.finalized.get(name, LevelRange(0, 0)).max  # what is not finalized is at 0 there
        assert one["FinalizedVersionLevel"] == str(level)
    code, lines, errors = features("describe", internal)
    assert code == 0
    assert len(lines) == len(found.supported)
    assert errors == f"brokerside: {internal}: no sidecar answers BrokerMetadata (api key 30000)\n"
    code, lines, errors = features("upgrade-all", internal)
    assert (code, lines) == (1, [])
    assert errors.startswith(f"brokerside: {internal}: no features of a fleet there: no sidecar, or ")


@pytest.mark.promise(
    "features.md",
    "`features describe` shows the levels of each feature, what they mean, and each sidecar with its applied epoch.",
)
def test_the_fleet_is_described_with_its_sidecars(address: str) -> None:
    code, lines, errors = features("describe", address)
    assert (code, errors) == (0, "")
    *described, sidecar = lines
    by_name = {one.split("\t")[0].removeprefix("Feature: "): one for one in described}
    assert by_name.keys() >= {*SUPPORTED, GROUP_VERSION}
    code, [document], _ = features("describe", "--bootstrap-server", address, "-o", "json")
    assert code == 0
    report = json.loads(document)
    [entry] = report["sidecars"]
    assert sidecar == f"sidecar 1  {entry['release']}  running  epoch {entry['epoch']}  {RANGES}"
    assert by_name[AUDIT_EVENT_SCHEMA] == (
        f"Feature: {AUDIT_EVENT_SCHEMA}\tSupportedMinVersion: 1\tSupportedMaxVersion: 2\t"
        f"FinalizedMinVersionLevel: 1\tFinalizedMaxVersionLevel: 2\tEpoch: {entry['epoch']}"
    )
    assert lines[lines.index(by_name[AUDIT_EVENT_SCHEMA]) + 1].startswith("  level 2: ")
    [audit] = [one for one in report["features"] if one["feature"] == AUDIT_EVENT_SCHEMA]
    assert (audit["finalized_max_version_level"], audit["epoch"]) == (2, entry["epoch"])


@pytest.mark.promise(
    "features.md", "`brokerside features` raises, lowers and deletes levels of a fleet, and a refusal changes nothing."
)
def test_levels_are_raised_and_lowered_and_a_refusal_changes_nothing(address: str, cluster: ClusterState) -> None:
    assert features("upgrade-all", address) == (0, ["nothing to do"], "")
    lower = "downgrade", address, f"{AUDIT_EVENT_SCHEMA}=1"
    lowered = line("Downgrade", AUDIT_EVENT_SCHEMA, "2", "1")
    assert features(*lower, "--dry-run") == (0, [lowered, "dry run: nothing was changed"], "")
    assert finalized(address)[AUDIT_EVENT_SCHEMA] == (1, 2)
    assert features(*lower) == (0, [lowered], "")
    assert finalized(address)[AUDIT_EVENT_SCHEMA] == (1, 1)
    deleted = line("Delete", QUOTA_IP, "1", "-")
    assert features("disable", QUOTA_IP, "--bootstrap-server", address) == (0, [deleted], "")
    assert QUOTA_IP not in finalized(address)
    added = line("Add", QUOTA_IP, "-", "1")
    raised = line("Upgrade", AUDIT_EVENT_SCHEMA, "1", "2")
    assert features("upgrade-all", address) == (0, [raised, added], "")
    before = finalized(address)
    assert before == {name: LevelRange(1, levels.max) for name, levels in SUPPORTED.items()}
    code, lines, errors = features("upgrade", address, f"{QUOTA_IP}=1", f"{AUDIT_EVENT_SCHEMA}=3")
    assert (code, errors) == (1, "brokerside: 2 of 2 updates failed\n")
    whole = "The update failed for all features since the following feature had an error: FEATURE_UPDATES_FAILED: "
    assert all(one.partition("Result: FAILED: ")[2].startswith(f"{whole}{AUDIT_EVENT_SCHEMA}: ") for one in lines)
    assert "supports 1 to 2; asked: 3" in lines[0]
    code, [unknown], _ = features("disable", address, "brokerside.nothing")
    assert code == 1
    assert "brokerside.nothing: no such feature (there are: " in unknown
    assert finalized(address) == before
    code, lines, errors = features("forget", "sidecar/1", "--bootstrap-servers", cluster.internal_bootstrap)
    assert (code, lines) == (1, [])
    assert errors == "brokerside: sidecar/1 runs: it has just written to the registry; stop it first\n"


@pytest.mark.slow
@pytest.mark.promise(
    "features.md", "`downgrade-all` of an old release lowers each feature to what it knows, and deletes the others."
)
def test_the_command_of_an_older_release_lowers_all_to_what_it_knows(
    address: str, bare_sidecar: SidecarProcess
) -> None:
    config = str(bare_sidecar.config)
    code, lines, errors = features("check", "-c", config, release=OLD_RELEASE)
    assert (code, lines) == (3, [])
    assert errors.splitlines() == [
        f"brokerside: {config}: {AUDIT_EVENT_SCHEMA}: 1 to 1 are supported, finalized are 1 to 2",
        f"brokerside: {config}: {COORDINATOR_PROTOCOL}: 1 to 1 are supported, finalized are 1 to 2",
        f"brokerside: {config}: {QUOTA_IP}: is not supported, finalized are 1 to 1",
    ]
    code, lines, errors = features("downgrade-all", address, release=OLD_RELEASE)
    assert (code, errors) == (0, "")
    assert lines == [
        line("Downgrade", AUDIT_EVENT_SCHEMA, "2", "1"),
        line("Downgrade", COORDINATOR_PROTOCOL, "2", "1"),
        line("Delete", QUOTA_IP, "1", "-"),
    ]
    assert features("downgrade-all", address, release=OLD_RELEASE) == (0, ["nothing to do"], "")
    for release in (OLD_RELEASE, ""):
        code, [said], errors = features("check", "-c", config, release=release)
        assert (code, errors) == (0, "")
        assert said.startswith(f"{config}: ok, this release supports the finalized levels of epoch ")


class Registry(NamedTuple):
    topic: str
    bootstrap: str

    def register(self, name: str, state: Literal["running", "stopped"], signer: Authenticator | None = None) -> None:
        record = ReaderRecord({AUDIT_EVENT_SCHEMA: SupportedRange(1, 1)}, state=state)
        key, value = reader_key(name), encode(record)
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(self.topic, key=key, value=value, headers=[signer.header(key, value)] if signer else [])
        assert producer.flush(60) == 0

    def forget(self, participant: str, signer: Authenticator | None = None) -> None:
        topic_commands.forget(participant, {"bootstrap.servers": self.bootstrap}, signer)

    def last(self, name: str) -> bytes | None:
        return dict(committed(self.bootstrap, self.topic))[reader_key(name)]


@pytest.fixture
def registry(cluster: ClusterState, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of its own, without sidecars."""
    made = Registry(f"registry-{uuid.uuid4().hex[:8]}", cluster.internal_bootstrap)
    admin = AdminClient({"bootstrap.servers": made.bootstrap})
    new = NewTopic(made.topic, 1, 1, config={"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"})
    create(admin, new)
    monkeypatch.setattr(topic_commands, "REGISTRY_TOPIC", TopicSpec(made.topic, hmac_keys.REGISTRY))
    return made


@pytest.mark.promise(
    "features.md", "`features forget` removes a participant that does not run, and refuses to remove one that runs."
)
def test_a_participant_is_forgotten_unless_it_runs(registry: Registry) -> None:
    registry.register("gone", "stopped")
    registry.register("other", "stopped")
    registry.forget("reader/gone")
    assert registry.last("gone") is None
    assert registry.last("other") is not None
    with pytest.raises(LocalError, match=r"reader/gone is not in the registry \(there are: reader/other\)"):
        registry.forget("reader/gone")
    registry.register("alive", "running")
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(1):
            registry.register("alive", "running")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(LocalError, match="reader/alive runs: it has just written to the registry; stop it first"):
            registry.forget("reader/alive")
    finally:
        ended.set()
        writer.join()
    assert registry.last("alive") is not None


@pytest.mark.slow
@pytest.mark.promise(
    "features.md",
    "Where only silence shows that a participant does not run, `features forget` listens for 9 seconds first.",
)
def test_one_that_was_killed_is_forgotten_once_it_has_been_silent_for_long_enough(registry: Registry) -> None:
    registry.register("killed", "running")
    registry.forget("reader/killed")
    assert registry.last("killed") is None


@pytest.mark.promise("features.md", "With a signed registry `features forget` needs `--registry-hmac-keys`.")
def test_a_registry_that_is_signed_needs_the_keys(registry: Registry) -> None:
    signer, other = (Authenticator(hmac_keys.REGISTRY, {"k1": letter * 32}) for letter in (b"a", b"b"))
    registry.register("gone", "stopped", signer)
    with pytest.raises(LocalError, match="the registry is signed: --registry-hmac-keys has to name the file"):
        registry.forget("reader/gone")
    with pytest.raises(LocalError, match="there are: nobody; records without a valid signature: 1"):
        registry.forget("reader/gone", other)
    assert registry.last("gone") is not None
    registry.forget("reader/gone", signer)
    assert registry.last("gone") is None
