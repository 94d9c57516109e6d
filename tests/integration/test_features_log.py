"""Feature versions on a real cluster: who writes them, who follows them, and what happens when something is away."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from proxy.core.protected_topics import FEATURES, REGISTRY
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED, LevelRange
from proxy.features.records import (
    CONTROLLER_KEY,
    FEATURES_KEY,
    SAFE_DOWNGRADE,
    FinalizedFeatures,
    FinalizedRange,
    PendingUpdate,
    ReaderRecord,
    SupportedRange,
    decode,
    encode,
    reader_key,
)
from proxy.features.updates import ENDING, FEATURE_UPDATE_FAILED, INVALID_UPDATE_VERSION, NONE
from proxy.fleet.applied_epoch import AuditLevels
from proxy.fleet.compacted_topic import CompactedTopic
from proxy.fleet.feature_poller import TRANSACTIONAL_ID
from proxy.fleet.feature_updates import NO_ANSWER
from proxy.fleet.fenced_writer import FencedWriter
from proxy.fleet.topic_client import TopicError
from proxy.fleet.topic_spec import FEATURES_TOPIC, TopicSpec
from proxy.local import cluster as local_cluster
from proxy.local import process
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState
from tests.integration.feature_sidecars import FeatureSidecar, committed, delete_topics, running, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

OLD = {**SUPPORTED, AUDIT_EVENT_SCHEMA: LevelRange(1, 1)}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterState]:
    folder = tmp_path_factory.mktemp("cluster")
    yield local_cluster.up(folder, progress=False)
    local_cluster.down(folder)


@pytest.fixture
def clean(state: ClusterState) -> Iterator[ClusterState]:
    """A cluster without the sidecars' topics."""
    yield state
    delete_topics(AdminClient({"bootstrap.servers": state.internal_bootstrap}), FEATURES, REGISTRY, "other")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new fleet waits for its sidecars for one second instead of ten."""
    monkeypatch.setattr("proxy.features.controller.BOOTSTRAP_AFTER_MS", 1000)


def finalized(state: ClusterState) -> list[FinalizedFeatures]:
    """All records of the finalized levels, intents among them."""
    found = [decode(key, value) for key, value in committed(state.internal_bootstrap) if key == FEATURES_KEY and value]
    return [one for one in found if isinstance(one, FinalizedFeatures)]


def write(state: ClusterState, key: bytes, value: bytes | None, topic: str = FEATURES, **settings: Any) -> None:
    """Write a record as somebody who may."""
    producer = Producer({"bootstrap.servers": state.internal_bootstrap, **settings})
    if settings:
        producer.init_transactions(60)
        producer.begin_transaction()
    producer.produce(topic, key=key, value=value, partition=0)
    assert producer.flush(60) == 0
    if settings:
        producer.commit_transaction(60)


async def test_a_new_fleet_finalizes_the_levels_that_all_support(clean: ClusterState) -> None:
    sidecar = FeatureSidecar(clean.nodes[0])
    async with running(sidecar):
        await until(lambda: sidecar.features.status().applied_epoch == 1)
        assert sidecar.level == {name: levels.max for name, levels in SUPPORTED.items()}
        assert sidecar.views[0].finalized == {}
        assert sidecar.views[-1].finalized == {name: LevelRange(1, levels.max) for name, levels in SUPPORTED.items()}
        assert (sidecar.views[-1].epoch, sidecar.views[-1].is_controller) == (1, True)
        assert sidecar.problems[-1] is None
        registered = [json.loads(value or b"") for _, value in committed(clean.internal_bootstrap, REGISTRY)]
    assert [key for key, _ in committed(clean.internal_bootstrap)] == [CONTROLLER_KEY, FEATURES_KEY, FEATURES_KEY]
    # Registered first, read after: the first record has all that this sidecar supports, and follows nothing.
    assert (registered[0]["features"][AUDIT_EVENT_SCHEMA], registered[0]["applied_epoch"]) == (
        {"min_version": 1, "max_version": 2},
        -1,
    )
    assert (registered[-1]["applied_epoch"], registered[-1]["holds"]) == (1, {"features/0": 1})
    assert registered[-1]["tags"]["brokerside.features.epoch"] == "1"
    [*_, (_, last)] = committed(clean.internal_bootstrap, REGISTRY)
    assert json.loads(last or b"")["state"] == "stopped"


async def test_updates_are_in_force_when_they_are_answered(clean: ClusterState) -> None:
    sidecar = FeatureSidecar(clean.nodes[0])
    async with running(sidecar):
        await until(lambda: sidecar.state == "serving")
        lowered = await sidecar.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)
        assert (lowered.error_code, sidecar.level[AUDIT_EVENT_SCHEMA]) == (NONE, 1)

        assert (await sidecar.update(AUDIT_EVENT_SCHEMA, 2, dry_run=True)).error_code == NONE
        assert sidecar.level[AUDIT_EVENT_SCHEMA] == 1

        raised = await sidecar.update(AUDIT_EVENT_SCHEMA, 2)
        assert (raised.error_code, sidecar.level[AUDIT_EVENT_SCHEMA]) == (NONE, 2)

        refused = await sidecar.update(AUDIT_EVENT_SCHEMA, 3)
        assert refused.error_code == INVALID_UPDATE_VERSION
        assert refused.message is not None
        assert "sidecar 1 (0.1.0) supports 1 to 2; asked: 3" in refused.message
        assert (await sidecar.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE, timeout_ms=0)).error_code == (
            FEATURE_UPDATE_FAILED
        )
        assert sidecar.features.status().updates == {"ok": 3, "refused": 1, "failed": 1}
        await until(lambda: sidecar.features.status().epoch == 3)  # its answer came too late, and the level is written
    assert [(one.epoch, one.pending is None) for one in finalized(clean)] == [
        (0, False), (1, True), (1, False), (2, True), (2, False), (3, True),
    ]  # fmt: skip


async def test_a_downgrade_waits_until_nothing_above_is_left_to_deliver(clean: ClusterState) -> None:
    sidecar = FeatureSidecar(clean.nodes[0])
    async with running(sidecar):
        await until(lambda: sidecar.state == "serving" and sidecar.features.status().applied_epoch == 1)
        sidecar.audit = AuditLevels({1: 1}, {1: 3, 2: 40})
        late = await sidecar.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE, timeout_ms=6000)
        assert late.error_code == FEATURE_UPDATE_FAILED
        assert late.message == (
            f"{AUDIT_EVENT_SCHEMA} is finalized at epoch 2; not applied yet by sidecar 1 "
            "(40 events of a higher level to deliver)"
        )
        assert sidecar.features.status().undelivered_above == 40
        before = sidecar.asked
        await asyncio.sleep(3)
        assert sidecar.asked - before < 10, "the audit topic may be away for long"

        sidecar.audit = AuditLevels({1: 1}, {1: 3})
        await until(lambda: sidecar.features.status().applied_epoch == 2)
        assert sidecar.features.status().undelivered_above == 0


def registered(state: ClusterState) -> list[dict[str, Any]]:
    """All records of sidecars in the registry."""
    return [json.loads(value or b"{}") for _, value in committed(state.internal_bootstrap, REGISTRY)]


async def test_a_successor_registers_once_its_predecessor_does_not_and_applies_levels_with_it(
    clean: ClusterState,
) -> None:
    draining, successor = FeatureSidecar(clean.nodes[0]), FeatureSidecar(clean.nodes[0], inherits=True)
    async with running(draining):
        await until(lambda: draining.state == "serving" and draining.features.status().applied_epoch == 1)
        async with running(successor):
            await until(lambda: successor.problems[-1:] == [None])  # it fits, as far as it has read the levels
            await asyncio.sleep(4)  # longer than from one record to the next
            assert not successor.features.status().loaded
            assert {one["boot_id"] for one in registered(clean)} == {draining.fleet.boot_id}

            draining.audit = AuditLevels({2: 1}, {2: 7})
            await draining.hand_over(successor)
            assert (await draining.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)) == ENDING
            await until(lambda: successor.state == "serving")
            draining.audit = AuditLevels({1: 1}, {2: 7})
            late = await successor.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE, timeout_ms=6000)
            assert late.message is not None
            assert late.message.endswith("not applied yet by sidecar 1 (7 events of a higher level to deliver)")
            assert draining.views[-1].levels[AUDIT_EVENT_SCHEMA] == 1
            assert draining.state == "away"
            draining.audit = None
            await until(lambda: successor.features.status().applied_epoch == 2)

            draining.audit = AuditLevels({2: 1}, {2: 7})  # the last events, which its disk keeps
            assert (await successor.update(AUDIT_EVENT_SCHEMA, 2)).error_code == NONE
            successor.audit = AuditLevels({1: 1}, {2: 0}, time.monotonic())
            await draining.features.close()
            successor.succession.predecessor_ended()
            late = await successor.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE, timeout_ms=6000)
            assert late.error_code == FEATURE_UPDATE_FAILED, "nobody has searched the disk since"
            successor.audit = AuditLevels({1: 1}, {2: 7}, time.monotonic())
            await until(lambda: successor.features.status().undelivered_above == 7)
            assert successor.features.status().applied_epoch == 3
            successor.audit = AuditLevels({1: 1}, {2: 0}, time.monotonic())
            await until(lambda: successor.features.status().applied_epoch == 4)
    boots = [one["boot_id"] for one in registered(clean)]
    first = boots.count(draining.fleet.boot_id)
    assert boots == first * [draining.fleet.boot_id] + (len(boots) - first) * [successor.fleet.boot_id]


async def test_a_successor_that_does_not_fit_is_not_ready_and_leaves_no_trace(clean: ClusterState) -> None:
    async with running(new := FeatureSidecar(clean.nodes[0])):
        await until(lambda: new.features.status().applied_epoch == 1)
        async with running(old := FeatureSidecar(clean.nodes[0], OLD, inherits=True)):
            await until(lambda: "1 to 1 are supported, finalized are 1 to 2" in str(old.problems[-1:]))
        assert new.state == "serving"
        assert (await new.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)).error_code == NONE
    assert {one["boot_id"] for one in registered(clean)} == {new.fleet.boot_id}


async def test_readers_block_what_they_do_not_support(clean: ClusterState) -> None:
    sidecar = FeatureSidecar(clean.nodes[0])
    async with running(sidecar):
        await until(lambda: sidecar.state == "serving")
        await sidecar.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)
        reader = ReaderRecord({AUDIT_EVENT_SCHEMA: SupportedRange(1, 1)}, software="0.1.0")
        write(clean, reader_key("tables"), encode(reader), REGISTRY)
        refused = await sidecar.update(AUDIT_EVENT_SCHEMA, 2)
        assert refused.error_code == INVALID_UPDATE_VERSION
        assert refused.message is not None
        assert "reader tables (0.1.0) supports 1 to 1; asked: 2" in refused.message
        [blocking] = [one for one in sidecar.features.status().participants if one.blocks]
        assert (blocking.name, blocking.blocks) == ("reader/tables", {AUDIT_EVENT_SCHEMA: "supports 1 to 1, not 2"})

        write(clean, reader_key("tables"), None, REGISTRY)
        assert (await sidecar.update(AUDIT_EVENT_SCHEMA, 2)).error_code == NONE


async def test_a_sidecar_that_does_not_fit_is_not_ready_and_one_that_was_says_so(clean: ClusterState) -> None:
    async with running(new := FeatureSidecar(clean.nodes[0])):
        await until(lambda: new.features.status().applied_epoch == 1)
    with capture_logs() as logs:
        async with running(old := FeatureSidecar(clean.nodes[0], OLD)):
            await until(lambda: old.features.status().loaded)
            assert old.problems[-1] == (
                f"feature {AUDIT_EVENT_SCHEMA}: 1 to 1 are supported, finalized are 1 to 2; run a release that "
                "supports them, or lower them first: brokerside features downgrade"
            )
            assert old.level[AUDIT_EVENT_SCHEMA] == 1
            await until(lambda: old.state == "serving")
            assert (await old.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)).error_code == NONE
            assert old.problems[-1] is None
    assert [one["feature"] for one in logs if one["event"] == "features_incompatible"] == [AUDIT_EVENT_SCHEMA]


async def test_an_intent_that_a_controller_left_behind_is_withdrawn(clean: ClusterState) -> None:
    """Another writer fences the controller, as a successor would, and leaves an intent."""
    with capture_logs() as logs:
        async with running(sidecar := FeatureSidecar(clean.nodes[0])):
            await until(lambda: sidecar.state == "serving")
            before = finalized(clean)[-1]
            intent = PendingUpdate("ab" * 16, {AUDIT_EVENT_SCHEMA: FinalizedRange(1, 1)})
            left = FinalizedFeatures(before.epoch, before.features, intent)
            await asyncio.to_thread(write, clean, FEATURES_KEY, encode(left), **{"transactional.id": TRANSACTIONAL_ID})
            await until(lambda: sidecar.features.status().record == left)
            answer = await sidecar.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)
            await until(lambda: sidecar.state == "serving")
            after = finalized(clean)
            assert (await sidecar.update(AUDIT_EVENT_SCHEMA, 2)).error_code == NONE
    assert answer.error_code in (NONE, FEATURE_UPDATE_FAILED)
    changes = [one["change"] for one in logs if one["event"] == "feature_controller"]
    assert changes == ["taken", "lost", "taken", "lost"]
    withdrawn = after[after.index(left) + 1]
    assert (withdrawn.epoch, withdrawn.features, withdrawn.pending) == (before.epoch, before.features, None)


async def test_an_earlier_record_that_is_written_again_is_replaced(clean: ClusterState) -> None:
    """With keys it is all that somebody else can do. A sidecar that starts later does not see it any more."""
    with capture_logs() as logs:
        async with running(sidecar := FeatureSidecar(clean.nodes[0])):
            await until(lambda: sidecar.state == "serving")
            earlier = next(value for key, value in committed(clean.internal_bootstrap) if key == FEATURES_KEY and value)
            assert (await sidecar.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)).error_code == NONE
            before = len(sidecar.views)
            write(clean, FEATURES_KEY, earlier)
            await until(lambda: sidecar.features.status().applied_epoch == 3)
            assert {view.levels[AUDIT_EVENT_SCHEMA] for view in sidecar.views[before:]} == {1}
            restored = finalized(clean)[-1]
    assert (restored.epoch, restored.features[AUDIT_EVENT_SCHEMA].max_version_level) == (3, 1)
    assert [one["reason"] for one in logs if one["event"] == "features_record_ignored"] == ["older"]


async def test_levels_stay_while_the_topic_is_away_and_are_written_again(clean: ClusterState) -> None:
    with capture_logs() as logs:
        async with running(sidecar := FeatureSidecar(clean.nodes[0])):
            await until(lambda: sidecar.state == "serving")
            assert (await sidecar.update(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)).error_code == NONE
            admin = AdminClient({"bootstrap.servers": clean.internal_bootstrap})
            admin.delete_topics([FEATURES])[FEATURES].result(30)
            await until(lambda: sidecar.features.status().applied_epoch == 3)
            assert {view.levels[AUDIT_EVENT_SCHEMA] for view in sidecar.views if view.epoch >= 2} == {1}
            assert (await sidecar.update(AUDIT_EVENT_SCHEMA, 2)).error_code == NONE
    assert [one.epoch for one in finalized(clean)][-1] == 4
    unavailable = [one["event"] for one in logs if one["event"] in ("features_unavailable", "features_back")]
    assert unavailable in ([], ["features_unavailable", "features_back"])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"junk", "malformed"),
        (b'{"version": 2, "epoch": "new"}', "later_layout"),
        (encode(FinalizedFeatures(9, {})) + 300_000 * b" ", "malformed"),
    ],
)
async def test_a_record_that_cannot_be_read_changes_nothing_and_is_logged_once(
    clean: ClusterState, value: bytes, reason: str
) -> None:
    with capture_logs() as logs:
        async with running(sidecar := FeatureSidecar(clean.nodes[0])):
            await until(lambda: sidecar.features.status().applied_epoch == 1)
            for _ in range(2):
                write(clean, FEATURES_KEY, value)
            await until(lambda: sidecar.features._controller.topic.ignored[reason] == 2)
            assert sidecar.level[AUDIT_EVENT_SCHEMA] == 2
            assert sidecar.views[-1].epoch >= 1
    assert [one["reason"] for one in logs if one["event"] == "features_record_ignored"] == [reason]


async def test_without_a_cluster_levels_are_1_and_updates_fail(state: ClusterState) -> None:
    with capture_logs() as logs:
        async with running(sidecar := FeatureSidecar(state.nodes[0], **{"internal.bootstrap.servers": "127.0.0.1:1"})):
            assert set(sidecar.level.values()) == {1}
            answer = await sidecar.update(AUDIT_EVENT_SCHEMA, 2, timeout_ms=7000)
            assert (answer.error_code, answer.message) == (FEATURE_UPDATE_FAILED, NO_ANSWER)
            # Not ready for a while only: clients do not wait for it.
            assert sidecar.problems == ["features: the finalized levels are not known yet", None]
            assert sidecar.views[-1].finalized == {}
    assert [one["event"] for one in logs if one["event"].startswith("features_")] == ["features_unavailable"]


class Writers:
    """Fenced writers of one topic, and what became of them."""

    def __init__(self, state: ClusterState) -> None:
        self.settings = {"bootstrap.servers": state.internal_bootstrap, "client.id": "test"}
        self.lost: list[str] = []

    async def begun(self) -> FencedWriter:
        writer = FencedWriter(FEATURES_TOPIC, "brokerside-features-0", self.settings, None, self.lost.append)
        begun = asyncio.Event()
        writer.start(begun.set)
        await asyncio.wait_for(begun.wait(), 60)
        return writer

    async def write(self, writer: FencedWriter, **records: str | None) -> str | None:
        done = asyncio.get_running_loop().create_future()
        encoded = {key.encode(): None if value is None else value.encode() for key, value in records.items()}
        writer.write(encoded, lambda error, began: done.set_result(error))
        found: str | None = await asyncio.wait_for(done, 60)
        return found


async def test_a_writer_is_fenced_by_the_next_one(clean: ClusterState) -> None:
    writers = Writers(clean)
    topic = await asyncio.to_thread(CompactedTopic, FEATURES_TOPIC, writers.settings)
    one = await writers.begun()
    assert await writers.write(one, a="1", b="2") is None
    other = await writers.begun()
    one.write({b"a": b"3"}, lambda error, began: pytest.fail(f"it was written: {error}"))
    await until(lambda: writers.lost)
    assert await writers.write(other, a=None) is None
    assert "fenced" in writers.lost[0]
    assert committed(clean.internal_bootstrap) == [(b"a", b"1"), (b"b", b"2"), (b"a", None)]
    one.stop()
    other.stop()
    topic.close(0)


async def test_a_write_is_aborted_where_the_topic_is_missing_and_the_writer_goes_on(clean: ClusterState) -> None:
    writers = Writers(clean)
    writer = await writers.begun()
    error = await writers.write(writer, a="1")
    assert error is not None
    assert error.startswith(FEATURES)
    topic = await asyncio.to_thread(CompactedTopic, FEATURES_TOPIC, writers.settings)
    deadline = time.monotonic() + 60
    while await writers.write(writer, a="2") is not None:
        assert time.monotonic() < deadline
    assert writers.lost == []
    assert committed(clean.internal_bootstrap) == [(b"a", b"2")]
    writer.stop()
    topic.close(0)


async def test_a_topic_is_read_to_an_end_that_ends_of_transactions_are_part_of(clean: ClusterState) -> None:
    writers = Writers(clean)
    topic = await asyncio.to_thread(CompactedTopic, FEATURES_TOPIC, writers.settings)
    writer = await writers.begun()
    assert await writers.write(writer, a="1") is None
    found, deadline = [], time.monotonic() + 60
    # Kafka acknowledges a transaction before its records are there for readers.
    while not found or topic.position < await asyncio.to_thread(topic.end):
        found += (await asyncio.to_thread(topic.read, 0.5))[0]
        assert time.monotonic() < deadline
    assert (topic.position, await asyncio.to_thread(topic.end)) == (2, 2)
    assert [(one.key, one.value) for one in found] == [(b"a", b"1")]
    assert abs((found[0].at or 0) - time.time() * 1000) < 60_000
    writer.stop()
    topic.close(0)


async def test_a_topic_that_was_made_again_is_not_read_as_the_same(clean: ClusterState) -> None:
    spec = TopicSpec("other", "label")
    settings = {"bootstrap.servers": clean.internal_bootstrap, "client.id": "test"}
    topic = await asyncio.to_thread(CompactedTopic, spec, settings)
    write(clean, b"a", b"1", "other")
    deadline = time.monotonic() + 60
    while not topic.position:
        await asyncio.to_thread(topic.read, 0.5)
        assert time.monotonic() < deadline
    admin = AdminClient({"bootstrap.servers": clean.internal_bootstrap})
    admin.delete_topics(["other"])["other"].result(30)

    def read_on() -> None:
        while time.monotonic() < deadline:
            topic.read(0.5)
            topic.end()

    with pytest.raises(TopicError, match=r"^other: "):
        await asyncio.to_thread(read_on)
    topic.close(0)


def test_what_cannot_be_written_is_reported_and_the_topic_is_used_on(clean: ClusterState) -> None:
    settings = {"bootstrap.servers": clean.internal_bootstrap, "client.id": "test"}
    topic = CompactedTopic(TopicSpec("other", "other"), settings)
    outcomes: list[str | None] = []
    topic.write(b"large", bytes(2_000_000), outcomes.append)
    assert outcomes == ["Unable to produce message: Broker: Message size too large"]
    topic.write(b"key", b"value", outcomes.append)
    topic.close(60)
    assert outcomes[1:] == [None]
    assert committed(clean.internal_bootstrap, "other") == [(b"key", b"value")]


def test_a_topic_whose_producer_has_failed_for_good_has_to_be_opened_again(clean: ClusterState) -> None:
    """A fatal error, as of an operator's ``enable.idempotence``; here another transactional producer causes it."""
    settings = {"bootstrap.servers": clean.internal_bootstrap, "client.id": "test", "transactional.id": "test"}
    topic = CompactedTopic(TopicSpec("other", "other"), settings)
    topic._producer.init_transactions(60)
    topic._producer.begin_transaction()
    Producer({"bootstrap.servers": clean.internal_bootstrap, "transactional.id": "test"}).init_transactions(60)
    outcomes: list[str | None] = []
    deadline = time.monotonic() + 60

    def write_on() -> None:
        while time.monotonic() < deadline:
            topic.write(b"key", b"value", outcomes.append)
            time.sleep(0.05)

    with pytest.raises(TopicError, match=r"^other: .*fenced"):
        write_on()
    topic.close(0)
    assert outcomes
    assert None not in outcomes


def test_what_a_sidecar_creates(state: ClusterState, tmp_path: Path) -> None:
    """The settings of the topic, as the broker has them."""
    from confluent_kafka.admin import ConfigResource

    settings = {"bootstrap.servers": state.internal_bootstrap, "client.id": "test"}
    CompactedTopic(FEATURES_TOPIC, settings).close(0)
    admin = AdminClient({"bootstrap.servers": state.internal_bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, FEATURES)
    found = admin.describe_configs([resource])[resource].result(20)
    wanted = ("cleanup.policy", "message.timestamp.type", "segment.bytes", "min.cleanable.dirty.ratio")
    assert [found[name].value for name in (*wanted, "compression.type", "min.insync.replicas")] == [
        "compact", "LogAppendTime", "1048576", "0.1", "uncompressed", "1",
    ]  # fmt: skip


def test_a_successor_that_cannot_take_over_does_not_say_that_the_sidecar_stops(
    clean: ClusterState, tmp_path: Path
) -> None:
    """Its predecessor continues: it would count as gone, and raises of levels would be refused."""
    node = clean.nodes[0]
    config = yaml.safe_load((node.home.parent / "sidecar-1.yaml").read_text())
    config["takeover.socket.path"] = str(tmp_path / "takeover.sock")
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(yaml.safe_dump(config))
    bind, nobody = (f"{HOST}:{port}" for port in free_ports(2))
    lost = {**config["listeners"][0], "name": "LOST", "bind": bind, "advertised": bind, "upstream": nobody}
    bad.write_text(yaml.safe_dump({**config, "listeners": [*config["listeners"], lost]}))
    first = SidecarProcess.start(good, tmp_path / "first.log", node.admin)
    second = None
    try:
        command = [sys.executable, "-m", "proxy", "run", "--takeover", "-c", str(bad)]
        second = process.spawn(command, tmp_path / "second.log")
        deadline = time.monotonic() + 60
        while second.alive():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        said = (tmp_path / "second.log").read_text()
        assert "not ready to take over" in said, said
        written = registered(clean)
        assert len({one["boot_id"] for one in written}) == 1, "the successor has written nothing"
        assert {one["state"] for one in written} == {"running"}
    finally:
        process.stop([first.process, *([second] if second is not None else [])], 20)
