"""When an epoch counts as applied: by all processes of a sidecar, of both runs during a takeover."""

from __future__ import annotations

import math

import pytest

from proxy.features.catalog import AUDIT_EVENT_SCHEMA, COORDINATOR_PROTOCOL
from proxy.features.levels import FleetLevels
from proxy.fleet.applied_epoch import Applied, AppliedEpoch, AuditLevels, GroupLevels


def at(epoch: int, level: int) -> FleetLevels:
    return FleetLevels(epoch, {}, {AUDIT_EVENT_SCHEMA: level}, {})


def applied(levels: FleetLevels, audit: AuditLevels) -> Applied:
    one = AppliedEpoch()
    one.update(levels, audit)
    return one.registered


@pytest.mark.parametrize(
    ("audit", "expected"),
    [
        (AuditLevels(), (8, 0)),
        (AuditLevels({1: 2}, {1: 3, 2: 0}), (8, 0)),
        (AuditLevels({1: 1, 2: 1}, {2: 0}), (-1, 0)),
        (AuditLevels({1: 2}, {2: 40}), (-1, 40)),
        (AuditLevels({1: 2}, {2: 0}, 5.0), (8, 0)),
        (AuditLevels({1: 2}, {2: 0}, 0), (-1, 0)),
    ],
)
def test_all_processes_follow_nothing_above_is_left_and_the_disk_was_searched(
    audit: AuditLevels, expected: tuple[int, int]
) -> None:
    assert applied(at(8, 1), audit) == expected


def test_a_raise_does_not_wait_for_events_of_lower_levels() -> None:
    assert applied(at(8, 2), AuditLevels({2: 1}, {1: 500, 2: 500}, 5.0)) == (8, 0)


def test_what_is_applied_stays_so_until_the_next_epoch_is() -> None:
    one = AppliedEpoch()
    one.update(at(7, 2), AuditLevels({2: 1}, {}, 5.0))
    one.update(at(8, 1), AuditLevels({2: 1}, {2: 9}, 5.0))
    assert one.registered == (7, 9)


class TestGroups:
    """The level of the coordinators' protocol is lowered to 1 with epoch 8; epoch 7 was applied."""

    LOWERED = FleetLevels(8, {}, {COORDINATOR_PROTOCOL: 1}, {})

    @pytest.mark.parametrize(
        ("groups", "epoch", "above"),
        [
            (GroupLevels(), 8, 0),
            (GroupLevels(1, {1: 3}), 8, 0),
            (GroupLevels(0, {1: 3}), 8, 0),
            (GroupLevels(1, {1: 3, 2: 2}), 7, 2),
            (GroupLevels(2, {1: 3}), 7, 0),  # the coordinator has not heard of it: the next rebalance may be at 2
        ],
    )
    def test_no_group_works_above_the_level(self, groups: GroupLevels, epoch: int, above: int) -> None:
        one = AppliedEpoch()
        one.update(FleetLevels(7, {}, {COORDINATOR_PROTOCOL: 2}, {}), AuditLevels(), GroupLevels(2, {2: 5}))
        one.update(self.LOWERED, AuditLevels(), groups)
        assert (one.registered.epoch, one.groups_above) == (epoch, above)

    def test_a_raise_does_not_wait_for_groups(self) -> None:
        one = AppliedEpoch()
        one.update(FleetLevels(8, {}, {COORDINATOR_PROTOCOL: 2}, {}), AuditLevels(), GroupLevels(1, {1: 5}))
        assert one.registered.epoch == 8


class TestTakeover:
    """The successor follows epoch 8 with level 1."""

    def successor(self, searched_at: float = 5.0) -> AppliedEpoch:
        one = AppliedEpoch(inherits=True)
        one.update(at(8, 1), AuditLevels({1: 1}, {2: 0}, searched_at))
        return one

    def test_nothing_is_applied_while_the_predecessor_has_said_nothing(self) -> None:
        assert self.successor().registered == (-1, 0)

    def test_both_have_to_apply_it_and_what_both_have_to_deliver_is_added(self) -> None:
        one = self.successor()
        one.predecessor_applies(Applied(7, 40))
        assert one.registered == (7, 40)
        one.update(at(8, 1), AuditLevels({1: 1}, {2: 2}, 5.0))
        assert one.registered == (7, 42)
        one.predecessor_applies(Applied(8, 0))
        assert one.registered == (8, 2)

    @pytest.mark.parametrize("last", [Applied(7, 40), Applied(7, 0), Applied()])
    def test_what_it_left_on_disk_has_to_be_found_and_delivered_after_its_end(self, last: Applied) -> None:
        one = self.successor()
        one.predecessor_applies(last)
        one.predecessor_ended(20.0)
        one.update(at(8, 1), AuditLevels({1: 1}, {2: 0}, 19.5))  # searched before: the predecessor had its folder
        assert one.registered == last
        one.update(at(8, 1), AuditLevels({1: 1}, {2: 30}, 25.0))
        assert one.registered == (last.epoch, 30), "what this run has applied alone is not enough"
        one.update(at(8, 1), AuditLevels({1: 1}, {2: 0}, 25.0))
        assert one.registered == (8, 0)

    def test_without_a_spool_it_leaves_nothing(self) -> None:
        one = self.successor(math.inf)
        one.predecessor_applies(Applied(7, 40))
        one.predecessor_ended(20.0)
        one.update(at(8, 1), AuditLevels({1: 1}, {}))
        assert one.registered == (8, 0)

    def test_a_late_report_of_an_ended_one_is_ignored(self) -> None:
        one = self.successor()
        one.predecessor_ended(20.0)
        one.predecessor_applies(Applied(8, 0))
        assert one.registered == (-1, 0)


class TestSnapshot:
    def test_without_an_audit_nothing_is_waited_for(self) -> None:
        assert AuditLevels.of({}, 0.0) == ({}, {}, math.inf)

    @pytest.mark.parametrize(
        ("searched", "process_ended_at", "expected"),
        [
            ({6.0: 1, 5.0: 1}, 0.0, 5.0),
            ({math.inf: 2}, 7.0, math.inf),
            ({6.0: 1, 0.0: 1}, 0.0, 0.0),
            ({6.0: 1, 8.0: 1}, 7.0, 0.0),  # a worker has ended, and one of the others has not searched since
            ({9.0: 1, 8.0: 1}, 7.0, 8.0),
            ({}, 7.0, 0.0),  # no worker runs
        ],
    )
    def test_every_process_has_to_search_after_the_last_one_that_ended(
        self, searched: dict[float, int], process_ended_at: float, expected: float
    ) -> None:
        audit = {"levels": {1: 2}, "undelivered": {2: 4}, "searched": searched}
        assert AuditLevels.of(audit, process_ended_at) == ({1: 2}, {2: 4}, expected)
