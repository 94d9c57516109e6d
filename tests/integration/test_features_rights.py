"""Who may write the topic of features: rights that are taken away while sidecars run, and records nobody has signed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are exported, untyped
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from structlog.testing import capture_logs

from proxy.config.hmac_keys import REGISTRY as REGISTRY_LABEL
from proxy.config.values import Secret
from proxy.core.authentication import Authenticator, read_keys
from proxy.core.protected_topics import FEATURES, REGISTRY
from proxy.features.catalog import AUDIT_EVENT_SCHEMA
from proxy.features.records import FEATURES_KEY, SAFE_DOWNGRADE, FinalizedFeatures, FinalizedRange, encode
from proxy.features.updates import FEATURE_UPDATE_FAILED, NONE
from proxy.fleet.feature_poller import NOT_LOADED
from proxy.local import cluster as local_cluster
from proxy.local.cluster import Node
from tests.integration.authorizer import secured_properties
from tests.integration.feature_sidecars import FeatureSidecar, running, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

USER = "User:sidecar"
KEYS = "one:" + 32 * "k"


class Site:
    """A broker with an authorizer, and the address of its listener with SASL."""

    def __init__(self, node: Node, sasl: str) -> None:
        self.node = node
        self.settings: dict[str, Any] = {
            "internal.bootstrap.servers": sasl,
            "internal": {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "sidecar",
                "sasl.password": Secret("sidecar-secret"),
            },
        }
        self._admin = AdminClient({"bootstrap.servers": node.internal})

    def grant(self, resource: ResourceType, name: str, operation: AclOperation) -> None:
        acl = self._binding(AclBinding, resource, name, operation)
        self._admin.create_acls([acl])[acl].result(30)

    def revoke(self, resource: ResourceType, name: str, operation: AclOperation) -> None:
        acl = self._binding(AclBindingFilter, resource, name, operation)
        assert self._admin.delete_acls([acl])[acl].result(30)

    @staticmethod
    def _binding(kind: Any, resource: ResourceType, name: str, operation: AclOperation) -> Any:
        pattern, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        return kind(resource, name, pattern, USER, "*", operation, allow)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("rights")
    node = local_cluster.plan(folder).nodes[0]
    properties, behind, before = secured_properties(node, ("sidecar",))
    properties["advertised.listeners"] = properties["advertised.listeners"].replace(before, behind)
    local_cluster.up(folder, broker_properties=properties, progress=False)
    found = Site(node, behind)
    found.grant(ResourceType.BROKER, "kafka-cluster", AclOperation.ALL)
    for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS):
        found.grant(ResourceType.TOPIC, "*", operation)
    found.grant(ResourceType.TRANSACTIONAL_ID, "*", AclOperation.WRITE)
    yield found
    local_cluster.down(folder)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.features.controller.BOOTSTRAP_AFTER_MS", 1000)


@pytest.mark.parametrize(
    ("resource", "operation", "logged"),
    [
        (ResourceType.TOPIC, AclOperation.WRITE, "features_not_written"),
        (ResourceType.TOPIC, AclOperation.READ, "features_unavailable"),
        (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE, "feature_controller"),
    ],
)
async def test_a_right_that_is_revoked_changes_no_level(
    site: Site, resource: ResourceType, operation: AclOperation, logged: str
) -> None:
    with capture_logs() as logs:
        async with running(sidecar := FeatureSidecar(site.node, **site.settings)):
            await until(lambda: sidecar.state == "serving")
            level = sidecar.level[AUDIT_EVENT_SCHEMA]
            site.revoke(resource, "*", operation)
            try:
                wanted = (1, SAFE_DOWNGRADE) if level == 2 else (2,)
                denied = await sidecar.update(AUDIT_EVENT_SCHEMA, *wanted, timeout_ms=12_000)
                assert denied.error_code == FEATURE_UPDATE_FAILED, denied
                assert sidecar.level[AUDIT_EVENT_SCHEMA] == level
                assert sidecar.problems[-1] is None
            finally:
                site.grant(resource, "*", operation)
            for _ in range(30):  # until the sidecar has found out that it has the right again
                await until(lambda: sidecar.state == "serving")
                if (await sidecar.update(AUDIT_EVENT_SCHEMA, *wanted)).error_code == NONE:
                    break
            assert sidecar.level[AUDIT_EVENT_SCHEMA] == wanted[0]
            ended = len(logs)
    assert len([one for one in logs[:ended] if one["event"] == logged and one.get("change") != "taken"]) == 1


async def test_a_sidecar_that_cannot_read_the_levels_is_ready_and_uses_level_1(site: Site) -> None:
    """However long it takes. Whoever asks for an update learns that it does not follow."""
    async with running(first := FeatureSidecar(site.node, **site.settings)):
        await until(lambda: first.state == "serving")
        await first.update(AUDIT_EVENT_SCHEMA, 2)
        assert first.level[AUDIT_EVENT_SCHEMA] == 2
    site.grant(ResourceType.TOPIC, REGISTRY, AclOperation.READ)
    site.revoke(ResourceType.TOPIC, "*", AclOperation.READ)
    try:
        async with running(sidecar := FeatureSidecar(site.node, **site.settings)):
            await until(lambda: sidecar.problems == [NOT_LOADED, None])
            await until(lambda: sidecar.features.status().participants[0].running)
            await asyncio.sleep(3)
            found = sidecar.features.status()
            assert (found.loaded, found.epoch, found.applied_epoch) == (False, -1, -1)
            assert found.participants[0].applied_epoch == -1
            assert {view.levels[AUDIT_EVENT_SCHEMA] for view in sidecar.views} == {1}
            site.grant(ResourceType.TOPIC, "*", AclOperation.READ)
            await until(lambda: sidecar.level[AUDIT_EVENT_SCHEMA] == 2)
            await until(lambda: sidecar.features.status().applied_epoch == sidecar.features.status().epoch)
            assert sidecar.problems == [NOT_LOADED, None]
    finally:
        site.grant(ResourceType.TOPIC, "*", AclOperation.READ)
        site.revoke(ResourceType.TOPIC, REGISTRY, AclOperation.READ)


async def test_records_that_nobody_has_signed_are_ignored(site: Site, tmp_path: Path) -> None:
    settings = {**site.settings, "registry": {"hmac.keys.file": Secret(KEYS)}}
    forged = encode(FinalizedFeatures(900, {AUDIT_EVENT_SCHEMA: FinalizedRange(9, 9)}))
    of_registry = Authenticator(REGISTRY_LABEL, read_keys(KEYS)).header(FEATURES_KEY, forged)
    with capture_logs() as logs:
        async with running(sidecar := FeatureSidecar(site.node, **settings)):
            await until(lambda: sidecar.state == "serving")
            producer = Producer({"bootstrap.servers": site.node.internal})
            for headers in ([], [of_registry]):
                producer.produce(FEATURES, key=FEATURES_KEY, value=forged, partition=0, headers=headers)
            assert producer.flush(20) == 0
            await until(lambda: len([one for one in logs if one["event"] == "features_record_ignored"]) >= 2)
            assert sidecar.views[-1].epoch < 900
            assert sidecar.level[AUDIT_EVENT_SCHEMA] in (1, 2)
    reasons = {one["reason"] for one in logs if one["event"] == "features_record_ignored"}
    assert reasons == {"unsigned", "bad_signature"}
