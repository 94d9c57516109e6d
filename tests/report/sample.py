"""Tables of a made-up company for three days, large enough to look at: ``python -m tests.report.sample DIR``.

All by a fixed seed. Some clients have hostile names.
"""

from __future__ import annotations

import math
import random
import sys
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from spark_jobs.schemas.traffic import LATENCY_BUCKETS_US
from tests.spark.stored import write

FIRST = datetime(2026, 9, 20, tzinfo=UTC)
DAYS = 3
STEP = timedelta(minutes=10)
LAST = FIRST + timedelta(days=DAYS) - timedelta(minutes=7)
"""Newest minute of the data."""
CLUSTER = "Vb1fZc3rQ2aWq9oGx0mSNw"
HOSTILE = "</script><script>window.hacked = true</script><img src=x onerror='window.hacked = true'>"

Row = dict[str, Any]


class Client(NamedTuple):
    principal: str
    client_id: str
    ip: str
    team: str
    topic: str
    api: str
    size: int
    """Bytes in ten minutes, at noon."""
    software: tuple[str, str]
    ms: float
    """Half of its requests are faster."""


CLIENTS = (
    Client("User:checkout", "checkout-7f9c", "10.0.3.11", "shop", "orders", "Produce", 900_000_000,
           ("apache-kafka-java", "4.1.0"), 3),
    Client("User:checkout", "checkout-2d1a", "10.0.3.12", "shop", "payments", "Produce", 400_000_000,
           ("apache-kafka-java", "4.1.0"), 4),
    Client("User:warehouse", "connect-s3-sink", "10.0.7.40", "data", "orders", "Fetch", 1_500_000_000,
           ("apache-kafka-java", "3.9.1"), 9),
    Client("User:clickstream", "web-collector", "10.0.5.2", "web", "clicks", "Produce", 2_600_000_000,
           ("librdkafka", "2.8.0"), 6),
    Client("User:clickstream", "sessionizer", "10.0.5.9", "web", "clicks", "Fetch", 2_500_000_000,
           ("librdkafka", "2.8.0"), 11),
    Client("User:fraud", "fraud-scorer", "10.0.9.3", "risk", "payments", "Fetch", 420_000_000,
           ("franz-go", "1.18.0"), 5),
    Client("User:legacy-erp", "sarama", "10.0.1.77", "finance", "invoices", "Produce", 60_000_000, ("", ""), 24),
    Client("ANONYMOUS", HOSTILE, "10.0.99.66", "unowned", "clicks", "Fetch", 5_000_000, ("<b>kcat</b>", "1.7"), 40),
)  # fmt: skip
TOPICS = ("orders", "payments", "clicks", "invoices", "orders-old", "audit-archive", "metrics-raw")


def counts(dice: random.Random, requests: int, ms: float) -> list[int]:
    """A histogram of log-normal times around ``ms``."""
    found = [0] * (len(LATENCY_BUCKETS_US) + 1)
    for _ in range(requests):
        us = ms * 1000 * math.exp(dice.gauss(0, 0.7))
        found[bisect_left(LATENCY_BUCKETS_US, us)] += 1
    return found


def times() -> Iterator[tuple[datetime, float]]:
    """Each minute with data, and how busy it is."""
    at = FIRST
    while at <= LAST:
        hour = at.hour + at.minute / 60
        yield at, 0.25 + 0.75 * math.sin(math.pi * hour / 24) ** 2
        at += STEP


def _spread(row: Row) -> Iterator[Row]:
    """The row, its bytes in equal parts over the minutes up to its own."""
    share, rest = divmod(row["bytes"], 10)
    yield {**row, "bytes": share + rest}
    for ago in range(1, 10):
        at = row["minute"] - timedelta(minutes=ago)
        if at >= FIRST:
            reported = {"topic_requests": 0, "topic_errors": 0, "records": 0, "bytes": share}
            yield {**row, "day": at.date(), "minute": at, **reported}


def _passed(dice: random.Random) -> tuple[list[Row], list[Row]]:
    traffic, latency = [], []
    for at, busy in times():
        for client in CLIENTS:
            size = int(client.size * busy * dice.uniform(0.8, 1.2))
            requests = max(1, size // 25_000_000)
            key = {"day": at.date(), "minute": at, "cluster_id": CLUSTER, "broker_id": dice.randint(1, 3)}
            key |= {"listener": "CLIENT", "api": client.api, "principal": client.principal}
            key |= {"client_id": client.client_id}
            errors = int(dice.random() < 0.02 * (client.team in ("finance", "unowned")) + 0.001)
            whole = {"requests": requests, "request_bytes": size // 1000, "response_bytes": size, "errors": errors}
            whole |= {"throttle_ms": 1200 if client.team == "web" and busy > 0.99 and dice.random() < 0.3 else 0}
            part = {"topic": client.topic, "topic_requests": requests, "topic_errors": errors, "bytes": size}
            ip = {"client_ip": client.ip}
            traffic += [{**key, **ip, **whole}, *_spread({**key, **ip, **part, "records": size // 800})]
            slow = client.ms * (6 if client.team == "shop" and at.day == 21 and 14 <= at.hour < 15 else 1)
            reported = counts(dice, requests, slow)
            latency += [
                {
                    **key, "requests": requests, "latencies": reported, "upstream_latencies": reported,
                    "service_latencies": reported,
                },
                {
                    **key, "topic": client.topic, "requests": requests, "latencies": reported,
                    "service_latencies": reported,
                },
            ]  # fmt: skip
    return traffic, latency


def _health() -> list[Row]:
    rows = []
    for broker in (1, 2, 3):
        seq = 0
        for at, _ in times():
            if broker == 2 and at > LAST - timedelta(minutes=30):
                continue  # it is silent since
            lost = 40 if broker == 3 and at == FIRST + timedelta(hours=30) else 0
            key = {"day": at.date(), "minute": at, "cluster_id": CLUSTER, "broker_id": broker, "boot_id": f"b{broker}"}
            rows.append({**key, "envelopes": 6, "events": 600, "first_seq": seq + 1, "last_seq": seq + 600 + lost,
                         "statuses": 6, "last_status": at + timedelta(seconds=55), "ended": False,
                         "started_at": FIRST, "sidecar_version": "0.1.0"})  # fmt: skip
            if lost:
                rows.append({**key, "reason": "observer_queue", "lost": lost, "lost_first_seq": seq + 601,
                             "lost_last_seq": seq + 640})  # fmt: skip
            seq += 600 + lost
        rows.append({**key, "hidden_by": "principal User:monitoring", "hidden": 4320})
    return rows


def _clients() -> list[Row]:
    rows = []
    for day in range(DAYS):
        for client in CLIENTS:
            old = not client.software[0]
            at = FIRST + timedelta(days=day)
            rows.append({"day": at.date(), "cluster_id": CLUSTER, "principal": client.principal,
                         "client_id": client.client_id, "client_ip": client.ip,
                         "software_name": client.software[0] or None, "software_version": client.software[1] or None,
                         "api": client.api, "api_version": 1 if old else 11, "requests": 9000, "first_seen": at,
                         "last_seen": at + timedelta(hours=23), "refused_since": "4.0" if old else None})  # fmt: skip
    return rows


def _connections() -> list[Row]:
    rows = []
    for number in range(60):
        client = CLIENTS[number % len(CLIENTS)]
        at = FIRST + timedelta(minutes=61 * number, milliseconds=number)
        closed = None if number % 3 == 0 else at + timedelta(milliseconds=250 if client.team == "finance" else 600_000)
        rows.append({"day": at.date(), "cluster_id": CLUSTER, "broker_id": 1 + number % 3,
                     "boot_id": f"b{1 + number % 3}", "connection_id": str(number), "listener": "CLIENT",
                     "client_ip": client.ip, "principal": client.principal, "client_id": client.client_id,
                     "software_name": client.software[0] or None, "opened_at": at, "closed_at": closed,
                     "duration_ms": closed and int((closed - at).total_seconds() * 1000), "authentications": 1,
                     "requests": 40, "last_seq": number})  # fmt: skip
    return rows


def _throttles() -> list[Row]:
    at = FIRST + timedelta(hours=20)
    key = {"day": at.date(), "minute": at, "cluster_id": CLUSTER, "broker_id": 1, "listener": "CLIENT"}
    return [{**key, "client_ip": "10.0.1.77", "scope": "ip", "principal": None,
             "quota": "connection_creation_rate", "action": "delay", "count": 412, "quota_limit": 5,
             "observed": 31.5, "delay_ms": 800, "first_at": at, "last_at": at + timedelta(seconds=50)}]  # fmt: skip


def _changes() -> list[Row]:
    key = {"day": LAST.date(), "minute": LAST, "cluster_id": CLUSTER, "broker_id": 1, "listener": "CLIENT"}
    key |= {"resource_type": "topic", "resource_name": "orders", "validate_only": False, "first_at": LAST}
    key |= {"last_at": LAST, "connection_id": "1", "resources_not_listed": 0}
    created = {"principal": "User:operator", "client_id": "adminclient-1", "client_ip": "10.0.5.2", "requests": 1}
    created |= {"api": "CreatePartitions", "operation": "Alter", "result": "success", "error_code": 0}
    denied = {"principal": "User:web", "client_id": "clickstream", "client_ip": "10.0.3.4", "requests": 2_140}
    denied |= {"api": "Fetch", "result": "denied", "error_code": 29, "error": "TOPIC_AUTHORIZATION_FAILED"}
    return [key | created, key | denied]


def _groups() -> tuple[list[Row], list[Row]]:
    day = {"day": LAST.date(), "cluster_id": CLUSTER, "group_id": "invoicing", "topic": "orders"}
    who = {"principal": "User:billing", "client_id": "billing", "client_ip": "10.0.2.9", "member_id": "billing-8f3c"}
    did = {"group_type": "classic", "generation_id": 4, "requests": 9_120, "commits": 2_880, "topic_source": "commit"}
    seen = {"committed_at": LAST, "first_seen": FIRST, "last_seen": LAST}
    offsets = {"committed_offset": 8_120_000, "end_offset": 8_121_500, "lag": 1_500, "transactional": False}
    lag = [
        day | offsets | {"minute": LAST, "partition": partition, "committed_at": LAST, "end_offset_at": LAST}
        for partition in range(3)
    ]
    return [day | who | did | seen], lag


def _slo() -> list[Row]:
    rows = []
    for day in range(DAYS):
        at = min(FIRST + timedelta(days=day + 1), LAST)
        for name, topic, target, good in (
            ("produce-latency", "orders", 0.999, 0.9985 - 0.0011 * day),
            ("produce-latency", "payments", 0.999, 0.9996),
            ("fetch-latency", "clicks", 0.99, 0.9971),
            ("availability", None, 0.9995, 0.99998),
        ):
            left = 1 - (1 - good) / (1 - target)
            burn = (1 - good) / (1 - target)
            rows.append({"day": (FIRST + timedelta(days=day)).date(), "as_of": at, "slo": name, "objective": "fast",
                         "service": "kafka", "sli": "latency", "cluster_id": CLUSTER, "topic": topic,
                         "threshold_ms": 50.0, "objective_ratio": target, "window_days": 30.0,
                         "total": 1_000_000 * (day + 1), "good": int(1_000_000 * (day + 1) * good),
                         "day_total": 1_000_000, "day_good": int(1_000_000 * good), "attainment": good,
                         "error_budget_ratio": 1 - target, "period_error_budget_remaining_ratio": left,
                         "burn_rate_1h": burn, "burn_rate_1d": burn, "page_quick": False, "page_slow": False,
                         "ticket_quick": burn > 3, "ticket_slow": burn > 1})  # fmt: skip
    return rows


def _cost() -> list[Row]:
    rows = []
    for day in range(DAYS):
        at = FIRST + timedelta(days=day)
        for client in CLIENTS:
            size = client.size * 90
            for meter, price in (("data_in_gb", "0.11"), ("cross_zone_gb", "0.02")):
                if meter == "cross_zone_gb" and client.team not in ("web", "data"):
                    continue
                gigabytes = Decimal(size) / 10**9
                rows.append({"day": at.date(), "BillingCurrency": "EUR", "SkuMeter": meter, "x_Team": client.team,
                             "x_PrincipalId": client.principal, "x_Topic": client.topic, "AvailabilityZone": "eu-1a",
                             "x_Direction": "in" if client.api == "Produce" else "out", "PricingUnit": "GB",
                             "PricingQuantity": gigabytes.quantize(Decimal("1E-10")), "ServiceName": "Apache Kafka",
                             "BilledCost": (gigabytes * Decimal(price)).quantize(Decimal("1E-10"))})  # fmt: skip
    return rows


def _topics() -> list[Row]:
    used = {client.topic for client in CLIENTS}
    rows = []
    for topic in TOPICS:
        state = "used" if topic in used else {"metrics-raw": "unknown", "audit-archive": "polled_only"}.get(
            topic, "unused")  # fmt: skip
        rows.append({"day": LAST.date(), "cluster_id": CLUSTER, "topic": topic, "partitions": 12, "internal": False,
                     "present": True, "state": state, "coverage": 0.98 if state == "unknown" else 1.0,
                     "unused_since": FIRST if state in ("unused", "polled_only") else None, "since": FIRST,
                     "last_polled": LAST if state == "polled_only" else None,
                     "uncovered_brokers": [2] if state == "unknown" else []})  # fmt: skip
    return rows


def write_all(root: Path) -> None:
    dice = random.Random(7)
    traffic, latency = _passed(dice)
    half = len(traffic) // 2
    for part in (slice(half), slice(half, None)):
        write(root, "traffic", *traffic[part])
        write(root, "latency", *latency[part])
    write(root, "completeness", *_health())
    write(root, "clients", *_clients())
    write(root, "connections", *_connections())
    write(root, "throttles", *_throttles())
    write(root, "changes", *_changes())
    groups, lag = _groups()
    write(root, "groups", *groups)
    write(root, "lag", *lag)
    write(root, "slo", *_slo())
    write(root, "cost", *_cost())
    write(root, "topics", *_topics())
    day = {"day": LAST.date()}
    write(root, "dead_letters", {**day, "timestamp": LAST, "topic": "brokerside-audit", "partition": 2, "offset": 991,
                                 "reason": "not_json", "detail": None, "value_bytes": 17})  # fmt: skip
    write(root, "inventory", *({**day, "hour": LAST, "cluster_id": CLUSTER, "topic": t, "listings": 1} for t in TOPICS))
    pair = {"mirror": "dr", "source_cluster_id": CLUSTER, "source_topic": "orders", "target_cluster_id": "other"}
    write(root, "mirror_check", {**day, **pair, "target_topic": "dr.orders", "produced_total": 10_000,
                                 "mirrored_total": 9_993, "missing_records": 7, "surplus_records": 0,
                                 "retried_records": 3, "unconfirmed_records": 0, "state": "missing", "exact": True,
                                 "as_of": LAST})  # fmt: skip
    write(root, "quota_advice", {**day, "cluster_id": CLUSTER, "scope": "ip", "quota": "connections", "peak": 12.0,
                                 "peak_at": LAST, "peak_by": "10.0.1.77 User:legacy-erp", "advice": 18,
                                 "config": "max.connections.per.ip"})  # fmt: skip
    write(root, "produced", {**day, "at": LAST, "cluster_id": CLUSTER, "topic": "orders", "records": 10})


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
