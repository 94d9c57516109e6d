"""Without an observer nothing is decoded, and everything works."""

from __future__ import annotations

import pytest

from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample

pytestmark = pytest.mark.kafka


def test_no_observer_then_no_body_is_decoded(cluster: ClusterState, bare_sidecar: SidecarProcess, topic: str) -> None:
    produce(cluster.bootstrap, topic, [b"v"] * 1000)
    assert len(consume(cluster.bootstrap, topic, 1000)) == 1000
    text = bare_sidecar.metrics()
    assert sample(text, "brokerside_requests_total", api="Produce") > 0
    assert sample(text, "brokerside_responses_total", api="Fetch") > 0
    assert sample(text, "brokerside_decode_total") == 0
