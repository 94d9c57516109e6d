"""``brokerside features``: what is a wrong usage, what nobody can do, and its lines."""

from pathlib import Path

import pytest

from proxy.commands.feature_lines import raise_all, report_lines, report_of
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, BROKER_METADATA, COORDINATOR_PROTOCOL, QUOTA_IP, LevelRange
from proxy.features.records import FeatureUpdate
from proxy.interceptors.broker_metadata import BrokerEntry
from proxy.rpc.feature_messages import DescribedFeatures
from tests.integration.conftest import free_port
from tests.unit.terminal import Terminal, brokerside

__all__ = ["brokerside"]

AUDIT = "brokerside.audit.event.schema"
ALLOWED = (
    f"allowed are features of the fleet, brokerside.NAME; this release has {AUDIT}, brokerside.coordinator.protocol, "
    "brokerside.broker.metadata, brokerside.quota.ip"
)


@pytest.mark.promise(
    "features.md",
    "A wrong usage of `brokerside features` exits with 2 and without a request, and names what is allowed.",
)
def test_a_wrong_usage_is_named_with_what_is_allowed(brokerside: Terminal) -> None:
    for arguments, said in [
        (["upgrade"], "one of the arguments HOST:PORT --bootstrap-server is required"),
        (["upgrade", "h:1"], "the following arguments are required: NAME=LEVEL"),
        (["upgrade", "nowhere", f"{AUDIT}=2"], "'nowhere' is not host:port"),
        (["upgrade", "h:1", AUDIT], f"'{AUDIT}': allowed is NAME=LEVEL"),
        (["upgrade", "h:1", f"{AUDIT}=0"], f"'{AUDIT}': '0': allowed are levels from 1 to 32767"),
        (["upgrade", "h:1", f"{AUDIT}=32768"], f"'{AUDIT}': '32768': allowed are levels from 1 to 32767"),
        (["upgrade", "h:1", f"{AUDIT}={'9' * 5000}"], "allowed are levels from 1 to 32767"),
        (["downgrade", "h:1", "audit.event.schema=1"], f"'audit.event.schema': {ALLOWED}"),
        (["disable", "h:1", "metadata.version"], f"'metadata.version': {ALLOWED}"),
        (["upgrade", "h:1", f"{AUDIT}=2", f"{AUDIT}=1"], f"{AUDIT}: is named twice (allowed: once)"),
        (["disable", "h:1", AUDIT, "--unsaf"], "unrecognized arguments: --unsaf; did you mean --unsafe?"),
        (
            ["describe", "h:1", "--bootstrap-server", "h:2"],
            "'h:1': allowed is one address, HOST:PORT or --bootstrap-server",
        ),
        (["describe", "h:1", "-o", "yaml"], "invalid choice: 'yaml' (choose from 'table', 'json')"),
        (["upgrade-al", "h:1"], "there is no command 'upgrade-al'; did you mean upgrade-all?"),
        (
            ["forget", "reader/tables 1", "--bootstrap-servers", "h:1"],
            "'reader/tables 1': allowed are sidecar/ID, and reader/NAME of up to 128 letters, digits",
        ),
        (["forget", "sidecar/1", "--bootstrap-servers", "h:1,nowhere"], "'nowhere' is not host:port"),
        (["forget", "sidecar/1"], "the following arguments are required: --bootstrap-server/--bootstrap-servers"),
    ]:
        done = brokerside("features", *arguments)
        assert (done.code, done.out) == (2, ""), (arguments, said)
        assert said in done.err, (arguments, said)


@pytest.mark.promise(
    "features.md", "`features check` exits with 0 where this release fits, and with 1 where that is not known."
)
def test_what_keeps_no_levels_fits_and_a_cluster_that_cannot_be_asked_says_nothing(
    brokerside: Terminal, tmp_path: Path
) -> None:
    path, server = tmp_path / "brokerside.yaml", f"internal.bootstrap.servers: 127.0.0.1:{free_port()}\n"
    base = "broker.id: 1\nlisteners: [{name: C, bind: '127.0.0.1:9092', upstream: '127.0.0.1:3'}]\n"
    for lines, why in [
        ("", "internal.bootstrap.servers is missing"),
        (f"{server}features: {{enabled: false}}\n", "features.enabled is false"),
    ]:
        path.write_text(base + lines)
        done = brokerside("features", "check", "-c", str(path))
        assert (done.code, done.out) == (0, f"{path}: ok, feature levels are disabled: {why}\n"), lines
    path.write_text(base + server)
    done = brokerside("features", "check", "-c", str(path))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("brokerside: __brokerside_features: ")


LATER = "brokerside.later"
ALL_AT_1 = dict.fromkeys((AUDIT_EVENT_SCHEMA, COORDINATOR_PROTOCOL, BROKER_METADATA, QUOTA_IP), LevelRange(1, 1))
FOUND = DescribedFeatures(
    {},
    {"metadata.version": LevelRange(7, 30), AUDIT_EVENT_SCHEMA: LevelRange(1, 2), QUOTA_IP: LevelRange(1, 1)},
    {"group.version": LevelRange(0, 1), AUDIT_EVENT_SCHEMA: LevelRange(1, 1)},
    40,
)


def broker(node_id: int, **tags: str) -> BrokerEntry:
    return BrokerEntry(
        node_id, "kafka.example", 9092, 1, 2, {name.replace("_", "."): tag for name, tag in tags.items()}
    )


def sidecar(node_id: int, levels: str, **tags: str) -> BrokerEntry:
    return broker(node_id, sidecar_features=levels, sidecar_version="0.3.0", brokerside_features_epoch="7", **tags)


@pytest.mark.promise(
    "features.md",
    "`features describe` prints each feature with its ranges and epoch, as `kafka-features.sh` does, and then "
    "each sidecar.",
)
def test_what_is_supported_and_finalized() -> None:
    own = sidecar(1, f"{AUDIT_EVENT_SCHEMA}=1-2,{QUOTA_IP}=1-1")
    found = report_of(FOUND, own, [own, sidecar(2, f"{AUDIT_EVENT_SCHEMA}=1-1", sidecar="absent"), broker(4)])
    assert report_lines(found) == [
        (
            "Feature: brokerside.audit.event.schema\tSupportedMinVersion: 1\tSupportedMaxVersion: 2\t"
            "FinalizedMinVersionLevel: 1\tFinalizedMaxVersionLevel: 1\tEpoch: 7"
        ),
        "  level 1: audit events of every kind but `rollup`",
        (
            "Feature: brokerside.quota.ip\tSupportedMinVersion: 1\tSupportedMaxVersion: 1\t"
            "FinalizedMinVersionLevel: -\tFinalizedMaxVersionLevel: -\tEpoch: 7"
        ),
        (
            "Feature: group.version\tSupportedMinVersion: -\tSupportedMaxVersion: -\t"
            "FinalizedMinVersionLevel: 0\tFinalizedMaxVersionLevel: 1\tEpoch: 40"
        ),
        (
            "Feature: metadata.version\tSupportedMinVersion: 7\tSupportedMaxVersion: 30\t"
            "FinalizedMinVersionLevel: -\tFinalizedMaxVersionLevel: -\tEpoch: 40"
        ),
        "sidecar 1  0.3.0  running  epoch 7  audit.event.schema 1-2, quota.ip 1-1",
        "sidecar 2  0.3.0  not running  epoch 7  audit.event.schema 1-1",
        "broker 4  no sidecar",
    ]


@pytest.mark.promise(
    "features.md",
    "`upgrade-all` raises every feature of its own release to its maximum, and never lowers or deletes one.",
)
def test_all_are_raised_to_this_release_s_maximum_and_none_is_lowered() -> None:
    raised = [FeatureUpdate(AUDIT_EVENT_SCHEMA, 2), FeatureUpdate(COORDINATOR_PROTOCOL, 2)]
    assert raise_all(ALL_AT_1) == raised
    later = {AUDIT_EVENT_SCHEMA: LevelRange(1, 9), COORDINATOR_PROTOCOL: LevelRange(1, 2), LATER: LevelRange(1, 1)}
    assert raise_all({**ALL_AT_1, **later}) == []
    without = {name: levels for name, levels in ALL_AT_1.items() if name != QUOTA_IP}
    assert raise_all(without) == [*raised, FeatureUpdate(QUOTA_IP, 1)]
