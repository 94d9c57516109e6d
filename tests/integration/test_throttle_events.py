"""What events say of throttling is what the broker's responses say, one by one, with real quotas."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from observers.event import RequestEvent
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.logins import Own
from tests.integration.quotas import ALTER, Peer, alter, array, error_of, text
from tests.integration.test_audit import envelopes, events, until

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


def produce(topic: str) -> bytes:
    """A ProduceRequest v7 of one record."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2 * SIZE)
    builder.append(0, None, None, b"x" * SIZE, [])
    records = bytes(builder.build())
    parts = array([struct.pack(">ii", 0, len(records)) + records], compact=False)
    return text(None) + struct.pack(">hi", 1, 10_000) + array([text(topic) + parts], compact=False)


def fetch(topic: str, offset: int) -> bytes:
    """A FetchRequest v11 of one batch."""
    parts = array([struct.pack(">iiqqi", 0, -1, offset, -1, 1)], compact=False)
    head = struct.pack(">iiiibii", -1, 100, 1, 1 << 20, 0, 0, -1)
    return head + array([text(topic) + parts], compact=False) + array([], compact=False) + text("")


def test_they_are_those_of_the_wire(cluster: ClusterState, sidecar: SidecarProcess, topic: str, limited: str) -> None:
    read: list[tuple[int, int]] = []
    with Own(cluster.bootstrap, limited) as client:
        for _ in range(11):
            answer = client.ask(PRODUCE, 7, produce(topic))
            assert struct.unpack_from(">h", answer, 4 + len(text(topic)) + 8) == (0,)
            read.append((PRODUCE, *struct.unpack(">i", answer[-4:])))
        for offset in range(11):
            answer = client.ask(FETCH, 11, fetch(topic, offset))
            throttle_ms, error_code = struct.unpack_from(">ih", answer)
            assert error_code == 0
            read.append((FETCH, throttle_ms))
    for api_key in (PRODUCE, FETCH):
        asked = [throttle_ms for key, throttle_ms in read if key == api_key]
        assert asked[0] == 0
        assert any(asked), "the quota acted"

    def told() -> list[RequestEvent]:
        every: list[RequestEvent] = events(envelopes(cluster.internal_bootstrap, AUDIT), RequestEvent)
        return [event for event in every if event.client_id == limited]

    until(lambda: len(told()) == len(read))
    assert [(event.api_key, event.throttle_ms) for event in told()] == read
    assert [event.correlation_id for event in told()] == list(range(1, len(read) + 1))
