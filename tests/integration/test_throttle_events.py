"""What events say of throttling is what the broker's responses say, one by one, with real quotas."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable, Iterator

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


@pytest.fixture
def ready(cluster: ClusterState, sidecar: SidecarProcess, topic: str) -> str:
    """A topic that the broker takes records for."""
    with Own(cluster.bootstrap, "unlimited") as client:
        until(lambda: error_of_produce(client.ask(PRODUCE, 7, produce(topic)), topic) == 0)
    return topic


def error_of_produce(answer: bytes, topic: str) -> int:
    (error_code,) = struct.unpack_from(">h", answer, 4 + len(text(topic)) + 8)
    return int(error_code)


def until_throttled(ask: Callable[[], int]) -> list[int]:
    """What ``ask`` returns, how many ms the broker asks to wait, up to the first that is not 0."""
    asked = [ask()]
    while not asked[-1]:
        assert len(asked) < 50, "the quota never acted"
        time.sleep(0.2)  # it does so some moments after it was set
        asked.append(ask())
    return asked


@pytest.mark.slow
@pytest.mark.promise("audit-event.md", "The throttle time of an event is that of the broker's response.")
def test_they_are_those_of_the_wire(cluster: ClusterState, ready: str, limited: str) -> None:
    with Own(cluster.bootstrap, limited) as client:

        def produced() -> int:
            answer = client.ask(PRODUCE, 7, produce(ready))
            assert error_of_produce(answer, ready) == 0
            return int.from_bytes(answer[-4:], "big")

        def fetched() -> int:
            throttle_ms, error_code = struct.unpack_from(">ih", client.ask(FETCH, 11, fetch(ready, 0)))
            assert error_code == 0
            return int(throttle_ms)

        read = [
            (key, throttle_ms)
            for key, ask in ((PRODUCE, produced), (FETCH, fetched))
            for throttle_ms in [*until_throttled(ask), ask(), ask()]
        ]
    reported = events_of(cluster, limited, len(read))
    assert [(event.api_key, event.throttle_ms) for event in reported] == read
    assert [event.correlation_id for event in reported] == list(range(1, len(read) + 1))


def events_of(cluster: ClusterState, client_id: str, count: int) -> list[RequestEvent]:
    """The events of all requests of ``client_id``, of which there are ``count``."""
    reported: list[RequestEvent] = []

    def are_there() -> bool:
        every = events(envelopes(cluster.internal_bootstrap, AUDIT), RequestEvent)
        reported[:] = [event for event in every if event.client_id == client_id]
        return len(reported) == count

    until(are_there)
    return reported
