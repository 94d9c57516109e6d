"""An exchange holds what it was made of, whatever it is in C."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.compiled.exchange import FIELDS, Exchange
from proxy.core import exchange as facts
from tests.cases import each

CONNECTION = facts.Connection("7", "CLIENT", "10.0.0.1", 4711, 3.5, "User:me")
RECORDS = facts.RecordSet(100, 2, 30, 2, 4, 5, 6, 7, True)
REQUESTS = [
    None,
    facts.ProduceRequest(-1, 1500, None, (), False),
    facts.ProduceRequest(
        1, 30_000, b"mine", tuple(facts.ProducedPartition(b"t%d" % (n // 3), n, RECORDS) for n in range(100)), True
    ),
    facts.ProduceRequest(1, 1, b"", (facts.ProducedPartition(b"t", 0, facts.EMPTY_RECORD_SET),), False),
    facts.FetchRequest(-1, 500, 1, 2, -1, (facts.WantedPartition(b"t", 3, 2**62),), False),
    facts.FetchRequest(
        -1, 500, 1, 2, 9, (facts.WantedPartition(b"t", 3, 4),), False, tuple((b"u", n) for n in range(9))
    ),
]
RESPONSES = [
    None,
    facts.ProduceResponse(20, (facts.AnsweredPartition(b"t", 2**31 - 1, -1, -1),), True),
    facts.FetchResponse(20, 70, 5, tuple(facts.FetchedPartition(b"t", n, 3, 90, RECORDS) for n in range(9)), False),
]


GIVEN = (CONNECTION, 1, 17, -3, "client", 1.5, 2**40)
DEFAULTS = (0.0, 0, "open", "none", None, None, 0.0, 0.0, 0, 0, None, None, False, 0, None, None)
ERRORS = facts.ItemErrors((facts.ItemErrorFacts(29, "topic", b"t", None, -1, 0, None, None),), 1, 0, 0)
RESOURCES = facts.RequestResources(
    (facts.RequestResource("topic", b"t", None, 0, None, None),), 3, (facts.CommittedOffset(b"t", False, 0, 12),), 1,
    b"readers", None, b"member-1", b"pay-1", 7, True,
)  # fmt: skip


def reported(one: Exchange) -> tuple[Any, ...]:
    return tuple(getattr(one, name) for name in FIELDS)


@pytest.mark.promise("observers.md", "An observer reads of an exchange exactly what was recorded of it.")
@each("response", RESPONSES)
@each("request_", REQUESTS)
def test_facts_come_back_as_they_went_in(request_: Any, response: Any) -> None:
    given = (*GIVEN, 2.5, 99, "answered", "full", request_, response)
    one = Exchange(*given)
    assert reported(one) == given + DEFAULTS[6:]
    assert one == Exchange(*given)
    fields = ", ".join(f"{name}={value!r}" for name, value in zip(FIELDS, reported(one), strict=True))
    assert str(one) == f"Exchange({fields})"


def test_every_field_comes_back_as_it_went_in() -> None:
    given = (*GIVEN, 2.5, 99, "answered", "full", None, None, 1.75, 2.25, 30, 41, b"asked", b"answer", True, 5,
             ERRORS, RESOURCES)  # fmt: skip
    assert reported(Exchange(*given)) == given
    assert reported(Exchange(**dict(zip(FIELDS, given, strict=True)))) == given


@each("outcome", ["open", "answered", "no_response", "connection_lost"])
@each("decode", ["none", "full", "malformed", "unsupported", "not_kept"])
def test_every_outcome_and_decode_has_a_code(outcome: str, decode: str) -> None:
    one = Exchange(*GIVEN, 0.0, 0, outcome, decode)
    assert (one.outcome, one.decode) == (outcome, decode)


def test_exchanges_that_differ_in_one_field_are_not_equal() -> None:
    one = Exchange(*GIVEN, 2.5, 99)
    for more in [(2.5, 98), (2.0, 99), (2.5, 99, "answered"), (2.5, 99, "open", "none", REQUESTS[1])]:
        assert one != Exchange(*GIVEN, *more)
    assert one != "an exchange"
