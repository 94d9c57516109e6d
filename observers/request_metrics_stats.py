"""What ``observers.request_metrics`` counts, as values that can be summed over processes."""

from __future__ import annotations

from msgspec import Struct, field

MAX_LABELS = 100
"""Principals, topics and groups of one process with counts of their own, of each kind."""

OTHER = "other"
"""The value that stands for all others. A topic of this name is among them."""

MAX_CANDIDATES = 10_000
"""Values of a label of which it is known how busy they are."""


class ApiStats(Struct, frozen=True):
    """Requests of one listener and api. Errors: requests with a failure, with a retriable error, with steps of a
    protocol only. Durations: counts by place of the bucket in ``observers.event.ROLLUP_BUCKETS``, and the sum in µs, of
    answered requests; fetches that waited for data in vain are left out, as in the table ``latency``.
    """

    requests: int
    errors: int
    retriable: int
    protocol: int
    request_bytes: int
    response_bytes: int
    latency: dict[int, int]
    latency_us: int
    upstream: dict[int, int]
    """The broker's part."""
    upstream_us: int
    sidecar: dict[int, int]
    """The sidecar's own part."""
    sidecar_us: int
    service: dict[int, int]
    """Without what the client or a quota asked to wait."""
    service_us: int


class LabelStats(Struct, frozen=True):
    """Requests of one principal, topic or group. Bytes: of whole frames; of a topic, of its record sets."""

    requests: int
    errors: int
    received_bytes: int
    sent_bytes: int


class RequestStats(Struct, frozen=True):
    """All of it; ``apis`` by listener and api key."""

    apis: dict[str, dict[int, ApiStats]] = field(default_factory=dict)
    principals: dict[str, LabelStats] = field(default_factory=dict)
    topics: dict[str, LabelStats] = field(default_factory=dict)
    groups: dict[str, LabelStats] = field(default_factory=dict)
