"""What the chart and the patch make, as fixtures, and what tests ask of it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.local.jars import cache_dir
from tests.deploy.running import output_of
from tests.tools import fetched

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/brokerside"

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]

EVERYTHING: Manifest = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "runbookUrl": "https://wiki.example/"},
    "networkPolicy": {"enabled": True},
    "grafanaDashboards": {"enabled": True},
    "jobs": {
        "enabled": True,
        "definitions": {"owners.yaml": (ROOT / "deploy/examples/definitions/owners.yaml").read_text()},
        "kafkaConfigSecret": "kafka-client",
        "args": ["--conf=spark.driver.memory=2g"],
    },
}


@pytest.fixture(scope="module")
def helm(request: pytest.FixtureRequest) -> Path:
    """Building it takes minutes, so without --deploy it is used where it has been built."""
    built = cache_dir() / "bench" / "go" / "helm"
    if not built.exists() and not request.config.getoption("--deploy"):
        pytest.skip("helm is not built yet: make deploy-test")
    try:
        return fetched.go("helm", "helm.sh/helm/v4/cmd/helm")
    except fetched.MissingError as missing:
        pytest.skip(f"no helm: {missing}")


@pytest.fixture
def render(helm: Path, tmp_path: Path) -> Render:
    """Renders a chart with values; the text of helm's error is raised as AssertionError."""

    def rendered(values: Manifest | None = None, chart: Path = CHART) -> list[Manifest]:
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(values or {}))
        said = output_of(helm, "template", "kafka", chart, "--namespace", "prod", "--values", tmp_path / "values.yaml")
        return [manifest for manifest in yaml.safe_load_all(said) if manifest]

    return rendered


@pytest.fixture
def kafka_chart(helm: Path, tmp_path: Path) -> Path:
    """A chart of brokers with this one as its subchart."""
    chart = tmp_path / "kafka"
    shutil.copytree(Path(__file__).with_name("kafka_chart"), chart)
    shutil.copytree(CHART, chart / "charts" / "brokerside")
    return chart


@pytest.fixture
def patched(tmp_path: Path) -> list[Manifest]:
    """A StatefulSet that existed, with the component of ``deploy/kubernetes/``."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl on PATH, whose kustomize renders the patch")
    shutil.copytree(ROOT / "deploy/kubernetes", tmp_path / "brokerside")
    template = Path(__file__).with_name("kafka_chart") / "templates" / "statefulset.yaml"
    kafka = yaml.safe_load("\n".join(line for line in template.read_text().splitlines() if "{{" not in line))
    del kafka["spec"]["volumeClaimTemplates"]
    pod = kafka["spec"]["template"]["spec"]
    pod["initContainers"] = [{**pod["containers"][0], "name": "prepare"}]
    pod["volumes"] = [{"name": "data", "emptyDir": {}}]
    (tmp_path / "kafka.yaml").write_text(yaml.safe_dump(kafka))
    (tmp_path / "kustomization.yaml").write_text("resources: [kafka.yaml]\ncomponents: [brokerside]\n")
    return list(yaml.safe_load_all(output_of(kubectl, "kustomize", tmp_path)))


def only(manifests: list[Manifest], kind: str) -> Manifest:
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    assert len(found) == 1
    return found[0]


def sidecar_of(manifests: list[Manifest]) -> Manifest:
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    found: list[Manifest] = [one for one in pod["initContainers"] if one["name"] == "brokerside"]
    assert len(found) == 1
    return found[0]


def environment(sidecar: Manifest, **pod: str) -> dict[str, str]:
    """Return a container's variables as the kubelet sets them; ``pod``: its fields by path."""
    found: dict[str, str] = {}
    for one in sidecar["env"]:
        value = one.get("value") or pod[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for name, known in found.items():
            value = value.replace(f"$({name})", known)
        found[one["name"]] = value
    return {name: value for name, value in found.items() if name.startswith("BROKERSIDE_")}
