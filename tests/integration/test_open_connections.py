"""Open connections of real clients: listed, watched, closed by an operator, and closed because of their age."""

import json
import os
import pty
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from proxy import admin_client
from proxy.config import Endpoint
from proxy.local.workload import create_topics
from tests.integration.metrics import sample
from tests.integration.sidecars import config_of, until
from tests.integration.sidecars import running as running_sidecar
from tests.tools.admin import get

pytestmark = pytest.mark.kafka

METRIC = "brokerside_connections_closed_total"
WORKERS = [pytest.param({"workers": 1}, marks=pytest.mark.slow), {"workers": 2}]


@pytest.fixture
def running(cluster, request):
    """Addresses for clients and of the admin endpoint."""
    node = cluster.nodes[0]
    config = config_of(node, audit={"topic": f"audit-{uuid.uuid4().hex[:8]}"}, **request.param)
    with running_sidecar(config, node.home.parent):
        yield node.advertised, node.admin


def connections(admin: str, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(f"http://{admin}/connections{query}")[1])
    return found


def brokerside(admin: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", "connections", *arguments, "--admin", admin]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.promise("commands.md", "An operator finds a client's connection and closes it; it comes back.")
@pytest.mark.parametrize("running", WORKERS, indirect=True)
def test_a_consumer_is_found_and_closed(cluster, running):
    bootstrap, admin = running
    name = uuid.uuid4().hex[:8]
    create_topics(cluster.internal_bootstrap, {f"t-{name}": {}}, 1)
    settings = {"bootstrap.servers": bootstrap, "group.id": f"g-{name}", "client.id": f"c-{name}"}
    consumer = Consumer(settings | {"group.instance.id": "static-1", "session.timeout.ms": 45_000})
    consumer.subscribe([f"t-{name}"])
    try:
        group = f"?group_id=g-{name}"

        def fetches():
            open_ = connections(admin, f"?client_id=c-{name}")["connections"]
            return any(one.get("api_key") == 1 for each in open_ for one in each.get("in_flight_requests", [])[:1])

        until(
            lambda: (
                consumer.poll(0.5) is None
                and any(one.get("group_member_id") for one in connections(admin, group)["connections"])
                and fetches()
            )
        )
        found = connections(admin, f"?client_id=c-{name}")
        assert found["open"] >= found["chosen"] == len(found["connections"]) >= 2
        assert {one["client_software_name"] for one in found["connections"]} <= {"confluent-kafka-python", "librdkafka"}
        (member,) = connections(admin, f"?group_id=g-{name}")["connections"]
        assert member["group_instance_id"] == "static-1"
        assert member["group_member_id"]
        assert member["request_count"] > 1
        assert member["listener"] == "CLIENT"

        shown = brokerside(admin, "--client-id", f"c-{name}")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.count(f"c-{name}") == found["chosen"]
        number = member["id"].rpartition("-")[2]
        assert f"\n{number} " in shown.stdout

        stranger = brokerside(admin, "close", f"10.9.9.9:9092-203.0.113.7:4444-{number}")
        assert (stranger.returncode, "is not open" in stranger.stderr) == (1, True)
        closed = brokerside(admin, "close", number)
        assert (closed.returncode, closed.stdout) == (0, f"closed {member['id']}\n")
        until(lambda: member["id"] not in {one["id"] for one in connections(admin)["connections"]})
        again = brokerside(admin, "close", number)
        assert (again.returncode, again.stderr) == (1, f"brokerside: connection {number} is not open\n")
        # The consumer connects again, and is a member still.
        until(lambda: consumer.poll(0.5) is None and connections(admin, f"?group_id=g-{name}")["chosen"])
    finally:
        consumer.close()


@pytest.mark.promise("config/listeners.md", "Clients whose connections end because of their age lose no record.")
@pytest.mark.slow
@pytest.mark.parametrize("running", [{"connections.max.age.ms": 2000}], indirect=True)
def test_clients_of_old_connections_lose_nothing_and_a_wrong_question_is_refused(cluster, running):
    """A producer that writes all the time, and a consumer that always has a fetch open, for several ages."""
    bootstrap, admin = running
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create_topics(cluster.internal_bootstrap, {topic: {}}, 1)
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read: list[bytes] = []
    written, deadline = 0, time.monotonic() + 120
    endpoint = Endpoint.parse(admin)
    while sample(admin_client.get_metrics(endpoint), METRIC, cause="connection_max_age") < 4:
        assert time.monotonic() < deadline
        for _ in range(20):
            producer.produce(topic, str(written).encode(), on_delivery=lambda error, _: error and errors.append(error))
            written += 1
        producer.poll(0)
        for message in consumer.consume(100, 0.02):
            assert message.error() is None
            read.append(message.value())
    assert producer.flush(30) == 0
    while len(read) < written:
        assert time.monotonic() < deadline
        for message in consumer.consume(100, 0.2):
            assert message.error() is None
            read.append(message.value())
    consumer.close()
    assert errors == []
    assert sorted(map(int, read)) == list(range(written))

    with pytest.raises(urllib.error.HTTPError) as refused:
        connections(admin, "?color=red")
    assert (refused.value.code, json.load(refused.value)["error"][:27]) == (400, "there is no parameter color")


@pytest.fixture(scope="module")
def admin(cluster, tmp_path_factory):
    """The admin endpoint of a sidecar through which a producer has just written."""
    node = cluster.nodes[0]
    observers = ["observers.request_metrics:RequestMetricsObserver"]
    with running_sidecar(config_of(node, **{"observer.class.names": observers}), tmp_path_factory.mktemp("top")):
        producer = Producer({"bootstrap.servers": node.advertised, "client.id": "of-top", "linger.ms": 0})
        producer.produce(f"t-{uuid.uuid4().hex[:8]}", b"x")
        assert producer.flush(30) == 0
        yield node.admin


def command(admin: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "proxy", "top", "--admin", admin, "--interval", "0.3", *arguments]


@pytest.mark.promise("operations.md", "brokerside top prints one page where its output is no terminal.")
def test_piped_it_prints_one_page(admin):
    done = subprocess.run(command(admin, "--by", "client_id"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    summary, clients = done.stdout.split("\n\n")[:2]
    assert "connections/s throttled" in summary
    assert clients.splitlines()[0].split() == [
        *("CLIENT", "ID", "CONNECTIONS", "IN", "FLIGHT", "REQUESTS/S", "BYTES", "IN/S", "BYTES", "OUT/S")
    ]
    assert any(line.startswith("of-top ") for line in clients.splitlines())
    assert "\x1b" not in done.stdout
    done = subprocess.run(command("127.0.0.1:1"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("brokerside: no sidecar answers at 127.0.0.1:1")


def test_in_a_terminal_keys_change_what_is_shown(admin):
    master, slave = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    process = subprocess.Popen(command(admin), stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    try:
        for key, text in ((b"", b"PRINCIPAL"), (b"sb", b"of-top")):
            os.write(master, key)
            shown = b""
            while text not in shown:
                shown += os.read(master, 65_536)
        os.write(master, b"q")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
