"""Which thread owns which partition: pure functions of what there is, whatever order it comes in.

Both take the partitions of each topic, and the threads that may own those, by topic. A topic without a thread is left
out, and so are threads that get nothing. They work in parts (``Steps``): a group may have thousands of threads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import NamedTuple

from proxy.coordinator.steps import AT_ONCE, PART, Steps, drain, sort

Assignment = Mapping[str, Mapping[str, tuple[int, ...]]]
"""Partitions in ascending order, by topic and thread id."""

_PASSES = 8
"""Over all topics, to even out threads that may own different ones. Two are enough but for artful subscriptions."""

_Owned = dict[str, set[tuple[str, int]]]
"""Topics and partitions by thread id."""


class _Pool(NamedTuple):
    """Topics that the same threads may own, and their partitions that are free."""

    threads: tuple[str, ...]
    topics: list[str]
    free: list[tuple[str, int]]


def range_assign(
    partitions: Mapping[str, Collection[int]], threads: Mapping[str, Collection[str]]
) -> Steps[Assignment]:
    """Return ranges of each topic's partitions, as Kafka 0.8 did: the first threads by id get one more than others.

    Four, three and three of ten partitions for three threads; one, one and none of two.
    """
    assignment = {}
    for topic, ordered in (yield from _ordered(threads)):
        numbers = yield from sort(partitions.get(topic, ()))
        share, larger = divmod(len(numbers), len(ordered))
        begin, owned = 0, {}
        for place, thread in enumerate(ordered[: len(numbers)]):
            end = begin + share + (place < larger)
            owned[thread] = tuple(numbers[begin:end])
            begin = end
            yield 1
        if owned:
            assignment[topic] = owned
    return assignment


def sticky_assign(
    owners: Assignment, partitions: Mapping[str, Collection[int]], threads: Mapping[str, Collection[str]]
) -> Steps[Assignment]:
    """Return an assignment that moves as little as it can from that of ``owners``, over all topics.

    A thread keeps what it owns and may own. The emptiest threads get what is free. Then partitions move from the
    fullest threads to the emptiest, while that makes them more equal. Where all threads may own all topics, they differ
    by no more than one partition, and no more of them move than have to.
    """
    pools = yield from _pools(threads)
    owned: _Owned = {thread: set() for pool in pools for thread in pool.threads}
    yield len(owned) // AT_ONCE
    for pool in pools:
        may_own = set(pool.threads)
        for topic in pool.topics:
            left, remaining = set[int](), iter(partitions.get(topic, ()))
            while part := list(islice(remaining, PART)):
                left.update(part)
                yield 1 + len(part) // AT_ONCE
            of_topic = owners.get(topic, {})
            for thread in (yield from sort(of_topic)):
                numbers = of_topic[thread]
                if thread in may_own:
                    kept = left.intersection(numbers)
                    left -= kept
                    owned[thread].update((topic, number) for number in kept)
                yield 1 + len(numbers)
            free = iter((yield from sort(left)))
            while part := list(islice(free, PART)):
                pool.free.extend((topic, number) for number in part)
                yield 1 + len(part) // (AT_ONCE // 2)
    for pool in pools:
        yield from _fill(owned, pool)
    for _ in range(_PASSES):
        moved = 0
        for pool in pools:
            moved += yield from _even_out(owned, pool)
        if not moved or len(pools) == 1:
            break
    return (yield from _by_topic(owned))


def _ordered(threads: Mapping[str, Collection[str]]) -> Steps[list[tuple[str, tuple[str, ...]]]]:
    """Return the topics that have threads, and these, both by id. Topics of one subscription share one tuple."""
    last: Collection[str] = ()
    ordered: tuple[str, ...] = ()
    found: list[tuple[str, tuple[str, ...]]] = []
    for topic in sorted(threads):
        if threads[topic] != last:
            last = threads[topic]
            ordered = tuple((yield from sort(last)))
        if ordered:
            found.append((topic, ordered))
        yield 1 + len(ordered) // (10 * AT_ONCE)
    return found


def _pools(threads: Mapping[str, Collection[str]]) -> Steps[list[_Pool]]:
    """Return them, those of few threads first, for they have the least choice."""
    pools: dict[tuple[str, ...], _Pool] = {}
    pool = _Pool((), [], [])
    for topic, ordered in (yield from _ordered(threads)):
        if ordered is not pool.threads:
            pool = pools.setdefault(ordered, _Pool(ordered, [], []))
        pool.topics.append(topic)
        yield 1 + len(ordered) // AT_ONCE
    return sorted(pools.values(), key=lambda each: (len(each.threads), each.threads))


def _fill(owned: _Owned, pool: _Pool) -> Steps[None]:
    """Give what is free to the threads that have the least."""
    emptiest = [(len(owned[thread]), thread) for thread in pool.threads]
    heapify(emptiest)
    yield len(emptiest) // AT_ONCE
    for partition in pool.free:
        load, thread = emptiest[0]
        owned[thread].add(partition)
        heapreplace(emptiest, (load + 1, thread))
        yield 1


def _even_out(owned: _Owned, pool: _Pool) -> Steps[int]:
    """Move partitions of the pool's topics from its fullest threads to the emptiest; return how many have moved."""
    topics = set(pool.topics)
    emptiest = [(len(owned[thread]), thread) for thread in pool.threads]
    heapify(emptiest)
    yield len(emptiest) // AT_ONCE
    fullest = [(-load, thread) for load, thread in emptiest if load > emptiest[0][0] + 1]
    heapify(fullest)
    yield len(emptiest) // AT_ONCE
    movable: dict[str, list[tuple[str, int]]] = {}
    moved = 0
    while fullest:
        load, giver = -fullest[0][0], fullest[0][1]
        least, taker = emptiest[0]
        if load < least + 2:
            break
        if giver not in movable:
            movable[giver] = sorted(each for each in owned[giver] if each[0] in topics)
            yield load
        if not movable[giver]:
            heappop(fullest)
            continue
        partition = movable[giver].pop()
        owned[giver].remove(partition)
        owned[taker].add(partition)
        heapreplace(fullest, (1 - load, giver))
        heapreplace(emptiest, (least + 1, taker))
        moved += 1
        yield 1
    return moved


def _by_topic(owned: _Owned) -> Steps[Assignment]:
    """Return who owns what, by topic. Nothing is left of ``owned``, which takes long to be freed at once."""
    found: dict[str, dict[str, list[int]]] = {}
    for thread in drain(owned):
        partitions = owned.pop(thread)
        for topic, number in partitions:
            found.setdefault(topic, {}).setdefault(thread, []).append(number)
        yield 1 + len(partitions)
    assignment: dict[str, dict[str, tuple[int, ...]]] = {}
    for topic, shares in sorted(found.items()):
        ordered = assignment[topic] = {}
        for thread in drain(shares):
            ordered[thread] = tuple(sorted(shares.pop(thread)))
            yield 1
    return assignment
