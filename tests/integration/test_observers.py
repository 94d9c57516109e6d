"""Observers of a whole sidecar before a real broker: what they get, what not, and how topics are named."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration import onlooker
from tests.integration.feature_sidecars import delete_topics
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample
from tests.integration.onlooker import FETCH, METADATA, PRODUCE, ObservedCall
from tests.integration.sidecars import config_of, running

pytestmark = pytest.mark.kafka

MODULE = "tests.integration.onlooker"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where onlookers write."""
    path = tmp_path / "calls.jsonl"
    monkeypatch.setenv(onlooker.FILE, str(path))
    return path


@contextmanager
def onlooking(cluster: ClusterState, file: Path, *names: str) -> Iterator[SidecarProcess]:
    """The cluster's sidecar with other observers."""
    classes = [f"{MODULE}:{name}" for name in names]
    with running(config_of(cluster.nodes[0], **{"observer.class.names": classes}), file.parent) as sidecar:
        yield sidecar


def settled(sidecar: SidecarProcess, file: Path) -> list[ObservedCall]:
    """Wait until the observer has got what has happened so far; return all of it. On a busy machine a look may find
    nothing new though something is on its way: it takes five."""
    deadline = time.monotonic() + 60
    reported: list[ObservedCall] = []
    quiet = 0
    while True:
        assert time.monotonic() < deadline, "it never became quiet"
        time.sleep(0.2)  # more than a flush of the data path
        waiting, before, reported = sidecar.metric("brokerside_observer_queued"), len(reported), onlooker.read(file)
        quiet = quiet + 1 if reported and not waiting and len(reported) == before else 0
        if quiet == 5:
            return reported


@pytest.mark.promise("observers.md", "An observer gets every request and every response once.")
def test_each_request_is_reported_with_its_response_and_what_is_known_besides(
    cluster: ClusterState, file: Path
) -> None:
    """S3-09, S3-10. Topics that go by id are named by what the broker reported before, without asking it: one that was
    deleted and made again has two ids and one name."""
    began = time.time()
    topic = f"again-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    with onlooking(cluster, file, "Onlooker") as sidecar:
        for _ in range(2):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
            produce(cluster.bootstrap, topic, [b"x"] * 100, **{"client.id": "billing", "batch.num.messages": 4})
            consume(cluster.bootstrap, topic, 100)
            delete_topics(admin, topic)
        reported = settled(sidecar, file)
        text = sidecar.metrics()
    requests = {one.correlation_id: one for one in reported if one.method == "request"}
    responses = [one.correlation_id for one in reported if one.method == "response"]
    assert len(requests) == sum(one.method == "request" for one in reported), "no correlation id twice"
    assert (set(responses), len(responses)) == (set(requests), len(requests))
    produced = [one for one in requests.values() if one.api_key == PRODUCE]
    assert len(produced) >= 50
    for one in produced:
        assert one.topics == [topic]
        context = one.context
        assert context is not None
        assert (context.broker_id, context.listener, context.client_id) == (1, "CLIENT", "billing")
        assert (context.principal_source, context.client_software_name) == ("anonymous", "confluent-kafka-python")
        times = [context.received_at, context.forwarded_at, context.responded_at, context.answered_at]
        assert times == sorted(times)
        assert began - 1 < times[0] < times[-1] < time.time() + 1
    fetches = [one for one in requests.values() if one.api_key == FETCH and one.ids]
    assert {name for one in fetches for name in one.topics} == {topic}, "librdkafka fetches by topic id"
    assert len({topic_id for one in fetches for topic_id in one.ids}) == 2
    assert max(one.look_ups for one in fetches) == 0
    assert sample(text, "brokerside_observer_errors_total") == 0
    assert sample(text, "brokerside_observer_delivered_total") == len(requests)


@pytest.mark.promise("observers.md", "Nothing is decoded without an observer, or for one that does not want it.")
@pytest.mark.slow
def test_nothing_is_decoded_for_an_observer_that_does_not_want_it(
    cluster: ClusterState, topic: str, file: Path
) -> None:
    for names in ((), ("MetadataOnlooker",)):
        with onlooking(cluster, file, *names) as sidecar:
            produce(cluster.bootstrap, topic, [b"x"] * 20)
            consume(cluster.bootstrap, topic, 20)
            if names:
                assert {one.api_key for one in settled(sidecar, file) if one.method == "request"} == {METADATA}
            text = sidecar.metrics()
        assert sample(text, "brokerside_requests_total", api="Produce") > 0
        assert sample(text, "brokerside_requests_total", api="Fetch") > 0
        assert sample(text, "brokerside_decode_total") == 0
        metadata = sample(text, "brokerside_requests_total", api="Metadata")
        assert sample(text, "brokerside_observer_delivered_total") == (metadata if names else 0)
