"""What the chart and the patch make, applied to a real API server without storing it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.apiserver import ApiServer, api_server, folder
from tests.deploy.manifests import EVERYTHING, Manifest, Render, only, sidecar_of
from tests.tools import fetched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Building it takes minutes, so without --deploy it is used where it has been built."""
    if not (folder() / "kube-apiserver").exists() and not request.config.getoption("--deploy"):
        pytest.skip("no kube-apiserver is built yet: make deploy-test")
    try:
        with api_server(tmp_path_factory.mktemp("apiserver")) as made:
            yield made
    except fetched.MissingError as missing:
        pytest.skip(f"no kube-apiserver: {missing}")


def accepted(server: ApiServer, manifests: list[Manifest]) -> None:
    """Check that all is applied, and that nothing in it violates Pod Security's level `restricted`."""
    for manifest in manifests:
        answer = server.dry_run(manifest)
        assert answer.status in (200, 201), f"{manifest['kind']}: {answer.message}"
        assert answer.warnings == [], manifest["kind"]


@pytest.mark.promise("install.md", "A real API server takes all that the chart and the patch make.")
def test_it_takes_all_that_the_chart_and_the_patch_make(
    server: ApiServer, render: Render, kafka_chart: Path, patched: list[Manifest]
) -> None:
    for kind in ("CronJob", "Deployment"):
        manifests = render(EVERYTHING | {"jobs": EVERYTHING["jobs"] | {"kind": kind}})
        assert {"PodMonitor", "PrometheusRule", "NetworkPolicy", kind} <= {one["kind"] for one in manifests}
        accepted(server, manifests)
    accepted(server, patched)
    manifests = render({"brokerside": {"spool": {"claim": {"enabled": True}}}}, kafka_chart)
    accepted(server, manifests)
    template = only(manifests, "StatefulSet")["spec"]["template"]
    state = {"name": "brokerside-state", "emptyDir": {}}
    template["spec"]["volumes"].append(state)
    metadata = {**template["metadata"], "name": "kafka-0"}
    accepted(server, [{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}])


def test_it_refuses_a_misspelt_field_and_warns_of_a_root_user(
    server: ApiServer, render: Render, kafka_chart: Path
) -> None:
    manifests = render({}, kafka_chart)
    misspelt = copy.deepcopy(only(manifests, "StatefulSet"))
    sidecar_of([misspelt])["readinessProb"] = {}
    answer = server.dry_run(misspelt)
    assert (answer.status, "readinessProb" in answer.message) == (500, True), answer

    [monitor] = (one for one in render(EVERYTHING) if one["kind"] == "PodMonitor")
    monitor["spec"]["podMetricsEndpoint"] = []
    answer = server.dry_run(monitor)
    assert (answer.status, "podMetricsEndpoint" in answer.message) == (500, True), answer

    privileged = only(manifests, "StatefulSet")
    sidecar_of([privileged])["securityContext"]["runAsNonRoot"] = False
    [warning] = server.dry_run(privileged).warnings
    assert "runAsNonRoot" in warning
