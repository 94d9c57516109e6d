"""What is read of a topic; the topics themselves are in the integration tests."""

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE

from proxy.fleet.topic_consumer import to_topic_record


@pytest.mark.parametrize(
    ("timestamp", "at"),
    [
        ((TIMESTAMP_LOG_APPEND_TIME, 1000), 1000),
        ((TIMESTAMP_CREATE_TIME, 9_000_000_000_000), None),
        ((TIMESTAMP_NOT_AVAILABLE, 0), None),
    ],
)
def test_only_the_broker_s_clock_counts(timestamp, at):
    assert to_topic_record(b"sidecar/1", b"{}", timestamp).at == at
