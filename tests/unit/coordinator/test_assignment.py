"""Which thread owns which partition."""

from __future__ import annotations

import pytest

from proxy.coordinator.assignment import range_assign, sticky_assign
from tests.unit.coordinator.driver import finish


def threads(count: int) -> list[str]:
    return [f"c{number}-0" for number in range(count)]


@pytest.mark.parametrize(
    ("partitions", "count", "sizes"),
    [(10, 3, [4, 3, 3]), (2, 3, [1, 1]), (3, 3, [1, 1, 1]), (1, 1, [1]), (0, 2, []), (7, 2, [4, 3])],
)
def test_ranges(partitions: int, count: int, sizes: list[int]) -> None:
    found = finish(range_assign({"t": range(partitions)}, {"t": threads(count)})).get("t", {})
    assert list(found) == threads(count)[: len(sizes)]
    assert [len(owned) for owned in found.values()] == sizes
    assert [number for owned in found.values() for number in owned] == list(range(partitions))


def test_a_range_is_of_each_topic_by_itself_and_of_the_partitions_there_are() -> None:
    partitions = {"t": [9, 2, 0], "u": range(2), "unsubscribed": range(1), "empty": ()}
    by_topic = {"t": ["b-0", "a-0"], "u": ["b-0"], "empty": ["a-0"], "missing": ["a-0"], "none": []}
    assert finish(range_assign(partitions, by_topic)) == {"t": {"a-0": (0, 2), "b-0": (9,)}, "u": {"b-0": (0, 1)}}


def test_threads_are_ordered_by_the_text_of_their_ids() -> None:
    assert finish(range_assign({"t": [0, 1]}, {"t": ["c-2", "c-10"]})) == {"t": {"c-10": (0,), "c-2": (1,)}}


class TestSticky:
    def test_the_first_assignment_deals_out_by_turns(self) -> None:
        found = finish(sticky_assign({}, {"t": range(3), "u": range(2)}, {"t": ["a", "b"], "u": ["a", "b"]}))
        assert found == {"t": {"a": (0, 2), "b": (1,)}, "u": {"b": (0,), "a": (1,)}}

    def test_who_joins_gets_from_the_fullest_and_no_other_moves(self) -> None:
        owners = {"t": {"a": (0, 1, 2), "b": (3, 4, 5)}}
        found = finish(sticky_assign(owners, {"t": range(6)}, {"t": ["a", "b", "c"]}))
        assert found == {"t": {"a": (0, 1), "b": (3, 4), "c": (2, 5)}}

    def test_who_leaves_is_shared_out_among_the_others(self) -> None:
        owners = {"t": {"a": (0, 1), "b": (2, 3), "c": (4, 5)}}
        found = finish(sticky_assign(owners, {"t": range(6)}, {"t": ["a", "c"]}))
        assert found == {"t": {"a": (0, 1, 2), "c": (3, 4, 5)}}

    def test_as_many_as_there_must_be_keep_one_more(self) -> None:
        owners = {"t": {"a": (0,), "b": (1, 2), "c": (3, 4)}}
        assert finish(sticky_assign(owners, {"t": range(5)}, {"t": ["a", "b", "c"]})) == owners

    def test_partitions_that_came_and_went(self) -> None:
        owners = {"t": {"a": (0, 1), "b": (2, 3)}, "gone": {"a": (0,)}}
        found = finish(sticky_assign(owners, {"t": [0, 2, 3, 4]}, {"t": ["a", "b"]}))
        assert found == {"t": {"a": (0, 4), "b": (2, 3)}}

    def test_a_partition_with_two_owners_keeps_the_first(self) -> None:
        owners = {"t": {"a": (0, 1), "b": (1,)}}
        assert finish(sticky_assign(owners, {"t": range(2)}, {"t": ["a", "b"]})) == {"t": {"a": (0,), "b": (1,)}}

    def test_threads_of_other_topics_do_not_make_one_give(self) -> None:
        """Two topics, five threads that have nothing to do: a and b keep what they have."""
        owners = {"t": {"a": (0, 2, 4), "b": (1, 3, 5)}}
        by_topic = {"t": ["a", "b"], "u": ["c", "d", "e", "f", "g"]}
        assert finish(sticky_assign(owners, {"t": range(6), "u": ()}, by_topic)) == owners

    def test_a_thread_with_less_choice_is_served_first(self) -> None:
        """What a may own alone fills it, so b gets the others."""
        found = finish(sticky_assign({}, {"t": range(2), "u": range(2)}, {"t": ["a", "b"], "u": ["a"]}))
        assert found == {"u": {"a": (0, 1)}, "t": {"b": (0, 1)}}

    def test_partitions_move_on_through_topics_that_threads_share(self) -> None:
        """From a to b by topic t, and from b to c by topic u, until those that share a topic are about equal."""
        owners = {"t": {"a": tuple(range(6))}, "u": {"b": (0, 1, 2)}}
        by_topic = {"t": ["a", "b"], "u": ["b", "c"]}
        found = finish(sticky_assign(owners, {"t": range(6), "u": range(3)}, by_topic))
        sizes = {thread: sum(len(shares.get(thread, ())) for shares in found.values()) for thread in "abc"}
        assert sizes == {"a": 4, "b": 3, "c": 2}
