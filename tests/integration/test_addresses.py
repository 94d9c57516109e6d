"""Brokers that advertise their own addresses, and clients that get none of these, but the sidecars'.

Nothing else has these addresses: so wherever one of them is found, it came from a broker.
"""

import asyncio
import contextlib
import struct
import subprocess
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from proxy.config import load
from proxy.core.apis import response_header_is_flexible
from proxy.core.struct import view
from proxy.interceptors.address_rewriter import FETCH, FIRST_VERSIONS, METADATA, PRODUCE, SHARE_ACKNOWLEDGE
from proxy.local import broker, cluster
from proxy.local.cluster import tool
from proxy.local.ports import HOST, free_ports
from proxy.local.readiness import known_brokers
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState, Node, save
from proxy.net import upstream_check
from proxy.net.upstream import Upstream
from tests.integration.librdkafka import consume, produce
from tests.integration.quotas import Asker, questions
from tests.integration.sidecars import running, spawned, until
from tests.integration.tap import Tapped, frames, tap
from tests.integration.topics import described, new_topic
from tests.interop.clients import BUILDING, CLIENTS, digest
from tests.tools.addressed import rewriting, rewritten
from tests.tools.random_messages import Drawn

pytestmark = pytest.mark.kafka

NODES = 3
PRIVATE = "127.0.0.19"
"""What the hosts of the brokers begin with."""


@dataclass(frozen=True)
class Site:
    """``dialled``: where clients reach each sidecar, through a tap. ``taps``: what passed there."""

    state: ClusterState
    dialled: list[str]
    sidecars: list[SidecarProcess]
    taps: list[list[Tapped]]

    @property
    def known(self) -> dict[int, tuple[str, int]]:
        """What clients dial, by node id."""
        return {node.id: parsed(address) for node, address in zip(self.state.nodes, self.dialled, strict=True)}

    @property
    def bootstrap(self) -> str:
        return ",".join(self.dialled)

    def tapped(self) -> list[Tapped]:
        return [one for connections in self.taps for one in connections]


@contextmanager
def site(folder: Path, kafka: str, *, registry: bool) -> Iterator[Site]:
    """All of it. ``registry``: whether the sidecars learn of each other by themselves; else each has a map."""
    plan(folder, kafka)
    dialled = [f"{HOST}:{port}" for port in free_ports(NODES)]
    with ExitStack() as stack:
        stack.callback(cluster.discard, folder)
        state = cluster.up(folder, nodes=NODES, kafka_version=kafka, progress=False)
        sidecars, taps = [], []
        for node, address in zip(state.nodes, dialled, strict=True):
            config = broker.sidecar_config(node)
            [listener] = config["listeners"]
            [bind] = free_ports(1)
            listener |= {"bind": f"{HOST}:{bind}", "advertised": address, "rewrite.addresses": True}
            if not registry:
                others = {str(other): at for other, at in enumerate(dialled, 1) if other != node.id}
                listener["rewrite.addresses.map"] = others
            taps.append(stack.enter_context(tap(address, listener["bind"])))
            sidecars.append(stack.enter_context(spawned(config, folder)))
        for sidecar in sidecars:
            sidecar.wait_ready()
        for address in dialled:
            with Asker(address) as asker:
                met = asker.until(METADATA, 1, {"Topics": ()}, lambda body: b".unmapped." not in body)
                assert b".unmapped." not in met, "the sidecars do not know each other"
        yield Site(state, dialled, sidecars, taps)


@contextmanager
def plain_sidecar(made: Site) -> Iterator[str]:
    """One more before the first broker, without rewriting; yields its address. It never says that it is ready: its
    broker has clients dial another address. It stays out of the registry, where it would be broker 1's sidecar."""
    node = made.state.nodes[0]
    address, admin = (f"{HOST}:{port}" for port in free_ports(2))
    config = broker.sidecar_config(node)
    config["listeners"][0]["bind"] = address
    config["admin"] = {"bind": admin}
    del config["observer.class.names"], config["audit"], config["internal.bootstrap.servers"]
    with spawned(config, node.home.parent):
        until(lambda: known_brokers(address))
        yield address


def plan(folder: Path, kafka: str) -> None:
    """Write the cluster that ``cluster.up`` is to start: with every listener of a broker on its private address."""
    ports = iter(free_ports(4 * NODES))

    def node(number: int) -> Node:
        upstream, internal, controller = (f"{PRIVATE}{number}:{next(ports)}" for _ in range(3))
        return Node(number, upstream, upstream, internal, controller, f"{HOST}:{next(ports)}", folder / f"n-{number}")

    folder.mkdir(parents=True)
    state = ClusterState(kafka, broker.new_id(), "broker", tuple(node(number) for number in range(1, NODES + 1)))
    for one in state.nodes:
        broker.write_properties(state, one, {})
    save(folder, state)


def parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


KAFKA = ("3.9.2", "4.3.1", "4.4.0")


@pytest.fixture(scope="module", params=KAFKA)
def brokers(request, tmp_path_factory):
    """Of each release; with sidecars that know of each other by a map, before 4.3.1 by themselves."""
    folder = tmp_path_factory.mktemp("site") / "cluster"
    with site(folder, request.param, registry=request.param == "4.3.1") as made:
        yield made


newest = pytest.mark.parametrize("brokers", KAFKA[-1:], indirect=True)


@pytest.fixture
def topic(brokers):
    return new_topic(brokers.state)


def assert_hidden(brokers: Site) -> None:
    """No client has received a broker's address; each sidecar's was returned."""
    received = [bytes(one.responses) for one in brokers.tapped()]
    assert [at for one in received if (at := one.find(PRIVATE.encode())) >= 0] == []
    for host, port in brokers.known.values():
        assert any(host.encode() + port.to_bytes(4, "big") in one for one in received)
    for sidecar in brokers.sidecars:
        assert sidecar.metric("brokerside_intercept_errors_total") == 0


@pytest.mark.slow
@pytest.mark.promise(
    "addresses.md", "Rewritten responses of Kafka 3.9.2, 4.3.1 and 4.4.0 differ from the brokers' in addresses alone."
)
def test_every_version_of_each_response_differs_in_addresses_alone(brokers, topic):
    """Each is asked of a broker that is not the leader, so that it names the one that is; but for ShareAcknowledge,
    which does so only after a leader that had given out records has moved."""
    addresses = rewriting(brokers.known)
    compare(brokers, brokers.dialled[0], topic, lambda *of: rewritten(addresses, Drawn(*of[:2], True, of[2], {})))
    assert_hidden(brokers)


@pytest.mark.slow
@pytest.mark.promise("addresses.md", "Without rewriting no byte of a response with addresses changes.")
@newest
def test_without_rewriting_every_response_is_the_brokers(brokers, topic):
    with plain_sidecar(brokers) as address:
        compare(brokers, address, topic, lambda key, version, body: body)


def compare(brokers: Site, through: str, topic: str, expect: Callable[[int, int, bytes], bytes]) -> None:
    compared = 0
    with Asker(brokers.state.nodes[0].upstream) as direct, Asker(through) as relayed:
        assert relayed.versions().items() >= direct.versions().items()
        for key, version, values in asked(direct, topic):
            body = expected = b""

            def is_same(answer: bytes) -> bool:
                """The controller's id is that of any broker, and the cluster may still change: both are asked anew."""
                nonlocal body, expected
                body = direct.until(key, version, values, lambda body: PRIVATE.encode() in body)  # noqa: B023
                expected = expect(key, version, body)  # noqa: B023
                return answer == expected

            found = relayed.until(key, version, values, is_same)
            assert found == expected, (key, version)
            compared += PRIVATE.encode() in body
    assert compared >= (25 if brokers.state.kafka_version == "3.9.2" else 30)


def asked(asker: Asker, topic: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Api key, version and request of all that are answered with addresses by the first broker."""
    about = described(asker, topic)
    partition = next(part["PartitionIndex"] for part in about["Partitions"] if part["LeaderId"] != 1)
    values = questions(topic, urlsafe_b64decode(about["TopicId"] + "=="), partition, f"g-{topic}")
    for key, versions in asker.versions().items():
        if key in values and key != SHARE_ACKNOWLEDGE:
            yield from ((key, version, values[key]) for version in versions if version >= FIRST_VERSIONS[key])


@pytest.mark.slow
@pytest.mark.promise(
    "addresses.md", "A rewriting sidecar is not ready where another broker than its own advertises its upstream."
)
@newest
def test_a_sidecar_before_another_broker_says_so(brokers):
    [listener] = load(brokers.sidecars[0].config).listeners
    upstream = Upstream(listener.upstream, 60.0)
    assert asyncio.run(upstream_check.find_problem(listener, upstream, 1)) is None
    said = asyncio.run(upstream_check.find_problem(listener, upstream, 2))
    assert "is what broker 1 advertises, but broker.id is 2" in str(said)


@pytest.mark.slow
@pytest.mark.promise(
    "addresses.md", "No client of any tested language receives a broker's own address where addresses are rewritten."
)
@BUILDING
@newest
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_clients_of_other_languages(brokers, client):
    sent = [f"{number:06d}\t{'x' * (number % 500)}" for number in range(600)]
    name = new_topic(brokers.state, client.name)
    report = client.run([brokers.bootstrap, name, f"{name}-group", "rewriting", "3"], sent)
    assert (report.produced, report.consumed, report.committed) == (len(sent), len(sent), len(sent))
    assert report.sha256 == digest(sent)
    assert_hidden(brokers)


@pytest.mark.slow
@pytest.mark.promise(
    "addresses.md", "Clients follow a partition to its new leader through the rewritten address that the refusal names."
)
@newest
def test_leaders_that_move_are_found_by_javas_clients(brokers):
    """Records keep coming while each partition's leader changes: the refusal names the new one."""
    topic = new_topic(brokers.state)
    before = brokers.tapped()
    common = ("--topic", topic, "--num-records", "3000")
    consumer = started("consumer-perf", *common, "--bootstrap-server", brokers.bootstrap, "--timeout", "60000")
    producer = started(
        "producer-perf", *common, "--record-size", "100", "--throughput", "250",
        "--command-property", f"bootstrap.servers={brokers.bootstrap}", "acks=all", "linger.ms=0",
        # With more, a new leader that has no record of the producer takes its second batch before its first.
        "max.in.flight.requests.per.connection=1",
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        consuming = stack.enter_context(consumer)
        # Else it might begin after the last record.
        until(lambda: any(asked[1] == FETCH for asked, _ in passed(brokers, before)))
        producing, asker = stack.enter_context(producer), stack.enter_context(Asker(brokers.state.nodes[0].upstream))
        while not {PRODUCE, FETCH} <= naming(brokers, before):  # and no longer: a record that finds no leader expires
            with contextlib.suppress(subprocess.TimeoutExpired):
                producing.wait(1)
                break
            moved = [
                {"PartitionIndex": part["PartitionIndex"], "Replicas": [part["LeaderId"] % 3 + 1]}
                for part in described(asker, topic)["Partitions"]
            ]
            # AlterPartitionReassignments
            asker.ask(45, 0, {"TimeoutMs": 10_000, "Topics": [{"Name": topic, "Partitions": moved}]})
        produced, consumed = (process.communicate(timeout=100)[0] for process in (producing, consuming))
    assert "3000 records sent" in produced
    assert consumed.strip().splitlines()[-1].split(", ")[4] == "3000"
    assert_hidden(brokers)
    assert {PRODUCE, FETCH} <= naming(brokers, before)


def naming(brokers: Site, before: Sequence[Tapped]) -> set[int]:
    """Api keys of the responses with an array of nodes that has named one, but on the connections of ``before``."""
    found = set()
    for request, response in passed(brokers, before):
        key, version = struct.unpack_from(">hh", request)
        is_flexible = response and response_header_is_flexible(key, version) and key in FIRST_VERSIONS
        if is_flexible and version >= FIRST_VERSIONS[key]:
            reported = view(key, version, response[5:], response=True)
            found |= {key} if reported.get_or_else("NodeEndpoints", ()) else set()
    return found


def passed(brokers: Site, before: Sequence[Tapped]) -> Iterator[tuple[bytes, bytes]]:
    """Requests and their responses, but on the connections of ``before``."""
    for one in brokers.tapped():
        if not any(one is other for other in before):
            yield from zip_longest(frames(one.requests), frames(one.responses), fillvalue=b"")


@contextlib.contextmanager
def started(name: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(tool(name, *args), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.promise(
    "addresses.md",
    "A broker that advertises its own address gets clients that dial the sidecar, with `rewrite.addresses` alone.",
)
def test_a_client_gets_the_address_of_its_listener_and_works(cluster, topic, tmp_path):
    node = cluster.nodes[0]
    address, admin = (f"{HOST}:{port}" for port in free_ports(2))
    config = broker.sidecar_config(node)
    config["listeners"][0] |= {"bind": address, "advertised": address, "rewrite.addresses": True}
    config["admin"] = {"bind": admin}
    del config["observer.class.names"], config["audit"]
    with running(config, tmp_path) as sidecar:
        client = AdminClient({"bootstrap.servers": address})
        nodes = client.describe_cluster().result(180).nodes
        assert [(one.id, f"{one.host}:{one.port}") for one in nodes] == [(node.id, address)]
        values = [str(number).encode() for number in range(100)]
        assert produce(address, topic, values) == 100
        assert sorted(consume(address, topic, 100)) == sorted(values)
        with Asker(address) as asker:
            for version in asker.versions()[METADATA]:
                brokers = asker.answer(METADATA, version, {"Topics": None}).get("Brokers")
                assert [f"{one.get('Host')}:{one.get('Port')}" for one in brokers] == [address], version
        assert sidecar.metric("brokerside_intercept_errors_total") == 0
