"""What was taken is known by numbers: whenever it comes again, in whatever parts. No Spark."""

from __future__ import annotations

import random

import pytest

from spark_jobs import taken as module
from spark_jobs.taken import Boot, Piece, Record, Taken

BOOT, OTHER = Boot("kafka", 1, "boot"), Boot("kafka", 1, "other")


def take(taken: Taken, first: int, last: int, boot: Boot = BOOT) -> list[tuple[int, int]] | None:
    """Intervals of the one record that are new; None: all of it."""
    pieces = taken.take([Record(0, 7, boot, first, last)])
    assert all((piece.partition, piece.offset) == (0, 7) for piece in pieces)
    return [(piece.first, piece.last) for piece in pieces if piece.first <= piece.last] if pieces else None


def test_a_record_that_comes_again_has_nothing_new() -> None:
    taken = Taken()
    assert [take(taken, *each) for each in ((1, 200), (201, 400), (1, 200))] == [None, None, []]
    assert take(taken, 1, 200, OTHER) is None
    assert take(taken, 1, 200, Boot("elsewhere", 1, "boot")) is None
    assert taken.take([Record(3, 9, BOOT, 5, 6), Record(3, 10, BOOT, 401, 402)]) == [Piece(3, 9, 1, 0)]


@pytest.mark.parametrize(
    ("before", "record", "new"),
    [
        ([(1, 200)], (1, 100), []),
        ([(1, 200)], (101, 200), []),
        ([(1, 100), (101, 200)], (1, 200), []),
        ([(101, 200), (1, 100)], (1, 200), []),
        ([(1, 100)], (1, 200), [(101, 200)]),
        ([(101, 200)], (1, 200), [(1, 100)]),
        ([(50, 60), (80, 90)], (1, 200), [(1, 49), (61, 79), (91, 200)]),
        ([(1, 10), (30, 40)], (11, 29), None),
        ([(1, 10), (30, 40)], (5, 35), [(11, 29)]),
    ],
)
def test_parts_and_wholes(
    before: list[tuple[int, int]], record: tuple[int, int], new: list[tuple[int, int]] | None
) -> None:
    taken = Taken()
    for each in before:
        assert take(taken, *each) is None
    assert take(taken, *record) == new
    assert take(taken, *record) == []


def test_any_order_of_any_intervals_is_what_a_set_says() -> None:
    chance, taken, known = random.Random(20260922), Taken(), set[int]()
    for _ in range(500):
        first = chance.randrange(1, 2_000)
        record = range(first, first + chance.randrange(1, 30))
        found = take(taken, record[0], record[-1])
        new = set(record) - known
        assert (set(record) if found is None else {n for a, b in found for n in range(a, b + 1)}) == new
        known |= new
        taken = Taken.read(taken.text())
    assert taken.text() == f'[["kafka",1,"boot",{str(ranges(known)).replace(" ", "")}]]'


def ranges(numbers: set[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def test_those_heard_of_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOOTS", 2)
    monkeypatch.setattr(module, "RANGES", 2)
    taken = Taken()
    for name in ("a", "b", "a", "c"):
        take(taken, 1, 1, Boot("kafka", 1, name))
    for number in (3, 5):
        take(taken, number, number, Boot("kafka", 1, "c"))
    assert taken.text() == '[["kafka",1,"a",[[1,1]]],["kafka",1,"c",[[3,3],[5,5]]]]'
    assert take(taken, 1, 1, Boot("kafka", 1, "b")) is None
