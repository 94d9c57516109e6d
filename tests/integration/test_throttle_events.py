"""What events say of throttling is what the broker's responses say, one by one, with real quotas."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from observers.event import RequestEvent
from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.core.struct import view
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.logins import Own
from tests.integration.quotas import ALTER, Peer, alter, error_of
from tests.integration.sidecars import until
from tests.integration.test_audit import envelopes, events

pytestmark = pytest.mark.kafka

AUDIT = "brokerside-audit"
PRODUCE, FETCH = 0, 1
RATE = 20_000
"""Bytes a second of the quotas. Kafka looks at some ten seconds: what exceeds them at once is throttled then."""

SIZE = 25_000
"""Bytes of a request or response: a second and a quarter of the quota."""


@pytest.fixture
def limited(cluster: ClusterState) -> Iterator[str]:
    """A client id that may produce and consume little."""
    client_id = f"limited-{uuid.uuid4().hex[:8]}"
    keys = ("producer_byte_rate", "consumer_byte_rate")
    with Peer(cluster.internal_bootstrap) as peer:
        for remove in (False, True):
            body = alter([("client-id", client_id)], *((key, RATE, remove) for key in keys))
            assert error_of(ALTER, 0, peer.ask(ALTER, 0, body)) == (0, "")
            if not remove:
                yield client_id


def produced(client: Own, topic: str) -> tuple[int, int]:
    """Produce a record: the error, and how many ms the broker asks to wait."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2 * SIZE)
    builder.append(0, None, None, b"x" * SIZE, [])
    part = {"Index": 0, "Records": bytes(builder.build())}
    asked = {"Acks": 1, "TimeoutMs": 10_000, "TopicData": [{"Name": topic, "PartitionData": [part]}]}
    answer = client.ask(PRODUCE, 7, encode(layout(PRODUCE, 7, response=False), asked))
    read = view(PRODUCE, 7, answer, response=True)
    return read.get("Responses")[0].get("PartitionResponses")[0].get("ErrorCode"), read.get("ThrottleTimeMs")


def fetched(client: Own, topic: str) -> tuple[int, int]:
    """The same of one batch."""
    part = {"CurrentLeaderEpoch": -1, "LogStartOffset": -1, "PartitionMaxBytes": 1}
    asked = {"ReplicaId": -1, "MaxWaitMs": 100, "MinBytes": 1, "MaxBytes": 1 << 20, "SessionEpoch": -1}
    asked["Topics"] = [{"Topic": topic, "Partitions": [part]}]
    answer = client.ask(FETCH, 11, encode(layout(FETCH, 11, response=False), asked))
    read = view(FETCH, 11, answer, response=True)
    return read.get("ErrorCode"), read.get("ThrottleTimeMs")


@pytest.mark.slow
@pytest.mark.promise("audit-event.md", "The throttle time of an event is that of the broker's response.")
def test_they_are_those_of_the_wire(cluster: ClusterState, sidecar: SidecarProcess, topic: str, limited: str) -> None:
    read: list[tuple[int, int]] = []
    with Own(cluster.bootstrap, "unlimited") as client:
        until(lambda: produced(client, topic)[0] == 0)
    with Own(cluster.bootstrap, limited) as client:
        for key, ask in ((PRODUCE, produced), (FETCH, fetched)):
            throttled = 0
            while throttled < 3:  # some moments after it was set the quota acts, and then goes on to
                assert len(read) < 100, "the quota never acted"
                error_code, throttle_ms = ask(client, topic)
                assert error_code == 0
                read.append((key, throttle_ms))
                throttled += throttled > 0 or throttle_ms > 0
                time.sleep(0.0 if throttled else 0.2)
    reported = until(lambda: events_of(cluster, limited, len(read)))
    assert [(event.api_key, event.throttle_ms) for event in reported] == read
    assert [event.correlation_id for event in reported] == list(range(1, len(read) + 1))


def events_of(cluster: ClusterState, client_id: str, count: int) -> list[RequestEvent]:
    """The events of all requests of ``client_id``, once there are ``count``."""
    every = events(envelopes(cluster.internal_bootstrap, AUDIT), RequestEvent)
    found = [event for event in every if event.client_id == client_id]
    return found if len(found) == count else []
