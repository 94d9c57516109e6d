"""Requests are compared with kafka-python's encoder; tests/integration/test_groups_topic.py asks real brokers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from proxy.config import Endpoint
from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.errors import MalformedBody
from proxy.rpc import group_messages, topic_messages
from proxy.rpc.messages import RpcRequest
from tests.cases import each

GROUP = OffsetFetchRequest.OffsetFetchRequestGroup
TOPIC = ListOffsetsRequest.ListOffsetsTopic
PARTITION = TOPIC.ListOffsetsPartition


@each(
    ("request_", "expected"),
    [
        (
            group_messages.coordinators_request(["g", "h"]),
            FindCoordinatorRequest(key_type=0, coordinator_keys=["g", "h"], version=4),
        ),
        (
            group_messages.stable_offsets_request(["g", "h"]),
            OffsetFetchRequest(
                groups=[GROUP(group_id=one, topics=None) for one in ("g", "h")], require_stable=True, version=8
            ),
        ),
        (
            group_messages.groups_request(group_messages.CLASSIC_GROUPS, ["g"]),
            DescribeGroupsRequest(groups=["g"], include_authorized_operations=False, version=5),
        ),
        (
            topic_messages.end_offsets_request("t", [4]),
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=[
                    TOPIC(name="t", partitions=[PARTITION(partition_index=4, current_leader_epoch=-1, timestamp=-1)])
                ],
                version=7,
            ),
        ),
    ],
)
def test_requests(request_: RpcRequest, expected: Any) -> None:
    assert (request_.key, request_.version) == (expected.API_KEY, expected.version)
    assert request_.body == b"\0" + expected.encode(header=False, framed=False)
    for kind in (group_messages.CONSUMER_GROUPS, group_messages.SHARE_GROUPS, group_messages.STREAMS_GROUPS):
        request = group_messages.groups_request(kind, ["g"])
        assert (request.key, request.version, request.body) == (kind.key, kind.version, b"\0\x02\x02g\0\0")


def answer(key: int, version: int, values: Any) -> bytes:
    return b"\0" + encode(layout(key, version, response=True), values)


OFFSETS = [
    {"Name": "t", "Partitions": [{"PartitionIndex": 1, "CommittedOffset": 5}, {"CommittedOffset": -1}]},
    {"Name": "u", "Partitions": [{"CommittedOffset": 0}]},
]
PENDING = [{"Name": "t", "Partitions": [{"CommittedOffset": 5}, {"CommittedOffset": -1, "ErrorCode": 88}]}]
METADATA = {
    "Brokers": [{"NodeId": 3, "Host": "k", "Port": 9092}],
    "Topics": [
        {
            "Name": name,
            "Partitions": [{"PartitionIndex": 0, "LeaderId": -1}, {"PartitionIndex": partition, "LeaderId": 3}],
        }
        for name, partition in (("other", 1), ("t", 2))
    ],
}


@pytest.mark.promise(
    "groups.md", "Offsets and states of groups are read from the coordinators of each group, errors included."
)
@each(
    ("decode", "response", "expected"),
    [
        (
            group_messages.decode_coordinators,
            answer(10, 4, {"Coordinators": [{"Key": "g", "Host": "k", "Port": 9092}, {"Key": "h", "ErrorCode": 15}]}),
            {"g": (0, Endpoint("k", 9092)), "h": (15, Endpoint("", 0))},
        ),
        (
            group_messages.decode_offsets,
            answer(
                9,
                8,
                {
                    "Groups": [
                        {"GroupId": "g", "Topics": OFFSETS},
                        {"GroupId": "h", "Topics": PENDING},
                        {"GroupId": "i", "ErrorCode": 16},
                    ]
                },
            ),
            {"g": (0, {("t", 1): 5, ("u", 0): 0}), "h": (88, {("t", 0): 5}), "i": (16, {})},
        ),
        (
            partial(group_messages.decode_states, group_messages.CLASSIC_GROUPS),
            answer(15, 5, {"Groups": [{"GroupId": "g", "GroupState": "Stable"}, {"GroupId": "h", "ErrorCode": 14}]}),
            {"g": (0, "Stable"), "h": (14, "")},
        ),
        (
            partial(group_messages.decode_states, group_messages.CONSUMER_GROUPS),
            answer(69, 0, {"Groups": [{"GroupId": "g", "ErrorCode": 69}, {"GroupId": "h", "ErrorCode": 35}]}),
            {"g": (0, group_messages.DEAD), "h": (0, group_messages.DEAD)},
        ),
        (
            lambda body: topic_messages.decode_leaders(body, "t", [0, 1, 2]),
            answer(3, 12, METADATA),
            {0: (5, Endpoint("", 0)), 1: (5, Endpoint("", 0)), 2: (0, Endpoint("k", 9092))},
        ),
        (
            topic_messages.decode_end_offsets,
            answer(2, 7, {"Topics": [{"Name": "t", "Partitions": [{"PartitionIndex": 2, "Offset": 7}]}]}),
            {2: (0, 7)},
        ),
    ],
)
def test_answers(decode: Callable[[bytes], Any], response: bytes, expected: Any) -> None:
    assert decode(response) == expected
    for length in range(len(response)):
        with pytest.raises(MalformedBody):
            decode(response[:length])


DESCRIBED_TOPICS = bytes.fromhex(
    "000000000002000000010a3132372e302e302e31000060550000175576776c794d643451322d5662546255776767673551000000010300000274"
    "c76595e0c3e6448eb7ddf02ddf212fb90004000000000000000000010000000002000000010200000001010000000000000100000001000000"
    "000200000001020000000101000000000000020000000100000000020000000102000000010100800000000000"
    "03076e6f73756368000000000000000000000000000000000001800000000000"
)
"""Recorded from a broker of Kafka 4.3.1, of ``t``, of three partitions, and ``nosuch``."""

LEADER_OF_PARTITION_1 = DESCRIBED_TOPICS.index(bytes.fromhex("0000000000010000000100000000")) + 6


def test_the_request_names_topics_and_creates_none() -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name="t")]
    expected = MetadataRequest(
        topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False, version=12
    )
    request = topic_messages.describe_topics_request(["t"])
    assert (request.key, request.version) == (3, 12)
    assert request.body == b"\0" + expected.encode(header=False, framed=False)
    assert topic_messages.describe_topics_request(None).body == b"\0\0\0\0\0"


def test_topics_have_an_id_and_a_leader_of_each_partition_or_none_and_cut_answers_are_malformed() -> None:
    assert topic_messages.decode_described_topics(DESCRIBED_TOPICS) == {
        "t": topic_messages.DescribedTopic("x2WV4MPmRI633fAt3yEvuQ", (1, 1, 1))
    }
    at = LEADER_OF_PARTITION_1
    found = topic_messages.decode_described_topics(
        DESCRIBED_TOPICS[:at] + b"\xff\xff\xff\xff" + DESCRIBED_TOPICS[at + 4 :]
    )
    assert found["t"].leaders == (1, -1, 1)
    for length in range(len(DESCRIBED_TOPICS)):
        with pytest.raises(MalformedBody):
            topic_messages.decode_described_topics(DESCRIBED_TOPICS[:length])
