"""What a sidecar does between two samples of its admin endpoint, for ``brokerside top``. No IO, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from proxy.net.open_connections import ConnectionsView, KafkaConnection

GROUPINGS = ("principal", "client_id", "client_ip", "group_id", "listener")
"""Fields of a connection by which connections are added up."""

SORT_COLUMNS = ("requests", "bytes-in", "bytes-out", "connections", "in-flight")

FAMILIES = (
    "brokerside_requests_total",
    "brokerside_request_errors_total",
    "brokerside_request_duration_seconds_bucket",
    "brokerside_connections_throttled_total",
    "brokerside_connections_active",
    "brokerside_loop_lag_seconds",
    "brokerside_audit_queued",
    "brokerside_audit_spooled",
    "brokerside_audit_dropped_total",
)
"""Samples of ``/metrics`` that are used."""

Metrics = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


class Sample(Struct):
    """What the admin endpoint said. ``at``: seconds of a clock that only grows."""

    at: float
    connections: ConnectionsView
    metrics: Metrics


class ClientRow(Struct):
    """Open connections of one value of a grouping. Rates are per second."""

    name: str
    connections: int = 0
    in_flight: int = 0
    requests: float = 0.0
    received_bytes: float = 0.0
    sent_bytes: float = 0.0

    def sort_value(self, column: str) -> float:
        """Return the value of one of ``SORT_COLUMNS``."""
        values = (self.requests, self.received_bytes, self.sent_bytes, self.connections, self.in_flight)
        return values[SORT_COLUMNS.index(column)]


class ApiRow(Struct):
    """Requests of one api. Rates are per second. ``p50_ms``, ``p99_ms``: ends of the buckets that hold them, None
    without answers or where no observer measures them; ``inf``: beyond the last bucket."""

    api: str
    requests: float
    errors: float | None
    p50_ms: float | None
    p99_ms: float | None


class Totals(Struct):
    """The whole sidecar. Rates are per second; ``errors`` and what is of the audit are None without its observer."""

    connections: int
    requests: float
    throttled: float
    loop_lag_ms: float
    errors: float | None
    audit_waiting: int | None
    audit_lost: int | None


def parse_metrics(text: str) -> Metrics:
    """Return the samples of ``FAMILIES`` in the text of ``/metrics``; no others are parsed, for a page may be large."""
    wanted = [line for line in text.splitlines() if line.startswith(FAMILIES)]
    families = text_string_to_metric_families("\n".join(wanted) + "\n")
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def client_rows(before: Sample, after: Sample, grouping: str, sort: str) -> list[ClientRow]:
    """Return open connections by ``grouping``, the greatest of ``sort`` first.

    A connection that was opened between the samples counts with all that it carried. One that was open before, and not
    listed then because it was idle, has no rates yet.
    """
    seconds = max(after.at - before.at, 0.001)
    known = {one.id: one for one in before.connections.connections}
    all_known = len(known) == before.connections.chosen
    newest = -inf if all_known else max((one.open_time for one in known.values()), default=-inf)
    rows: dict[str, ClientRow] = {}
    for one in after.connections.connections:
        name = getattr(one, grouping) or "-"
        row = rows.setdefault(name, ClientRow(name))
        earlier = known.get(one.id)
        row.connections += 1
        row.in_flight += one.in_flight
        row.requests += _grown(one, earlier, newest, "request_count") / seconds
        row.received_bytes += _grown(one, earlier, newest, "received_bytes") / seconds
        row.sent_bytes += _grown(one, earlier, newest, "sent_bytes") / seconds
    return sorted(rows.values(), key=lambda row: (-row.sort_value(sort), row.name))


def api_rows(before: Sample, after: Sample) -> list[ApiRow]:
    """Return apis with requests between the samples, the most frequent first."""
    seconds = max(after.at - before.at, 0.001)
    requests = _increases(before, after, "brokerside_requests_total", "api")
    measured = any(name == "brokerside_request_errors_total" for name, _ in after.metrics)
    failures = _increases(before, after, "brokerside_request_errors_total", "api", {"class": "failure"})
    buckets = _buckets(before, after)
    rows = [
        ApiRow(
            api,
            count / seconds,
            failures[api] / seconds if measured else None,
            _quantile_ms(buckets.get(api, ()), 0.5),
            _quantile_ms(buckets.get(api, ()), 0.99),
        )
        for api, count in requests.items()
        if count
    ]
    return sorted(rows, key=lambda row: (-row.requests, row.api))


def totals(before: Sample, after: Sample) -> Totals:
    """Return the numbers of the whole sidecar."""
    seconds = max(after.at - before.at, 0.001)
    errors = _increases(before, after, "brokerside_request_errors_total", "class")
    audited = any(name == "brokerside_audit_queued" for name, _ in after.metrics)
    waiting = _sum(after, "brokerside_audit_queued") + _sum(after, "brokerside_audit_spooled")
    return Totals(
        connections=round(_sum(after, "brokerside_connections_active")),
        requests=_increases(before, after, "brokerside_requests_total", "").total() / seconds,
        throttled=_increases(before, after, "brokerside_connections_throttled_total", "").total() / seconds,
        loop_lag_ms=_sum(after, "brokerside_loop_lag_seconds") * 1000,
        errors=errors["failure"] / seconds if errors else None,
        audit_waiting=round(waiting) if audited else None,
        audit_lost=round(_sum(after, "brokerside_audit_dropped_total")) if audited else None,
    )


def _grown(one: KafkaConnection, earlier: KafkaConnection | None, newest: float, name: str) -> int:
    """Return how much ``one`` carried since ``earlier``; without that all, if it was opened after ``newest``."""
    now: int = getattr(one, name)
    if earlier is None:
        return now if one.open_time > newest else 0
    before: int = getattr(earlier, name)
    return max(0, now - before)


def _sum(sample: Sample, family: str) -> float:
    return sum(value for (name, _), value in sample.metrics.items() if name == family)


def _increases(
    before: Sample, after: Sample, family: str, by: str, wanted: Mapping[str, str] | None = None
) -> Counter[str]:
    """Return how much the counters of ``family`` grew, added up by the label ``by``."""
    grown: Counter[str] = Counter()
    for (name, labels), value in after.metrics.items():
        if name == family and (wanted is None or wanted.items() <= labels):
            # A counter that has become smaller began anew.
            earlier = before.metrics.get((name, labels), 0.0)
            grown[dict(labels).get(by, "")] += round(value - earlier if value >= earlier else value)
    return grown


def _buckets(before: Sample, after: Sample) -> dict[str, list[tuple[float, int]]]:
    """Return, by api, the end of each latency bucket (seconds) and how many more answers came within it."""
    found: dict[str, Counter[float]] = {}
    for (name, labels), value in after.metrics.items():
        if name == "brokerside_request_duration_seconds_bucket":
            given = dict(labels)
            more = value - before.metrics.get((name, labels), 0.0)
            found.setdefault(given["api"], Counter())[float(given["le"])] += round(max(0.0, more))
    return {api: sorted(ends.items()) for api, ends in found.items()}


def _quantile_ms(buckets: Sequence[tuple[float, int]], share: float) -> float | None:
    """Return the end of the bucket that holds the quantile, in milliseconds. ``buckets``: cumulative counts."""
    if not buckets or not buckets[-1][1]:
        return None
    reached = list(accumulate((count for _, count in buckets), max))
    end = next(end for (end, _), count in zip(buckets, reached, strict=True) if count >= share * reached[-1])
    return inf if end == inf else end * 1000
