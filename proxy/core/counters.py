"""Plain counters of one listener's data path: the loop adds to ints, a snapshot takes a copy of them."""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct, field


def _counts() -> defaultdict[str, int]:
    return defaultdict(int)


def _counts_by_number() -> defaultdict[int, int]:
    return defaultdict(int)


def _counts_by_pair() -> defaultdict[tuple[str, str], int]:
    return defaultdict(int)


def _counts_by_verdict() -> defaultdict[tuple[int, str], int]:
    return defaultdict(int)


def _both_sides() -> dict[str, int]:
    return {"client": 0, "broker": 0}


class ListenerCounters(Struct):
    """All counts since the start; names are those of the metrics in docs/metrics.md."""

    accepted: int = 0
    active: int = 0
    closed: dict[str, int] = field(default_factory=_counts)  # by cause
    accept_errors: dict[str, int] = field(default_factory=_counts)  # by errno name
    upstream_failures: int = 0
    abandoned: int = 0  # connections that continue as bytes because their session failed
    received: dict[str, int] = field(default_factory=_both_sides)  # bytes, by the side they came from
    pauses: dict[str, int] = field(default_factory=_both_sides)  # times reading of a side was paused
    requests: dict[int, int] = field(default_factory=_counts_by_number)  # by api key
    responses: dict[int, int] = field(default_factory=_counts_by_number)  # by api key
    decoded: dict[str, int] = field(default_factory=_counts)  # bodies, by what came of them
    invalid_frames: dict[tuple[str, str], int] = field(default_factory=_counts_by_pair)  # by (side, reason)
    tls_handshakes: dict[tuple[str, str], int] = field(default_factory=_counts_by_pair)
    """Completed handshakes with clients, by version of TLS and "full" or "resumed"."""
    intercepted: dict[tuple[int, str], int] = field(default_factory=_counts_by_verdict)
    """Requests that were not forwarded, by api key and "replied", "closed" or "denied"."""
    edited: dict[int, int] = field(default_factory=_counts_by_number)  # responses, by api key
    intercept_errors: int = 0  # requests and responses that went on as they came, because an interceptor failed

    def answered(self, api_key: int) -> int:
        """Return how many requests of this api were answered, by the broker or here."""
        return self.responses.get(api_key, 0) + self.intercepted.get((api_key, "replied"), 0)
