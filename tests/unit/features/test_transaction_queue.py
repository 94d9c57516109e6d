"""What a controller writes: one transaction at a time, repeated until it is read back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proxy.features.controller_states import ControllerState, WriteTransaction
from proxy.features.records import update_key
from proxy.features.transaction_queue import READ_BACK_MS, RETRY_AFTER_MS
from tests.unit.features.fleets import Executor, executor, name, serving, to

AWAY, OPENING, _, SERVING, CHANGING, _ = ControllerState


def failing(one: Executor) -> Iterator[int]:
    """Let each write fail; yields the milliseconds after which the next comes."""
    while True:
        (write,) = [each for each in one.waiting if isinstance(each, WriteTransaction)]
        one.waiting.clear()
        one.do(one.controller.write_failed(write.number, one.now))
        waited = 0
        while not one.waiting:
            one.tick(100)
            waited += 100
        yield waited


@pytest.mark.promise(
    "features.md",
    "While the topic of features cannot be written, its levels stay as they are and the write is repeated.",
)
def test_a_write_that_fails_is_repeated_and_nothing_goes_on_without_it() -> None:
    one = serving()
    one.waits = (WriteTransaction,)
    one.propose(1, to(3), timeout=60_000)
    failures = failing(one)
    assert [next(failures) for _ in range(4)] == list(RETRY_AFTER_MS[:4])
    assert next(failures) == next(failures) == RETRY_AFTER_MS[-1]
    assert one.controller.state is CHANGING
    (write,) = one.waiting
    assert isinstance(write, WriteTransaction)
    assert update_key(name(1)) in write.records, "its time is over by now"
    one.waits = ()
    one.go()
    assert (one.controller.state, one.outcome(1).code) == (SERVING, 96)
    assert (one.levels.epoch, one.levels.pending) == (4, None)


def test_what_was_read_back_of_a_failed_write_is_not_written_again() -> None:
    one = serving()
    one.waits = (WriteTransaction,)
    one.propose(1, to(2))
    (write,) = one.waiting
    assert isinstance(write, WriteTransaction)
    one.waiting.clear()
    one.read(update_key(name(1)), write.records[update_key(name(1))])
    one.do(one.controller.write_failed(write.number, 0))
    one.tick(20_000)
    assert one.waiting == []
    one.propose(2, to(2))
    (second,) = one.waiting
    assert isinstance(second, WriteTransaction)
    assert list(second.records) == [update_key(name(2))]


def test_what_comes_while_a_write_is_under_way_goes_into_the_next_one() -> None:
    one = serving()
    one.waits = (WriteTransaction,)
    for number in (1, 2, 3):
        one.propose(number, to(2))
    assert len(one.waiting) == 1
    one.waits = ()
    one.go()
    assert list(one.written()) == [update_key(name(2)), update_key(name(3))]


def test_a_write_that_cannot_be_read_back_ends_it() -> None:
    one = executor()
    one.waits = (WriteTransaction,)
    one.hold()
    (write,) = one.waiting
    assert isinstance(write, WriteTransaction)
    one.do(one.controller.written(write.number, one.now))
    one.tick(READ_BACK_MS - 1)
    assert one.controller.state is OPENING
    one.tick(1)
    assert one.controller.state is AWAY
    assert one.lines[-1].fields["reason"] == "what was written cannot be read"
