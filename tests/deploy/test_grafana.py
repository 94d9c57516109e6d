"""Every query of every dashboard answers, on a real Prometheus, while real clients and a real job work."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.local.cluster import ClusterState
from tests.deploy.observed import FOLDER, observed, panels, resolved
from tests.deploy.prometheus import Prometheus
from tests.deploy.running import until

ROOT = Path(__file__).parents[2]
NAMES = ("overview", "clients", "limits", "audit", "jobs")
EMPTY = {("audit", "Lost"), ("audit", "Observers, lost"), ("audit", "Problems")}
"""Panels whose series appear with the first fault."""


@pytest.mark.slow
def test_the_dashboards_are_what_their_generator_makes() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(NAMES)
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.dashboards", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise("operations.md", "The dashboards have their data source, variables and panels.")
def test_a_dashboard_is_whole() -> None:
    for name in NAMES:
        content = json.loads((FOLDER / f"{name}.json").read_text())
        assert content["uid"] == f"brokerside-{name}"
        numbers = [panel["id"] for panel in content["panels"]]
        assert len(set(numbers)) == len(numbers)
        for panel in panels(name):
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert all(target["refId"] for target in panel["targets"])
        assert {one["name"] for one in content["templating"]["list"]} == {"datasource", "job", "instance"}


@pytest.fixture(scope="module")
def prometheus(cluster: ClusterState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with observed(cluster, tmp_path_factory.mktemp("dashboards")) as made:
        yield made


@pytest.mark.deploy
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.promise("operations.md", "Every query of the dashboards answers while clients and the job work.")
def test_every_query_answers_while_clients_work(prometheus: Prometheus) -> None:
    for name in NAMES:
        for panel in panels(name):
            for target in panel["targets"]:
                query = resolved(target["expr"])
                assert "$" not in query
                assert prometheus.error(query) is None, query
                if (name, panel["title"]) not in EMPTY:
                    until(lambda query=query: prometheus.ask(query), f"{panel['title']}: {query}")
