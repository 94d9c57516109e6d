"""Every query of every dashboard answers, on a real Prometheus, while real clients and a real job work."""

import contextlib
import json
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.client import BrokerMetadataClient
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.deploy.prometheus import scraping
from tests.deploy.running import Running, configuration, transfer, until
from tests.integration.conftest import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "grafana"
NAMES = ("overview", "clients", "limits", "audit", "jobs")
EMPTY = {("audit", "Lost"), ("audit", "Observers, lost"), ("audit", "Problems")}
"""Panels whose series appear with the first fault."""


@pytest.mark.promise("operations.md", "The dashboards have their data source, variables and panels.")
def test_a_dashboard_is_whole() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(NAMES)
    for name in NAMES:
        content = json.loads((FOLDER / f"{name}.json").read_text())
        assert content["uid"] == f"brokerside-{name}"
        numbers = [panel["id"] for panel in content["panels"]]
        assert len(set(numbers)) == len(numbers)
        for panel in panels(name):
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert all(target["refId"] for target in panel["targets"])
        assert {one["name"] for one in content["templating"]["list"]} == {"datasource", "job", "instance"}


@pytest.mark.deploy
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.promise("jobs.md", "A job has the metrics of Spark with the settings that this page gives.")
@pytest.mark.promise("operations.md", "Every query of the dashboards answers while clients and the job work.")
def test_every_query_answers_while_clients_work(cluster: ClusterState, tmp_path: Path) -> None:
    with ExitStack() as stack:
        stack.enter_context(sidecar_under_load(cluster, tmp_path))
        address = stack.enter_context(job(cluster, tmp_path))
        targets = {"brokerside": cluster.nodes[0].admin, "brokerside-jobs": f"{address}/metrics/prometheus"}
        prometheus = stack.enter_context(scraping(tmp_path / "prometheus", targets))
        for name, panel in [(one, panel) for one in NAMES for panel in panels(one)]:
            for target in panel["targets"]:
                query = resolved(target["expr"])
                assert "$" not in query
                assert prometheus.error(query) is None, query
                if (name, panel["title"]) not in EMPTY:
                    until(lambda query=query: prometheus.ask(query), f"{panel['title']}: {query}")


VARIABLES = {"$job": ".*", "$instance": ".*", "$__rate_interval": "10s"}

SPARK_METRICS = re.compile(r"--conf '(spark\.[^']+)'")
"""Settings in docs/jobs.md that turn Spark's metrics on."""


def panels(name: str) -> list[dict[str, Any]]:
    content = json.loads((FOLDER / f"{name}.json").read_text())
    return [panel for panel in content["panels"] if panel["type"] != "row"]


def resolved(query: str) -> str:
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    return query


@contextmanager
def sidecar_under_load(cluster: ClusterState, folder: Path) -> Iterator[None]:
    """Run the first node's sidecar, and clients that use it."""
    node = cluster.nodes[0]
    observers = ["observers.audit:AuditObserver", "observers.request_metrics:RequestMetricsObserver"]
    limits = {
        "max.connections": 1000,
        "max.connection.creation.rate": 500,
        "max.connections.per.ip": 3,
        "max.connections.per.ip.overrides": "127.0.0.1:500",
        "listener.name.client.max.connections": 900,
        "ips": {"<default>": 100},
    }
    config = configuration(cluster, observer_class_names=observers, quotas=limits)
    config["audit"]["spool.path"] = str(folder / "spool")
    (folder / "sidecar.yaml").write_text(yaml.safe_dump(config))
    sidecar = SidecarProcess.start(folder / "sidecar.yaml", folder / "sidecar.log", node.admin)
    done = threading.Event()
    load = threading.Thread(target=working, args=(node.advertised, done))
    load.start()
    try:
        yield
    finally:
        done.set()
        load.join()
        assert sidecar.stop()


@contextmanager
def job(cluster: ClusterState, folder: Path) -> Iterator[str]:
    """Run a job that reads the audit topic; give the address (host:port) of Spark's metrics once there are some."""
    address = f"127.0.0.1:{free_port()}"
    settings = [
        setting.replace("4040", address.rpartition(":")[2])
        for setting in SPARK_METRICS.findall((ROOT / "docs/jobs.md").read_text())
    ]
    assert len(settings) >= 5
    with (folder / "jobs.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "proxy", "jobs", "run", "--bootstrap-servers", cluster.internal_bootstrap,
             "--tables", folder / "tables", *(part for setting in settings for part in ("--conf", setting))],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        spark = Running(address)
        until(lambda: "_spark_streaming_" in (spark.get("metrics/prometheus") or ""), "the job has metrics", 400)
        yield address
    finally:
        process.terminate()
        process.wait(300)  # the running batch ends first


def working(address: str, done: threading.Event) -> None:
    """Use the sidecar in all ways that a dashboard shows, again and again."""
    admin = AdminClient({"bootstrap.servers": address})
    host, _, port = address.rpartition(":")
    number = 0
    while not done.wait(0.2):
        number += 1
        name = f"shown-{number % 5}"
        with contextlib.suppress(Exception):  # it is there, from the sixth time on
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(180)
        transfer(address, name, 50)
        with contextlib.closing(BrokerMetadataClient(address)) as client:
            client.brokers()
        with socket.create_connection((host, int(port)), 10) as sock:
            sock.sendall(struct.pack(">i", -5))
        with ExitStack() as stack:  # one more than the address may have
            for _ in range(4):
                stack.enter_context(socket.create_connection((host, int(port)), 10, source_address=("127.0.0.9", 0)))
