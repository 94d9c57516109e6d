"""The compiled Exchange holds what the pure one holds."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.core import exchange as pure
from tests.tools.implementations import compiled, needs_compiled

pytestmark = needs_compiled

COMPILED = compiled("proxy.compiled.exchange")

CONNECTION = pure.Connection("7", "CLIENT", "10.0.0.1", 4711, 3.5, "User:me")
RECORDS = pure.RecordSet(100, 2, 30, 2, 4, 5, 6, 7, True)
REQUESTS = [
    None,
    pure.ProduceRequest(-1, 1500, None, (), False),
    pure.ProduceRequest(
        1, 30_000, b"mine", tuple(pure.ProducedPartition(b"t%d" % (n // 3), n, RECORDS) for n in range(100)), True
    ),
    pure.ProduceRequest(1, 1, b"", (pure.ProducedPartition(b"t", 0, pure.EMPTY_RECORD_SET),), False),
    pure.FetchRequest(-1, 500, 1, 2, -1, (pure.WantedPartition(b"t", 3, 2**62),), False),
    pure.FetchRequest(-1, 500, 1, 2, 9, (pure.WantedPartition(b"t", 3, 4),), False, tuple((b"u", n) for n in range(9))),
]
RESPONSES = [
    None,
    pure.ProduceResponse(20, (pure.AnsweredPartition(b"t", 2**31 - 1, -1, -1),), True),
    pure.FetchResponse(20, 70, 5, tuple(pure.FetchedPartition(b"t", n, 3, 90, RECORDS) for n in range(9)), False),
]


def twins(*more: Any) -> tuple[Any, pure.Exchange]:
    fields = (CONNECTION, 1, 17, -3, "client", 1.5, 2**40, *more)
    assert COMPILED is not None
    return COMPILED.Exchange(*fields), pure.Exchange(*fields)


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("request_", REQUESTS)
def test_facts_come_back_as_they_went_in(request_: Any, response: Any) -> None:
    one, other = twins(2.5, 99, "answered", "full", request_, response)
    assert one == other
    assert other == one
    assert str(one) == str(other)
    assert one.request == request_
    assert one.response == response


@pytest.mark.parametrize("outcome", ["open", "answered", "no_response", "connection_lost"])
@pytest.mark.parametrize("decode", ["none", "full", "malformed", "unsupported", "not_kept"])
def test_every_outcome_and_decode_has_a_code(outcome: str, decode: str) -> None:
    one, other = twins(0.0, 0, outcome, decode)
    assert (one.outcome, one.decode) == (outcome, decode)
    assert one == other


def test_what_was_not_told_has_the_same_default() -> None:
    one, other = twins()
    assert str(one) == str(other)


def test_exchanges_that_differ_in_one_field_are_not_equal() -> None:
    one, _ = twins(2.5, 99)
    for more in [(2.5, 98), (2.0, 99), (2.5, 99, "answered"), (2.5, 99, "open", "none", REQUESTS[1])]:
        assert one != twins(*more)[0]
        assert one != twins(*more)[1]
    assert one != "an exchange"


def test_facts_are_built_once() -> None:
    one, _ = twins(2.5, 99, "answered", "full", REQUESTS[2], RESPONSES[2])
    assert one.request is one.request
    assert one.response is one.response
