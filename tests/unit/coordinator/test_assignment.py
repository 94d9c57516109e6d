"""Which thread owns which partition, by example; tests/property/test_coordinator.py has what holds for any input."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.coordinator.assignment import range_assign, sticky_assign
from proxy.coordinator.assignment_plan import TopicOwners, shares_of
from proxy.coordinator.events import TopicFactsOfGroups
from tests.unit.coordinator.driver import finish

RANGES: tuple[dict[str, Any], dict[str, list[str]], dict[str, Any]] = (
    {"t": [9, 2, 0], "u": range(2), "unsubscribed": range(1), "empty": ()},
    {"t": ["b-0", "a-0"], "u": ["b-0"], "empty": ["a-0"], "missing": ["a-0"], "none": []},
    {"t": {"a-0": (0, 2), "b-0": (9,)}, "u": {"b-0": (0, 1)}},
)
"""Of each topic by itself, and of the partitions there are."""

STICKY: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, list[str]], dict[str, Any]]] = {
    "the first assignment deals out by turns": (
        {},
        {"t": range(3), "u": range(2)},
        {"t": ["a", "b"], "u": ["a", "b"]},
        {"t": {"a": (0, 2), "b": (1,)}, "u": {"b": (0,), "a": (1,)}},
    ),
    "who joins gets from the fullest, and no other moves": (
        {"t": {"a": (0, 1, 2), "b": (3, 4, 5)}},
        {"t": range(6)},
        {"t": ["a", "b", "c"]},
        {"t": {"a": (0, 1), "b": (3, 4), "c": (2, 5)}},
    ),
    "partitions that came and went": (
        {"t": {"a": (0, 1), "b": (2, 3)}, "gone": {"a": (0,)}},
        {"t": [0, 2, 3, 4]},
        {"t": ["a", "b"]},
        {"t": {"a": (0, 4), "b": (2, 3)}},
    ),
    "a partition with two owners keeps the first": (
        {"t": {"a": (0, 1), "b": (1,)}},
        {"t": range(2)},
        {"t": ["a", "b"]},
        {"t": {"a": (0,), "b": (1,)}},
    ),
    "threads of another topic, which have nothing to do, do not make one give": (
        {"t": {"a": (0, 2, 4), "b": (1, 3, 5)}},
        {"t": range(6), "u": ()},
        {"t": ["a", "b"], "u": ["c", "d", "e", "f", "g"]},
        {"t": {"a": (0, 2, 4), "b": (1, 3, 5)}},
    ),
    "what a thread may own alone fills it, so the other gets the rest": (
        {},
        {"t": range(2), "u": range(2)},
        {"t": ["a", "b"], "u": ["a"]},
        {"u": {"a": (0, 1)}, "t": {"b": (0, 1)}},
    ),
}


@pytest.mark.promise("coordinator.md", "Each partition of a topic has one owner, and shares differ by one at most.")
def test_assignments_by_example() -> None:
    *given, expected = RANGES
    assert finish(range_assign(*given)) == expected
    for case, (owners, partitions, threads, expected) in STICKY.items():
        assert finish(sticky_assign(owners, partitions, threads)) == expected, case


def test_partitions_move_on_through_topics_that_threads_share() -> None:
    """From a to b by topic t, and from b to c by topic u, until those that share a topic are about equal."""
    owners = {"t": {"a": tuple(range(6))}, "u": {"b": (0, 1, 2)}}
    by_topic = {"t": ["a", "b"], "u": ["b", "c"]}
    found = finish(sticky_assign(owners, {"t": range(6), "u": range(3)}, by_topic))
    sizes = {thread: sum(len(shares.get(thread, ())) for shares in found.values()) for thread in "abc"}
    assert sizes == {"a": 4, "b": 3, "c": 2}


def test_neither_shares_nor_topics_depend_on_the_order_in_which_owners_became_known() -> None:
    facts = {name: TopicFactsOfGroups(name, (1, 1)) for name in ("t1", "t2", "t3")}
    owners = {name: TopicOwners(name, {"c-0": (0, 1)}) for name in facts}
    backwards = dict(reversed(owners.items()))
    shares = finish(shares_of(backwards, facts, ()))
    assert shares == finish(shares_of(owners, facts, ())), "else a consumer is started for nothing"
    names = [f"topic-{number:02}" for number in range(50)]
    assigned = finish(sticky_assign({}, dict.fromkeys(reversed(names), (0,)), dict.fromkeys(reversed(names), ("c-0",))))
    assert list(assigned) == names
