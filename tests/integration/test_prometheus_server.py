"""A real Prometheus scrapes a sidecar and evaluates the exported rules: alerts fire and resolve."""

import json
import shutil
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.local.cluster import ClusterState
from spark_jobs.definitions import load
from spark_jobs.export.prometheus import prometheus_rules
from tests.deploy.prometheus import Prometheus, scraping
from tests.integration.sidecars import config_of, running, until
from tests.tools.topic import create

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus on PATH"),
]

OBJECTIVES = """
apiVersion: openslo/v1
kind: SLO
metadata: {name: topics}
spec:
  service: platform
  indicator:
    spec:
      ratioMetric:
        good: {metricSource: {type: brokerside, spec: {result: success}}}
        total: {metricSource: {type: brokerside, spec: {apis: [CreateTopics]}}}
  timeWindow: [{duration: 30d, isRolling: true}]
  budgetingMethod: Occurrences
  objectives: [{target: 0.99}]
"""


@contextmanager
def scraped(cluster: ClusterState, folder: Path, *features: str) -> Iterator[Prometheus]:
    node = cluster.nodes[0]
    config = config_of(node)
    config["observer.class.names"].append("observers.request_metrics:RequestMetricsObserver")
    (folder / "slo.yaml").write_text(OBJECTIVES)
    rules = prometheus_rules(load([folder / "slo.yaml"]))
    with (
        running(config, folder),
        scraping(folder / "prometheus", {"brokerside": node.admin}, rules, features) as server,
    ):
        yield server


@pytest.mark.promise("metrics.md", "Prometheus stores the native histograms and exemplars of requests.")
def test_native_histograms_and_exemplars_are_stored(cluster, tmp_path):
    node = cluster.nodes[0]
    name = 'brokerside_request_duration_seconds{api="CreateTopics"}'
    with scraped(cluster, tmp_path, "native-histograms", "exemplar-storage") as server:
        admin = AdminClient({"bootstrap.servers": node.advertised})
        for number in range(20):
            check_new(admin, f"native-{number}")
        until(lambda: server.value_of(f"histogram_count({name})") == 20)
        longest = server.value_of(f"histogram_quantile(1, {name})")
        mean = server.value_of(f"histogram_sum({name}) / histogram_count({name})")
        exemplars = server.exemplars(name)
        connections = json.loads(urllib.request.urlopen(f"http://{node.admin}/connections", timeout=10).read())
        page = urllib.request.urlopen(f"http://{node.admin}/metrics", timeout=10).read()
    linted = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert (linted.returncode, linted.stdout, linted.stderr) == (0, b"", b"")
    assert 0 < mean <= longest
    assert {one["labels"]["connection_id"] for one in exemplars} <= {one["id"] for one in connections["connections"]}
    assert 0 < max(float(one["value"]) for one in exemplars) <= longest


@pytest.mark.promise("slo.md", "Exported alerts fire while an objective is missed, and resolve.")
def test_alerts_fire_and_resolve(cluster, tmp_path):
    node = cluster.nodes[0]
    topic = f"alerts-{uuid.uuid4().hex[:8]}"
    with scraped(cluster, tmp_path) as server:

        def fires():
            """Whether there is an alert for a page."""
            return bool(server.ask('ALERTS{alertname="SLOBudgetBurns", alertstate="firing", sloth_severity="page"}'))

        admin = AdminClient({"bootstrap.servers": node.advertised})
        create(admin, NewTopic(topic, 1, 1))
        # A rate begins with the second scrape of a series.
        until(lambda: bool(server.ask('brokerside_request_errors_total{api="CreateTopics"}')))
        for _ in range(120):
            with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
                check_new(admin, topic)
        until(fires)
        # Good requests until fewer than six in a hundred are bad, which is six times what the budget allows.
        good = [NewTopic(f"{topic}-{number}", 1, 1) for number in range(3200)]
        for one in [admin.create_topics([new], validate_only=True)[new.topic] for new in good]:
            one.result(180)
        until(lambda: not fires(), 180)
        failed = server.ask('brokerside_request_errors_total{api="CreateTopics", class="failure"}')
    assert [float(one["value"][1]) for one in failed] == [120]


def check_new(admin: AdminClient, topic: str) -> None:
    """Ask whether the topic can be created, and do not create it."""
    admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic].result(180)
