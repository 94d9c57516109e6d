"""The metrics of requests on a real broker: what the audit's events of the same requests add up to."""

from __future__ import annotations

import urllib.request
import uuid
from collections import Counter

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from observers.event import ROLLUP_BUCKETS, RequestEvent
from proxy.core.response_errors import FAILURE, severity
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from proxy.local.workload import create_topics
from proxy.telemetry.request_metrics import BUCKET_ENDS
from tests.integration.test_audit import envelopes, events, until

pytestmark = pytest.mark.kafka

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

RECORDS = 3_000


@pytest.mark.promise("metrics.md", "The metrics of requests are the sums of the audit's events of the same requests.")
@pytest.mark.slow
def test_metrics_are_the_sums_of_the_events(cluster: ClusterState) -> None:
    node = cluster.nodes[0]
    folder = node.home.parent
    name = uuid.uuid4().hex[:8]
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    config["observer.class.names"] = [
        "observers.audit:AuditObserver",
        "observers.request_metrics:RequestMetricsObserver",
    ]
    config["audit"] = {"topic": f"audit-{name}"}
    config["workers"] = 2
    path = folder / "request-metrics.yaml"
    path.write_text(yaml.safe_dump(config))
    process = SidecarProcess.start(path, path.with_suffix(".log"), node.admin)
    try:
        work(node.advertised, f"topic-{name}")
        found = scrape_until_quiet(node.admin)
    finally:
        assert process.stop()
    reported = events(envelopes(cluster.internal_bootstrap, f"audit-{name}"), RequestEvent)
    assert by_api(found, "brokerside_request_bytes_total") == Counter(
        {
            api: sum(event.request_bytes for event in reported if event.api == api)
            for api in {event.api for event in reported}
        }
    )
    failed = [event.api for event in reported if is_failure(event)]
    assert failed
    assert +by_api(found, "brokerside_request_errors_total", **{"class": "failure"}) == Counter(failed)
    metric = "brokerside_request_duration_seconds"
    measured = [event for event in reported if event.outcome == "answered" and not is_idle(event)]
    assert +by_api(found, f"{metric}_count") == Counter(event.api for event in measured)
    for number, end in enumerate(ROLLUP_BUCKETS):
        reached = Counter(event.api for event in measured if event.latency_us <= end)
        assert +by_api(found, f"{metric}_bucket", le=BUCKET_ENDS[number]) == reached


def work(bootstrap: str, topic: str) -> None:
    """Records are written and read, and a topic is asked for that is not there."""
    create_topics(bootstrap, {topic: {}}, 2)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    for number in range(RECORDS):
        producer.produce(topic, b"x" * 100, key=str(number).encode())
        producer.poll(0)
    producer.flush(30)
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"allow.auto.create.topics": False})
    consumer.subscribe([topic, f"missing-{topic}"])
    read = 0
    while read < RECORDS:
        message = consumer.poll(30)
        assert message is not None
        read += message.error() is None
    consumer.close()


def scrape_until_quiet(admin: str) -> Samples:
    """The metrics, once observers have all requests of the clients, no fetch waits, and the events are delivered."""
    last: Samples = {}

    def is_quiet() -> bool:
        nonlocal last
        last = scrape(admin)
        observed = total(last, "brokerside_principal_requests_total")
        emitted, delivered = (total(last, f"brokerside_audit_{what}_total") for what in ("emitted", "delivered"))
        return (
            not total(last, "brokerside_connections_active")
            and observed == total(last, "brokerside_requests_total")
            and 0 < emitted == delivered
        )

    until(is_quiet)
    return last


def scrape(admin: str) -> Samples:
    """Values by name and labels."""
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=60) as page:
        families = text_string_to_metric_families(page.read().decode())
    return {
        (found.name, frozenset(found.labels.items())): found.value for family in families for found in family.samples
    }


def total(found: Samples, metric: str) -> float:
    return sum(value for (name, _), value in found.items() if name == metric)


def by_api(found: Samples, metric: str, **labels: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for (name, given), value in found.items():
        if name == metric and labels.items() <= set(given):
            counts[dict(given)["api"]] += int(value)
    return counts


def is_failure(event: RequestEvent) -> bool:
    codes = [event.error_code, *(part.error_code for part in event.topics)]
    return bool(event.item_failures) or any(severity(event.api_key, code) == FAILURE for code in codes)


def is_idle(event: RequestEvent) -> bool:
    return event.api_key in (1, 78) and not event.topics and not event.error_code
