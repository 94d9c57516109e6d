"""Feature levels on a real cluster: who writes them, who follows them, and what happens when something is away."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType
from structlog.testing import capture_logs

from proxy.config.hmac_keys import REGISTRY as REGISTRY_LABEL
from proxy.config.values import Secret
from proxy.core.authentication import Authenticator, read_keys
from proxy.core.protected_topics import FEATURES, REGISTRY
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED, LevelRange
from proxy.features.records import (
    CONTROLLER_KEY,
    FEATURES_KEY,
    SAFE_DOWNGRADE,
    FinalizedFeatures,
    FinalizedRange,
    ReaderRecord,
    SupportedRange,
    decode,
    encode,
    reader_key,
)
from proxy.features.updates import ENDING, FEATURE_UPDATE_FAILED, INVALID_UPDATE_VERSION, NONE
from proxy.fleet.applied_epoch import AuditLevels
from proxy.fleet.feature_poller import NOT_LOADED
from proxy.local import broker, process
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState
from tests.brokers import Acl, SharedBroker
from tests.integration import sidecars
from tests.integration.feature_fleet import wait_until
from tests.integration.feature_sidecars import FeatureSidecar, committed, delete_topics, running
from tests.integration.sidecars import until_async

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

OLD = {**SUPPORTED, AUDIT_EVENT_SCHEMA: LevelRange(1, 1)}


@pytest.fixture
def clean(cluster: ClusterState) -> Iterator[ClusterState]:
    """A cluster without the sidecars' topics."""
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    delete_topics(admin, FEATURES, REGISTRY)
    yield cluster
    delete_topics(admin, FEATURES, REGISTRY)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new fleet waits for its sidecars for one second instead of ten."""
    monkeypatch.setattr("proxy.features.controller.BOOTSTRAP_AFTER_MS", 1000)


def finalized(state: ClusterState) -> list[FinalizedFeatures]:
    """All records of the finalized levels, intents among them."""
    found = [decode(key, value) for key, value in committed(state.internal_bootstrap) if key == FEATURES_KEY and value]
    return [one for one in found if isinstance(one, FinalizedFeatures)]


def registered(state: ClusterState) -> list[dict[str, Any]]:
    """All records of sidecars in the registry; none where there is no registry."""
    if REGISTRY not in AdminClient({"bootstrap.servers": state.internal_bootstrap}).list_topics(timeout=20).topics:
        return []
    return [json.loads(value) for _, value in committed(state.internal_bootstrap, REGISTRY) if value]


def write(state: ClusterState, key: bytes, value: bytes | None, topic: str = FEATURES) -> None:
    """Write a record as somebody who may."""
    producer = Producer({"bootstrap.servers": state.internal_bootstrap})
    producer.produce(topic, key=key, value=value, partition=0)
    assert producer.flush(60) == 0


@pytest.mark.promise(
    "features.md",
    "A new fleet needs no command: its first sidecars finalize the levels, and each sidecar that ends says so.",
)
async def test_a_new_fleet_finalizes_the_levels_that_all_support(clean: ClusterState) -> None:
    sidecar = FeatureSidecar(clean.nodes[0])
    async with running(sidecar):
        await until_async(lambda: sidecar.features.status().applied_epoch == 1)
        assert sidecar.level == {name: levels.max for name, levels in SUPPORTED.items()}
        assert sidecar.views[0].finalized == {}
        assert sidecar.views[-1].finalized == {name: LevelRange(1, levels.max) for name, levels in SUPPORTED.items()}
        assert (sidecar.views[-1].epoch, sidecar.views[-1].is_controller) == (1, True)
        assert sidecar.problems[-1] is None
        records = registered(clean)
    assert [key for key, _ in committed(clean.internal_bootstrap)] == [CONTROLLER_KEY, FEATURES_KEY, FEATURES_KEY]
    # Registered first, read after: the first record has all that this sidecar supports, and follows nothing.
    levels = {"min_version": 1, "max_version": 2}
    assert (records[0]["features"][AUDIT_EVENT_SCHEMA], records[0]["applied_epoch"]) == (levels, -1)
    assert (records[-1]["applied_epoch"], records[-1]["holds"]) == (1, {"features/0": 1})
    assert records[-1]["tags"]["brokerside.features.epoch"] == "1"
    assert registered(clean)[-1]["state"] == "stopped"
    resource = ConfigResource(ConfigResource.Type.TOPIC, FEATURES)
    admin = AdminClient({"bootstrap.servers": clean.internal_bootstrap})
    found = admin.describe_configs([resource])[resource].result(180)
    wanted = ("cleanup.policy", "message.timestamp.type", "segment.bytes", "min.cleanable.dirty.ratio")
    assert [found[name].value for name in (*wanted, "compression.type", "min.insync.replicas")] == [
        "compact", "LogAppendTime", "1048576", "0.1", "uncompressed", "1",
    ]  # fmt: skip


@pytest.mark.promise(
    "features.md",
    "An update is in force when it is answered, and a reader that does not support a level blocks its raise.",
)
async def test_updates_are_in_force_when_they_are_answered(clean: ClusterState) -> None:
    sidecar = FeatureSidecar(clean.nodes[0])
    async with running(sidecar):
        await until_async(lambda: sidecar.state == "serving")
        lowered = await sidecar.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)
        assert (lowered.error_code, sidecar.level[AUDIT_EVENT_SCHEMA]) == (NONE, 1)
        assert (await sidecar.update(AUDIT_EVENT_SCHEMA, 2, dry_run=True)).error_code == NONE
        assert sidecar.level[AUDIT_EVENT_SCHEMA] == 1
        reader = ReaderRecord({AUDIT_EVENT_SCHEMA: SupportedRange(1, 1)}, software="0.1.0")
        write(clean, reader_key("tables"), encode(reader), REGISTRY)
        refused = await sidecar.update(AUDIT_EVENT_SCHEMA, 2)
        assert refused.error_code == INVALID_UPDATE_VERSION
        assert "reader tables (0.1.0) supports 1 to 1; asked: 2" in (refused.message or "")
        [blocking] = [one for one in sidecar.features.status().participants if one.blocks]
        assert (blocking.name, blocking.blocks) == ("reader/tables", {AUDIT_EVENT_SCHEMA: "supports 1 to 1, not 2"})
        write(clean, reader_key("tables"), None, REGISTRY)
        raised = await sidecar.update(AUDIT_EVENT_SCHEMA, 2)
        assert (raised.error_code, sidecar.level[AUDIT_EVENT_SCHEMA]) == (NONE, 2)
        no_time = await sidecar.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE, timeout_ms=0)
        assert no_time.error_code == FEATURE_UPDATE_FAILED
        assert sidecar.features.status().updates == {"ok": 3, "refused": 1, "failed": 1}
    # What a reader refuses is pending first, and withdrawn, where its record came after the update.
    assert list(dict.fromkeys((one.epoch, one.pending is None) for one in finalized(clean)))[:6] == [
        (0, False), (1, True), (1, False), (2, True), (2, False), (3, True),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.promise(
    "features.md",
    "In a hot restart an update is applied when both processes follow it, and what the first one left is delivered.",
)
async def test_a_successor_registers_once_its_predecessor_does_not_and_applies_levels_with_it(
    clean: ClusterState,
) -> None:
    draining, successor = FeatureSidecar(clean.nodes[0]), FeatureSidecar(clean.nodes[0], inherits=True)
    async with running(draining):
        await until_async(lambda: draining.state == "serving" and draining.features.status().applied_epoch == 1)
        async with running(old := FeatureSidecar(clean.nodes[0], OLD, inherits=True)):
            await until_async(lambda: "1 to 1 are supported, finalized are 1 to 2" in str(old.problems[-1:]))
        async with running(successor):
            await until_async(lambda: successor.problems[-1:] == [None])  # it fits, as far as it has read the levels
            await asyncio.sleep(4)  # longer than from one record to the next
            assert not successor.features.status().loaded
            assert {one["boot_id"] for one in registered(clean)} == {draining.fleet.boot_id}
            draining.audit = AuditLevels({2: 1}, {2: 7})
            await draining.hand_over(successor)
            assert (await draining.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)) == ENDING
            await until_async(lambda: successor.state == "serving")
            draining.audit = AuditLevels({1: 1}, {2: 7})
            late = await successor.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE, timeout_ms=6000)
            assert (late.message or "").endswith("not applied yet by sidecar 1 (7 events of a higher level to deliver)")
            assert draining.views[-1].levels[AUDIT_EVENT_SCHEMA] == 1
            assert draining.state == "away"
            draining.audit = None
            await until_async(lambda: successor.features.status().applied_epoch == 2)
            draining.audit = AuditLevels({2: 1}, {2: 7})  # the last events, which its disk keeps
            assert (await successor.update(AUDIT_EVENT_SCHEMA, 2)).error_code == NONE
            successor.audit = AuditLevels({1: 1}, {2: 0}, time.monotonic())
            await draining.features.close()
            successor.succession.predecessor_ended()
            late = await successor.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE, timeout_ms=6000)
            assert late.error_code == FEATURE_UPDATE_FAILED, "nobody has searched the disk since"
            successor.audit = AuditLevels({1: 1}, {2: 7}, time.monotonic())
            await until_async(lambda: successor.features.status().undelivered_above == 7)
            assert successor.features.status().applied_epoch == 3
            successor.audit = AuditLevels({1: 1}, {2: 0}, time.monotonic())
            await until_async(lambda: successor.features.status().applied_epoch == 4)
    boots = [one["boot_id"] for one in registered(clean)]
    first = boots.count(draining.fleet.boot_id)
    assert boots == first * [draining.fleet.boot_id] + (len(boots) - first) * [successor.fleet.boot_id]


@pytest.mark.promise(
    "features.md",
    "A sidecar that does not support the finalized levels is not ready, and names the feature and both ranges.",
)
async def test_a_sidecar_that_does_not_fit_is_not_ready_and_one_that_was_says_so(clean: ClusterState) -> None:
    async with running(new := FeatureSidecar(clean.nodes[0])):
        await until_async(lambda: new.features.status().applied_epoch == 1)
    with capture_logs() as logs:
        async with running(old := FeatureSidecar(clean.nodes[0], OLD)):
            await until_async(lambda: old.features.status().loaded)
            assert old.problems[-1] == (
                f"feature {AUDIT_EVENT_SCHEMA}: 1 to 1 are supported, finalized are 1 to 2; run a release that "
                "supports them, or lower them first: brokerside features downgrade"
            )
            assert old.level[AUDIT_EVENT_SCHEMA] == 1
            await until_async(lambda: old.state == "serving")
            assert (await old.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)).error_code == NONE
            assert old.problems[-1] is None
    assert [one["feature"] for one in logs if one["event"] == "features_incompatible"] == [AUDIT_EVENT_SCHEMA]


@pytest.mark.slow
@pytest.mark.promise(
    "features.md", "If the topic of features is deleted, levels stay as they are, and the controller writes them again."
)
async def test_levels_stay_while_the_topic_is_away_and_are_written_again(clean: ClusterState) -> None:
    with capture_logs() as logs:
        async with running(sidecar := FeatureSidecar(clean.nodes[0])):
            await until_async(lambda: sidecar.state == "serving")
            assert (await sidecar.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)).error_code == NONE
            admin = AdminClient({"bootstrap.servers": clean.internal_bootstrap})
            admin.delete_topics([FEATURES])[FEATURES].result(180)
            await until_async(lambda: sidecar.features.status().applied_epoch == 3)
            assert {view.levels[AUDIT_EVENT_SCHEMA] for view in sidecar.views if view.epoch >= 2} == {1}
            assert (await sidecar.update(AUDIT_EVENT_SCHEMA, 2)).error_code == NONE
    assert [one.epoch for one in finalized(clean)][-1] == 4
    unavailable = [one["event"] for one in logs if one["event"] in ("features_unavailable", "features_back")]
    assert unavailable in ([], ["features_unavailable", "features_back"])


@pytest.mark.promise(
    "log-events.md", "A record on the topic of features that is not followed is logged, once for each reason."
)
async def test_a_record_that_cannot_be_read_changes_nothing_and_is_logged_once_for_each_reason(
    clean: ClusterState,
) -> None:
    with capture_logs() as logs:
        async with running(sidecar := FeatureSidecar(clean.nodes[0])):
            await until_async(lambda: sidecar.features.status().applied_epoch == 1)
            first = next(value for key, value in committed(clean.internal_bootstrap) if key == FEATURES_KEY and value)
            large = encode(FinalizedFeatures(9, {})) + 300_000 * b" "
            for value, reason in (
                (b"junk", "malformed"),
                (large, "malformed"),
                (first, "older"),
                (b'{"version": 2, "epoch": "new"}', "later_layout"),
            ):
                ignored = sidecar.features._controller.topic.ignored
                count = ignored[reason]
                write(clean, FEATURES_KEY, value)
                await until_async(lambda now=(ignored, reason, count + 1): now[0][now[1]] == now[2])  # type: ignore[misc]
                assert sidecar.level[AUDIT_EVENT_SCHEMA] == 2, value
            assert sidecar.views[-1].epoch >= 1
    reasons = [one["reason"] for one in logs if one["event"] == "features_record_ignored"]
    assert reasons == ["malformed", "older", "later_layout"]


@pytest.mark.promise("security.md", "With keys, records of feature levels that no sidecar has signed are ignored.")
async def test_records_that_nobody_has_signed_are_ignored(clean: ClusterState) -> None:
    keys = "one:" + 32 * "k"
    forged = encode(FinalizedFeatures(900, {AUDIT_EVENT_SCHEMA: FinalizedRange(9, 9)}))
    of_registry = Authenticator(REGISTRY_LABEL, read_keys(keys)).header(FEATURES_KEY, forged)
    with capture_logs() as logs:
        async with running(sidecar := FeatureSidecar(clean.nodes[0], registry={"hmac.keys.file": Secret(keys)})):
            await until_async(lambda: sidecar.state == "serving")
            producer = Producer({"bootstrap.servers": clean.internal_bootstrap})
            for headers in ([], [of_registry]):
                producer.produce(FEATURES, key=FEATURES_KEY, value=forged, partition=0, headers=headers)
            assert producer.flush(60) == 0
            await until_async(lambda: len([one for one in logs if one["event"] == "features_record_ignored"]) >= 2)
            assert sidecar.views[-1].epoch < 900
            assert sidecar.level[AUDIT_EVENT_SCHEMA] == 2
    reasons = {one["reason"] for one in logs if one["event"] == "features_record_ignored"}
    assert reasons == {"unsigned", "bad_signature"}


# ---- whole sidecars --------------------------------------------------------------------------------------------------


def status(sidecar: SidecarProcess) -> Mapping[str, Any]:
    """``GET /features``."""
    found: dict[str, Any] = json.loads(sidecar._get("features"))
    return found


@pytest.mark.slow
@pytest.mark.promise(
    "features.md", "A sidecar with `features.enabled: false` neither shows nor follows feature levels."
)
def test_a_sidecar_without_features_keeps_none(clean: ClusterState, tmp_path: Path) -> None:
    config = broker.sidecar_config(clean.nodes[0]) | {"features": {"enabled": False}}
    with sidecars.running(config, tmp_path) as sidecar:
        assert (status(sidecar)["reason"], status(sidecar)["supported"]) == ("features.enabled is false", {})
        assert not re.search("^brokerside_feature", sidecar.metrics(), re.MULTILINE)
        wait_until(lambda: registered(clean))
        assert all(one["features"] == {} for one in registered(clean))
    assert FEATURES not in AdminClient({"bootstrap.servers": clean.internal_bootstrap}).list_topics(timeout=20).topics


@pytest.mark.slow
@pytest.mark.promise(
    "features.md",
    "After a hot restart nobody says that the sidecar stops, and a successor that cannot take over leaves no trace.",
)
def test_a_successor_takes_over_and_nobody_says_that_the_sidecar_stops(clean: ClusterState, tmp_path: Path) -> None:
    node = clean.nodes[0]
    takeover = {"takeover.socket.path": str(tmp_path / "takeover.sock"), "workers": 2}
    config, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    config.write_text(yaml.safe_dump(good := broker.sidecar_config(node) | takeover))
    bind, nobody = (f"{HOST}:{port}" for port in free_ports(2))
    listener = good["listeners"][0]
    lost = {**listener, "name": "LOST", "bind": bind, "advertised": bind, "upstream": nobody}
    bad.write_text(yaml.safe_dump(good | {"listeners": [listener, lost]}))
    first = SidecarProcess.start(config, tmp_path / "first.log", node.admin)
    command = [sys.executable, "-m", "proxy", "run", "--takeover", "-c"]
    log = tmp_path / "second.log"
    started = []
    try:
        wait_until(lambda: status(first)["applied_epoch"] == status(first)["epoch"] >= 1)
        started.append(failing := process.spawn([*command, str(bad)], tmp_path / "failing.log"))
        wait_until(lambda: not failing.alive())
        assert "not ready to take over" in (tmp_path / "failing.log").read_text()
        assert len({one["boot_id"] for one in registered(clean)}) == 1, "it has written nothing"
        second = SidecarProcess(process.spawn([*command, str(config)], log), config, log, node.admin)
        started.append(second.process)
        wait_until(lambda: not first.process.alive() and '"took_over"' in log.read_text())
        wait_until(lambda: '"change": "taken"' in log.read_text())
        found = status(second)
        assert found["loaded"]
        wait_until(lambda: status(second)["applied_epoch"] == found["epoch"])
        records = registered(clean)
        assert {one["state"] for one in records} == {"running"}
        boots = [one["boot_id"] for one in records]
        assert len(set(boots)) == 2
        assert boots == sorted(boots, key=boots.index), "the first one had ended to write when the second began"
        assert second.stop()
    finally:
        process.stop([first.process, *started], 20)
    assert registered(clean)[-1]["state"] == "stopped"


# ---- without a right ------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
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
                await until_async(lambda sidecar=sidecar: sidecar.state == "serving")
                level = sidecar.level[AUDIT_EVENT_SCHEMA]
                wanted = (1, SAFE_DOWNGRADE) if level == 2 else (2,)
                await asyncio.to_thread(site.revoke, acl)
                denied = await sidecar.update(AUDIT_EVENT_SCHEMA, *wanted, timeout_ms=12_000)
                assert denied.error_code == FEATURE_UPDATE_FAILED, (logged, denied)
                assert sidecar.level[AUDIT_EVENT_SCHEMA] == level, logged
                assert sidecar.problems[-1] is None, logged
                await asyncio.to_thread(site.allow, acl)
                for _ in range(30):  # until the sidecar has found out that it has the right again
                    await until_async(lambda sidecar=sidecar: sidecar.state == "serving")
                    if (await sidecar.update(AUDIT_EVENT_SCHEMA, *wanted)).error_code == NONE:
                        break
                assert sidecar.level[AUDIT_EVENT_SCHEMA] == wanted[0], logged
                ended = len(logs)
        found = [one for one in logs[:ended] if one["event"] == logged and one.get("change") != "taken"]
        assert len(found) == 1, (logged, found)


@pytest.mark.slow
@pytest.mark.promise(
    "features.md",
    "A sidecar without the right to read the levels is ready, uses level 1, and follows them once it may.",
)
async def test_a_sidecar_that_cannot_read_the_levels_is_ready_and_uses_level_1(
    site: SharedBroker, settings: dict[str, Any]
) -> None:
    """However long it takes. Whoever asks for an update learns that it does not follow."""
    async with running(first := FeatureSidecar(site.node, **settings)):
        await until_async(lambda: first.state == "serving")
        await first.update(AUDIT_EVENT_SCHEMA, 2)
        assert first.level[AUDIT_EVENT_SCHEMA] == 2
    site.allow(may(AclOperation.READ, name=REGISTRY))
    site.revoke(READ)
    async with running(sidecar := FeatureSidecar(site.node, **settings)):
        await until_async(lambda: sidecar.problems == [NOT_LOADED, None])
        await until_async(lambda: any(one.running for one in sidecar.features.status().participants))
        await asyncio.sleep(3)
        found = sidecar.features.status()
        assert (found.loaded, found.epoch, found.applied_epoch) == (False, -1, -1)
        assert found.participants[0].applied_epoch == -1
        assert {view.levels[AUDIT_EVENT_SCHEMA] for view in sidecar.views} == {1}
        await asyncio.to_thread(site.allow, READ)
        await until_async(lambda: sidecar.level[AUDIT_EVENT_SCHEMA] == 2)
        await until_async(lambda: sidecar.features.status().applied_epoch == sidecar.features.status().epoch)
        assert sidecar.problems == [NOT_LOADED, None]
