"""What the chart and the patch make, applied to a real API server without storing it."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from proxy.local.jars import cache_dir
from proxy.local.ports import free_ports
from tests.deploy.manifests import EVERYTHING, Manifest, Render, only
from tests.deploy.running import until
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


VERSION, ETCD, OPERATOR = "1.37.2", "3.7.0", "0.85.0"
"""Of Kubernetes, of the etcd that it is built with, and of the operator that PodMonitor and PrometheusRule are of."""

PROGRAMS = {"etcd": "go.etcd.io/etcd/server/v3", "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver"}
CRDS = ("podmonitors", "prometheusrules")
NAMESPACE = "prod"
TOKEN = "of-this-test-alone"


def folder() -> Path:
    return cache_dir() / "bench" / f"kubernetes-{VERSION}"


def built() -> Path:
    """Return the folder with the programs; the first build takes about eleven minutes. Raises MissingError."""
    if not (folder() / "kube-apiserver").exists():
        folder().mkdir(parents=True, exist_ok=True)
        kubernetes = fetched.go_module("k8s.io/kubernetes", VERSION)
        staged = re.findall(r"^\t(\S+) => \./staging/", (kubernetes / "go.mod").read_text(), re.MULTILINE)
        lines = [
            "module brokerside.test/kubernetes",
            f"require k8s.io/kubernetes v{VERSION}",
            f"require {PROGRAMS['etcd']} v{ETCD}",
            *(f"replace {name} => {name} v0.{VERSION.partition('.')[2]}" for name in staged),
        ]
        (folder() / "go.mod").write_text("\n".join(lines) + "\n")
        for name, package in PROGRAMS.items():
            fetched.go_build(folder(), name, package)
    return folder()


def definitions() -> list[Manifest]:
    """Return the CustomResourceDefinitions of Prometheus' operator. Raises MissingError."""
    module = fetched.go_module("github.com/prometheus-operator/prometheus-operator", OPERATOR)
    files = (module / f"example/prometheus-operator-crd/monitoring.coreos.com_{name}.yaml" for name in CRDS)
    return [yaml.safe_load(file.read_text()) for file in files]


@dataclass
class Answer:
    """``status``: of HTTP; ``message``: what the server says is wrong; ``warnings``: what it warns of."""

    status: int
    message: str
    warnings: list[str]


class ApiServer:
    """One that runs; ``address``: host:port."""

    def __init__(self, address: str, certificate: Path) -> None:
        self._address = address
        self._certificate = certificate

    def ready(self) -> bool:
        return self._certificate.exists() and self._ask("GET", "readyz")[0].status == 200

    def create(self, manifest: Manifest) -> Answer:
        path = self._path(manifest)
        assert path, manifest["kind"]
        return self._ask("POST", path, manifest)[0]

    def dry_run(self, manifest: Manifest) -> Answer:
        """Apply an object as ``kubectl apply --server-side --dry-run=server`` does: unknown fields are mistakes."""
        path = self._path(manifest)
        assert path, f"no {manifest['kind']} in {manifest['apiVersion']}"
        query = "dryRun=All&fieldManager=test&fieldValidation=Strict"
        return self._ask("PATCH", f"{path}/{manifest['metadata']['name']}?{query}", manifest)[0]

    def knows(self, manifest: Manifest) -> bool:
        return self._path(manifest) is not None

    def _path(self, manifest: Manifest) -> str | None:
        version = manifest["apiVersion"]
        root = f"apis/{version}" if "/" in version else f"api/{version}"
        kinds = self._ask("GET", root)[1].get("resources", [])
        for one in kinds:
            if one["kind"] == manifest["kind"] and "/" not in one["name"]:
                return f"{root}/namespaces/{NAMESPACE}/{one['name']}" if one["namespaced"] else f"{root}/{one['name']}"
        return None

    def _ask(self, method: str, path: str, body: Manifest | None = None) -> tuple[Answer, dict[str, Any]]:
        kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            f"https://{self._address}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": kind},
        )
        trusted = ssl.create_default_context(cafile=str(self._certificate))
        try:
            with urllib.request.urlopen(request, timeout=60, context=trusted) as response:
                text = response.read()
                found = json.loads(text) if text.startswith(b"{") else {}
                return Answer(response.status, "", response.headers.get_all("Warning") or []), found
        except urllib.error.HTTPError as refused:
            text = refused.read().decode()
            message = json.loads(text)["message"] if text.startswith("{") else text
            return Answer(refused.code, message, refused.headers.get_all("Warning") or []), {}
        except urllib.error.URLError as error:
            return Answer(0, str(error), []), {}


@contextmanager
def api_server(work: Path) -> Iterator[ApiServer]:
    """Start one that knows Prometheus' operator and has a namespace of level ``restricted``. Raises MissingError."""
    programs, crds = built(), definitions()
    port, client_port, peer_port = free_ports(3)
    (work / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    key = rsa.generate_private_key(65537, 2048)
    no_password = serialization.NoEncryption()
    (work / "sa.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)
    )
    store = f"http://127.0.0.1:{client_port}"
    etcd = [
        f"--data-dir={work}/etcd", f"--listen-client-urls={store}", f"--advertise-client-urls={store}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}", "--unsafe-no-fsync",
    ]  # fmt: skip
    server = [
        f"--etcd-servers={store}", f"--secure-port={port}", "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
        f"--cert-dir={work}", f"--token-auth-file={work}/tokens.csv",
        "--authorization-mode=AlwaysAllow", "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.test", f"--service-account-key-file={work}/sa.key",
        f"--service-account-signing-key-file={work}/sa.key",
        "--disable-admission-plugins=ServiceAccount",  # nothing here makes the accounts of a namespace
    ]  # fmt: skip
    with ExitStack() as stack:
        for name, arguments in (("etcd", etcd), ("kube-apiserver", server)):
            log = stack.enter_context((work / f"{name}.log").open("wb"))
            process = subprocess.Popen([programs / name, *arguments], stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
        made = ApiServer(f"127.0.0.1:{port}", work / "apiserver.crt")
        until(made.ready, "the API server is ready", 120)
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
        for manifest in (namespace, *crds):
            answer = made.create(manifest)
            assert answer.status == 201, answer
        of_operator = {"apiVersion": "monitoring.coreos.com/v1"}
        until(lambda: all(made.knows(of_operator | {"kind": crd["spec"]["names"]["kind"]}) for crd in crds), "the CRDs")
        yield made
