"""Which partitions consumers are given, whatever there are of both."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.coordinator.assignment import Assignment, range_assign, sticky_assign
from tests.unit.coordinator.driver import finish

TOPICS = st.sampled_from(["t", "u", "v"])
THREADS = st.sampled_from([f"c{number}-{thread}" for number in range(5) for thread in range(3)])
PARTITIONS = st.dictionaries(TOPICS, st.sets(st.integers(0, 40)), max_size=3)
SUBSCRIBED = st.dictionaries(TOPICS, st.sets(THREADS, min_size=1), max_size=3)
OWNERS = st.dictionaries(TOPICS, st.dictionaries(THREADS, st.lists(st.integers(0, 45)).map(tuple)))


def placed(assignment: Assignment) -> dict[tuple[str, int], str]:
    """The owner of each partition; each has but one."""
    pairs = [
        ((topic, number), thread)
        for topic, shares in assignment.items()
        for thread, numbers in shares.items()
        for number in numbers
    ]
    owners = dict(pairs)
    assert len(owners) == len(pairs)
    return owners


def loads(assignment: Assignment) -> Counter[str]:
    return Counter(placed(assignment).values())


def check_whole(assignment: Assignment, partitions: dict[str, set[int]], threads: dict[str, set[str]]) -> None:
    """Each partition of a topic that has threads is owned by one of those; numbers are in order; nothing is empty."""
    owners = placed(assignment)
    assert owners.keys() == {(topic, number) for topic in threads for number in partitions.get(topic, ())}
    assert all(thread in threads[topic] for (topic, _), thread in owners.items())
    for shares in assignment.values():
        assert shares
        assert all(numbers and list(numbers) == sorted(numbers) for numbers in shares.values())


@given(PARTITIONS, SUBSCRIBED)
def test_ranges_give_each_partition_once_and_are_even_within_a_topic(
    partitions: dict[str, set[int]], threads: dict[str, set[str]]
) -> None:
    found = finish(range_assign(partitions, threads))
    check_whole(found, partitions, threads)
    for topic, shares in found.items():
        sizes = [len(shares.get(thread, ())) for thread in sorted(threads[topic])]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)
        flat = [number for thread in sorted(shares) for number in shares[thread]]
        assert flat == sorted(flat)


@given(PARTITIONS, SUBSCRIBED, OWNERS)
def test_sticky_gives_each_partition_once_and_then_nothing_moves(
    partitions: dict[str, set[int]], threads: dict[str, set[str]], owners: Assignment
) -> None:
    found = finish(sticky_assign(owners, partitions, threads))
    check_whole(found, partitions, threads)
    assert finish(sticky_assign(found, partitions, threads)) == found


@pytest.mark.promise("coordinator.md", "At level 2 as few partitions move as shares that differ by one at most allow.")
@given(PARTITIONS, st.sets(THREADS, min_size=1), st.sets(THREADS, min_size=1))
def test_where_all_may_own_all_sticky_is_even_and_moves_what_it_must(
    partitions: dict[str, set[int]], before: set[str], after: set[str]
) -> None:
    first = finish(sticky_assign({}, partitions, dict.fromkeys(partitions, before)))
    second = finish(sticky_assign(first, partitions, dict.fromkeys(partitions, after)))
    sizes = [loads(second)[thread] for thread in after]
    assert max(sizes) - min(sizes) <= 1
    old, new = placed(first), placed(second)
    kept = sum(old[partition] == new[partition] for partition in new)
    share, larger = divmod(len(new), len(after))
    had = [loads(first)[thread] for thread in after & before]
    most = sum(min(size, share) for size in had) + min(larger, sum(size > share for size in had))
    assert kept == most
