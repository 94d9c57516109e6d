"""The chart and the patch: rendered, checked against Kubernetes' own schemas, and read by the sidecar."""

import json
from pathlib import Path

import pytest
import yaml

from proxy import __version__
from proxy.cli import _parser
from proxy.config import Config, load
from tests.deploy.manifests import CHART, EVERYTHING, ROOT, Manifest, Render, environment, only, sidecar_of
from tests.deploy.running import output_of
from tests.tools.environment import made

VERSIONS = ("1.29", "1.34")
"""Of Kubernetes, whose schemas the manifests are checked against: the oldest with native sidecars, and a recent one."""

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What Pod Security's level `restricted` wants, and more."""


def valid(manifests: list[Manifest], folder: Path) -> None:
    """Check against Kubernetes' schemas all but the kinds of Prometheus' operator."""
    known = [one for one in manifests if "monitoring.coreos.com" not in one["apiVersion"]]
    (folder / "manifests.yaml").write_text(yaml.safe_dump_all(known))
    for version in VERSIONS:
        output_of(made("deploy") / "bin/kubernetes-validate", "--strict", "-k", version, folder / "manifests.yaml")


def config_of(manifests: list[Manifest], name: str, ordinal: int, folder: Path) -> Config:
    maps = {one["metadata"]["name"]: one["data"] for one in manifests if one["kind"] == "ConfigMap"}
    path = folder / "brokerside.yaml"
    path.write_text(maps[name]["brokerside.yaml"])
    fields = {
        "metadata.name": f"kafka-{ordinal}",
        "metadata.namespace": "prod",
        "metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal),
    }
    return load(path, environment(sidecar_of(manifests), **fields))


@pytest.mark.slow
@pytest.mark.promise("install.md", "Kubernetes' own schemas allow all that the chart makes.")
def test_kubernetes_takes_all_that_the_chart_makes(render: Render, tmp_path: Path) -> None:
    others = ["ConfigMap", "ConfigMap", "ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "PodMonitor"]
    for kind in ("CronJob", "Deployment"):
        manifests = render(EVERYTHING | {"jobs": EVERYTHING["jobs"] | {"kind": kind}})
        kinds = sorted(manifest["kind"] for manifest in manifests)
        assert kinds == sorted([*others, "PrometheusRule", kind])
        valid(manifests, tmp_path)


@pytest.mark.slow
@pytest.mark.promise("install.md", "A chart of Kafka gets a native sidecar that may do nothing else.")
def test_a_kafka_chart_gets_a_native_sidecar_that_may_do_nothing(
    render: Render, kafka_chart: Path, tmp_path: Path
) -> None:
    values = {"brokerside": {"spool": {"claim": {"enabled": True}}}}
    manifests = render(values, kafka_chart)
    valid(manifests, tmp_path)
    sidecar = sidecar_of(manifests)
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["securityContext"] == RESTRICTED
    assert sidecar["startupProbe"]["httpGet"]["path"] == sidecar["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert sidecar["readinessProbe"]["httpGet"]["path"] == "/readyz"
    claims = only(manifests, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert [claim["metadata"]["name"] for claim in claims] == ["brokerside-state"]


@pytest.mark.promise("install.md", "The sidecar of each pod has the broker.id of its pod, and the addresses of it.")
def test_each_pod_has_a_configuration_of_its_own(render: Render, kafka_chart: Path, tmp_path: Path) -> None:
    values = {"brokerside": {"config": {"audit": {"spool.max.bytes": 4 << 30}, "quotas": {"ips": {"<default>": 20}}}}}
    manifests = render(values, kafka_chart)
    for ordinal in (0, 2):
        config = config_of(manifests, "kafka-brokerside", ordinal, tmp_path)
        assert config.broker_id == ordinal
        assert str(config.listeners[0].advertised) == f"kafka-{ordinal}.kafka.prod.svc.cluster.local:9092"
        assert config.audit.spool_max_bytes == 4 << 30
        assert str(config.admin.bind) == "0.0.0.0:9644"


@pytest.mark.promise("install.md", "helm refuses a mistake in the values of the chart by name.")
def test_a_mistake_in_the_values_is_refused_by_name(render: Render) -> None:
    mistakes: list[tuple[Manifest, str]] = [
        ({"config": {"wrokers": 2}}, "wrokers"),
        ({"config": {"workers": 0}}, "/config/workers"),
        ({"config": {"broker.id": 1}}, "broker.id"),
        ({"config": {"listeners": [{"name": "A", "bind": "0.0.0.0:9092"}]}}, "upstream"),
        ({"config": {"quotas": {"listener.name.a.max.connections": "many"}}}, "listener.name.a.max.connections"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"jobs": {"kind": "DaemonSet"}}, "/jobs/kind"),
        ({"prometheus": {}}, "prometheus"),
    ]
    for values, said in mistakes:
        with pytest.raises(AssertionError) as refused:
            print(values, render(values))
        assert said in str(refused.value).replace("'", ""), values


@pytest.mark.promise("operations.md", "The chart has the same alerts, and they lead to the runbook of its values.")
def test_the_rules_lead_to_the_runbook(render: Render) -> None:
    rules = only(render(EVERYTHING), "PrometheusRule")["spec"]["groups"]
    original = yaml.safe_load((ROOT / "deploy/prometheus/brokerside.rules.yaml").read_text())["groups"]
    urls = [rule["annotations"].pop("runbook_url") for group in rules for rule in group["rules"]]
    expected = [rule["annotations"].pop("runbook_url") for group in original for rule in group["rules"]]
    assert rules == original
    assert urls == [f"https://wiki.example/{url}" for url in expected]


def test_the_command_of_the_jobs_is_one_that_there_is(render: Render) -> None:
    pod = only(render(EVERYTHING), "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["securityContext"] == RESTRICTED
    arguments = vars(_parser().parse_args(container["args"]))
    assert arguments["available_now"] is True
    assert arguments["bootstrap_servers"] == "kafka:19094"


@pytest.mark.slow
@pytest.mark.promise("install.md", "A StatefulSet that exists gets the chart's sidecar, and keeps the rest.")
def test_the_patch_adds_the_sidecar_of_the_chart_and_keeps_what_was_there(
    patched: list[Manifest], render: Render, kafka_chart: Path, tmp_path: Path
) -> None:
    valid(patched, tmp_path)
    pod = only(patched, "StatefulSet")["spec"]["template"]["spec"]
    assert {one["name"] for one in pod["initContainers"]} == {"prepare", "brokerside"}
    assert {one["name"] for one in pod["volumes"]} == {"data", "brokerside-config", "brokerside-state"}
    ours, charts = sidecar_of(patched), sidecar_of(render({}, kafka_chart))
    for sidecar in (ours, charts):
        listeners = next(one for one in sidecar["env"] if one["name"] == "BROKERSIDE_LISTENERS")
        listeners["value"] = yaml.safe_load(listeners["value"])
    assert ours == charts


def test_the_patch_configures_each_pod(patched: list[Manifest], tmp_path: Path) -> None:
    config = config_of(patched, "brokerside", 1, tmp_path)
    assert (config.broker_id, str(config.listeners[0].advertised)) == (1, "kafka-1.kafka.prod.svc.cluster.local:9092")


@pytest.mark.slow
@pytest.mark.promise("install.md", "The chart takes every key of the configuration.")
def test_the_schema_takes_every_key_there_is() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
    page = (ROOT / "docs/config.md").read_text()
    example = yaml.safe_load(page.partition("## Complete example")[2].partition("```yaml")[2].partition("```")[0])
    del example["broker.id"]
    schema = json.loads((CHART / "values.schema.json").read_text())
    script = "import json, sys, jsonschema; jsonschema.validate(**json.load(sys.stdin))"
    arguments = json.dumps({"instance": {"config": example}, "schema": schema})
    output_of(made("deploy") / "bin/python", "-c", script, input=arguments)
