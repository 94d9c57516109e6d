"""The lease: both sides, by the numbers of the table for T = 6 s, C = 5 s; and that it holds for all T."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.coordinator import lease

T, C = 6000, 5000


def test_numbers() -> None:
    assert lease.ping_interval(T) == 2000
    assert lease.response_timeout(T) == 4000
    assert lease.delivery_timeout(T) == 2000
    assert lease.user_timeout(T) == 1500
    assert lease.free_at(1000, T) == 9000
    assert lease.free_after_takeover(1000, T, C) == 1000 + 5100 + 8000
    assert lease.confirm_interval(C) == 1666
    assert lease.confirm_interval(60_000) == 2000
    assert lease.consumer_lease_ends(1000, T) == 6700


@given(st.integers(2001, 600_000), st.floats(0.98, 1.02))
def test_consumer_has_stopped_when_its_partitions_are_free(timeout: int, rate: float) -> None:
    """Sent at 0, delivered as late as the socket allows, and the consumer's clock goes slower or faster by 2 %."""
    heard = lease.delivery_timeout(timeout)
    stopped = heard + (lease.consumer_lease_ends(heard, timeout) - heard) * rate
    assert stopped < lease.free_at(0, timeout)


@given(st.integers(2001, 600_000), st.integers(2000, 60_000), st.floats(0.98, 1.02))
def test_successor_outwaits_a_predecessor_that_is_cut_off(timeout: int, write_timeout: int, rate: float) -> None:
    """Its last confirmed write began just before the fence; it speaks for C more by its own clock."""
    last_sent = write_timeout * rate
    stopped = last_sent + lease.delivery_timeout(timeout) + timeout * 0.95 * rate
    assert stopped < lease.free_after_takeover(0, timeout, write_timeout)


@given(st.integers(lease.MIN_SESSION_TIMEOUT_MS + 1, 600_000))
def test_every_session_timeout_has_room_for_retransmissions(timeout: int) -> None:
    assert 0 < lease.user_timeout(timeout) == lease.delivery_timeout(timeout) - 500


def test_sent_times_count_from_the_last_request() -> None:
    times = lease.SentTimes()
    times.sent(1000)
    times.sent(3000)
    assert times.free_at(4000, T) == 3000 + 8000
    assert times.free_at(20_000, T) == 20_000, "not before it failed"


def test_what_the_kernel_holds_may_be_sent_up_to_the_end() -> None:
    times = lease.SentTimes()
    times.sent(1000)
    times.buffered()
    assert times.free_at(6000, T) == 6000 + 8000
    times.drained(5000)
    assert times.free_at(6000, T) == 5000 + 8000


def test_predecessor_may_have_sent_later() -> None:
    times = lease.SentTimes()
    times.sent(1000)
    times.not_before(50_000)
    assert times.free_at(2000, T) == 50_000


@pytest.mark.parametrize("timeout", [1001, 1002, 1003, 3001])
def test_rounding_is_on_the_safe_side(timeout: int) -> None:
    assert lease.free_at(0, timeout) * 3 >= timeout * 4
    assert lease.consumer_lease_ends(0, timeout) * 100 <= timeout * 95
