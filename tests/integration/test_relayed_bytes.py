"""Whole conversations of real clients: what comes out of the sidecar is what goes in, but for ApiVersions."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient

from proxy.features.catalog import PREFIX
from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.rpc.feature_messages import decode_described
from tests.cases import each
from tests.frames import API_VERSIONS
from tests.integration.librdkafka import consume, produce
from tests.integration.sidecars import config_of, running, until
from tests.integration.tap import Tapped, frames, tap
from tests.tools.kafka_tools import KafkaTools

pytestmark = pytest.mark.kafka

PRODUCE = 0


@pytest.fixture(scope="module")
def tapped(cluster: ClusterState) -> Iterator[tuple[list[Tapped], list[Tapped]]]:
    """What passes between clients and the sidecar, and between the sidecar and the broker."""
    node = cluster.nodes[0]
    between, behind = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = config_of(node, **{"observer.class.names": None})
    config["listeners"][0] |= {"bind": between, "advertised": node.advertised, "upstream": behind}
    with (
        tap(node.advertised, between) as outside,
        tap(behind, node.upstream) as inside,
        running(config, node.home.parent),
    ):
        yield outside, inside


def librdkafka(bootstrap: str, topic: str) -> None:
    values = [str(n).encode() * 50 for n in range(500)]
    assert produce(bootstrap, topic, values, **{"compression.type": "none"}) == 500
    assert produce(bootstrap, topic, values, acks=0) == 500
    assert len(consume(bootstrap, topic, 500)) >= 500
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert topic in admin.list_topics(timeout=20).topics
    admin.list_consumer_groups().result(20)


def java(bootstrap: str, topic: str) -> None:
    server = ("--bootstrap-server", bootstrap)
    with KafkaTools() as tools:
        for arguments, text in (
            (("console-producer", *server, "--topic", topic), "".join(f"line {n}\n" for n in range(100))),
            (("console-consumer", *server, "--topic", topic, "--group", f"java-{topic}", "--from-beginning",
              "--max-messages", "100"), ""),
            (("topics", *server, "--describe", "--topic", topic), ""),
            (("groups", *server, "--list"), ""),
        ):  # fmt: skip
            done = tools.run(*arguments, text=text)
            assert done.returncode == 0, done.stderr


def assert_has_more_alone(version: int, ours: bytes, theirs: bytes) -> None:
    """An ApiVersions response has the sidecar's own api, and from version 3 on the features of the fleet."""
    if version < 3:
        assert len(ours) == len(theirs) + 6
        return
    found, known = (decode_described(version, response[4:]) for response in (ours, theirs))
    assert found is not None
    assert known is not None
    assert found.apis == known.apis | {30000: (0, 0)}
    assert {name: found.supported[name] for name in known.supported} == known.supported
    assert all(name.startswith(PREFIX) for name in found.supported.keys() - known.supported.keys())


@pytest.mark.promise(
    "architecture.md", "Every byte between clients and broker passes as it came, but for what is added to ApiVersions."
)
@each("client", [librdkafka, java])
def test_every_byte_but_those_of_api_versions(
    cluster: ClusterState, topic: str, tapped: tuple[list[Tapped], list[Tapped]], client: Callable[[str, str], None]
) -> None:
    outside, inside = tapped
    seen, behind = len(outside), len(inside)
    client(cluster.bootstrap, topic)
    gc.collect()  # what a client leaves open ends
    conversations = [one for one in outside[seen:] if one.requests]
    assert conversations
    until(lambda: not on_its_way(conversations, inside[behind:]))
    by_requests = defaultdict(list)  # in their order: those of one client may begin alike
    for one in inside[behind:]:
        by_requests[bytes(one.requests)].append(one)
    edited = 0
    for one in conversations:
        broker = by_requests[bytes(one.requests)].pop(0)
        asked = [frame for frame in frames(one.requests) if not without_answer(frame)]
        reported = frames(one.responses)  # first: what comes meanwhile comes from the broker
        said = frames(broker.responses)
        # A client that leaves gets no answer to what it still had asked; one that stays without it fails by itself.
        assert len(reported) <= len(said) <= len(asked)
        for request, ours, theirs in zip(asked, reported, said, strict=False):
            if int.from_bytes(request[:2], "big") == API_VERSIONS and ours != theirs:
                edited += 1
                assert_has_more_alone(int.from_bytes(request[2:4], "big"), ours, theirs)
            else:
                assert ours == theirs
    assert edited
    left = [one for some in by_requests.values() for one in some if one.requests]
    assert all(b"brokerside-" in one.requests for one in left), "what the sidecar itself asks"


def on_its_way(outside: list[Tapped], inside: list[Tapped]) -> bool:
    """Whether the broker has not got all yet, or gets other bytes than the clients send."""
    return bool(Counter(bytes(one.requests) for one in outside) - Counter(bytes(one.requests) for one in inside))


def without_answer(frame: bytes) -> bool:
    """A Produce with acks=0, outside of any transaction."""
    if frame[:2] != PRODUCE.to_bytes(2, "big"):
        return False
    pos = 10 + max(0, int.from_bytes(frame[8:10], "big", signed=True))
    null = b"\0\0" if int.from_bytes(frame[2:4], "big") >= 9 else b"\xff\xff"  # no tags, and a compact null
    assert frame[pos : pos + 2] == null, "a transactional id"
    return frame[pos + 2 : pos + 4] == b"\0\0"
