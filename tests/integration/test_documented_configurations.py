"""Every configuration in README.md and docs is one that starts: the broker's, the sidecar's, those of clients and jobs.

How a block is completed and placed: ``tests.tools.fragments``. docs/rollout.md is walked along in test_rollout.py.
"""

import re
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from observers.views import request_view, response_view
from proxy.commands.client_settings import client_settings
from proxy.config import Endpoint
from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.fleet.connection import BrokerConnection
from proxy.fleet.security import Security
from proxy.local import broker, process
from proxy.local.ports import HOST, free_ports
from proxy.local.readiness import known_brokers
from proxy.local.sidecars import SidecarProcess
from tests.brokers import SCRAM_PASSWORD, SCRAM_USER, TlsBroker
from tests.frames import batch
from tests.integration.sidecars import until
from tests.tools.fragments import Block, blocks, example
from tests.unit.observers.samples import exchange
from tests.unit.terminal import brokerside

__all__ = ["brokerside"]

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


@pytest.mark.promise("README.md", "The README's lines for broker and sidecar make a first deployment.")
def test_the_broker_s_lines_in_the_readme_and_the_sidecar_s_before_it(tmp_path, brokerside):
    """The way of a newcomer: Kafka's own file with these lines, then the sidecar's file."""
    (block,) = [block for block in BROKERS if block.page.name == "README.md"]
    ports = dict(zip((9092, 9093, 9644, 19092, 19094), free_ports(5), strict=True))
    with a_broker(tmp_path, block.properties(), ports):
        until(lambda: known_brokers(f"{HOST}:{ports[19094]}") == {1})
        path = tmp_path / "brokerside.yaml"
        path.write_text(placed(README.text, ports).replace("/var/lib/brokerside", str(tmp_path)))
        done = brokerside("check-config", str(path))
        assert (done.code, done.err) == (0, "")
        sidecar = SidecarProcess.start(path, tmp_path / "sidecar.log", f"{HOST}:{ports[9644]}")
        try:
            until(lambda: known_brokers(f"{HOST}:{ports[9092]}") == {1})  # what a client sees, within 2 s
        finally:
            assert sidecar.stop()


def completed(block: Block, folder: Path, made: TlsBroker) -> dict[str, Any]:
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
        login = "SASL_TLS" if "ssl.ca.location" in internal else "SASL"
        config["internal.bootstrap.servers"] = made.listeners[login].address
        internal["sasl.username"] = SCRAM_USER
        files = {"ca": str(made.authority.ca), "certificate": str(made.pair.certificate), "key": str(made.pair.key)}
        for name, file in files.items():
            if f"ssl.{name}.location" in internal:
                internal[f"ssl.{name}.location"] = file
    for listener in config["listeners"]:
        place(listener, folder, made)
    (folder / "byte_counts.py").write_text(example())
    for name in {*re.findall(r"\bfile: ([\w/.-]+)", block.text), *re.findall(r"keys\.file: ([\w/-]+)", block.text)}:
        (folder / name).parent.mkdir(exist_ok=True)
        kinds = {"password": SCRAM_PASSWORD, "headers": "Authorization=Bearer%20x"}
        (folder / name).write_text(next((text for kind, text in kinds.items() if kind in name), f"k1:{64 * 'a'}"))
    return config


def place(listener: dict[str, Any], folder: Path, made: TlsBroker) -> None:
    """Put a listener in front of the broker's one that has its protocol, with certificates where it names some."""
    protocol = listener.get("security.protocol", "PLAINTEXT")
    sasl = protocol.startswith("SASL")
    if "upstream.tls" in listener or (protocol.endswith("SSL") and "tls" not in listener):
        upstream = made.listeners["SASL_TLS" if sasl else "TLS"].address
        bind = f"{HOST}:{free_ports(1)[0]}"
        listener |= {"bind": bind, "advertised": bind, "upstream": upstream}
        if "upstream.tls" in listener:  # the test's broker advertises its own address there
            listener["rewrite.addresses"] = True
    else:
        behind = made.listeners["BEHIND_SASL"]
        bind, upstream = behind.advertised, behind.address
        if not sasl:
            bind, upstream = made.node.advertised, made.node.upstream
        listener |= {"bind": bind, "advertised": bind, "upstream": upstream}
    for name in ("tls", "upstream.tls"):
        settings = listener.get(name, {})
        if "ssl.server.name" in settings:
            settings["ssl.server.name"] = HOST
        for key, value in settings.items():
            if key.endswith(".location"):
                path = folder / value
                path.parent.mkdir(exist_ok=True)
                kinds = {"ssl.key.location": made.pair.key, "ssl.truststore.location": made.authority.ca}
                path.write_bytes(kinds.get(key, made.pair.certificate).read_bytes())


@pytest.mark.promise("README.md", "Every configuration of a sidecar in the documentation is a valid one.")
@pytest.mark.parametrize("starts", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_each_configuration_of_a_sidecar_is_right(tls_broker, tmp_path, monkeypatch, brokerside, starts):
    for number, block in enumerate(SIDECARS):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(folder), prepend=":")
            patch.syspath_prepend(folder)
            config = completed(block, folder, tls_broker)
            path = folder / "brokerside.yaml"
            path.write_text(re.sub("/(var/lib|run)/brokerside", str(folder), yaml.safe_dump(config)))
            done = brokerside("check-config", str(path))
            assert done.code == 0, f"{block}: {done.err}"
            if starts:
                sidecar = SidecarProcess.start(path, folder / "log", config["admin"]["bind"])
                assert sidecar.stop(), f"{block}: it was ready, and ended"


@pytest.mark.promise("commands.md", "Commands log in with the client settings that the page shows.")
async def test_a_client_logs_in_with_each_login(tls_broker, tmp_path):
    for block in CLIENTS:
        text = re.sub(r"(?m)^(ssl\.truststore\.location)=.*", rf"\1={tls_broker.authority.ca}", block.text)
        text = re.sub(r'username="\w+" password="…"', f'username="{SCRAM_USER}" password="{SCRAM_PASSWORD}"', text)
        (tmp_path / "client.properties").write_text(text)
        security = Security.from_settings(client_settings(tmp_path / "client.properties"))
        connection = await BrokerConnection.open(
            Endpoint.parse(tls_broker.listeners["SASL_TLS"].address), security, security.build_ssl_context(), "test"
        )
        connection.close()


@pytest.mark.promise("slo.md", "The definitions of tables and objectives in the documentation are right.")
def test_definitions_are_right_and_indicators_in_an_objective(tmp_path, brokerside):
    """An indicator is completed by the first objective of its page."""
    texts = {str(block): block.text for block in DEFINITIONS}
    for block in INDICATORS:
        document = yaml.safe_load(next(one for one in DEFINITIONS if one.page == block.page).text)
        document["spec"]["indicator"]["spec"] = yaml.safe_load(block.text)
        document["spec"]["objectives"] = [{"displayName": "answered", "target": 0.99}]
        texts[str(block)] = yaml.safe_dump(document)
    path = tmp_path / "definitions.yaml"
    for block_name, text in texts.items():
        path.write_text(text)
        done = brokerside("jobs", "check", str(path))
        assert (done.code, done.err) == (0, ""), block_name


def test_every_block_is_one_of_these():
    """A page without its block, or a new kind of block, is found here."""
    assert {block.page.name for block in BROKERS} == {"README.md", "rollout.md"}
    assert len(SIDECARS) >= 13
    assert len(DEFINITIONS) >= 5
    assert len(CLIENTS) >= 2
    assert {block.page.name for block in OTHERS} == {"install.md", "opentelemetry.md", "operations.md", "tls.md"}


@pytest.mark.promise("observers.md", "The example counts right with every version of Produce and Fetch.")
def test_the_example_counts_the_bytes_of_every_version():
    scope: dict[str, Any] = {}
    exec(compile(example(), "docs/observers.md", "exec"), scope)
    counts = scope["ByteCounts"]()
    counts.configure({})
    size = len(records := batch(3, b"of some bytes"))
    for key, versions, response in ((0, range(3, 14), False), (1, range(4, 19), True)):
        for version in versions:
            part = {"Records": records}
            of_topic = {
                "Name": "t",
                "Topic": "t",
                "TopicId": uuid4().bytes,
                "PartitionData": [part],
                "Partitions": [part],
            }
            body = encode(layout(key, version, response=response), {"TopicData": [of_topic], "Responses": [of_topic]})
            one = exchange(api_key=key, api_version=version, request_raw=body, response_raw=body)
            assert counts.wants(key, version)
            if response:
                counts.asked = (f"{version}", key)
                counts.record_response(response_view(one, lambda _: "t"), version, f"{version}")
            else:
                counts.record_request(request_view(one, lambda _: "t"), "::1", "User:x", key, version, f"{version}")
    assert (counts.topic_produce_bytes_count, counts.topic_fetch_bytes_count) == ({"t": 11 * size}, {"t": 15 * size})
