"""A session whose interceptor answers later: what is sent before, what waits, and what is charged meanwhile."""

import pytest

from proxy.core.budget import OPEN
from proxy.core.interceptor import (
    ON_BODY,
    ON_HEADER,
    BrokerCall,
    Deferred,
    GivenUp,
    Interceptor,
    Request,
    Served,
    Verdict,
)
from proxy.core.observation_interest import WANT_EXCHANGE, WANT_RESPONSE_BODY
from tests.cases import each
from tests.frames import METADATA, batch, produce, request, response
from tests.tools.interceptors import HELD, REPLIED, replied, served
from tests.unit.core.test_session_interception import Bench

PRODUCE = 0


def deferred(number: int, answer: bytes) -> bytes:
    return request(HELD, 0, number, b"d" + answer)


def answer(bench: Bench) -> None:
    """Serve the request that is due, and read what was kept behind it."""
    due = bench.session.deferred
    respond(bench, served(due))
    while bench.session.rest:
        bench.client(bench.session.rest)


def respond(bench: Bench, with_: Served | Exception) -> None:
    bench.now += 1
    bench.session.answer_deferred(with_)
    interception = bench.session.interception
    if interception.failure is not None:
        bench.failures.append(interception.failure)
    bench.to_client += interception.replies
    bench.session.observe(bench.now + 0.5)


@pytest.mark.promise("architecture.md", "A deferred request is served once all responses before it were taken.")
def test_it_is_due_once_all_before_it_is_answered_and_nothing_passes_it() -> None:
    bench = Bench()
    behind = request(METADATA, 1, 4) + request(REPLIED, 2, 5)
    bench.client(request(METADATA, 1, 1) + request(REPLIED, 3, 2) + deferred(3, b"later") + behind, later=True)
    assert bench.to_broker == request(METADATA, 1, 1)
    assert (bench.to_client, bench.session.deferred, bench.session.rest) == (b"", None, behind)
    bench.broker(response(1))
    assert bench.to_client == response(1) + response(2, replied(3))
    assert not bench.session.is_idle
    assert bench.session.rest == behind
    answer(bench)
    assert bench.to_client == response(1) + response(2, replied(3)) + response(3, b"later")
    assert bench.to_broker == request(METADATA, 1, 1) + request(METADATA, 1, 4)
    assert bench.session.deferred is None
    bench.broker(response(4, b"x"))
    assert bench.to_client.endswith(response(4, b"x") + response(5, replied(2)))
    assert bench.session.is_idle
    assert bench.ended() == [
        (1, "answered", False),
        (2, "answered", True),
        (3, "answered", True),
        (4, "answered", False),
        (5, "answered", True),
    ]
    assert bench.counters.intercepted == {(REPLIED, "replied"): 2, (HELD, "replied"): 1}


@each(("given", "cause", "failures"), [(None, "unsupported_request", 0), (RuntimeError("serve"), "session_failed", 1)])
def test_without_an_answer_the_connection_ends_and_nothing_more_is_read(
    given: Exception | None, cause: str, failures: int
) -> None:
    bench = Bench()
    bench.client(request(REPLIED, 3, 1) + deferred(2, b"") + request(METADATA, 1, 3), later=True)
    assert not bench.ending
    respond(bench, given)
    assert bench.ending
    interception = bench.session.interception
    assert (interception.cause, len(bench.failures), bench.session.rest) == (cause, failures, b"")
    assert bench.counters.intercept_errors == failures
    assert bench.counters.intercepted[HELD, "closed"] == 1
    bench.client(request(METADATA, 1, 4))
    assert (bench.to_broker, bench.to_client) == (b"", response(1, replied(3)))
    bench.session.close(9.0)
    assert bench.ended() == [(1, "answered", True), (2, "connection_lost", True)]


@each("due", [True, False])
def test_its_bytes_are_charged_until_it_is_answered_or_the_connection_ends(due: bool) -> None:
    bench = Bench()
    if not due:
        bench.client(request(METADATA, 1, 1))
    before = bench.budget.counts[OPEN]
    asked = deferred(2, b"x" * 30_000)
    bench.client(asked)
    held = bench.budget.counts[OPEN] - before
    assert len(asked) < held < len(asked) + 1000
    if due:
        answer(bench)
    else:
        bench.session.close(9.0)
    assert bench.budget.counts[OPEN] == 0


@pytest.mark.promise(
    "architecture.md", "A connection that is given up leaves with what the client has sent behind its request."
)
@each("wanted", [None, WANT_EXCHANGE | WANT_RESPONSE_BODY])
def test_a_connection_that_is_given_up_leaves_with_what_came_behind(wanted: int | None) -> None:
    bench = Bench(wanted=wanted)
    behind = request(METADATA, 1, 4) + b"\0\0"
    bench.client(request(METADATA, 1, 1) + deferred(3, b"g") + behind, later=True)
    bench.broker(response(1))
    session = bench.session
    assert served(session.deferred) == GivenUp(b"")
    assert session.rest == behind
    assert session.give_up(5.0) == 3
    assert (session.deferred, session.is_idle, bench.budget.counts[OPEN]) == (None, True, 0)
    assert (bench.to_broker, bench.to_client) == (request(METADATA, 1, 1), response(1))
    if wanted is not None:
        assert bench.ended() == [(1, "answered", False), (3, "no_response", True)]
    assert bench.counters.intercepted == {(HELD, "given_up"): 1}
    session.close(6.0)  # does nothing


class Deferring(Interceptor):
    """Defers Produce, and what its header alone should decide."""

    def flags(self, api_key: int, api_version: int) -> int:
        return {PRODUCE: ON_BODY, REPLIED: ON_HEADER}.get(api_key, 0)

    def on_header(self, request: Request) -> Verdict:
        return Deferred(_serve)

    def on_body(self, request: Request, body: bytes) -> Verdict:
        return Deferred(_serve)


async def _serve(call: BrokerCall) -> bytes:
    return b"served"


@each("asked", [produce(1, 0, batch(1)), request(REPLIED, 3, 1)])
def test_what_has_no_response_or_is_not_held_cannot_be_deferred(asked: bytes) -> None:
    bench = Bench([Deferring()])
    bench.client(asked)
    assert (bench.session.deferred, bench.ending, bench.to_broker) == (None, True, b"")
    bench = Bench([Deferring()])
    bench.client(produce(1, 1, batch(1)))
    answer(bench)
    assert (bench.to_client, bench.to_broker) == (response(1, b"served"), b""), "one with a response can"
