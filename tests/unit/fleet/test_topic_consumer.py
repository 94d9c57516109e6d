"""What is read of a topic; the topics themselves are in the integration tests."""

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE

from proxy.fleet import topic_consumer
from proxy.fleet.topic_client import TopicError
from proxy.fleet.topic_consumer import end_offset, to_topic_record

OFFSET_INVALID = -1001
"""What librdkafka's admin client returns without an error where the leader was killed."""


@pytest.mark.promise("architecture.md", "Only times that the broker's clock has given to records count.")
def test_only_the_broker_s_clock_counts():
    for timestamp, at in [
        ((TIMESTAMP_LOG_APPEND_TIME, 1000), 1000),
        ((TIMESTAMP_CREATE_TIME, 9_000_000_000_000), None),
        ((TIMESTAMP_NOT_AVAILABLE, 0), None),
    ]:
        assert to_topic_record(b"sidecar/1", b"{}", timestamp).at == at, (timestamp, at)


class Admin:
    """Answers with these offsets, the last one again and again. ``refreshed``: how often it was asked for leaders."""

    def __init__(self, *offsets: int) -> None:
        self._offsets: Iterator[int] = iter(offsets)
        self._last = 0
        self.refreshed = 0

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        self._last = next(self._offsets, self._last)
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=self._last))
        return dict.fromkeys(asked, answer)

    def list_topics(self, *_: Any, **__: Any) -> None:
        self.refreshed += 1


def test_a_leader_that_does_not_answer_is_not_an_empty_topic(monkeypatch):
    monkeypatch.setattr(topic_consumer, "STALE_LEADER_PAUSES", (0.0, 0.0))
    admin = Admin(OFFSET_INVALID, 384)
    assert end_offset(cast(Any, admin), "t", 0) == 384
    assert admin.refreshed == 1, "another broker leads it now"
    with pytest.raises(TopicError):
        end_offset(cast(Any, Admin(OFFSET_INVALID)), "t", 0)
