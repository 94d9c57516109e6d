"""A consumer group's metadata as librdkafka wants them where a transaction commits offsets (KIP-447).

confluent-kafka gives them out only as bytes, and only of a Consumer of that group. A Consumer for each group would be a
thread for each group, so one is asked once, for a group whose name is then replaced. The bytes say that the committer
is no member (generation -1, no member id).
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.errors import BrokersideError

MARKER = "brokerside-group-metadata"
"""The group that the metadata are asked for. It never exists in Kafka: the Consumer connects to nothing."""

PREFIX = b"CGMDv2:\xff\xff\xff\xff"
"""How the metadata begin: librdkafka's name of the layout, and generation -1. The group follows, with NUL behind."""


class UnknownGroupMetadata(BrokersideError):
    """librdkafka's layout has changed, so that no offset can be committed."""


def read_template() -> bytes:
    """Return the metadata of ``MARKER``. May block; imports librdkafka."""
    from confluent_kafka import Consumer

    consumer = Consumer({"group.id": MARKER})
    try:
        return bytes(consumer.consumer_group_metadata())
    finally:
        consumer.close()


def group_metadata(template: bytes) -> Callable[[str], bytes]:
    """Return a function that makes the metadata of a group, whose name has no NUL. Raises UnknownGroupMetadata."""
    marker = MARKER.encode()
    head, tail = PREFIX, template[len(PREFIX) + len(marker) :]
    if template != head + marker + tail or not tail.startswith(b"\0") or marker in tail:
        raise UnknownGroupMetadata(f"librdkafka's metadata of a group are not as expected: {template!r}")
    return lambda group: head + group.encode() + tail
