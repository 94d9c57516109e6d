"""Brokers that advertise their own addresses, and clients that get none of these, but the sidecars'."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import subprocess
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from proxy.config import load
from proxy.core.apis import response_header_is_flexible
from proxy.core.struct import view
from proxy.interceptors.address_rewriter import FETCH, FIRST_VERSIONS, PRODUCE, SHARE_ACKNOWLEDGE
from proxy.local.cluster import tool
from proxy.net import upstream_check
from proxy.net.upstream import Upstream
from tests.integration.asking import Asker, questions
from tests.integration.private_brokers import PRIVATE, Site, plain_sidecar, site
from tests.integration.tap import Tapped, frames
from tests.integration.test_audit import until
from tests.integration.topics import described, new_topic
from tests.interop.clients import BUILDING, CLIENTS, Client, digest
from tests.tools.addressed import rewriting, rewritten
from tests.tools.random_messages import Drawn

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ALTER_REASSIGNMENTS = 45
DESCRIBE_CONFIGS, OF_GROUP = 32, 32

KAFKA = ("3.9.2", "4.3.1", "4.4.0")


@pytest.fixture(scope="module", params=KAFKA)
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Of each release; with sidecars that know of each other by a map, before 4.3.1 by themselves."""
    folder = tmp_path_factory.mktemp("site") / "cluster"
    with site(folder, request.param, registry=request.param == "4.3.1") as made:
        yield made


newest = pytest.mark.parametrize("brokers", KAFKA[-1:], indirect=True)


@pytest.fixture
def topic(brokers: Site) -> str:
    """A new topic with a partition on each broker."""
    return new_topic(brokers.state)


def assert_hidden(brokers: Site) -> None:
    """No client has received a broker's address; each sidecar's was returned."""
    received = [bytes(one.responses) for one in brokers.tapped()]
    assert [at for one in received if (at := one.find(PRIVATE.encode())) >= 0] == []
    for host, port in brokers.known.values():
        assert any(host.encode() + port.to_bytes(4, "big") in one for one in received)
    for sidecar in brokers.sidecars:
        assert sidecar.metric("brokerside_intercept_errors_total") == 0


@pytest.mark.promise(
    "addresses.md",
    "Rewritten responses of Kafka 3.9.2, 4.3.1 and 4.4.0 differ from the brokers' in addresses alone.",
)
def test_every_version_of_each_response_differs_in_addresses_alone(brokers: Site, topic: str) -> None:
    """Each is asked of a broker that is not the leader, so that it names the one that is; but for ShareAcknowledge,
    which does so only after a leader that had given out records has moved."""
    with Asker(brokers.state.nodes[0].upstream) as direct, Asker(brokers.dialled[0]) as relayed:
        assert relayed.versions().items() >= direct.versions().items()
        compared = 0
        for key, version, values in asked(direct, topic):
            body = expected = b""

            def is_same(answer: bytes) -> bool:
                """The controller's id is that of any broker, and the cluster may still change: both are asked anew."""
                nonlocal body, expected
                body = direct.until(key, version, values, lambda body: PRIVATE.encode() in body)  # noqa: B023
                expected = rewritten(rewriting(brokers.known), Drawn(key, version, True, body, {}))  # noqa: B023
                return answer == expected

            found = relayed.until(key, version, values, is_same)
            assert found == expected, (key, version)
            compared += body != expected
    assert compared >= (25 if brokers.state.kafka_version == "3.9.2" else 30)
    assert_hidden(brokers)


@pytest.mark.promise("addresses.md", "Without rewriting no byte of a response with addresses changes.")
@newest
def test_without_rewriting_every_response_is_the_brokers(brokers: Site, topic: str) -> None:
    with plain_sidecar(brokers) as address, Asker(brokers.state.nodes[0].upstream) as direct, Asker(address) as relayed:
        compared = 0
        for key, version, values in asked(direct, topic):
            body = b""

            def is_same(answer: bytes) -> bool:
                """As above: both are asked anew."""
                nonlocal body
                body = direct.until(key, version, values, lambda body: PRIVATE.encode() in body)  # noqa: B023
                return answer == body

            found = relayed.until(key, version, values, is_same)
            assert found == body, (key, version)
            compared += PRIVATE.encode() in body
    assert compared >= 30


def asked(asker: Asker, topic: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Api key, version and request of all that are answered with addresses by the first broker."""
    about = described(asker, topic)
    partition = next(part["PartitionIndex"] for part in about["Partitions"] if part["LeaderId"] != 1)
    values = questions(topic, urlsafe_b64decode(about["TopicId"] + "=="), partition, f"g-{topic}")
    for key, versions in asker.versions().items():
        if key in values and key != SHARE_ACKNOWLEDGE:
            yield from ((key, version, values[key]) for version in versions if version >= FIRST_VERSIONS[key])


@pytest.mark.promise(
    "addresses.md", "A rewriting sidecar is not ready where another broker than its own advertises its upstream."
)
@newest
def test_a_sidecar_before_another_broker_says_so(brokers: Site) -> None:
    [listener] = load(brokers.sidecars[0].config).listeners
    upstream = Upstream(listener.upstream, 60.0)
    assert asyncio.run(upstream_check.find_problem(listener, upstream, 1)) is None
    said = asyncio.run(upstream_check.find_problem(listener, upstream, 2))
    assert "is what broker 1 advertises, but broker.id is 2" in str(said)


@pytest.mark.promise(
    "addresses.md", "No client of any tested language receives a broker's own address where addresses are rewritten."
)
@BUILDING
@newest
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_clients_of_other_languages(brokers: Site, client: Client) -> None:
    """They describe a topic, produce, consume in a group and commit."""
    sent = [f"{number:06d}\t{'x' * (number % 500)}" for number in range(600)]
    name = new_topic(brokers.state, client.name)
    report = client.run([brokers.bootstrap, name, f"{name}-group", "rewriting", "3"], sent)
    assert (report.produced, report.consumed, report.committed) == (len(sent), len(sent), len(sent))
    assert report.sha256 == digest(sent)
    assert_hidden(brokers)


@pytest.mark.promise(
    "addresses.md", "Clients follow a partition to its new leader through the rewritten address that the refusal names."
)
@newest
def test_leaders_that_move_are_found_by_javas_clients(brokers: Site) -> None:
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
        until(lambda: FETCH in asked_for(brokers, before))  # else it might begin after the last record
        producing, asker = stack.enter_context(producer), stack.enter_context(Asker(brokers.state.nodes[0].upstream))
        while not {PRODUCE, FETCH} <= naming(brokers, before):  # and no longer: a record that finds no leader expires
            with contextlib.suppress(subprocess.TimeoutExpired):
                producing.wait(1)
                break
            moved = [
                {"PartitionIndex": part["PartitionIndex"], "Replicas": [part["LeaderId"] % 3 + 1]}
                for part in described(asker, topic)["Partitions"]
            ]
            asker.ask(ALTER_REASSIGNMENTS, 0, {"TimeoutMs": 10_000, "Topics": [{"Name": topic, "Partitions": moved}]})
        produced, consumed = (process.communicate(timeout=100)[0] for process in (producing, consuming))
    assert "3000 records sent" in produced
    assert consumed.strip().splitlines()[-1].split(", ")[4] == "3000"
    assert_hidden(brokers)
    assert {PRODUCE, FETCH} <= naming(brokers, before)


def naming(brokers: Site, before: Sequence[Tapped]) -> set[int]:
    """Api keys of the responses with an array of nodes that has named one, but on the connections of ``before``."""
    found = set()
    for one in since(brokers, before):
        for request, response in zip(frames(one.requests), frames(one.responses), strict=False):
            key, version = struct.unpack_from(">hh", request)
            if response_header_is_flexible(key, version) and key in FIRST_VERSIONS and version >= FIRST_VERSIONS[key]:
                reported = view(key, version, response[5:], response=True)
                if reported.get_or_else("NodeEndpoints", ()):
                    found.add(key)
    return found


def asked_for(brokers: Site, before: Sequence[Tapped]) -> set[int]:
    """Api keys of all requests, but on the connections of ``before``."""
    return {struct.unpack_from(">h", one)[0] for each in since(brokers, before) for one in frames(each.requests)}


def since(brokers: Site, before: Sequence[Tapped]) -> list[Tapped]:
    """The connections but those of ``before``."""
    return [one for one in brokers.tapped() if not any(one is other for other in before)]


@contextlib.contextmanager
def started(name: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(tool(name, *args), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
