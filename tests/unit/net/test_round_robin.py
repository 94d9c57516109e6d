"""Whose turn it is."""

import asyncio

import pytest

from proxy.net.round_robin import round_robin_for


@pytest.mark.promise(
    "architecture.md", "Connections that have more to do take turns, one for each round of the event loop."
)
async def test_each_round_of_the_loop_is_one_turn_in_the_order_of_those_that_wait() -> None:
    turns, rounds = round_robin_for(asyncio.get_running_loop()), list[list[str]]()

    def wanting(name: str, times: int) -> None:
        def take_turn() -> None:
            nonlocal times
            rounds[-1].append(name)
            times -= 1
            if times:
                turns.schedule(take_turn)

        turns.schedule(take_turn)

    wanting("a", 3)
    wanting("b", 1)
    wanting("c", 2)
    for _ in range(9):
        rounds.append([])
        await asyncio.sleep(0)
        if rounds[-1] == ["b"]:
            wanting("d", 1)
    assert rounds == [["a"], ["b"], ["c"], ["a"], ["d"], ["c"], ["a"], [], []]
    # An error costs nobody else a turn.
    loop = asyncio.get_running_loop()
    turns, taken, errors = round_robin_for(loop), [0], list[object]()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def fail() -> None:
        raise RuntimeError

    turns.schedule(fail)
    turns.schedule(lambda: taken.append(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert taken == [0, 1]
    assert len(errors) == 1
