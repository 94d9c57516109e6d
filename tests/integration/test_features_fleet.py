"""Feature versions of a whole fleet: three brokers, three sidecars as processes, and clients that update levels."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient

from proxy.core.protected_topics import FEATURES
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED
from proxy.features.records import CONTROLLER_KEY, SAFE_DOWNGRADE, FeatureUpdate
from proxy.features.updates import FEATURE_UPDATE_FAILED, INVALID_UPDATE_VERSION, NONE, UpdateResult
from proxy.fleet.election import holder
from proxy.fleet.registered_features import LOG
from proxy.local import workload
from tests.frames import METADATA
from tests.integration.feature_fleet import FeatureFleet, check_records, feature_fleet, wait_until
from tests.integration.metrics import sample
from tests.integration.quotas import Peer
from tests.tools.killed_controller import INSTANTS, STOPPED

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

RAISE = FeatureUpdate(AUDIT_EVENT_SCHEMA, 2)
LOWER = FeatureUpdate(AUDIT_EVENT_SCHEMA, 1, SAFE_DOWNGRADE)
HIGHEST = {name: levels.max for name, levels in SUPPORTED.items()}
DONE = UpdateResult(NONE)
BROKERS = (1, 2, 3)

OLDER = ("-m", "tests.tools.older_release", f"{AUDIT_EVENT_SCHEMA}=1-1", "--")
"""A sidecar of a release that does not know level 2."""


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


def next_controller(fleet: FeatureFleet, killed: int) -> int:
    """Broker id of the sidecar that is to be the controller after another one."""
    admin = AdminClient({"bootstrap.servers": fleet.state.internal_bootstrap})
    leader = admin.list_topics(FEATURES, timeout=20).topics[FEATURES].partitions[0].leader
    return holder(LOG, 0, leader, {*BROKERS} - {killed})


def is_loaded(fleet: FeatureFleet, broker_id: int) -> bool:
    with contextlib.suppress(OSError):  # it has just been started
        return bool(fleet.status(broker_id)["loaded"])
    return False


def level_of(fleet: FeatureFleet) -> int:
    return fleet.finalized().features[AUDIT_EVENT_SCHEMA].max_version_level


@pytest.mark.promise(
    "features.md", "When an update is answered, all sidecars that run follow it, whichever of them was asked."
)
def test_an_update_through_any_sidecar_is_seen_at_all_at_once(fleet: FeatureFleet) -> None:
    assert [fleet.shown(broker_id) for broker_id in BROKERS] == [HIGHEST] * 3
    assert [fleet.is_controller(broker_id) for broker_id in BROKERS].count(True) == 1
    epoch = fleet.finalized().epoch
    for broker_id, version in zip(BROKERS, (0, 1, 2), strict=True):
        for change in (LOWER, RAISE):
            assert fleet.update(broker_id, change, version=version) == DONE
            shown = [fleet.shown(one)[AUDIT_EVENT_SCHEMA] for one in BROKERS]
            assert shown == [change.level] * 3, (broker_id, version)
    assert fleet.finalized().epoch == epoch + 6
    pages = [fleet.sidecars[broker_id].metrics() for broker_id in BROKERS]
    level = "brokerside_feature_level"
    for name, labels, wanted in (
        ("brokerside_features_controller", {}, [0, 0, 1]),
        ("brokerside_features_loaded", {}, [1, 1, 1]),
        ("brokerside_features_epoch", {}, [epoch + 6] * 3),
        (level, {"feature": AUDIT_EVENT_SCHEMA, "bound": "finalized_max"}, [2, 2, 2]),
        (level, {"feature": AUDIT_EVENT_SCHEMA, "bound": "effective"}, [2, 2, 2]),
    ):
        assert sorted(sample(page, name, **labels) for page in pages) == wanted, name


@pytest.mark.promise(
    "features.md", "Wherever a controller is killed, each update has one outcome, and the next controller goes on."
)
def test_a_killed_controller_leaves_one_outcome_wherever_it_was(fleet: FeatureFleet) -> None:
    """It is started again at once."""
    order = fleet.folder / "order"
    for instant in INSTANTS:
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
            wait_until(lambda ended=fleet.sidecars[dying].process: not ended.alive())
            assert not order.exists(), instant
            fleet.start(*{controller, dying}, program=deadly(fleet))
            result = asked.result()
        refused = "run and cannot be asked" in (result.message or "")  # whose start took longer than 3.5 s
        assert refused or result.error_code in (NONE, FEATURE_UPDATE_FAILED), (instant, result)
        wait_until(lambda: any(fleet.is_controller(one) for one in BROKERS))
        wait_until(lambda: all(fleet.runs(one, asked) for one in BROKERS for asked in BROKERS))
        reached = level_of(fleet) == change.level
        assert result.error_code != NONE or reached, (instant, result)
        opposite = RAISE if change is LOWER else LOWER
        assert fleet.update(other, opposite if reached else change) == DONE, instant
        wait_until(lambda: len(fleet.applied()) == 1)
    check_records(fleet.records())
    if level_of(fleet) != 2:
        assert fleet.update(1, RAISE) == DONE


@pytest.mark.promise("features.md", "What a replaced controller still writes is refused by Kafka.")
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
            wait_until(lambda: any(fleet.is_controller(one) for one in others))
            assert sum(key == CONTROLLER_KEY for key, _ in fleet.records()) == claims + 1
            assert asked.result() == DONE, "who does not run is not waited for"
        finally:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: fleet.log_events(old, "feature_controller")[-1]["change"] == "lost")
    assert "fenced" in fleet.log_events(old, "feature_controller")[-1]["reason"]
    assert not fleet.is_controller(old)
    wait_until(lambda: fleet.status(old)["applied_epoch"] == fleet.finalized().epoch)
    assert fleet.update(old, RAISE) == DONE
    check_records(fleet.records())


@pytest.mark.promise(
    "features.md", "A sidecar that does not support the finalized levels serves its clients, and does not become ready."
)
def test_an_older_sidecar_blocks_a_raise_and_above_its_level_serves_clients_unready(fleet: FeatureFleet) -> None:
    assert fleet.update(1, LOWER) == DONE
    late = next(broker_id for broker_id in BROKERS if not fleet.is_controller(broker_id))
    other = next(broker_id for broker_id in BROKERS if broker_id != late)
    fleet.stop(late)
    fleet.start(late, program=OLDER)
    for said in (f"sidecar {late} (0.1.0) supports 1 to 1; asked: 2", f"sidecar {late}"):  # then it is remembered
        refused = fleet.update(other, RAISE)
        assert (refused.error_code, said in (refused.message or "")) == (INVALID_UPDATE_VERSION, True), refused
        fleet.stop(late)
    forget = ("-m", "proxy", "features", "forget", f"sidecar/{late}", "--bootstrap-servers")
    subprocess.run([sys.executable, *forget, fleet.state.internal_bootstrap], timeout=60, check=True)
    assert fleet.update(other, RAISE) == DONE
    workload.create_topics(fleet.state.internal_bootstrap, {"orders": {}}, 3)
    with workload.steady_producer(fleet.state.bootstrap, "steady", "orders") as finish:
        fleet.spawn(late, OLDER)
        wait_until(partial(is_loaded, fleet, late))
        status, said = fleet.readiness(late)
        assert (status, said.count("1 to 1"), said.count("1 to 2")) == (503, 1, 1), said
        assert AUDIT_EVENT_SCHEMA in said
        with Peer(fleet.address(late)) as peer:
            assert all(peer.ask(METADATA, 1, bytes(4)) for _ in range(1000))
        assert fleet.readiness(late)[0] == 503
        [logged] = fleet.log_events(late, "features_incompatible")
        assert logged["feature"] == AUDIT_EVENT_SCHEMA
        fleet.stop(late)  # its clients connect again, to the release that fits
        fleet.start(late)
        counts = finish().counts
    assert counts["records"] > 0
    assert counts["rejected_records"] == 0
    wait_until(lambda: fleet.shown(late) == HIGHEST)  # it may be ready before it has read the levels
