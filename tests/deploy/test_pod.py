"""The pod of the chart, a broker and its sidecar, run by ``podman kube play``."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from proxy.local.ports import free_ports
from tests.deploy.manifests import CHART, Manifest, Render, environment, only, sidecar_of
from tests.deploy.podman import Podman, kafka, podman, sidecar
from tests.deploy.running import Running, transfer, until

pytestmark = [pytest.mark.deploy, pytest.mark.kafka, pytest.mark.timeout(900)]

PORTS = dict(zip((9092, 9644), free_ports(2), strict=True))
"""On this machine, by those of the sidecar."""

ADDRESS, ADMIN = (f"127.0.0.1:{port}" for port in PORTS.values())
NAME = "kafka-0"
FIELDS = {"metadata.name": NAME, "metadata.namespace": "prod", "metadata.labels['apps.kubernetes.io/pod-index']": "0"}
VALUES: Manifest = {
    "image": {"repository": "localhost/brokerside", "tag": "latest"},
    "config": {
        "listeners": [{"name": "CLIENT", "bind": "0.0.0.0:9092", "advertised": ADDRESS, "upstream": "127.0.0.1:19092"}]
    },
}
BROKER = {
    "KAFKA_NODE_ID": "0",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "0@127.0.0.1:19093",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "INTERNAL",
    "KAFKA_LISTENERS": "CLIENT://127.0.0.1:19092,INTERNAL://127.0.0.1:19094,CONTROLLER://127.0.0.1:19093",
    "KAFKA_ADVERTISED_LISTENERS": f"CLIENT://{ADDRESS},INTERNAL://127.0.0.1:19094",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "CLUSTER_ID": "q1Sh-9_ISia_zwGINzRvyQ",
}


def played(manifests: list[Manifest], kafka_image: str, options: list[str]) -> list[Manifest]:
    """Return the first pod of the StatefulSet as Podman can run it.

    Podman 4 knows no native sidecars, no field ``metadata.namespace`` and no probe without a shell in the image: the
    sidecar is a container like the broker, with the variables that the kubelet gives it, and without its probes.
    """
    template = only(manifests, "StatefulSet")["spec"]["template"]
    pod = template["spec"]
    own = sidecar_of(manifests)
    own["env"] = [{"name": name, "value": value} for name, value in environment(own, **FIELDS).items()]
    for key in ("restartPolicy", "startupProbe", "livenessProbe", "readinessProbe"):
        del own[key]
    for port in own["ports"]:
        port |= {"hostIP": "127.0.0.1", "hostPort": PORTS[port["containerPort"]]}
    [broker] = pod["containers"]
    mount, classpath = (option for option in options if not option.startswith("--"))
    name, _, value = classpath.partition("=")
    variables = BROKER | {name: value}
    broker |= {
        "image": kafka_image,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": [{"name": "jars", "mountPath": "/jars", "readOnly": True}],
    }
    del pod["initContainers"]
    pod["containers"] = [own, broker]
    pod["volumes"].append({"name": "jars", "hostPath": {"path": mount.split(":")[0], "type": "Directory"}})
    metadata = {"name": NAME, "labels": template["metadata"]["labels"]}
    return [only(manifests, "ConfigMap"), {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}]


@pytest.fixture
def images(render: Render, kafka_chart: Path, tmp_path: Path) -> Iterator[Podman]:
    made = podman()
    sidecar(made)
    image, options = kafka(made)
    manifests = played(render({"brokerside": VALUES}, kafka_chart), image, options)
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    try:
        made.play(path)
        yield made
    finally:
        try:
            for container in ("kafka", "brokerside"):
                print(made("logs", "--tail", "20", f"{NAME}-{container}"))
        finally:
            made("kube", "down", path)


@pytest.mark.promise("install.md", "Traffic passes the pod of the chart, whose sidecar may do nothing else.")
def test_traffic_passes_the_pod_of_the_chart(images: Podman) -> None:
    running = Running(ADMIN)
    running.wait_ready()
    transfer(ADDRESS, "orders")
    until(lambda: running.metric("brokerside_audit_delivered_total") > 0, "events are delivered")
    assert running.metric("brokerside_audit_spool_failed") == 0

    [found] = json.loads(images("inspect", f"{NAME}-brokerside"))
    assert found["HostConfig"]["ReadonlyRootfs"] is True
    limits = yaml.safe_load((CHART / "values.yaml").read_text())["resources"]["limits"]
    assert f"{found['HostConfig']['Memory'] >> 20}Mi" == limits["memory"]
    assert not found["EffectiveCaps"]
    assert found["Config"]["User"] == "65532:65532"
    images("stop", "--time", "30", f"{NAME}-brokerside")
    assert images("inspect", "--format", "{{.State.ExitCode}}", f"{NAME}-brokerside") == "0"
