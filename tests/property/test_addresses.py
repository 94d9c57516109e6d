"""Addresses are replaced the same in whatever pieces a response comes; and nothing but MalformedBody is ever raised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.interceptor import REWRITE_PREFIX, REWRITE_STREAM
from proxy.errors import MalformedBody
from tests.property.strategies import cuts, damaged
from tests.tools.addressed import all_addressed, drawn, rewriting, rewritten

streamed = st.sampled_from([one for one in all_addressed() if rewriting().flags(*one) & REWRITE_STREAM])
led = st.sampled_from([one for one in all_addressed() if rewriting().flags(*one) & REWRITE_PREFIX])
seeds = st.integers(0, 2**32)


@pytest.mark.promise(
    "addresses.md",
    "Addresses in a response that streams are replaced the same in whatever pieces it comes, and its length stays.",
)
@given(streamed, seeds, st.data())
def test_the_pieces_make_no_difference(message: tuple[int, int], seed: int, data: st.DataObject) -> None:
    one = drawn(seed, *message)
    whole = rewritten(rewriting(), one, streamed=True)
    stream = rewriting().stream(*message, len(one.body))
    out = b""
    pieces = [piece for piece in data.draw(cuts(one.body)) if piece]
    for number, piece in enumerate(pieces):
        assert one.body.startswith(out), "only the end that is held back is changed"
        out += stream.feed(piece)
        assert len(out) <= sum(map(len, pieces[: number + 1]))
    assert out == whole
    assert len(out) == len(one.body)


@given(led, seeds, st.data())
def test_of_some_nothing_but_the_beginning_is_needed(message: tuple[int, int], seed: int, data: st.DataObject) -> None:
    one = drawn(seed, *message)
    addresses = rewriting()
    whole = addresses.rewrite_prefix(*message, one.body, True)
    assert whole is not None
    end = whole[1]
    assert addresses.rewrite_prefix(*message, one.body[: data.draw(st.integers(0, end - 1))], False) is None
    assert addresses.rewrite_prefix(*message, one.body[: data.draw(st.integers(end, len(one.body)))], False) == whole


@pytest.mark.promise("addresses.md", "A response that cannot be read is not rewritten, whatever its bytes are.")
@given(st.sampled_from(all_addressed()), seeds, st.data())
def test_damaged_bodies_are_rewritten_or_refused(message: tuple[int, int], seed: int, data: st.DataObject) -> None:
    one = drawn(seed, *message)
    body = data.draw(damaged(one.body))
    if not body:
        return
    try:
        out = rewritten(rewriting(), one._replace(body=body), data.draw(st.integers(1, 5)))
    except MalformedBody:
        return
    assert len(out) == len(body) or rewriting().flags(*message) != REWRITE_STREAM
