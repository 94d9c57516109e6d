"""The encoder of these tests against kafka-python's, which covers every version of the four messages."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.strategies import values
from tests.tools import messages
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
