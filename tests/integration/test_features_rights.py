"""The topic of features is away, deleted, or no right to it is left; and records on it that nobody has signed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
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
from proxy.features.records import (
    FEATURES_KEY,
    SAFE_DOWNGRADE,
    FeatureUpdate,
    FinalizedFeatures,
    FinalizedRange,
    encode,
)
from proxy.features.updates import FEATURE_UPDATE_FAILED, NONE
from proxy.fleet.feature_poller import NOT_LOADED
from proxy.local import broker, process
from proxy.local import cluster as local_cluster
from proxy.local.cluster import Node
from tests.integration.authorizer import secured_properties
from tests.integration.feature_fleet import FeatureFleet, Load, wait_until
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
        self._await(resource, name, operation, there=True)

    def revoke(self, resource: ResourceType, name: str, operation: AclOperation) -> None:
        acl = self._binding(AclBindingFilter, resource, name, operation)
        assert self._admin.delete_acls([acl])[acl].result(30)
        self._await(resource, name, operation, there=False)

    def _await(self, resource: ResourceType, name: str, operation: AclOperation, *, there: bool) -> None:
        """The controller has written it, and the broker learns of it a moment later."""
        wanted = self._binding(AclBindingFilter, resource, name, operation)
        wait_until(lambda: bool(self._admin.describe_acls(wanted).result(30)) is there)

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
            await until(lambda: any(one.running for one in sidecar.features.status().participants))
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


@pytest.fixture
def fleet(site: Site) -> Iterator[FeatureFleet]:
    """The broker for sidecars as processes, none of which runs yet."""
    state = local_cluster.status(site.node.home.parent)
    assert state is not None
    made = FeatureFleet(state, {})
    yield made
    process.stop([one.process for one in made.sidecars.values()], 15)


def configure(fleet: FeatureFleet, site: Site, **settings: Any) -> None:
    config = {**broker.sidecar_config(site.node), **site.settings, **settings}
    del config["observer.class.names"], config["audit"]
    password = fleet.folder / "password"
    password.write_text("sidecar-secret")
    config["internal"] = {**config["internal"], "sasl.password": {"file": str(password)}}
    (fleet.folder / f"sidecar-{site.node.id}.yaml").write_text(yaml.safe_dump(config))


def logged(fleet: FeatureFleet, broker_id: int) -> list[str]:
    """What a sidecar logs of the topic's trouble."""
    trouble = ("features_unavailable", "features_back", "features_not_written", "features_written")
    return [name for name in trouble for _ in fleet.log_events(broker_id, name)]


def test_clients_do_not_notice_that_the_cluster_is_away_at_the_start(fleet: FeatureFleet, site: Site) -> None:
    one = site.node.id
    configure(fleet, site, **{"internal.bootstrap.servers": "127.0.0.1:1"})
    with Load(fleet.address(one)) as load:
        fleet.start(one)
        began = load.answered
        assert set(fleet.status(one)["in_use"].values()) == {1}
        wait_until(lambda: load.answered > began + 1000)
        wait_until(lambda: logged(fleet, one))
    assert load.errors == []
    assert logged(fleet, one) == ["features_unavailable"]
    assert fleet.shown(one) == {}, "nothing is finalized"


def test_clients_do_not_notice_that_the_topic_is_deleted(fleet: FeatureFleet, site: Site) -> None:
    one = site.node.id
    configure(fleet, site)
    fleet.start(one)
    wait_until(lambda: fleet.is_controller(one) and fleet.status(one)["epoch"] > 0)
    epoch, shown = fleet.status(one)["epoch"], fleet.shown(one)
    admin = AdminClient({"bootstrap.servers": site.node.internal})
    with Load(fleet.address(one)) as load:
        wait_until(lambda: load.answered)
        admin.delete_topics([FEATURES])[FEATURES].result(30)
        wait_until(lambda: fleet.log_events(one, "feature_controller")[-1]["change"] == "lost")
        assert fleet.shown(one) == shown
        wait_until(lambda: fleet.status(one)["applied_epoch"] == epoch + 1)
        began = load.answered
        wait_until(lambda: load.answered > began + 1000)
    assert load.errors == []
    assert fleet.shown(one) == shown
    wait_until(lambda: logged(fleet, one) in ([], ["features_unavailable", "features_back"]))  # its log is late


def test_clients_do_not_notice_that_the_right_to_write_is_revoked(fleet: FeatureFleet, site: Site) -> None:
    one = site.node.id
    configure(fleet, site)
    fleet.start(one)
    wait_until(lambda: fleet.is_controller(one) and fleet.status(one)["epoch"] > 0)
    shown = fleet.shown(one)
    wanted = FeatureUpdate(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)
    if shown[AUDIT_EVENT_SCHEMA] == 1:
        wanted = FeatureUpdate(AUDIT_EVENT_SCHEMA, 2)
    with Load(fleet.address(one)) as load:
        wait_until(lambda: load.answered)
        site.revoke(ResourceType.TOPIC, "*", AclOperation.WRITE)
        try:
            for _ in range(2):
                refused = fleet.update(one, wanted)
                assert refused.error_code == FEATURE_UPDATE_FAILED
                assert "the update could not be written: " in (refused.message or "")
            began = load.answered
            wait_until(lambda: load.answered > began + 1000)
        finally:
            site.grant(ResourceType.TOPIC, "*", AclOperation.WRITE)
    assert load.errors == []
    assert fleet.shown(one) == shown
    assert logged(fleet, one) == ["features_not_written"]


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
            assert producer.flush(60) == 0
            await until(lambda: len([one for one in logs if one["event"] == "features_record_ignored"]) >= 2)
            assert sidecar.views[-1].epoch < 900
            assert sidecar.level[AUDIT_EVENT_SCHEMA] in (1, 2)
    reasons = {one["reason"] for one in logs if one["event"] == "features_record_ignored"}
    assert reasons == {"unsigned", "bad_signature"}
