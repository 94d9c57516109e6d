"""Whole = byte by byte = random cuts, for every version; and the oracle gives up at the same byte."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from proxy.compiled import walk_door
from proxy.errors import MalformedBody, Side
from tests.cases import each
from tests.fuzz import seeds
from tests.fuzz.mutate import Mutator, cuts, single
from tests.oracle import walk as oracle
from tests.tools import facts, messages
from tests.tools.messages import Message, Values, encode


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
EACH = 12
"""Messages of each version."""


def drawn(kind: Kind, version: int, rng: Random) -> tuple[Values, bytes]:
    """Values, and the message that has them."""
    values = seeds.values_of(kind.message.fields, version, rng)
    return values, encode(kind.message, version, values)


def in_pieces(walk: ModuleType, kind: Kind, version: int, pieces: list[bytes], noise: bytes = b"") -> Any:
    """The facts; or whom the MalformedBody blames, at which piece it was raised (-1: at the end), and why."""
    feed, number = walk.BodyFeed(getattr(walk, kind.name), version, kind.side), -1
    try:
        for number, piece in enumerate(pieces):  # noqa: B007
            feed.feed(noise + piece + noise, len(noise), len(noise) + len(piece))
        number = -1
        return feed.finish()
    except MalformedBody as error:
        return error.side, number, str(error)


def whole(walk: ModuleType, kind: Kind, version: int, body: bytes, noise: bytes = b"") -> Any:
    data, end = noise + body + noise, len(noise) + len(body)
    try:
        return walk.walk_whole(getattr(walk, kind.name), data, len(noise), end, version, kind.side)
    except MalformedBody as error:
        return error.side


def versions() -> Iterator[tuple[Kind, int]]:
    for kind in KINDS:
        yield from ((kind, version) for version in range(kind.message.max_version + 1))


@each(("kind", "version"), list(versions()))
def test_a_message_gives_its_facts_however_it_arrives_and_a_part_of_it_none(kind: Kind, version: int) -> None:
    rng = Random(f"{kind.name} {version}")
    for _ in range(EACH):
        values, body = drawn(kind, version, rng)
        expected = getattr(facts, kind.name)(version, values)
        noise = rng.randbytes(rng.randrange(20))
        assert whole(walk_door, kind, version, body) == whole(walk_door, kind, version, body, noise) == expected
        for pieces in (single(body), cuts(rng, body), cuts(rng, body)):
            assert in_pieces(walk_door, kind, version, pieces, noise) == expected
        prefix = body[: rng.randrange(len(body))]
        assert whole(walk_door, kind, version, prefix) == kind.side
        assert in_pieces(walk_door, kind, version, cuts(rng, prefix))[0] == kind.side


@pytest.mark.promise(
    "architecture.md",
    "A body is read in place with the same facts whole and in pieces, and malformed at the same byte.",
)
@each(("kind", "version"), list(versions()))
def test_the_walker_says_what_the_oracle_says_at_the_same_byte(kind: Kind, version: int) -> None:
    rng = Random(f"oracle {kind.name} {version}")
    mutator = Mutator(rng, [drawn(kind, version, rng)[1] for _ in range(EACH)])
    for _ in range(5 * EACH):
        body = mutator.input()
        pieces = cuts(rng, body)
        found = in_pieces(oracle, kind, version, pieces)
        assert in_pieces(walk_door, kind, version, pieces) == found
        assert whole(walk_door, kind, version, body) == whole(oracle, kind, version, body)
