"""When brokers muted a connection (KIP-219). Pure; gets exchanges in the order in which they ended.

A broker that throttles a client answers at once with ``throttle_ms``, and mutes the channel for that time: it reads
nothing of the connection. Requests that wait meanwhile wait for the quota, which is no latency of the broker.
"""

from __future__ import annotations

from collections import deque

from observers.api import ObservedExchange

MAX_MUTED_CONNECTIONS = 10_000
"""Muted connections kept. Above it the one that was muted longest ago is forgotten."""

MAX_SPANS_PER_CONNECTION = 16
"""Spans kept of one connection, about 100 bytes each. Above it the oldest is forgotten. More than one matters only if a
client has so many requests in flight that some wait through several spans."""

MutedSpan = tuple[float, float]
"""Begin and end, in seconds of the monotonic clock."""


class ChannelMuting:
    """The spans in which brokers muted connections. Not thread-safe."""

    def __init__(self) -> None:
        self.spans: dict[str, deque[MutedSpan]] = {}
        """By connection id, of throttled connections alone. Callers only read it."""

    def record_exchange(self, exchange: ObservedExchange, throttle_ms: int) -> int:
        """Return how long ``exchange`` waited while its connection was muted, in µs, and record its own throttle time.

        ``throttle_ms``: of its response. The call is not needed if it is 0 or less and there are no ``spans``.
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
        """Remove a connection that was closed."""
        self.spans.pop(connection_id, None)

    def _mute(self, key: str, begin: float, end: float) -> None:
        spans = self.spans.pop(key, None) or deque(maxlen=MAX_SPANS_PER_CONNECTION)
        begin = max(begin, spans[-1][1]) if spans else begin  # none is counted twice
        if end > begin:
            spans.append((begin, end))
        self.spans[key] = spans
        if len(self.spans) > MAX_MUTED_CONNECTIONS:
            del self.spans[next(iter(self.spans))]
