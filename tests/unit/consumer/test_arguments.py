"""A wrong argument is one sentence, before anything connects."""

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from proxy.client.consumer import CommitRefused, CoordinatedConsumer
from proxy.client.consumer import arguments as checked
from proxy.errors import LocalError

RIGHT: dict[str, Any] = {"bootstrap_brokers": "h:9092", "group_id": "g", "consumer_id": "c1"}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"bootstrap_brokers": ""}, "bootstrap_brokers is empty"),
    ({"bootstrap_brokers": []}, "bootstrap_brokers is empty"),
    ({"bootstrap_brokers": "h:9092,"}, "bootstrap_brokers: ''"),
    ({"bootstrap_brokers": ["h"]}, "bootstrap_brokers: 'h'"),
    ({"group_id": ""}, "group_id is ''"),
    ({"group_id": "g" * 256}, "allowed: 1 to 255 characters of printable ASCII"),
    ({"group_id": "ä"}, "printable ASCII"),
    ({"group_id": "a\0b"}, "printable ASCII"),
    ({"group_id": None}, "group_id is None"),
    ({"consumer_id": ""}, "consumer_id is ''"),
    ({"consumer_id": "\ud800"}, "consumer_id is"),
    ({"session_timeout_ms": 0}, "session_timeout_ms is 0"),
    ({"session_timeout_ms": 600_001}, "allowed: 1 to 600000 milliseconds"),
    ({"session_timeout_ms": 6.0}, "session_timeout_ms is 6.0"),
    ({"session_timeout_ms": True}, "session_timeout_ms is True"),
    ({"max_poll_interval_ms": -1}, "max_poll_interval_ms is -1"),
    ({"auto_commit": "no"}, "auto_commit is 'no'"),
    ({"detached_fetching": 1}, "detached_fetching is 1"),
    ({"auto_offset_reset": "earliest"}, "allowed: smallest, largest"),
    ({"kafka": {"enable.auto.commit": True}}, "kafka: enable.auto.commit is set by the consumer itself"),
    ({"kafka": {"group.instance.id": "i"}}, "kafka: group.instance.id is set by the consumer itself"),
    ({"kafka": {"security.protocol": "ssl"}}, "a listener with TLS has no coordinator"),
    ({"kafka": {"security.protocol": "sasl_plaintext", "sasl.mechanism": "GSSAPI"}}, "GSSAPI is not supported"),
    ({"topic_count": {}}, "1 to 1000 topics"),
    ({"topic_count": {"t": 0}}, "t: 0 streams"),
    ({"topic_count": {"t": 1001}}, "t: 1001 streams"),
    ({"topic_count": {"t": "2"}}, "t: '2' streams"),
    ({"topic_count": {"a/b": 1}}, "no topic can be named 'a/b'"),
    ({"topic_count": ["t"]}, "numbers of streams by topic"),
    ({"topic_count": {str(number): 1 for number in range(1001)}}, "1 to 1000 topics"),
    ({"topic_count": {"t": 1}, "kafka": {"no.such.setting": "1"}}, "kafka: .*no.such.setting"),
]


WRONG_FILTERS: list[Any] = ["logs.*", "*2!logs", "**logs", "*2*", "*99999*a", None, {"t": 1}]


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except LocalError as error:
        return str(error)
    return ""


@pytest.mark.promise("consumer.md", "A wrong argument raises LocalError, one sentence, before anything connects.")
def test_a_wrong_argument_is_one_sentence_before_anything_connects() -> None:
    threads = set(threading.enumerate())
    for changed, text in WRONG:
        assert re.search(text, refusal(lambda changed=changed: CoordinatedConsumer(**{**RIGHT, **changed}))), changed
    filtered = CoordinatedConsumer(**RIGHT).create_message_streams_by_filter
    for topic_filter in WRONG_FILTERS:
        assert "allowed: " in refusal(lambda one=topic_filter: filtered(one)), topic_filter
    assert "0 streams" in refusal(lambda: filtered("*0*logs"))
    assert set(threading.enumerate()) <= threads, "those of earlier tests may end"
    kafka = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.password": "canary"}
    with pytest.raises(LocalError) as caught:
        CoordinatedConsumer(**RIGHT, kafka=kafka)
    assert "canary" not in str(caught.value)


def test_without_streams_there_is_nothing_to_commit_or_to_shut_down() -> None:
    with pytest.raises(LocalError, match="the coordinator commits the offsets"):
        CoordinatedConsumer(**RIGHT).commit_offsets()
    with pytest.raises(CommitRefused, match="nothing is assigned"):
        CoordinatedConsumer(**RIGHT, auto_commit=False).commit_offsets()
    with CoordinatedConsumer(**RIGHT) as consumer:
        assert consumer.streams == {}
    assert checked.topic_count_of({"t": 2, "u": 1}) == '{"t":2,"u":1}'
    for several in ("a:1, b:2", ["a:1", "b:2"]):
        assert [str(one) for one in checked.check_brokers(several)] == ["a:1", "b:2"]
