"""Objectives over one load: the exported rules on live metrics, and the table ``slo`` afterwards."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from proxy.local import cluster as local_cluster
from proxy.local.broker import AUDIT_TOPIC
from spark_jobs.definitions import load
from spark_jobs.query import query
from spark_jobs.run import run
from tests.integration.test_audit import until
from tests.integration.test_prometheus_server import ask, check_new, halt, producing, value_of
from tests.integration.test_prometheus_server import scraping as scraping_prometheus

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus on PATH"),
]

UNCHANGED = (
    "sum(changes(brokerside_requests_total[4s])) == 0 and on() min(count_over_time(brokerside_requests_total[4s])) >= 3"
)
"""On a busy machine there may be a single sample in 4 s, which does not show that nothing changes."""


def test_live_metrics_and_the_table_have_the_same_ratios(spark: SparkSession, tmp_path: Path) -> None:
    cluster = local_cluster.up(tmp_path / "cluster", progress=False)
    node = cluster.nodes[0]
    try:
        with scraping_prometheus(cluster, tmp_path) as address:
            until(lambda: bool(ask(address, 'up{job="brokerside"} == 1')))
            admin = AdminClient({"bootstrap.servers": node.advertised})
            admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
            with producing(node.advertised, "orders"):
                for number in range(40):
                    check_new(admin, f"new-{number}")
                halt(node)
                for _ in range(10):
                    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
                        check_new(admin, "orders")
            del admin
            until(lambda: value_of(address, 'brokerside_request_service_duration_seconds_count{api="Produce"}') > 0)
            until(lambda: bool(ask(address, "sum(brokerside_connections_active) == 0")))
            until(lambda: bool(ask(address, UNCHANGED)))
            live = {name: value_of(address, of_all_time(name, tmp_path)) for name in ("topics-1", "produce-1")}
        run(
            bootstrap_servers=cluster.internal_bootstrap,
            topic=AUDIT_TOPIC,
            tables=str(tmp_path / "tables"),
            definitions=load([tmp_path / "slo.yaml"]),
            jars=[],
            only=["slo"],
            available_now=True,
        )
        _, rows = query(tmp_path / "tables", "SELECT slo || '-' || objective, 1 - good / total, total FROM slo")
        assert {name: ratio for name, ratio, _ in rows} == pytest.approx(live)
        assert live["topics-1"] == pytest.approx(10 / 51)
        assert 0 < live["produce-1"] < 1
        assert {name: total for name, _, total in rows}["topics-1"] == 51
    finally:
        local_cluster.down(tmp_path / "cluster")


def of_all_time(objective: str, folder: Path) -> str:
    """The exported ratio of an objective over everything since the sidecar's start, not over a window."""
    groups = yaml.safe_load((folder / "rules.yaml").read_text())["groups"]
    (rule,) = [
        rule
        for group in groups
        for rule in group["rules"]
        if rule.get("record") == "slo:sli_error:ratio_rate5m" and rule["labels"]["sloth_slo"] == objective
    ]
    return re.sub(r"rate\((\w+\{[^}]*\})\[5m\]\)", r"\1", rule["expr"])
