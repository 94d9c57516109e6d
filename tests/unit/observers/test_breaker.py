from __future__ import annotations

from observers.breaker import MAX_FAILURES, PAUSE, Breaker


def test_it_opens_only_after_failures_in_a_row() -> None:
    breaker = Breaker(lambda: 0.0)
    for _ in range(MAX_FAILURES - 1):
        breaker.failed()
    breaker.succeeded()
    for _ in range(MAX_FAILURES - 1):
        breaker.failed()
    assert breaker.allows()
    assert not breaker.is_open
    breaker.failed()
    assert not breaker.allows()
    assert breaker.is_open


def test_after_the_pause_one_call_decides() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    for _ in range(MAX_FAILURES):
        breaker.failed()
    now[0] = PAUSE - 0.001
    assert not breaker.allows()
    now[0] = PAUSE
    assert breaker.allows()
    breaker.failed()
    assert not breaker.allows(), "one failure is enough to open it again"
    now[0] = 2 * PAUSE
    breaker.succeeded()
    assert breaker.allows()
    assert not breaker.is_open
