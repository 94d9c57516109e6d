from __future__ import annotations

from observers.circuit_breaker import BREAKER_OPEN_TIME, MAX_CONSECUTIVE_FAILURES, CircuitBreaker


def test_it_opens_only_after_failures_in_a_row() -> None:
    breaker = CircuitBreaker(lambda: 0.0)
    for _ in range(MAX_CONSECUTIVE_FAILURES - 1):
        breaker.record_failure()
    breaker.record_success()
    for _ in range(MAX_CONSECUTIVE_FAILURES - 1):
        breaker.record_failure()
    assert breaker.allows_call()
    assert not breaker.is_open
    breaker.record_failure()
    assert not breaker.allows_call()
    assert breaker.is_open


def test_after_the_pause_one_call_decides() -> None:
    now = [0.0]
    breaker = CircuitBreaker(lambda: now[0])
    for _ in range(MAX_CONSECUTIVE_FAILURES):
        breaker.record_failure()
    now[0] = BREAKER_OPEN_TIME - 0.001
    assert not breaker.allows_call()
    now[0] = BREAKER_OPEN_TIME
    assert breaker.allows_call()
    breaker.record_failure()
    assert not breaker.allows_call(), "one failure is enough to open it again"
    now[0] = 2 * BREAKER_OPEN_TIME
    breaker.record_success()
    assert breaker.allows_call()
    assert not breaker.is_open
