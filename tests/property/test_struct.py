"""Whatever the bytes are, reading a struct ends in its values or in SchemaError; in whatever order fields are asked."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.accessors import Accessors
from proxy.core.struct import ObservableStructImpl, SchemaError, view
from tests.property.strategies import damaged
from tests.tools.random_messages import all_messages, draw, read_all

messages = st.sampled_from(list(all_messages()))
seeds = st.integers(0, 2**32)


def outcome(struct: ObservableStructImpl) -> Any:
    """All that can be read, sums of records included, or what was wrong."""
    try:
        return read_all(struct), sums(struct), struct._end()
    except SchemaError as error:
        return str(error)


def sums(struct: Accessors) -> list[Any]:
    """Records that each record set says it has; None of one that makes no sense."""
    found: list[Any] = []
    for name in struct.field_names():
        value = struct.get(name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Accessors):
                found += sums(one)
            elif hasattr(one, "batches"):
                try:
                    found.append(one.records)
                except SchemaError:
                    found.append(None)
    return found


@given(messages, seeds, st.randoms(use_true_random=False))
def test_the_order_in_which_fields_are_asked_for_does_not_matter(
    message: tuple[int, int, bool], seed: int, random: Random
) -> None:
    drawn = draw(Random(seed), *message)
    straight, shuffled = (view(*message[:2], drawn.body, response=message[2]) for _ in range(2))
    names = list(shuffled.field_names())
    random.shuffle(names)
    for name in names:
        shuffled.get(name)
    assert read_all(shuffled) == read_all(straight)


@given(messages, seeds, st.data())
def test_damaged_bodies_are_read_or_refused(message: tuple[int, int, bool], seed: int, data: st.DataObject) -> None:
    body = data.draw(damaged(draw(Random(seed), *message).body))
    assert outcome(view(*message[:2], body, response=message[2])) == outcome(
        view(*message[:2], body, response=message[2])
    )


@given(messages, st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(message: tuple[int, int, bool], body: bytes) -> None:
    outcome(view(*message[:2], body, response=message[2]))


@given(messages, seeds, st.binary(max_size=20))
def test_what_follows_the_end_is_not_looked_at(message: tuple[int, int, bool], seed: int, more: bytes) -> None:
    body = draw(Random(seed), *message).body
    alone, followed = (view(*message[:2], one, response=message[2]) for one in (body, body + more))
    assert outcome(alone) == outcome(followed)
    assert followed._end() == len(body)
