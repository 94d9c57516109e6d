"""When an epoch counts as applied: by all processes of a sidecar, of both runs during a takeover."""

import math

import pytest

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, COORDINATOR_PROTOCOL
from proxy.features.levels import FleetLevels
from proxy.fleet.applied_epoch import Applied, AppliedEpoch, AuditLevels, GroupLevels


def at(epoch: int, level: int) -> FleetLevels:
    return FleetLevels(epoch, {}, {AUDIT_EVENT_SCHEMA: level}, {})


@pytest.mark.promise(
    "features.md",
    "A sidecar has applied an epoch when all of its processes follow it and no event of a higher level is left.",
)
def test_all_processes_follow_nothing_above_is_left_and_the_disk_was_searched() -> None:
    for level, audit, expected in (
        (1, AuditLevels(), (8, 0)),
        (1, AuditLevels({1: 2}, {1: 3, 2: 0}), (8, 0)),
        (1, AuditLevels({1: 1, 2: 1}, {2: 0}), (-1, 0)),
        (1, AuditLevels({1: 2}, {2: 40}), (-1, 40)),
        (1, AuditLevels({1: 2}, {2: 0}, 5.0), (8, 0)),
        (1, AuditLevels({1: 2}, {2: 0}, 0), (-1, 0)),
        (2, AuditLevels({2: 1}, {1: 500, 2: 500}, 5.0), (8, 0)),  # a raise does not wait for lower levels
    ):
        one = AppliedEpoch()
        one.update(at(8, level), audit)
        assert one.registered == expected, (level, audit)


def test_what_is_applied_stays_so_until_the_next_epoch_is() -> None:
    one = AppliedEpoch()
    one.update(at(7, 2), AuditLevels({2: 1}, {}, 5.0))
    one.update(at(8, 1), AuditLevels({2: 1}, {2: 9}, 5.0))
    assert one.registered == (7, 9)


class TestGroups:
    """The level of the coordinators' protocol is lowered to 1 with epoch 8; epoch 7 was applied."""

    LOWERED = FleetLevels(8, {}, {COORDINATOR_PROTOCOL: 1}, {})

    @pytest.mark.promise(
        "features.md", "A downgrade is applied when no group of consumers works at a higher level any more."
    )
    def test_no_group_works_above_the_level(self) -> None:
        for groups, epoch, above in [
            (GroupLevels(), 8, 0),
            (GroupLevels(1, {1: 3}), 8, 0),
            (GroupLevels(0, {1: 3}), 8, 0),
            (GroupLevels(1, {1: 3, 2: 2}), 7, 2),
            (GroupLevels(2, {1: 3}), 7, 0),  # the coordinator has not heard of it: the next rebalance may be at 2
        ]:
            one = AppliedEpoch()
            one.update(FleetLevels(7, {}, {COORDINATOR_PROTOCOL: 2}, {}), AuditLevels(), GroupLevels(2, {2: 5}))
            one.update(self.LOWERED, AuditLevels(), groups)
            assert (one.registered.epoch, one.groups_above) == (epoch, above), (groups, epoch, above)


class TestTakeover:
    """The successor follows epoch 8 with level 1."""

    def successor(self, searched_at: float = 5.0) -> AppliedEpoch:
        one = AppliedEpoch(inherits=True)
        one.update(at(8, 1), AuditLevels({1: 1}, {2: 0}, searched_at))
        return one

    def test_both_have_to_apply_it_and_what_both_have_to_deliver_is_added(self) -> None:
        one = self.successor()
        one.predecessor_applies(Applied(7, 40))
        assert one.registered == (7, 40)
        one.update(at(8, 1), AuditLevels({1: 1}, {2: 2}, 5.0))
        assert one.registered == (7, 42)
        one.predecessor_applies(Applied(8, 0))
        assert one.registered == (8, 2)
        one = self.successor()
        one.predecessor_ended(20.0)
        one.predecessor_applies(Applied(8, 0))
        assert one.registered == (-1, 0)

    def test_what_it_left_on_disk_has_to_be_found_and_delivered_after_its_end(self) -> None:
        for last in [Applied(7, 40), Applied(7, 0), Applied()]:
            one = self.successor()
            one.predecessor_applies(last)
            one.predecessor_ended(20.0)
            one.update(at(8, 1), AuditLevels({1: 1}, {2: 0}, 19.5))  # searched before: the predecessor had its folder
            assert one.registered == last, last
            one.update(at(8, 1), AuditLevels({1: 1}, {2: 30}, 25.0))
            assert one.registered == (last.epoch, 30), "what this run has applied alone is not enough"
            one.update(at(8, 1), AuditLevels({1: 1}, {2: 0}, 25.0))
            assert one.registered == (8, 0), last
        one = self.successor(math.inf)
        one.predecessor_applies(Applied(7, 40))
        one.predecessor_ended(20.0)
        one.update(at(8, 1), AuditLevels({1: 1}, {}))
        assert one.registered == (8, 0)


class TestSnapshot:
    def test_every_process_has_to_search_after_the_last_one_that_ended(self) -> None:
        assert AuditLevels.of({}, 0.0) == ({}, {}, math.inf), "without an audit nothing is waited for"
        for searched, process_ended_at, expected in [
            ({6.0: 1, 5.0: 1}, 0.0, 5.0),
            ({math.inf: 2}, 7.0, math.inf),
            ({6.0: 1, 0.0: 1}, 0.0, 0.0),
            ({6.0: 1, 8.0: 1}, 7.0, 0.0),  # a worker has ended, and one of the others has not searched since
            ({9.0: 1, 8.0: 1}, 7.0, 8.0),
            ({}, 7.0, 0.0),  # no worker runs
        ]:
            audit = {"levels": {1: 2}, "undelivered": {2: 4}, "searched": searched}
            assert AuditLevels.of(audit, process_ended_at) == ({1: 2}, {2: 4}, expected), searched
