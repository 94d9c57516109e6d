"""When brokers left a connection unread (KIP-219): pure, told of exchanges in the order in which they ended.

A broker that throttles a client answers at once, says for how long (``throttle_ms``), and reads nothing of that
connection meanwhile. What the client has sent by then waits: that is no latency of the broker's.
"""

from __future__ import annotations

from collections import deque

from observers.api import ObservedExchange

MAX_MUTED_CONNECTIONS = 10_000
"""Connections known to be left unread; above it the one that was told to wait longest ago is forgotten."""

MAX_SPANS_PER_CONNECTION = 16
"""Spans kept of one connection, about 100 bytes each; above it the oldest is forgotten. More than one matters only
where a client has so many requests under way that some of them wait through several."""

MutedSpan = tuple[float, float]
"""Begin and end, in seconds of the monotonic clock."""


class ChannelMuting:
    """Which connections brokers do not read, and for how long. Not thread-safe."""

    def __init__(self) -> None:
        self.spans: dict[str, deque[MutedSpan]] = {}
        """By connection; of none that was not told to wait. For reading."""

    def record_exchange(self, exchange: ObservedExchange, throttle_ms: int) -> int:
        """Return how much of its latency ``exchange`` waited because its connection was left unread, in µs.

        ``throttle_ms``: of its answer. Where that is not above 0 and there are no ``spans`` this need not be called.
        """
        if exchange.outcome != "answered":
            return 0
        key = exchange.connection.id
        spans = self.spans.get(key)
        muted = 0.0
        if spans is not None:
            came, went = exchange.received_at, exchange.answered_at
            while spans and spans[0][1] <= came:  # answers come in order: those after it came later
                spans.popleft()
            muted = sum([max(0.0, min(went, end) - max(came, begin)) for begin, end in spans])
            muted = min(muted, max(went - came, 0.0))  # sums are rounded
            if not spans:
                del self.spans[key]
        if throttle_ms > 0:
            self._mute(key, exchange.responded_at, exchange.responded_at + throttle_ms / 1000)
        return round(muted * 1e6)

    def forget_connection(self, connection_id: str) -> None:
        """It has ended."""
        self.spans.pop(connection_id, None)

    def _mute(self, key: str, begin: float, end: float) -> None:
        spans = self.spans.pop(key, None) or deque(maxlen=MAX_SPANS_PER_CONNECTION)
        begin = max(begin, spans[-1][1]) if spans else begin  # none is counted twice
        if end > begin:
            spans.append((begin, end))
        self.spans[key] = spans
        if len(self.spans) > MAX_MUTED_CONNECTIONS:
            del self.spans[next(iter(self.spans))]
