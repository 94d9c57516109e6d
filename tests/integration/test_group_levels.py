"""The feature ``brokerside.coordinator.protocol`` goes from level 1 to 2 and back while a group is consumed.

It takes minutes, so it runs with GROUPS_FULL=1 alone.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from proxy.features.catalog import COORDINATOR_PROTOCOL
from proxy.features.records import SAFE_DOWNGRADE, FeatureUpdate
from proxy.features.updates import NONE, UpdateResult
from tests.integration.feature_fleet import wait_until
from tests.integration.group_fleet import BROKERS, QUICK_RETURN, GroupFleet, SteadyProducer, group_fleet
from tests.integration.journals import count_skipped, find_overlaps, find_replays

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("GROUPS_FULL"), reason="takes minutes: GROUPS_FULL=1"),
]

PARTITIONS = 6

OLDER = ("-m", "tests.tools.older_release", f"{COORDINATOR_PROTOCOL}=1-1", "--")
"""A sidecar of a release that does not know level 2."""

RAISE = FeatureUpdate(COORDINATOR_PROTOCOL, 2)
LOWER = FeatureUpdate(COORDINATOR_PROTOCOL, 1, SAFE_DOWNGRADE)


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupFleet]:
    folder = tmp_path_factory.mktemp("groups")
    with group_fleet(folder, program=OLDER, partitions=PARTITIONS) as made:
        yield made
        made.check_logs()


class Upgraded:
    """A group of a topic of the same name. Times are not measured: what is revoked says who had to stop."""

    def __init__(self, fleet: GroupFleet, group: str) -> None:
        self.fleet, self.group = fleet, group
        self.consumers = [fleet.consume(group, name, [group]) for name in ("c0", "c1")]
        fleet.wait_until_stable(group, 2)

    @property
    def revoked(self) -> int:
        """How many partitions were revoked so far."""
        return sum(len(one.journal.revoked) for one in self.consumers)

    def join(self) -> int:
        """One more consumer; return how many partitions were revoked by that."""
        before = self.revoked
        self.consumers.append(self.fleet.consume(self.group, f"c{len(self.consumers)}", [self.group]))
        self.fleet.wait_until_stable(self.group, len(self.consumers))
        return self.revoked - before

    def level(self) -> int:
        """The level at which the owners were assigned."""
        coordinator = self.fleet.wait_until_stable(self.group, len(self.consumers))
        status = self.fleet.group(coordinator, self.group)
        return 0 if status is None else int(status["level"])

    def roll(self, program: tuple[str, ...]) -> None:
        """Replace one sidecar after the other."""
        for broker_id in BROKERS:
            self.fleet.stop(broker_id)
            self.fleet.start(broker_id, program=program)
            self.fleet.wait_until_stable(self.group, len(self.consumers))

    def finalize(self, update: FeatureUpdate) -> None:
        """Update the level, and wait until all sidecars follow it."""
        assert self.fleet.update(1, update) == UpdateResult(NONE)
        epoch = self.fleet.finalized().epoch
        wait_until(lambda: self.fleet.applied() == {epoch})


def test_a_rolling_upgrade_and_the_way_back_stop_nobody_who_loses_nothing(fleet: GroupFleet) -> None:
    """S1-76"""
    group = f"g-{uuid.uuid4().hex[:8]}"
    fleet.create_topic(group, PARTITIONS)
    producer = SteadyProducer(fleet.state.internal_bootstrap, group, PARTITIONS, rate=50)
    try:
        upgraded = Upgraded(fleet, group)
        before = upgraded.revoked
        assert upgraded.level() == 1

        upgraded.roll(QUICK_RETURN)
        assert upgraded.level() == 1, "level 2 is not finalized"
        assert upgraded.revoked == before
        upgraded.finalize(RAISE)
        assert upgraded.revoked == before
        assert upgraded.join() == PARTITIONS // 3, "what moves, and nothing else"
        assert upgraded.level() == 2

        before = upgraded.revoked
        upgraded.finalize(LOWER)
        assert upgraded.level() == 1
        assert upgraded.revoked == before
        assert upgraded.join() == PARTITIONS, "everything"
        before = upgraded.revoked
        upgraded.roll(OLDER)
        assert upgraded.level() == 1
        assert upgraded.revoked == before
    finally:
        produced = producer.stop()
    wait_until(lambda: not count_skipped([one.journal for one in upgraded.consumers], produced))
    journals = [one.journal for one in upgraded.consumers]
    assert not find_replays(journals)
    assert not find_overlaps(journals)
