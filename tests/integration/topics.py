"""New topics that every broker knows of: some clients end where one does not yet, or send a record twice."""

import uuid
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it is exported, untyped

from proxy.interceptors.address_rewriter import METADATA
from proxy.local.state import ClusterState
from tests.integration.quotas import Asker
from tests.integration.sidecars import until
from tests.tools.random_messages import read_all
from tests.tools.topic import create

PARTITIONS = 3


def new_topic(state: ClusterState, prefix: str = "t") -> str:
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": state.internal_bootstrap})
    create(admin, NewTopic(name, PARTITIONS, 1))
    described_by(state, name)
    return name


def described_by(state: ClusterState, topic: str) -> None:
    """Wait until each broker knows of ``topic``."""
    for node in state.nodes:
        with Asker(node.upstream) as asker:
            described(asker, topic)


def described(asker: Asker, topic: str) -> dict[str, Any]:
    """What a broker's metadata say of ``topic``, as soon as each partition has a leader there."""

    def known() -> dict[str, Any]:
        [reported] = read_all(asker.answer(METADATA, 12, {"Topics": [{"Name": topic}]}))["Topics"]
        return {} if any(one["ErrorCode"] for one in (reported, *reported["Partitions"])) else dict(reported)

    return until(known)


def committed(admin: AdminClient, group: str) -> dict[int, int]:
    """The offsets that Kafka has of a group of one topic, by partition."""
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(180)
    return {one.partition: one.offset for one in found.topic_partitions if one.offset >= 0}
