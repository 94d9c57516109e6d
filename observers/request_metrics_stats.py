"""What ``observers.request_metrics`` counts, as values that can be summed over processes."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

MAX_LABELS = 100
"""Principals, topics and groups of one process with counts of their own, of each kind."""

OTHER = "other"
"""The value that stands for all others. A topic of this name is among them."""

MAX_CANDIDATES = 1_000
"""Values of a label beside those that are counted for which it is known how busy they are. One with more than a
thousandth of the recent requests is always among them."""

PUBLISH_MARGIN = 2
"""A value displaces one that has counts of its own if it has more than this many times its recent requests."""

NATIVE_SCHEMA = 3
"""Of native histograms: eight buckets from each power of two to the next. Bucket ``n`` ends at 2 ** (n / 8) seconds."""

NATIVE_FIRST = -159
"""The bucket of 1 µs, the shortest duration that is not 0."""

NATIVE_LAST = 96
"""The bucket that ends at 4,096 s. What took longer is counted in it."""


class Exemplar(NamedTuple):
    """The newest request of a bucket. ``us``: its duration in µs. ``answered_at``: seconds since 1970."""

    connection_id: str
    us: int
    answered_at: float


class Durations(Struct, frozen=True):
    """How long requests took. ``buckets``: counts by place in ``observers.event.ROLLUP_BUCKETS``; ``native``: counts by
    bucket of ``NATIVE_SCHEMA``, without the ``zeros`` of 0 µs.
    """

    sum_us: int = 0
    buckets: dict[int, int] = field(default_factory=dict)
    native: dict[int, int] = field(default_factory=dict)
    zeros: int = 0


class ApiStats(Struct, frozen=True):
    """Requests of one listener and api. Errors: requests with a failure, with a retriable error, with steps of a
    protocol only. Durations: of requests that the broker answered; fetches that waited for data in vain are left out,
    as in the table ``latency``.
    """

    requests: int
    errors: int
    retriable: int
    protocol: int
    request_bytes: int
    response_bytes: int
    latency: Durations
    upstream: Durations
    """The broker's part."""
    sidecar: Durations
    """The sidecar's own part."""
    service: Durations
    """Without what the client or a quota asked to wait."""
    exemplars: dict[int, Exemplar]
    """The newest request of each bucket of ``latency``."""


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
