"""No right to the topic of features is left: no level changes, and clients do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are exported, untyped
    AclOperation,
    ResourceType,
)
from structlog.testing import capture_logs

from proxy.config.values import Secret
from proxy.core.protected_topics import REGISTRY
from proxy.features.catalog import AUDIT_EVENT_SCHEMA
from proxy.features.records import SAFE_DOWNGRADE
from proxy.features.updates import FEATURE_UPDATE_FAILED, NONE
from proxy.fleet.feature_poller import NOT_LOADED
from tests.brokers import Acl, SharedBroker
from tests.integration.feature_sidecars import FeatureSidecar, running, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]


def may(operation: AclOperation, resource: ResourceType = ResourceType.TOPIC, name: str = "*") -> Acl:
    return Acl("User:sidecar", operation, resource, name)


READ, WRITE = may(AclOperation.READ), may(AclOperation.WRITE)
TRANSACTIONS = may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID)
OTHERS = (
    may(AclOperation.ALL, ResourceType.BROKER, "kafka-cluster"),
    may(AclOperation.DESCRIBE),
    may(AclOperation.DESCRIBE_CONFIGS),
)


@pytest.fixture
def site(secured: SharedBroker) -> Iterator[SharedBroker]:
    """A broker where ``User:sidecar`` has all rights that it needs."""
    secured.allow(READ, WRITE, TRANSACTIONS, *OTHERS)
    yield secured
    secured.forget_acls()


@pytest.fixture
def settings(secured: SharedBroker) -> dict[str, Any]:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "sidecar", "sasl.password": Secret("sidecar-secret")}
    return {
        "internal.bootstrap.servers": secured.listeners["OWN"].address,
        "internal": {"security.protocol": "SASL_PLAINTEXT", **login},
    }


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.features.controller.BOOTSTRAP_AFTER_MS", 1000)


@pytest.mark.promise(
    "features.md",
    "While the topic of features cannot be read or written, updates fail and the levels stay as they are.",
)
async def test_a_right_that_is_revoked_changes_no_level(site: SharedBroker, settings: dict[str, Any]) -> None:
    for acl, logged in (
        (WRITE, "features_not_written"),
        (READ, "features_unavailable"),
        (TRANSACTIONS, "feature_controller"),
    ):
        with capture_logs() as logs:
            async with running(sidecar := FeatureSidecar(site.node, **settings)):
                await until(lambda sidecar=sidecar: sidecar.state == "serving")
                level = sidecar.level[AUDIT_EVENT_SCHEMA]
                wanted = (1, SAFE_DOWNGRADE) if level == 2 else (2,)
                await asyncio.to_thread(site.revoke, acl)
                denied = await sidecar.update(AUDIT_EVENT_SCHEMA, *wanted, timeout_ms=12_000)
                assert denied.error_code == FEATURE_UPDATE_FAILED, (logged, denied)
                assert sidecar.level[AUDIT_EVENT_SCHEMA] == level, logged
                assert sidecar.problems[-1] is None, logged
                await asyncio.to_thread(site.allow, acl)
                for _ in range(30):  # until the sidecar has found out that it has the right again
                    await until(lambda sidecar=sidecar: sidecar.state == "serving")
                    if (await sidecar.update(AUDIT_EVENT_SCHEMA, *wanted)).error_code == NONE:
                        break
                assert sidecar.level[AUDIT_EVENT_SCHEMA] == wanted[0], logged
                ended = len(logs)
        found = [one for one in logs[:ended] if one["event"] == logged and one.get("change") != "taken"]
        assert len(found) == 1, (logged, found)


@pytest.mark.promise(
    "features.md",
    "A sidecar without the right to read the levels is ready, uses level 1, and follows them once it may.",
)
async def test_a_sidecar_that_cannot_read_the_levels_is_ready_and_uses_level_1(
    site: SharedBroker, settings: dict[str, Any]
) -> None:
    """However long it takes. Whoever asks for an update learns that it does not follow."""
    async with running(first := FeatureSidecar(site.node, **settings)):
        await until(lambda: first.state == "serving")
        await first.update(AUDIT_EVENT_SCHEMA, 2)
        assert first.level[AUDIT_EVENT_SCHEMA] == 2
    site.allow(may(AclOperation.READ, name=REGISTRY))
    site.revoke(READ)
    async with running(sidecar := FeatureSidecar(site.node, **settings)):
        await until(lambda: sidecar.problems == [NOT_LOADED, None])
        await until(lambda: any(one.running for one in sidecar.features.status().participants))
        await asyncio.sleep(3)
        found = sidecar.features.status()
        assert (found.loaded, found.epoch, found.applied_epoch) == (False, -1, -1)
        assert found.participants[0].applied_epoch == -1
        assert {view.levels[AUDIT_EVENT_SCHEMA] for view in sidecar.views} == {1}
        await asyncio.to_thread(site.allow, READ)
        await until(lambda: sidecar.level[AUDIT_EVENT_SCHEMA] == 2)
        await until(lambda: sidecar.features.status().applied_epoch == sidecar.features.status().epoch)
        assert sidecar.problems == [NOT_LOADED, None]
