"""Delays of an event loop: what the timer notes, and what becomes of that."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.bench.loop_delays import INTERVAL, DelayTimer, figures


async def test_each_time_the_timer_was_due_while_the_loop_was_held_up_is_noted_with_how_late_it_was() -> None:
    timer = DelayTimer(asyncio.get_running_loop())
    held = 20 * INTERVAL
    time.sleep(held)  # noqa: ASYNC251  # this is what holds it up
    await asyncio.sleep(INTERVAL)
    due, late = list(timer.noted[::2]), list(timer.noted[1::2])
    assert late[0] >= held - 2 * INTERVAL
    assert late[:19] == sorted(late[:19], reverse=True)
    assert due == pytest.approx([due[0] + n * INTERVAL for n in range(len(due))])


def test_figures_are_quantiles_and_the_share_that_is_late() -> None:
    assert figures([0.00001] * 98 + [0.0002, 0.005]) == pytest.approx(
        {"p50_us": 10, "p99_us": 200, "p999_us": 200, "longest_us": 5000, "late_percent": 2}
    )
