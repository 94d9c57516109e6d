"""The lease: who may fetch, and until when. Both sides, as pure functions; times in milliseconds.

T is the session timeout. The coordinator sends a ping every T/3. A consumer that has heard no request for 0.95 T stops
by itself. A consumer that was lost is surely stopped 4T/3 after the last request was sent to it:

    sent at s -> delivered by s + T/3 (TCP_USER_TIMEOUT), or never -> stopped by s + T/3 + 0.95 T < s + 4T/3

The kernel ends a connection some retransmission timeouts after TCP_USER_TIMEOUT (decision 0037), so less is set.

0.05 T is left for clocks that run at different rates, by up to 2 %. C is ``state.write.timeout.ms``: a coordinator
sends nothing when its last confirmed write began more than C ago. A successor that fenced it at f therefore knows that
it sent nothing after f + C (by the predecessor's clock, hence 1.02 C).
"""

from __future__ import annotations

CLOCK_RATE_PERCENT = 2
"""By how much the clocks of two machines may differ in rate."""

MAX_OPEN_PINGS = 2
"""Pings without an answer on the wire. One that is due meanwhile is withheld, and expires as if it were sent."""

MAX_ASKED_PINGS = 2
"""Pings that a consumer gets for the asking between two by schedule: who leaves needs two."""

MAX_CONFIRM_INTERVAL_MS = 2000

RETRANSMISSION_MS = 500
"""By how much later than ``TCP_USER_TIMEOUT`` the kernel may end a connection: it begins with the first retransmission.
Two retransmission timeouts of 200 to 250 ms, as on a local network."""

MIN_SESSION_TIMEOUT_MS = 2000
"""Session timeouts are above it, whatever the configuration says: a third of one has room for ``RETRANSMISSION_MS``."""


# The coordinator's side


def ping_interval(session_timeout_ms: int) -> int:
    """How often a consumer is pinged."""
    return session_timeout_ms // 3


def response_timeout(session_timeout_ms: int) -> int:
    """For the response to Ping, StopFetcher and StartFetcher, from their sending."""
    return session_timeout_ms * 2 // 3


def delivery_timeout(session_timeout_ms: int) -> int:
    """No byte is delivered to a consumer later than that after it was sent."""
    return session_timeout_ms // 3


def user_timeout(session_timeout_ms: int) -> int:
    """``TCP_USER_TIMEOUT`` of a consumer's connection, so that the kernel keeps to ``delivery_timeout``."""
    return delivery_timeout(session_timeout_ms) - RETRANSMISSION_MS


def free_at(last_sent: int, session_timeout_ms: int) -> int:
    """When the partitions of a lost consumer are free. ``last_sent``: when the kernel took the last request to it."""
    return last_sent - (-session_timeout_ms * 4 // 3)


def free_after_takeover(fenced_at: int, session_timeout_ms: int, write_timeout_ms: int) -> int:
    """When the partitions of a consumer that a predecessor knew are free, if it does not come back."""
    silent_at = fenced_at - (-write_timeout_ms * (100 + CLOCK_RATE_PERCENT) // 100)
    return free_at(silent_at, session_timeout_ms)


def confirm_interval(write_timeout_ms: int) -> int:
    """How often the claim is confirmed while consumers are registered."""
    return min(MAX_CONFIRM_INTERVAL_MS, write_timeout_ms // 3)


class SentTimes:
    """What may have been sent to one consumer, and when. What may have been sent counts as sent.

    While the kernel has not taken all bytes (``buffered``), the last of them may be sent at any time up to the end of
    the connection.
    """

    def __init__(self) -> None:
        self._last_sent = 0
        self._is_buffered = False
        self._not_before = 0

    def not_before(self, at: int) -> None:
        """Its partitions are not free earlier than that, by what a predecessor may have sent."""
        self._not_before = at

    def sent(self, now: int) -> None:
        """The kernel has taken a request to the consumer."""
        self._last_sent = now

    def buffered(self) -> None:
        """The kernel has not taken all of what was sent."""
        self._is_buffered = True

    def drained(self, now: int) -> None:
        """The kernel has now taken all of what was sent."""
        self._is_buffered = False
        self._last_sent = now

    def free_at(self, ended_at: int, session_timeout_ms: int) -> int:
        """When the consumer's partitions are free, if its connection ends at ``ended_at`` and it has not stopped."""
        last_sent = ended_at if self._is_buffered else self._last_sent
        return max(ended_at, free_at(last_sent, session_timeout_ms), self._not_before)


# The consumer's side


def consumer_lease_ends(heard: int, session_timeout_ms: int) -> int:
    """When a consumer stops that has heard nothing since ``heard``.

    ``heard``: the last moment at which it saw its socket empty before it read its latest request. What lay in the
    buffer of a paused process is as old as the pause.
    """
    return heard + session_timeout_ms * 95 // 100
