"""Plain counters of one listener's data path: the loop adds to ints, the metrics endpoint reads them."""

from __future__ import annotations

from collections import defaultdict


class Tally:
    """All counts since the start; names are those of the metrics in docs/metrics.md."""

    __slots__ = (
        "abandoned",
        "accept_errors",
        "accepted",
        "active",
        "closed",
        "decoded",
        "invalid_frames",
        "pauses",
        "received",
        "requests",
        "responses",
        "upstream_failures",
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.active = 0
        self.closed: defaultdict[str, int] = defaultdict(int)  # by cause
        self.accept_errors: defaultdict[str, int] = defaultdict(int)  # by errno name
        self.upstream_failures = 0
        self.abandoned = 0  # connections that go on as bytes because their session failed
        self.received: dict[str, int] = {"client": 0, "broker": 0}  # bytes, by the side they came from
        self.pauses: dict[str, int] = {"client": 0, "broker": 0}  # times reading of a side was paused
        self.requests: defaultdict[int, int] = defaultdict(int)  # by api key
        self.responses: defaultdict[int, int] = defaultdict(int)  # by api key
        self.decoded: defaultdict[str, int] = defaultdict(int)  # bodies, by outcome: full, malformed, unsupported
        self.invalid_frames: defaultdict[tuple[str, str], int] = defaultdict(int)  # by (side, reason)
