"""The encoder of these tests against kafka-python's, which covers every version of Produce and Fetch, and kio's."""

from __future__ import annotations

import importlib
import uuid
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader

from proxy.compiled.walk_door import walk_whole, walker_for_request, walker_for_response
from proxy.core.exchange import FetchRequest as FetchRequestFacts
from proxy.core.exchange import RecordSet
from tests.frames import batch
from tests.property.strategies import values
from tests.tools import facts, messages
from tests.tools.messages import Field, Made, Message, encode

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its resources by a deprecated function
    from kafka.protocol.consumer import FetchRequest, FetchResponse
    from kafka.protocol.producer import ProduceRequest, ProduceResponse

NO_ID = bytes(16)  # kafka-python shows it as None

PAIRS = [
    (messages.PRODUCE_REQUEST, ProduceRequest),
    (messages.PRODUCE_RESPONSE, ProduceResponse),
    (messages.FETCH_REQUEST, FetchRequest),
    (messages.FETCH_RESPONSE, FetchResponse),
]


@pytest.mark.parametrize(
    ("message", "theirs", "version"),
    [
        pytest.param(message, theirs, version, id=f"{theirs.__name__}-v{version}")
        for message, theirs in PAIRS
        for version in range(message.max_version + 1)
    ],
)
@given(data=st.data())
def test_kafka_python_reads_what_the_encoder_wrote(
    message: Message, theirs: Any, version: int, data: st.DataObject
) -> None:
    drawn = data.draw(values(message, version, unknown_tags=False))
    decoded = theirs.decode(encode(message, version, drawn), version=version)
    differing = list(differences(message.fields, version, drawn, decoded))
    assert not differing


def differences(fields: tuple[Field, ...], version: int, ours: Mapping[str, Any], theirs: Any) -> Any:
    """Yield what differs between values drawn here and an object decoded there."""
    for field in fields:
        if field.lives_in(version) and field.name in ours:
            yield from _compare(field, version, ours[field.name], getattr(theirs, field.name))


def _compare(field: Field, version: int, ours: Any, theirs: Any) -> Any:
    if field.array and ours is not None:
        if len(ours) != len(theirs):
            yield field.name, len(ours), len(theirs)
        for one, other in zip(ours, theirs, strict=False):
            yield from _compare(field._replace(array=False), version, one, other)
    elif field.fields and ours is not None:
        yield from differences(field.fields, version, ours, theirs)
    elif _plain(ours) != (_plain(theirs) if theirs is not None or field.type != "uuid" else NO_ID):
        yield field.name, ours, theirs


def _plain(value: Any) -> Any:
    if isinstance(value, Made):
        value = value.data
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, uuid.UUID):
        return value.bytes
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


ID = bytes(range(16))

SHARE_FETCH = {
    "request": {
        "group_id": b"g",
        "member_id": None,
        "share_session_epoch": 3,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 2,
        "max_records": 4,
        "batch_size": 5,
        "share_acquire_mode": 1,
        "is_renew_ack": True,
        "topics": [
            {
                "topic_id": ID,
                "partitions": [
                    {
                        "partition_index": number,
                        "acknowledgement_batches": [
                            {"first_offset": 6, "last_offset": 7, "acknowledge_types": [1, 2, 3]}
                        ],
                    }
                    for number in (8, 9)
                ],
            }
        ],
        "forgotten_topics_data": [{"topic_id": ID, "partitions": [10, 11]}],
    },
    "response": {
        "throttle_time_ms": 20,
        "error_code": 0,
        "error_message": b"m",
        "acquisition_lock_timeout_ms": 30_000,
        "responses": [
            {
                "topic_id": ID,
                "partitions": [
                    {
                        "partition_index": number,
                        "error_code": 3,
                        "error_message": None,
                        "acknowledge_error_code": 121,
                        "acknowledge_error_message": b"no",
                        "current_leader": {"leader_id": 1, "leader_epoch": 2},
                        "records": Made(batch(2, b"records"), RecordSet(68, 1, 2, 2, base_offset=0)),
                        "acquired_records": [{"first_offset": 4, "last_offset": 5, "delivery_count": 6}],
                    }
                    for number in (8, 9)
                ],
            }
        ],
        "node_endpoints": [{"node_id": 1, "host": b"h", "port": 9092, "rack": None}],
    },
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["request", "response"])
def test_kio_reads_share_fetch_as_the_encoder_wrote_it_and_the_walkers_as_well(kind: str, version: int) -> None:
    message = getattr(messages, f"SHARE_FETCH_{kind.upper()}")
    body = encode(message, version, SHARE_FETCH[kind])
    module = importlib.import_module(f"kio.schema.share_fetch.v{version}.{kind}")
    theirs, size = entity_reader(getattr(module, f"ShareFetch{kind.capitalize()}"))(body, 0)
    assert size == len(body)
    find = walker_for_request if kind == "request" else walker_for_response
    walker = find(78, version)
    assert walker is not None
    found = walk_whole(walker, body, 0, len(body), version, "client" if kind == "request" else "broker")
    assert found == getattr(facts, f"share_fetch_{kind}")(version, SHARE_FETCH[kind])
    topics = theirs.topics if kind == "request" else theirs.responses
    assert [(part.topic, part.partition) for part in found.partitions] == [
        (topic.topic_id.bytes, part.partition_index) for topic in topics for part in topic.partitions
    ]
    if isinstance(found, FetchRequestFacts):
        assert found.session_epoch == theirs.share_session_epoch
        gone = [(topic.topic_id.bytes, number) for topic in theirs.forgotten_topics_data for number in topic.partitions]
        assert list(found.forgotten) == gone
    else:
        assert [part.records.size for part in found.partitions] == [
            len(part.records) for topic in topics for part in topic.partitions
        ]
