"""Three brokers and their sidecars: who holds the partitions of the topic of groups, and who takes them over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from proxy.coordinator.events import PartitionAssigned, PartitionLost, WriteCommitted
from proxy.coordinator.records import GenerationRecord, GenerationValue
from proxy.local import cluster as local_cluster
from proxy.local.state import ClusterState
from tests.integration.feature_sidecars import until
from tests.integration.group_sidecars import GroupSidecar

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

PARTITIONS = 6
RECORD = GenerationRecord("g", GenerationValue(1, "stable", 1))


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterState]:
    folder = tmp_path_factory.mktemp("cluster")
    yield local_cluster.up(folder, nodes=3, progress=False)
    local_cluster.down(folder)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sidecar of a partition's leader takes it back after two seconds instead of 30."""
    monkeypatch.setattr("proxy.features.controller.BOOTSTRAP_AFTER_MS", 500)
    monkeypatch.setattr("proxy.fleet.election.RETURN_AFTER_MS", 2000)
    monkeypatch.setattr("proxy.fleet.election.AWAY_AFTER_LOSS_MS", 500)


def led_by(sidecar: GroupSidecar) -> set[int]:
    leaders = sidecar.fleet.group_leaders
    return {partition for partition, leader in enumerate(leaders) if leader == sidecar.config.broker_id}


async def test_partitions_follow_leaders_evacuations_and_deaths(state: ClusterState) -> None:
    """S1-11, S1-64: the broker of a killed sidecar lives on, so that the leaders stay as they are."""
    sidecars = [GroupSidecar(node, partitions=PARTITIONS) for node in state.nodes]
    one, two, three = sidecars
    for each in sidecars:
        each.start()
    try:
        await until(lambda: one.fleet.group_leaders and all(each.view.own == led_by(each) for each in sidecars))
        holders = dict(enumerate(one.fleet.group_leaders))
        await until(lambda: all(each.view.holders == holders for each in sidecars))
        for each in sidecars:
            for partition in each.view.own:
                opened = await each.open(partition)
                assert isinstance(await each.write(partition, [RECORD]), WriteCommitted)

        partition = min(two.view.own)
        claim = two.groups._partitions[partition]._claim.claim
        with capture_logs() as logs:
            await two.kill()
            one.groups.expect_coordinator()
            three.groups.expect_coordinator()
            successors = [one, three]
            await until(lambda: [each for each in successors if partition in each.view.own])
        assert "sidecar_suspected" in [each["event"] for each in logs]
        [successor] = [each for each in successors if partition in each.view.own]
        assigned = successor.found(PartitionAssigned, partition=partition)[-1]
        assert not assigned.is_empty
        opened = await successor.open(partition)
        assert (opened.claim, opened.records) == (claim + 1, [RECORD])
        await until(lambda: all(each.view.holders.get(partition) == successor.config.broker_id for each in successors))

        two = GroupSidecar(state.nodes[1], partitions=PARTITIONS)
        sidecars[1] = two
        two.start()
        await until(lambda: two.view.own >= led_by(two))
        opened = await two.open(partition)
        assert opened.claim == claim + 2
        await until(lambda: successor.lost(partition))

        three.groups.evacuate()
        await until(lambda: three.view.own == set())
        assert {each.reason for each in three.found(PartitionLost) if each.partition in led_by(three)} == {"evacuated"}
        await until(lambda: one.view.own | two.view.own == set(range(PARTITIONS)))
        assert not one.view.own & two.view.own
        three.groups.return_()
        await until(lambda: three.view.own == led_by(three))
    finally:
        for each in sidecars:
            await each.stop()
