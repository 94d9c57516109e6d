"""What clients make a process hold is bounded, whatever they send; and what the bound is made of."""

import json
import os
import subprocess
import sys

import pytest

from proxy.core.account import Account
from proxy.core.budget import CHUNK, FREE, MAX_CHARGED, OPEN, RESERVED, Budget
from tests.tools.hoarding import FLOODS, LIMIT, SESSIONS

PER_CONNECTION = 327_680
"""Bytes that a connection holds whatever the others do: what is free, what was read with it, a session."""


FIXED_THRESHOLDS = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""glibc raises its thresholds with what a process frees, and then keeps up to 8 MB more or less of free memory, by
chance. So these are its defaults, fixed."""


@pytest.mark.promise(
    "security.md", "A process holds no more than its budget, whatever bodies its clients send and do not finish."
)
def test_a_million_bytes_of_each_kind_of_request_from_many_connections_are_held_in_the_budget() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.hoarding"],
        env=os.environ | FIXED_THRESHOLDS,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    figures = dict(json.loads(line) for line in done.stdout.splitlines())
    assert figures.keys() == FLOODS.keys()
    assert {name: one for name, one in figures.items() if one["grown"] > LIMIT + SESSIONS * PER_CONNECTION} == {}
    assert {name: one for name, one in figures.items() if one["left"]} == {}


def test_facts_leave_a_reserve_to_what_cannot_be_left_out() -> None:
    budget = Budget()
    account = Account(budget)
    assert account.try_charge(MAX_CHARGED - RESERVED)
    assert not account.try_charge(1)
    assert account.held == budget.charged == MAX_CHARGED - RESERVED
    account.charge(RESERVED)
    assert not account.is_full()
    account.charge(1)
    assert account.is_full()
    account.close()
    assert (account.held, budget.charged) == (0, 0)
    budget = Budget(1000)
    account = Account(budget)
    account.charge(600)
    account.record(600)
    account.close()
    assert (account.held, budget.charged, budget.counts[OPEN]) == (0, 600, 0), "until it is handed over"
    assert not Account(budget).try_charge(200)
    budget.clear_recorded()
    assert Account(budget).try_charge(200)
    greedy, modest = Account(Budget(1000)), Account(budget)
    greedy.charge(FREE + 1)
    modest.charge(FREE)
    assert (greedy.is_full(), modest.is_full()) == (True, False), "a connection that holds little never waits"


@pytest.mark.promise("operations.md", "Connections that wait for memory go on in turn, and one of them always does.")
def test_those_that_wait_go_on_in_turn_as_there_is_room_and_at_least_one() -> None:
    budget = Budget(10 * CHUNK)
    account = Account(budget)
    account.charge(11 * CHUNK)
    woken: list[int] = []

    def waiting(number: int, still: bool = True) -> None:
        def resume() -> bool:
            woken.append(number)
            return still

        budget.add_waiter(resume)

    waiting(0, still=False)  # it has ended
    for number in range(1, 9):
        waiting(number)
    assert budget.waits == 9
    budget.resume_waiters()
    assert woken == [0, 1]
    budget.resume_waiters()
    assert woken == [0, 1, 2]
    account.charge(-4 * CHUNK)
    budget.resume_waiters()
    assert woken == [0, 1, 2, 3, 4, 5]
    account.close()
    budget.resume_waiters()
    assert woken == list(range(9))
    budget.resume_waiters()
    assert woken == list(range(9))
