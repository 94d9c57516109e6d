"""The answer below was recorded from a broker of Kafka 4.3.1; the request is compared with kafka-python's encoder."""

from __future__ import annotations

import pytest
from kafka.protocol.metadata import MetadataRequest

from proxy.errors import MalformedBody
from proxy.rpc.topic_messages import DescribedTopic, decode_described_topics, describe_topics_request

ANSWER = bytes.fromhex(
    "000000000002000000010a3132372e302e302e31000060550000175576776c794d643451322d5662546255776767673551000000010300000274"
    "c76595e0c3e6448eb7ddf02ddf212fb90004000000000000000000010000000002000000010200000001010000000000000100000001000000"
    "000200000001020000000101000000000000020000000100000000020000000102000000010100800000000000"
    "03076e6f73756368000000000000000000000000000000000001800000000000"
)
"""To a question about ``t``, of three partitions, and ``nosuch``."""

LEADER_OF_PARTITION_1 = ANSWER.index(bytes.fromhex("0000000000010000000100000000")) + 6


def test_the_request_names_topics_and_creates_none() -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name="t")]
    expected = MetadataRequest(
        topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False, version=12
    )
    request = describe_topics_request(["t"])
    assert (request.key, request.version) == (3, 12)
    assert request.body == b"\0" + expected.encode(header=False, framed=False)
    assert describe_topics_request(None).body == b"\0\0\0\0\0"


def test_topics_have_an_id_and_a_leader_of_each_partition() -> None:
    assert decode_described_topics(ANSWER) == {"t": DescribedTopic("x2WV4MPmRI633fAt3yEvuQ", (1, 1, 1))}


def test_a_partition_without_a_leader() -> None:
    at = LEADER_OF_PARTITION_1
    found = decode_described_topics(ANSWER[:at] + b"\xff\xff\xff\xff" + ANSWER[at + 4 :])
    assert found["t"].leaders == (1, -1, 1)


def test_an_answer_that_is_cut_anywhere_is_malformed() -> None:
    for length in range(len(ANSWER)):
        with pytest.raises(MalformedBody):
            decode_described_topics(ANSWER[:length])
