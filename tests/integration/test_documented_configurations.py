"""Every configuration in README.md and docs is one that starts: the broker's, the sidecar's, those of clients and jobs.

How a block is completed and placed: ``tests.tools.fragments``. docs/rollout.md is walked along in test_rollout.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.commands.client_settings import client_settings
from proxy.config import Endpoint
from proxy.fleet.connection import BrokerConnection
from proxy.fleet.security import Security
from proxy.local import broker, process
from proxy.local.ports import HOST, free_ports
from proxy.local.readiness import known_brokers
from proxy.local.sidecars import SidecarProcess
from tests.integration.certificates import pem_files
from tests.integration.test_quota_poller import PASSWORD, USER, Secured, secured  # noqa: F401 - a fixture
from tests.integration.test_reload import until
from tests.tools.documented import example
from tests.tools.fragments import Block, blocks

pytestmark = pytest.mark.kafka

README = next(blocks("yaml", page="README.md"))

DEFINITIONS = [block for block in blocks("yaml") if block.text.startswith("apiVersion")]
INDICATORS = [block for block in blocks("yaml") if block.text.startswith("ratioMetric")]
OTHERS = [
    block
    for block in blocks("yaml")
    if block.text.startswith(("receivers", "# Prometheus", "scrape_configs"))
    or re.match(r"# (the StatefulSet|Chart\.yaml|values\.yaml|kustomization\.yaml)", block.text)
]
"""Configurations of OpenTelemetry's Collector and of Prometheus, which these tests do not have, and of Kubernetes,
which tests/deploy has."""
SIDECARS = [block for block in blocks("yaml") if block not in DEFINITIONS + INDICATORS + OTHERS]
CLIENTS = [block for block in blocks("properties") if block.text.startswith("security.protocol")]
BROKERS = [block for block in blocks("properties") if block not in CLIENTS]

SHIPPED = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
log.dirs=/tmp/kraft-combined-logs
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
"""What Kafka 4 ships as config/server.properties, without what is only tuning."""


def brokerside(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", *arguments]
    env = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


def placed(text: str, ports: dict[int, int]) -> str:
    """``text`` with hosts on loopback and other ports."""
    return re.sub(
        r"(^|[/=, ])[\w.-]*:(\d{4,5})\b",
        lambda found: f"{found[1]}{HOST}:{ports[int(found[2])]}",
        text,
        flags=re.MULTILINE,
    )


@contextmanager
def a_broker(folder: Path, properties: dict[str, str], ports: dict[int, int]) -> Iterator[None]:
    """A new one that has these properties beside those that Kafka ships."""
    lines = dict(line.split("=", 1) for line in SHIPPED.splitlines()) | properties
    path = folder / "server.properties"
    text = placed("\n".join(f"{key}={value}" for key, value in lines.items()), ports)
    path.write_text(text.replace("/tmp/kraft-combined-logs", str(folder / "data")) + "\n")
    jars = broker.broker_jars("4.3.1", progress=False)
    java = [str(broker.java()), *broker.JVM, "-cp", broker.class_path(jars)]
    identity = ["format", "--standalone", "-t", broker.new_id(), "-c", str(path)]
    subprocess.run([*java, "kafka.tools.StorageTool", *identity], check=True, capture_output=True, timeout=60)
    running = process.spawn([*java, "kafka.Kafka", str(path)], folder / "broker.log")
    try:
        yield
    finally:
        assert process.stop([running], 60)


def test_the_broker_s_lines_in_the_readme_and_the_sidecar_s_before_it(tmp_path: Path) -> None:
    """The way of a newcomer: Kafka's own file with these lines, then the sidecar's file."""
    (block,) = [block for block in BROKERS if block.page.name == "README.md"]
    ports = dict(zip((9092, 9093, 9644, 19092, 19094), free_ports(5), strict=True))
    with a_broker(tmp_path, block.properties(), ports):
        until(lambda: known_brokers(f"{HOST}:{ports[19094]}") == {1})
        path = tmp_path / "brokerside.yaml"
        spool = str(tmp_path / "spool")
        path.write_text(placed(README.text, ports).replace("/var/lib/brokerside/spool", spool))
        done = brokerside("check-config", str(path))
        assert (done.returncode, done.stderr) == (0, "")
        sidecar = SidecarProcess.start(path, tmp_path / "sidecar.log", f"{HOST}:{ports[9644]}")
        try:
            until(lambda: known_brokers(f"{HOST}:{ports[9092]}") == {1})  # what a client sees, within 2 s
        finally:
            assert sidecar.stop()


def completed(block: Block, folder: Path, made: Secured) -> dict[str, Any]:
    """The configuration that a reader has with this block, in front of the test's broker."""
    given = yaml.safe_load(textwrap.dedent(block.text))
    config: dict[str, Any] = yaml.safe_load(README.text)
    if block.text.startswith(" "):  # part of a listener
        config["listeners"][0] |= given
    else:
        config |= given
    config["admin"] = {**config["admin"], "bind": f"{HOST}:{free_ports(1)[0]}"}
    config["internal.bootstrap.servers"] = made.node.internal
    if "internal" in config:
        internal = config["internal"]
        config["internal.bootstrap.servers"] = made.sasl_ssl if "ssl.ca.location" in internal else made.sasl
        internal["sasl.username"] = USER
        files = {"ca": made.ca, "certificate": str(made.pair.certificate), "key": str(made.pair.key)}
        for name, file in files.items():
            if f"ssl.{name}.location" in internal:
                internal[f"ssl.{name}.location"] = file
    for listener in config["listeners"]:
        place(listener, folder, made)
    (folder / "byte_counts.py").write_text(example())
    for name in {*re.findall(r"\bfile: ([\w/.-]+)", block.text), *re.findall(r"keys\.file: ([\w/-]+)", block.text)}:
        (folder / name).parent.mkdir(exist_ok=True)
        kinds = {"password": PASSWORD, "headers": "Authorization=Bearer%20x"}
        (folder / name).write_text(next((text for kind, text in kinds.items() if kind in name), f"k1:{64 * 'a'}"))
    return config


def place(listener: dict[str, Any], folder: Path, made: Secured) -> None:
    """Put a listener in front of the broker's one that has its protocol, with certificates where it names some."""
    protocol = listener.get("security.protocol", "PLAINTEXT")
    sasl = protocol.startswith("SASL")
    if "upstream.tls" in listener or (protocol.endswith("SSL") and "tls" not in listener):
        upstream = made.sasl_ssl if sasl else made.ssl
        bind = f"{HOST}:{free_ports(1)[0]}"
        listener |= {"bind": bind, "advertised": bind, "upstream": upstream}
        if "upstream.tls" in listener:  # the test's broker advertises its own address there
            listener["rewrite.addresses"] = True
    else:
        bind, upstream = (made.sasl_advertised, made.sasl) if sasl else (made.node.advertised, made.node.upstream)
        listener |= {"bind": bind, "advertised": bind, "upstream": upstream}
    for name in ("tls", "upstream.tls"):
        settings = listener.get(name, {})
        if "ssl.server.name" in settings:
            settings["ssl.server.name"] = HOST
        for key, value in settings.items():
            if key.endswith(".location"):
                path = folder / value
                path.parent.mkdir(exist_ok=True)
                certificate, private = pem_files(folder, "made") if not (folder / "made.pem").exists() else (
                    folder / "made.pem", folder / "made.key")  # fmt: skip
                kinds = {"ssl.key.location": private, "ssl.truststore.location": Path(made.ca)}
                path.write_bytes(kinds.get(key, certificate).read_bytes())


@pytest.mark.parametrize("block", SIDECARS, ids=str)
def test_a_sidecar_starts_with_it(
    secured: Secured,  # noqa: F811 - the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block: Block,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    path = tmp_path / "brokerside.yaml"
    config = completed(block, tmp_path, secured)
    path.write_text(re.sub("/(var/lib|run)/brokerside", str(tmp_path), yaml.safe_dump(config)))
    done = brokerside("check-config", str(path))
    assert done.returncode == 0, done.stderr
    assert SidecarProcess.start(path, tmp_path / "log", config["admin"]["bind"]).stop(), "it was ready, and ended"


@pytest.mark.parametrize("block", CLIENTS, ids=str)
async def test_a_client_logs_in_with_it(
    secured: Secured,  # noqa: F811 - the fixture
    tmp_path: Path,
    block: Block,
) -> None:
    text = re.sub(r"(?m)^(ssl\.truststore\.location)=.*", rf"\1={secured.ca}", block.text)
    text = re.sub(r'username="\w+" password="…"', f'username="{USER}" password="{PASSWORD}"', text)
    (tmp_path / "client.properties").write_text(text)
    security = Security.from_settings(client_settings(tmp_path / "client.properties"))
    connection = await BrokerConnection.open(
        Endpoint.parse(secured.sasl_ssl), security, security.build_ssl_context(), "documented"
    )
    connection.close()


@pytest.mark.parametrize("block", DEFINITIONS, ids=str)
def test_definitions_are_right(tmp_path: Path, block: Block) -> None:
    path = tmp_path / "definitions.yaml"
    path.write_text(block.text)
    done = brokerside("jobs", "check", str(path))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", INDICATORS, ids=str)
def test_an_indicator_is_right_in_an_objective(tmp_path: Path, block: Block) -> None:
    """Completed by the first objective of its page."""
    whole = next(one for one in DEFINITIONS if one.page == block.page)
    document = yaml.safe_load(whole.text)
    document["spec"]["indicator"]["spec"] = yaml.safe_load(block.text)
    document["spec"]["objectives"] = [{"displayName": "answered", "target": 0.99}]
    path = tmp_path / "definitions.yaml"
    path.write_text(yaml.safe_dump(document))
    done = brokerside("jobs", "check", str(path))
    assert (done.returncode, done.stderr) == (0, "")


def test_every_block_is_one_of_these() -> None:
    """A page without its block, or a new kind of block, is found here."""
    assert {block.page.name for block in BROKERS} == {"README.md", "rollout.md"}
    assert len(SIDECARS) >= 13
    assert len(DEFINITIONS) >= 5
    assert len(CLIENTS) >= 2
    assert {block.page.name for block in OTHERS} == {"install.md", "opentelemetry.md", "operations.md", "tls.md"}
