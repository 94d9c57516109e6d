"""The lines of ``brokerside features``, byte by byte."""

from __future__ import annotations

import pytest

from proxy.commands.feature_lines import raise_all, report_lines, report_of
from proxy.features.catalog import (
    AUDIT_EVENT_SCHEMA,
    BROKER_METADATA,
    COORDINATOR_PROTOCOL,
    QUOTA_IP,
    LevelRange,
)
from proxy.features.records import (
    FeatureUpdate,
)
from proxy.interceptors.broker_metadata import BrokerEntry
from proxy.rpc.feature_messages import DescribedFeatures

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
