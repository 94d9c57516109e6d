"""The metadata of groups with which offsets are committed (S1-63)."""

import pytest
from confluent_kafka import Consumer

from proxy.fleet.group_metadata import MARKER, UnknownGroupMetadata, group_metadata, read_template


@pytest.mark.parametrize("group", ["g", "payments.eu-1", "a" * 255, "grüße/日本", "a b", MARKER, "\xff\xff"])
def test_the_metadata_are_those_of_a_consumer_of_the_group(group):
    consumer = Consumer({"group.id": group})
    assert group_metadata(read_template())(group) == consumer.consumer_group_metadata()
    consumer.close()


@pytest.mark.parametrize(
    "template",
    [
        b"",
        b"CGMDv3:\xff\xff\xff\xff" + MARKER.encode() + b"\0\0\x01",
        b"CGMDv2:\0\0\0\x07" + MARKER.encode() + b"\0\0\x01",
        b"CGMDv2:\xff\xff\xff\xff\0\x19" + MARKER.encode() + b"\0",
        b"CGMDv2:\xff\xff\xff\xff" + MARKER.encode(),
        b"CGMDv2:\xff\xff\xff\xff" + MARKER.encode() + b"\0" + MARKER.encode(),
    ],
)
def test_another_layout_is_not_written(template):
    with pytest.raises(UnknownGroupMetadata, match="not as expected"):
        group_metadata(template)
