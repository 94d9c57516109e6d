"""Whatever is forwarded, answered, deferred, held, edited and streamed, in whatever pieces: the broker sees exactly
what is forwarded, the client sees every answer in the order of its requests, and each request is reported once."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.compiled.exchange import Exchange
from proxy.core.budget import OPEN
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection
from proxy.core.interceptor import GivenUp, InterceptorChain
from proxy.core.observation_interest import WANT_EXCHANGE, WANT_FACTS, WANT_REQUEST_BODY, WANT_RESPONSE_BODY
from proxy.core.session import Session
from tests.frames import METADATA, batch, produce, produced, request, response
from tests.tools.interceptors import (
    BROKEN_EDIT,
    BROKEN_STREAM,
    EAGER_STREAM,
    EDITING,
    HELD,
    HELD_FLEXIBLE,
    LEADING,
    PRIVATE,
    RAISING,
    REPLIED,
    SHUT,
    STREAMING,
    Chooser,
    edited,
    led,
    replied,
    served,
    streamed,
)
from tests.tools.observation_sinks import watching

CONNECTION = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
MAX_FRAME = 200_000


@dataclass
class Call:
    """A request, and what becomes of it. ``sent``: what the broker answers, of a request that it sees; ``seen``: what
    the client gets for it, if anything. ``gives_up``: the connection leaves with it."""

    asked: bytes
    sent: bytes | None
    seen: bytes | None
    forwarded: bool = True
    closes: bool = False
    gives_up: bool = False


@st.composite
def calls(draw: st.DrawFn) -> Call:
    number, version = draw(st.integers(0, 2)), draw(st.integers(0, 20))  # few correlation ids: they repeat
    name = draw(st.sampled_from(["c", None, "", "somebody"]))
    body = b"\0" + bytes(draw(st.integers(0, 60)))
    kind = draw(
        st.sampled_from(
            ["plain", "plain", "quiet", "acked", "replied", "raising", "held", "forward", "error", "edited", "streamed",
             "led", "broken", "flexible", "long", "deferred", "deferred", "deferred long", "shut", "close",
             "deferred close", "deferred error", "given up"]
        )
    )  # fmt: skip
    sent = response(number, b"\0" + bytes(draw(st.integers(0, 90))))
    if kind == "plain":
        return Call(request(METADATA, 1, number, body, name), sent, sent)
    if kind == "quiet":
        return Call(produce(number, 0, batch(3, body)), None, None)
    if kind == "acked":
        answer = produced(number)
        return Call(produce(number, -1, batch(3, body)), answer, answer)
    if kind == "replied":
        asked = request(REPLIED, version, number, body, name)
        return Call(asked, None, response(number, replied(version)), forwarded=False)
    if kind == "raising":
        return Call(request(RAISING, version, number, body, name), sent, sent)
    if kind in ("held", "long"):
        said = b"a" * (draw(st.integers(1, 90)) if kind == "held" else 20_000)
        key = draw(st.sampled_from([HELD, PRIVATE]))
        return Call(request(key, 0, number, said, name), None, response(number, said), forwarded=False)
    if kind == "flexible":
        asked = request(HELD_FLEXIBLE, 0, number, b"\1\0\3abcanswer", name)
        return Call(asked, None, response(number, b"answer"), forwarded=False)
    if kind in ("deferred", "deferred long"):
        said = b"a" * (draw(st.integers(1, 90)) if kind == "deferred" else 20_000)
        key = draw(st.sampled_from([HELD, PRIVATE]))
        return Call(request(key, 0, number, b"d" + said, name), None, response(number, said), forwarded=False)
    if kind in ("forward", "error"):
        return Call(request(HELD, 0, number, kind[:1].encode() + body, name), sent, sent)
    if kind == "edited":
        return Call(request(EDITING, 0, number, body, name), sent, response(number, b"\0" + edited(sent[9:])))
    if kind == "led":
        return Call(request(LEADING, 0, number, body, name), sent, response(number, b"\0" + led(sent[9:])))
    if kind == "streamed":
        return Call(request(STREAMING, 0, number, body, name), sent, sent[:9] + streamed(sent[9:]))
    if kind == "broken":
        key = draw(st.sampled_from([BROKEN_EDIT, BROKEN_STREAM, EAGER_STREAM]))
        return Call(request(key, 0, number, body, name), sent, sent[:9] + (
            streamed(sent[9:]) if key == BROKEN_STREAM and len(sent) < 19 else sent[9:]
        ))  # fmt: skip
    if kind == "shut":
        return Call(request(SHUT, 0, number, body, name), None, None, forwarded=False, closes=True)
    said = {"close": b"c", "deferred close": b"dc", "deferred error": b"de", "given up": b"dg"}[kind]
    gives_up = kind == "given up"
    return Call(request(HELD, 0, number, said, name), None, None, False, closes=not gives_up, gives_up=gives_up)


@dataclass
class Side:
    """A session at work."""

    session: Session
    counters: ListenerCounters = field(default_factory=ListenerCounters)
    exchanges: list[Exchange] = field(default_factory=list)
    to_broker: bytes = b""
    to_client: bytes = b""

    def step(self, side: str, data: bytes, now: float) -> tuple[bytes, int] | None:
        """Take a chunk, or answer what was deferred. Where that gives the connection up, return what was kept, and
        the correlation id."""
        session = self.session
        if side == "deferred":
            assert session.deferred is not None
            answer = served(session.deferred)
            if isinstance(answer, GivenUp):
                return session.rest, session.give_up(now)
            session.answer_deferred(answer)
        else:
            (session.read_client_data if side == "client" else session.read_broker_data)(data, now)
        interception = session.interception
        assert interception is not None
        onward = data if not session.diverted or interception.replacement is None else interception.replacement
        replies = interception.replies if session.diverted else b""
        if side == "deferred":
            assert interception.replacement is None
            self.to_client += replies
        elif side == "client":
            self.to_broker += onward
            self.to_client += replies
        else:
            assert not replies
            self.to_client += onward
        session.observe(now + 0.5)
        if session.is_idle:
            assert session.account.budget.counts[OPEN] == 0, "charged with nothing open"
        return None


def start(wanted: int | None) -> Side:
    counters, exchanges = ListenerCounters(), list[Exchange]()
    sink = None if wanted is None else watching(exchanges.append, wanted=wanted)
    session = Session(CONNECTION, counters, sink, MAX_FRAME, None, InterceptorChain([Chooser()]))
    return Side(session, counters, exchanges)


@pytest.mark.promise(
    "architecture.md",
    "Answers and changes of interceptors keep the place of their responses, and everything else passes as it came.",
)
@settings(max_examples=settings().max_examples * 10)
@given(
    made=st.lists(calls(), min_size=1, max_size=12),
    wanted=st.sampled_from(
        [
            None,
            WANT_EXCHANGE,
            WANT_EXCHANGE | WANT_FACTS,
            WANT_EXCHANGE | WANT_FACTS | WANT_REQUEST_BODY | WANT_RESPONSE_BODY,
        ]
    ),
    times=st.sampled_from([1, 1, 30]),  # more than one turn takes
    seed=st.integers(0, 2**32),
)
def test_the_broker_sees_what_is_forwarded_and_the_client_every_answer_in_order(
    made: list[Call], wanted: int | None, times: int, seed: int
) -> None:
    rng = Random(seed)
    made = made * times
    end = next((at for at, call in enumerate(made) if call.closes or call.gives_up), len(made))
    behind = b"".join(call.asked for call in made[end + 1 :])
    gives_up = end < len(made) and made[end].gives_up
    alive = made[:end]
    forwarded = b"".join(call.asked for call in alive if call.forwarded)
    expected = b"".join(call.seen for call in alive if call.seen is not None)
    asked = b"".join(call.asked for call in made)
    sizes = [(len(call.asked), call.sent or b"") for call in alive if call.forwarded]
    found = start(wanted)
    sent, now = 0, 0.0  # of what the broker may say by now
    while True:
        came, may = len(found.to_broker), b""
        for size, answer in sizes:
            came -= size
            if came < 0:
                break
            may += answer
        interception = found.session.interception
        assert interception is not None
        able = [("broker", may[sent:])] if sent < len(may) else []
        if not found.session.rest and not interception.full:
            if asked:
                able.append(("client", asked))
        elif not interception.full:
            able.append(("rest", found.session.rest))
        if found.session.deferred is not None:
            assert interception.full, "more of the client is read"
            able.append(("deferred", b""))
        if not able:
            break
        side, data = rng.choice(able)
        if side not in ("rest", "deferred"):
            data = data[: rng.choice([1, 3, 20, 100, 10_000, len(data)])]
        is_due = gives_up and side == "deferred" and found.session.requests == end + 1
        now += 1
        stepped = found.step("client" if side == "rest" else side, data, now)
        if is_due:
            assert stepped is not None
            rest, correlation_id = stepped
            assert (rest + asked, correlation_id) == (behind, int.from_bytes(made[end].asked[8:12], "big"))
            break
        if side == "broker":
            sent += len(data)
        elif side == "client":
            asked = asked[len(data) :]
        assert forwarded.startswith(found.to_broker)
        assert expected.startswith(found.to_client)
    assert (found.to_broker, found.to_client) == (forwarded, expected)
    assert found.session.is_idle == (gives_up or end == len(made))
    interception = found.session.interception
    assert interception is not None
    assert interception.ending == (end < len(made) and not gives_up)
    found.session.close(now)
    assert found.session.account.budget.counts[OPEN] == 0
    if wanted is None:
        return
    begun = made[: end + 1]
    assert sorted(map(facts_of, found.exchanges)) == sorted(
        (
            int.from_bytes(call.asked[4:6], "big"),
            int.from_bytes(call.asked[8:12], "big"),
            len(call.asked),
            "no_response"
            if call.gives_up or (call.seen is None and call.forwarded)
            else "connection_lost"
            if call.closes
            else "answered",
            len(call.seen or b""),
            not call.forwarded,
        )
        for call in begun
    )


def facts_of(one: Exchange) -> tuple[int, int, int, str, int, bool]:
    """What is reported of an exchange."""
    return one.api_key, one.correlation_id, one.request_bytes, one.outcome, one.response_bytes, one.synthesized
