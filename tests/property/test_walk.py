"""Whole = byte by byte = random cuts, for every version, up to the byte that is malformed; and structs say the same."""

from random import Random

import pytest

from tests.cases import each
from tests.fuzz import seeds
from tests.fuzz.mutate import Mutator, cuts, single
from tests.fuzz.targets import Body, check_body, in_pieces, whole
from tests.tools import facts
from tests.tools.messages import Message, encode

VERSIONS = [(*one, version) for one in seeds.MESSAGES for version in range(one[2].max_version + 1)]
EACH = 12
"""Messages of each version."""


@pytest.mark.promise(
    "architecture.md",
    "A body is read in place with the same facts whole and in pieces, and malformed at the same byte.",
)
@each(("key", "response", "message", "version"), VERSIONS)
def test_a_body_gives_its_facts_however_it_arrives_and_is_malformed_at_the_same_byte(
    key: int, response: bool, message: Message, version: int
) -> None:
    rng = Random(f"{key} {response} {version}")
    made = []
    for _ in range(EACH):
        values = seeds.values_of(message.fields, version, rng)
        body = Body(key, version, response, encode(message, version, values))
        expected = getattr(facts, body.name)(version, values)
        noise = rng.randbytes(rng.randrange(20))
        assert whole(body) == whole(body, noise) == expected
        for pieces in (single(body.data), cuts(rng, body.data), cuts(rng, body.data)):
            assert in_pieces(body, pieces, noise) == expected
        prefix = body._replace(data=body.data[: rng.randrange(len(body.data))])
        assert check_body(prefix, rng) == body.side
        made.append(body.data)
        for field in message.fields:
            if field.array and field.lives_in(version) and field.name != "node_endpoints":  # no walker reads these
                null = encode(message, version, {**values, field.name: None})
                assert check_body(body._replace(data=null), rng) == body.side
    mutator = Mutator(rng, made)
    for _ in range(5 * EACH):
        check_body(Body(key, version, response, mutator.input()), rng)
