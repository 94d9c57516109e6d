from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from observers import cluster_id as module
from observers.cluster_id import ClusterId
from tests.integration.test_audit import until


class Cluster:
    """In place of a ``KafkaAdmin``: answers from the third time on."""

    asked = 0

    def fetch_cluster_id(self) -> str:
        self.asked += 1
        if self.asked < 3:
            raise ConnectionError
        return "ThK9ZFduS0ONy_eg3SRv7w"


@pytest.mark.promise("opentelemetry.md", "The cluster's id is missing until the cluster was reached.")
def test_it_is_empty_until_the_cluster_answers_and_asked_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_DELAY", 0.01)
    cluster: Any = Cluster()
    found = ClusterId(cluster)
    assert found.value == ""
    with capture_logs() as logged:
        found.start()
        until(lambda: found.value == "ThK9ZFduS0ONy_eg3SRv7w")
    assert cluster.asked == 3
    assert [one["error"] for one in logged] == ["ConnectionError"] * 2
    unasked: Any = Cluster()
    found = ClusterId(unasked)
    found.close()
    found._run()
    assert unasked.asked == 0
