"""Feature versions of a whole fleet: three brokers, three sidecars as processes, and clients that update levels."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient

from proxy.core.protected_topics import FEATURES
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, QUOTA_IP, SUPPORTED
from proxy.features.records import CONTROLLER_KEY, SAFE_DOWNGRADE, FeatureUpdate
from proxy.features.updates import FEATURE_UPDATE_FAILED, INVALID_UPDATE_VERSION, NONE, UpdateRequest, UpdateResult
from proxy.fleet.election import holder
from proxy.fleet.membership import MEMBER_DEAD_AFTER_MS
from proxy.fleet.registered_features import LOG
from proxy.interceptors.update_features import UPDATE_FEATURES, encode_request
from proxy.local import cluster, workload
from proxy.local.tools import tool
from tests.integration.feature_fleet import FeatureFleet, Load, check_records, feature_fleet, wait_until
from tests.integration.feature_sidecars import committed_messages
from tests.integration.quotas import Peer
from tests.tools.kafka_tools import KafkaTools
from tests.tools.killed_controller import INSTANTS, STOPPED

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

RAISE = FeatureUpdate(AUDIT_EVENT_SCHEMA, 2)
LOWER = FeatureUpdate(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)
HIGHEST = {name: levels.max for name, levels in SUPPORTED.items()}
DONE = UpdateResult(NONE)
BROKERS = (1, 2, 3)

OLDER = ("-m", "tests.tools.older_release", f"{AUDIT_EVENT_SCHEMA}=1-1", "--")
"""A sidecar of a release that does not know level 2."""

KILLS = 50 if os.environ.get("FEATURES_FULL") else len(INSTANTS)
"""How often the controller is killed: FEATURES_FULL=1 does it 50 times."""


STOPPED_FOR = 30 if os.environ.get("FAULTS_FULL") else 0
"""Seconds that the controller is stopped at least; in any case until another one has taken its place."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureFleet]:
    """Its controller dies where ``order`` says; else all sidecars run all the time."""
    with feature_fleet(tmp_path_factory.mktemp("features"), audit={"mode": "rollup"}) as made:
        made.start(*BROKERS, program=deadly(made))
        wait_until(lambda: made.applied() == {1})
        yield made
        check_records(made.records())


def deadly(fleet: FeatureFleet) -> tuple[str, ...]:
    """A sidecar whose controller kills itself where the file ``order`` in the cluster's folder says."""
    return ("-m", "tests.tools.killed_controller", str(fleet.folder / "order"))


@contextmanager
def frozen(fleet: FeatureFleet, broker_id: int) -> Iterator[None]:
    """Stop the process of a sidecar for the block."""
    pid = fleet.sidecars[broker_id].process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def bystander(fleet: FeatureFleet) -> int:
    """A sidecar that is not the controller."""
    return next(broker_id for broker_id in BROKERS if not fleet.is_controller(broker_id))


def all_run(fleet: FeatureFleet) -> bool:
    """Whether each sidecar finds that all run."""
    return all(fleet.runs(one, asked) for one in BROKERS for asked in BROKERS)


def next_controller(fleet: FeatureFleet, killed: int) -> int:
    """Broker id of the sidecar that is to be the controller after another one."""
    admin = AdminClient({"bootstrap.servers": fleet.state.internal_bootstrap})
    leader = admin.list_topics(FEATURES, timeout=20).topics[FEATURES].partitions[0].leader
    found = holder(LOG, 0, leader, {*BROKERS} - {killed})
    assert found is not None
    return found


def level_of(fleet: FeatureFleet) -> int:
    return fleet.finalized().features[AUDIT_EVENT_SCHEMA].max_version_level


def test_a_new_fleet_finalizes_the_highest_levels(fleet: FeatureFleet) -> None:
    assert [fleet.shown(broker_id) for broker_id in BROKERS] == [HIGHEST] * 3
    assert [fleet.is_controller(broker_id) for broker_id in BROKERS].count(True) == 1
    assert fleet.finalized().epoch == 1


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_update_through_any_sidecar_is_seen_at_all_at_once(fleet: FeatureFleet, version: int) -> None:
    epoch = fleet.finalized().epoch
    for broker_id in BROKERS:
        for change in (LOWER, RAISE):
            assert fleet.update(broker_id, change, version=version) == DONE
            assert [fleet.shown(one)[AUDIT_EVENT_SCHEMA] for one in BROKERS] == [change.level] * 3
    assert fleet.finalized().epoch == epoch + 6
    again = fleet.update(1, RAISE, version=version)
    assert again.error_code == (INVALID_UPDATE_VERSION if version == 0 else NONE), (
        "version 0 refuses what is so already"
    )
    assert fleet.finalized().epoch == epoch + 6


def test_metrics_show_one_controller_and_the_levels(fleet: FeatureFleet) -> None:
    wait_until(lambda: any(fleet.is_controller(one) for one in BROKERS))
    pages = [fleet.sidecars[broker_id].metrics() for broker_id in BROKERS]
    epoch = fleet.finalized().epoch
    level = f'brokerside_feature_level{{feature="{AUDIT_EVENT_SCHEMA}",bound='
    for name, wanted in (
        ("brokerside_features_controller ", [0, 0, 1]),
        ("brokerside_features_loaded ", [1, 1, 1]),
        ("brokerside_features_epoch ", [epoch, epoch, epoch]),
        (f'{level}"finalized_max"}} ', [2, 2, 2]),
        (f'{level}"effective"}} ', [2, 2, 2]),
    ):
        lines = [line for page in pages for line in page.splitlines() if line.startswith(name)]
        assert sorted(float(line.rsplit(" ", 1)[1]) for line in lines) == wanted, name


def test_kafkas_own_tool_works_on_the_fleet(fleet: FeatureFleet, tools: KafkaTools) -> None:
    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return tools.run("features", "--bootstrap-server", fleet.state.bootstrap, *arguments)

    def described() -> dict[str, list[str]]:
        words = [line.split() for line in ask("describe").stdout.splitlines()]
        return {one[1]: [one[3], one[5], one[7]] for one in words if one[:1] == ["Feature:"]}

    first = described()
    assert {name: first[name] for name in SUPPORTED} == {
        name: [str(levels.min), str(levels.max), str(levels.max)] for name, levels in SUPPORTED.items()
    }
    lower = ("downgrade", "--feature", f"{AUDIT_EVENT_SCHEMA}=1")
    dry = ask(*lower, "--dry-run")
    assert (dry.returncode, dry.stdout.strip()) == (0, f"{AUDIT_EVENT_SCHEMA} can be downgraded to 1.")
    assert level_of(fleet) == 2
    assert ask(*lower).returncode == 0
    assert (level_of(fleet), described()[AUDIT_EVENT_SCHEMA][2]) == (1, "1")
    assert ask("upgrade", "--feature", f"{AUDIT_EVENT_SCHEMA}=2").returncode == 0
    assert ask("disable", "--feature", QUOTA_IP).returncode == 0
    assert described()[QUOTA_IP] == ["1", "1", "0"]
    assert ask("upgrade", "--feature", f"{QUOTA_IP}=1").returncode == 0
    refused = ask("upgrade", "--feature", f"{AUDIT_EVENT_SCHEMA}=3")
    assert refused.returncode == 1
    supported = ", ".join(f"sidecar {broker_id} (0.1.0) supports 1 to 2" for broker_id in BROKERS)
    assert f"{supported}; asked: 3" in refused.stdout


def test_the_tool_of_kafka_3_9_works_on_the_fleet(fleet: FeatureFleet) -> None:
    for command, level in (("downgrade", 1), ("upgrade", 2)):
        line = tool("features", "--bootstrap-server", fleet.state.bootstrap, command, "--feature",
                    f"{AUDIT_EVENT_SCHEMA}={level}", kafka_version="3.9.2")  # fmt: skip
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, f"{AUDIT_EVENT_SCHEMA} was {command}d to {level}.")
        assert level_of(fleet) == level


def test_a_mixed_list_is_refused_whole(fleet: FeatureFleet) -> None:
    epoch = fleet.finalized().epoch
    result = fleet.update(1, LOWER, FeatureUpdate("group.version", 0, SAFE_DOWNGRADE))
    assert result.error_code == INVALID_UPDATE_VERSION
    assert result.message is not None
    assert result.message.endswith("cannot be updated in one request: group.version")
    assert fleet.finalized().epoch == epoch
    body = encode_request(UpdateRequest(2, 9000, (FeatureUpdate("group.version", 1),), validate_only=True))
    node = fleet.state.node(1)
    with Peer(node.advertised) as through, Peer(node.upstream) as direct:
        assert through.ask(UPDATE_FEATURES, 2, body) == direct.ask(UPDATE_FEATURES, 2, body), "it was left as it was"


def test_of_two_updates_at_once_one_is_done(fleet: FeatureFleet) -> None:
    late, epoch = bystander(fleet), fleet.finalized().epoch
    others = [broker_id for broker_id in BROKERS if broker_id != late]
    with ThreadPoolExecutor(1) as pool:
        with frozen(fleet, late):
            first = pool.submit(fleet.update, others[0], LOWER)
            wait_until(lambda: fleet.finalized().epoch == epoch + 1)
            second = fleet.update(others[1], RAISE)
            assert second.error_code == FEATURE_UPDATE_FAILED
            assert second.message is not None
            assert "another update is under way" in second.message
        assert first.result() == DONE
    assert fleet.update(others[1], RAISE) == DONE


def test_a_frozen_sidecar_delays_the_answer_and_not_the_level(fleet: FeatureFleet) -> None:
    late, epoch = bystander(fleet), fleet.finalized().epoch
    others = [broker_id for broker_id in BROKERS if broker_id != late]
    with frozen(fleet, late):
        result = fleet.update(others[0], LOWER, timeout_ms=4500)
        assert result.error_code == FEATURE_UPDATE_FAILED
        assert result.message is not None
        assert f"is finalized at epoch {epoch + 1}; not applied yet by sidecar {late}" in result.message
        assert [fleet.shown(broker_id)[AUDIT_EVENT_SCHEMA] for broker_id in others] == [1, 1]
    wait_until(lambda: fleet.applied() == {epoch + 1})
    assert fleet.shown(late)[AUDIT_EVENT_SCHEMA] == 1
    assert fleet.update(late, RAISE) == DONE


def test_a_killed_controller_leaves_one_outcome_wherever_it_was(fleet: FeatureFleet) -> None:
    """It is started again at once."""
    instants = [*INSTANTS, *random.Random(7).choices([*INSTANTS], k=max(KILLS - len(INSTANTS), 0))][:KILLS]
    order = fleet.folder / "order"
    for number, instant in enumerate(instants):
        controller = fleet.controller()
        wait_until(partial(fleet.is_controller, controller))
        change = LOWER if level_of(fleet) == 2 else RAISE
        order.write_text(instant)
        dying = controller
        if instant in ("opening", "claimed"):  # the next controller dies, which takes the place of this one
            dying = next_controller(fleet, controller)
            fleet.stop(controller, kill=True)
        other = next(one for one in BROKERS if one not in (controller, dying))
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(fleet.update, other, change)
            fleet.wait_for_end(dying)
            assert not order.exists(), instant
            fleet.start(*{controller, dying}, program=deadly(fleet))
            result = asked.result()
        refused = "run and cannot be asked" in (result.message or "")  # whose start took longer than 3.5 s
        assert refused or result.error_code in (NONE, FEATURE_UPDATE_FAILED), (number, instant, result)
        wait_until(lambda: any(fleet.is_controller(one) for one in BROKERS))
        wait_until(partial(all_run, fleet))
        reached = level_of(fleet) == change.level
        assert result.error_code != NONE or reached, (instant, result)
        opposite = RAISE if change is LOWER else LOWER
        assert fleet.update(other, opposite if reached else change) == DONE, instant
        wait_until(lambda: len(fleet.applied()) == 1)
    check_records(fleet.records())
    if level_of(fleet) != 2:
        assert fleet.update(1, RAISE) == DONE


def test_a_controller_that_is_stopped_before_a_write_is_fenced_and_says_so(fleet: FeatureFleet) -> None:
    """The update for which it was to write is done by the next controller."""
    wait_until(lambda: any(fleet.is_controller(one) for one in BROKERS))
    old = next(one for one in BROKERS if fleet.is_controller(one))
    others = [broker_id for broker_id in BROKERS if broker_id != old]
    claims = sum(key == CONTROLLER_KEY for key, _ in fleet.records())
    order = fleet.folder / "order"
    order.write_text(STOPPED)
    pid = fleet.sidecars[old].process.pid
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(fleet.update, others[0], LOWER)
        try:
            wait_until(lambda: not order.exists())
            stopped_at = time.monotonic()
            wait_until(lambda: any(fleet.is_controller(one) for one in others))
            assert sum(key == CONTROLLER_KEY for key, _ in fleet.records()) == claims + 1
            assert asked.result() == DONE, "who does not run is not waited for"
            time.sleep(max(stopped_at + STOPPED_FOR - time.monotonic(), 0))
        finally:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: fleet.log_events(old, "feature_controller")[-1]["change"] == "lost")
    assert "fenced" in fleet.log_events(old, "feature_controller")[-1]["reason"]
    assert not fleet.is_controller(old)
    wait_until(lambda: fleet.status(old)["applied_epoch"] == fleet.finalized().epoch)
    assert fleet.update(old, RAISE) == DONE
    check_records(fleet.records())


def test_a_killed_controller_is_replaced_before_its_silence_shows_it(fleet: FeatureFleet) -> None:
    wait_until(lambda: any(fleet.is_controller(one) for one in BROKERS))
    killed = next(one for one in BROKERS if fleet.is_controller(one))
    others = [broker_id for broker_id in BROKERS if broker_id != killed]
    before = {one: len(fleet.log_events(one, "sidecar_suspected")) for one in others}

    fleet.stop(killed, kill=True)
    assert fleet.update(others[0], LOWER) == DONE, "it is not waited for"

    new = next(one for one in others if fleet.is_controller(one))
    records = committed_messages(fleet.state.internal_bootstrap)
    claimed_at = max(one.timestamp()[1] for one in records if one.key() == CONTROLLER_KEY)
    [last_seen] = [one["last_seen"] for one in fleet.status(new)["participants"] if one["name"] == f"sidecar/{killed}"]
    assert 0 < claimed_at - last_seen < MEMBER_DEAD_AFTER_MS, "by the brokers' clocks"
    wait_until(lambda: len(fleet.log_events(new, "sidecar_suspected")) > before[new])  # its log may be late
    assert [one["broker_id"] for one in fleet.log_events(new, "sidecar_suspected")[before[new] :]] == [killed]
    refused = fleet.update(others[0], RAISE)
    assert refused.error_code == INVALID_UPDATE_VERSION
    assert f"sidecar {killed} does not run and cannot be asked" in (refused.message or "")
    fleet.start(killed, program=deadly(fleet))
    wait_until(lambda: all_run(fleet))
    assert fleet.update(others[0], RAISE) == DONE
    check_records(fleet.records())


def test_a_controller_that_ends_is_replaced_at_once_and_no_level_is_raised_without_it(fleet: FeatureFleet) -> None:
    wait_until(lambda: any(fleet.is_controller(one) for one in BROKERS))
    ended = next(one for one in BROKERS if fleet.is_controller(one))
    others = [broker_id for broker_id in BROKERS if broker_id != ended]
    assert fleet.update(ended, LOWER) == DONE

    fleet.stop(ended)
    wait_until(lambda: not fleet.runs(ended, others[0]), 8)  # it has said so: its silence would count after 9 s
    wait_until(lambda: any(fleet.is_controller(one) for one in others))
    refused = fleet.update(others[0], RAISE)
    assert refused.error_code == INVALID_UPDATE_VERSION
    assert f"sidecar {ended} does not run and cannot be asked" in (refused.message or "")

    fleet.start(ended, program=deadly(fleet))
    wait_until(lambda: all(fleet.runs(ended, one) for one in others))
    assert fleet.update(others[0], RAISE) == DONE
    check_records(fleet.records())


def test_the_broker_of_the_controller_is_killed_during_an_update(fleet: FeatureFleet) -> None:
    """Its sidecar runs on; the brokers need some 10 s to find the broker gone (``broker.session.timeout.ms``)."""
    wait_until(lambda: any(fleet.is_controller(one) for one in BROKERS))
    controller = next(one for one in BROKERS if fleet.is_controller(one))
    other = next(one for one in BROKERS if one != controller)
    order = fleet.folder / "order"
    order.write_text(STOPPED)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(fleet.update, other, LOWER)
        try:
            wait_until(lambda: not order.exists())
            cluster.stop_node(fleet.folder, controller, kill=True)
            since = time.monotonic()
        finally:
            os.kill(fleet.sidecars[controller].process.pid, signal.SIGCONT)
        results = [asked.result()]
    assert results[0].error_code in (NONE, FEATURE_UPDATE_FAILED), results
    while len(results) == 1 or results[-1] != DONE:
        results.append(fleet.update(other, RAISE if level_of(fleet) == 1 else LOWER))
        assert len(results) < 9, results
    print(f"{time.monotonic() - since:.1f} s after the controller's broker was killed: {results}")
    cluster.start_node(fleet.folder, controller)
    wait_until(lambda: fleet.applied() == {fleet.finalized().epoch})
    wait_until(lambda: all_run(fleet))
    if level_of(fleet) == 1:
        assert fleet.update(controller, RAISE) == DONE
    check_records(fleet.records())


def test_an_older_sidecar_blocks_a_raise_and_above_its_level_serves_clients_unready(fleet: FeatureFleet) -> None:
    assert fleet.update(1, LOWER) == DONE
    late = bystander(fleet)
    other = next(broker_id for broker_id in BROKERS if broker_id != late)
    fleet.stop(late)
    fleet.start(late, program=OLDER)
    refused = fleet.update(other, RAISE)
    assert refused.error_code == INVALID_UPDATE_VERSION
    assert refused.message is not None
    assert f"sidecar {late} (0.1.0) supports 1 to 1; asked: 2" in refused.message

    fleet.stop(late)
    refused = fleet.update(other, RAISE)
    assert refused.error_code == INVALID_UPDATE_VERSION
    assert refused.message is not None
    assert f"sidecar {late}" in refused.message, "it is remembered"
    forget = ("-m", "proxy", "features", "forget", f"sidecar/{late}", "--bootstrap-servers")
    done = subprocess.run(
        [sys.executable, *forget, fleet.state.internal_bootstrap],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert fleet.update(other, RAISE) == DONE

    workload.create_topics(fleet.state.internal_bootstrap, {"orders": {}}, 3)
    with workload.steady_producer(fleet.state.bootstrap, "steady", "orders") as finish:
        with Load(fleet.address(late)) as load:
            fleet.spawn(late, OLDER)
            wait_until(lambda: load.answered)
            wait_until(lambda: fleet.status(late)["loaded"])
            began = load.answered
            status, said = fleet.readiness(late)
            assert (status, said.count("1 to 1"), said.count("1 to 2")) == (503, 1, 1), said
            assert AUDIT_EVENT_SCHEMA in said
            wait_until(lambda: load.answered > began + 3000)
            assert fleet.readiness(late)[0] == 503
            [logged] = fleet.log_events(late, "features_incompatible")
            assert logged["feature"] == AUDIT_EVENT_SCHEMA
        assert load.errors == []
        fleet.stop(late)  # its clients connect again, to the release that fits
        fleet.start(late)
        counts = finish().counts
    assert counts["records"] > 0
    assert counts["rejected_records"] == 0
    wait_until(lambda: fleet.shown(late) == HIGHEST)  # it may be ready before it has read the levels
