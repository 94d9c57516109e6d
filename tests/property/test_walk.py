"""Whole = byte by byte = random cuts, for every version; nothing but MalformedBody for bytes that make no sense; and
the oracle says the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.compiled import walk_door
from proxy.errors import MalformedBody, Side
from tests.cases import each
from tests.oracle import walk as oracle
from tests.property.strategies import cuts, damaged, values
from tests.tools import facts, messages
from tests.tools.messages import Message, encode


class Kind(NamedTuple):
    """One of the six messages: its walker's name, its layout, and who sends it."""

    name: str
    message: Message
    side: Side


KINDS = [
    Kind("produce_request", messages.PRODUCE_REQUEST, "client"),
    Kind("produce_response", messages.PRODUCE_RESPONSE, "broker"),
    Kind("fetch_request", messages.FETCH_REQUEST, "client"),
    Kind("fetch_response", messages.FETCH_RESPONSE, "broker"),
    Kind("share_fetch_request", messages.SHARE_FETCH_REQUEST, "client"),
    Kind("share_fetch_response", messages.SHARE_FETCH_RESPONSE, "broker"),
]

every_kind = each("kind", KINDS)
every_version = each(
    ("kind", "version"), [(kind, version) for kind in KINDS for version in range(kind.message.max_version + 1)]
)

NOISE = st.binary(max_size=20)


# Both return the facts, or the side that the MalformedBody blames.


def whole(
    kind: Kind, version: int, body: bytes, before: bytes = b"", after: bytes = b"", walk: ModuleType = walk_door
) -> Any:
    data = before + body + after
    end = len(before) + len(body)
    try:
        return walk.walk_whole(getattr(walk, kind.name), data, len(before), end, version, kind.side)
    except MalformedBody as error:
        return error.side


def in_pieces(kind: Kind, version: int, pieces: list[bytes], before: bytes = b"", after: bytes = b"") -> Any:
    feed = walk_door.BodyFeed(getattr(walk_door, kind.name), version, kind.side)
    try:
        for piece in pieces:
            feed.feed(before + piece + after, len(before), len(before) + len(piece))
        return feed.finish()
    except MalformedBody as error:
        return error.side


@every_version
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_a_valid_message_gives_its_facts_however_it_arrives(kind: Kind, version: int, data: st.DataObject) -> None:
    drawn = data.draw(values(kind.message, version))
    body = encode(kind.message, version, drawn)
    expected = getattr(facts, kind.name)(version, drawn)
    before, after = data.draw(NOISE), data.draw(NOISE)
    assert whole(kind, version, body) == expected
    assert whole(kind, version, body, before, after) == expected
    assert in_pieces(kind, version, data.draw(cuts(body))) == expected
    assert in_pieces(kind, version, data.draw(cuts(body)), before, after) == expected


@every_kind
@given(data=st.data())
@settings(max_examples=settings().max_examples * 2)
def test_every_proper_prefix_is_malformed(kind: Kind, data: st.DataObject) -> None:
    version = data.draw(st.integers(0, kind.message.max_version))
    body = encode(kind.message, version, data.draw(values(kind.message, version)))
    prefix = body[: data.draw(st.integers(0, len(body) - 1))]
    assert whole(kind, version, prefix) == kind.side
    assert in_pieces(kind, version, data.draw(cuts(prefix))) == kind.side


def reported(walk: ModuleType, kind: Kind, version: int, pieces: list[bytes]) -> tuple[Any, ...]:
    """What a walker says of a body in pieces: its facts, or at which piece it gave up (−1: at the end), and why."""
    feed = walk.BodyFeed(getattr(walk, kind.name), version, kind.side)
    number = -1
    try:
        for number, piece in enumerate(pieces):  # noqa: B007
            feed.feed(piece, 0, len(piece))
        number = -1
        return (feed.finish(),)
    except MalformedBody as error:
        return number, str(error)


@pytest.mark.promise(
    "architecture.md",
    "A body is read in place with the same facts whole and in pieces, and malformed at the same byte.",
)
@every_kind
@given(data=st.data())
@settings(max_examples=settings().max_examples * 5)
def test_the_walker_says_what_the_oracle_says_at_the_same_byte(kind: Kind, data: st.DataObject) -> None:
    version = data.draw(st.integers(0, kind.message.max_version))
    body = encode(kind.message, version, data.draw(values(kind.message, version)))
    body = data.draw(st.one_of(st.just(body), damaged(body), st.binary(max_size=300)))
    pieces = data.draw(cuts(body))
    assert reported(walk_door, kind, version, pieces) == reported(oracle, kind, version, pieces)
    assert whole(kind, version, body) == whole(kind, version, body, walk=oracle)
