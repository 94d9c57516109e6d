"""Shares do not depend on the order in which owners became known."""

from __future__ import annotations

from proxy.coordinator.assignment import sticky_assign
from proxy.coordinator.assignment_plan import TopicOwners, shares_of
from proxy.coordinator.events import TopicFactsOfGroups
from tests.unit.coordinator.driver import finish

TOPICS = {name: TopicFactsOfGroups(name, (1, 1)) for name in ("t1", "t2", "t3")}


def test_the_same_partitions_are_equal_shares() -> None:
    owners = {name: TopicOwners(name, {"c-0": (0, 1)}) for name in TOPICS}
    backwards = dict(reversed(owners.items()))
    assert finish(shares_of(backwards, TOPICS, ())) == finish(shares_of(owners, TOPICS, ())), (
        "else a consumer is started for nothing"
    )


def test_topics_are_assigned_in_order() -> None:
    names = [f"topic-{number:02}" for number in range(50)]
    assigned = finish(sticky_assign({}, dict.fromkeys(reversed(names), (0,)), dict.fromkeys(reversed(names), ("c-0",))))
    assert list(assigned) == names
