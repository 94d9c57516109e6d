"""Whatever bytes come in whatever pieces for whoever observes: requests and their responses are one exchange each, with
the facts of their bodies, and where the bytes are cut makes no difference."""

from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.compiled.exchange import FIELDS, Exchange, Kind
from proxy.compiled.walk import kind_of
from proxy.compiled.walk_door import read_whole
from proxy.core import apis
from proxy.core.budget import MAX_CHARGED, OPEN, Budget
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection, ConnectionTransition
from proxy.core.observation_interest import (
    ERROR_AFTER_THROTTLE,
    ERROR_FIRST,
    KEYS,
    THROTTLE_FIRST,
    VERSIONS,
    WANT_EXCHANGE,
    WANT_FACTS,
    WANT_REQUEST_BODY,
    WANT_RESPONSE_BODY,
)
from proxy.core.principal_tracker import SASL_AUTHENTICATE, PrincipalTracker
from proxy.core.session import Session
from proxy.errors import MalformedBody, PeerError
from tests.frames import API_VERSIONS, METADATA, SASL_HANDSHAKE, batch, produce, produced, request, response, sized
from tests.golden.frames import Frame, recordings
from tests.property.strategies import cuts, damaged
from tests.sasl import authenticate, authenticate_reply, handshake, handshake_reply, plain, software
from tests.tools.observation_sinks import MAX_BODY, watching

CONNECTION = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
MAX_FRAME = 200_000
TIMES = ("received_at", "forwarded_at", "responded_at", "answered_at")
EVERYTHING = WANT_EXCHANGE | WANT_FACTS | WANT_REQUEST_BODY | WANT_RESPONSE_BODY
WANTED = (
    WANT_EXCHANGE | WANT_FACTS,
    EVERYTHING,
    WANT_EXCHANGE,
    0,
    WANT_EXCHANGE | WANT_REQUEST_BODY | THROTTLE_FIRST,
    WANT_EXCHANGE | WANT_RESPONSE_BODY | THROTTLE_FIRST | ERROR_AFTER_THROTTLE,
    EVERYTHING | ERROR_FIRST,
)
"""What may be wanted of an api and version."""


@dataclass
class Run:
    """A session at work: everything it lets the outside see. ``wanted``: None where nobody observes."""

    wanted: int | bytes | None
    max_body: int = MAX_BODY
    limit: int = MAX_CHARGED
    exchanges: list[Exchange] = field(default_factory=list)
    changes: list[ConnectionTransition] = field(default_factory=list)
    counters: ListenerCounters = field(default_factory=ListenerCounters)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.sink = None
        if self.wanted is not None:
            record, change = self.exchanges.append, self.changes.append
            self.sink = watching(record, change, wanted=self.wanted, max_body=self.max_body)
        self.budget = Budget(self.limit)
        tracker = PrincipalTracker(CONNECTION) if self.sink else None
        self.session = Session(CONNECTION, self.counters, self.sink, MAX_FRAME, tracker, budget=self.budget)

    def step(self, side: str, data: bytes) -> tuple[str, str, int] | None:
        """Hand on a chunk, as far as it is not refused. Return who is to blame for what, and what precedes it."""
        self.now += 1
        session, refused = self.session, None
        try:
            (session.read_client_data if side == "client" else session.read_broker_data)(data, self.now)
        except PeerError as error:
            refused = error.side, error.reason, session.clean
        session.observe(self.now + 0.5)
        assert self.budget.charged >= 0
        if session.is_idle:
            assert self.budget.counts[OPEN] == 0, "charged with nothing open"
        return refused

    def end(self) -> list[dict[str, Any]]:
        """The connection ends; return the exchanges."""
        self.now += 1
        self.session.close(self.now)
        for exchange in self.exchanges:
            times = [at for at in (getattr(exchange, name) for name in TIMES) if at]
            assert times == sorted(times)
            assert exchange.outcome != "open"
            assert exchange.charged == 0
        assert self.budget.counts[OPEN] == 0
        self.budget.clear_recorded()
        assert self.budget.charged == 0
        if self.sink is not None:
            assert self.sink.observed[0] == len(self.exchanges) + len(self.changes)
        return [{name: getattr(exchange, name) for name in FIELDS} for exchange in self.exchanges]


def tables(seed: int) -> bytes:
    """For each api key and version something of ``WANTED``."""
    return bytes(Random(seed).choices(WANTED, k=KEYS * VERSIONS))


every_interest = st.one_of(st.sampled_from(WANTED), st.integers(0, 1 << 32).map(tables))

ASKED = [
    frame
    for recording in recordings()
    for frame in recording.frames
    if frame.kind == "request" and len(frame.data) < MAX_FRAME
]


@dataclass
class Call:
    """A request and its response, ``b""`` where there is none."""

    asked: bytes
    answer: bytes


@st.composite
def calls(draw: st.DrawFn, number: int, *, tokens: bool = False) -> Call:
    """A request with this correlation id; ``tokens``: or bare tokens of SASL, and what leads to them."""
    kinds = ["golden", "produce", "metadata", "future", "unknown", "software", "sasl", "login"]
    kind = draw(st.sampled_from(kinds + ["old sasl", "token"] * tokens))
    if kind == "golden":
        return answered_to(draw(st.sampled_from(ASKED)), number)
    if kind == "produce":
        acks = draw(st.sampled_from([0, 1, -1]))
        records = batch(draw(st.integers(0, 9)), draw(st.binary(max_size=300)))
        asked = produce(number, acks, records, draw(st.sampled_from([3, 7, 8])))
        return Call(asked, produced(number) if acks else b"")
    if kind == "metadata":
        client_id = draw(st.sampled_from(["c", "", None, "\N{SNOWMAN}", "x" * 3000]))
        tags = draw(st.sampled_from([b"\0", b"\1\5\x03abc"]))
        asked = request(METADATA, 9, number, tags + draw(st.binary(max_size=40)), client_id)
        return Call(asked, response(number, draw(st.sampled_from([b"\0", b"\1\7\2xy"])) + draw(st.binary(max_size=40))))
    if kind == "future":
        return Call(request(draw(st.sampled_from([2, 3])), 99, number, b"\0body"), response(number, b"\0answer"))
    if kind == "unknown":
        return Call(
            request(draw(st.integers(100, 32767)), draw(st.integers(-2, 20)), number, b"body"), response(number)
        )
    if kind == "software":
        return Call(request(API_VERSIONS, 3, number, b"\0" + software("java", "4.3.1")), response(number, b"\0\0\1\0"))
    if kind in ("sasl", "old sasl"):
        asked = request(
            SASL_HANDSHAKE, int(kind == "sasl"), number, handshake(draw(st.sampled_from(["PLAIN", "GSSAPI"])))
        )
        return Call(asked, response(number, handshake_reply()))
    if kind == "login":
        code, version = draw(st.sampled_from([0, 58])), draw(st.sampled_from([1, 2]))
        tags = b"\0" if version == 2 else b""
        token = plain(draw(st.sampled_from(["alice", "bob", "x" * 70_000])), "secret")
        asked = request(SASL_AUTHENTICATE, version, number, tags + authenticate(token, version))
        return Call(asked, response(number, tags + authenticate_reply(version=version, error_code=code)))
    return Call(sized(draw(st.binary(max_size=60))), sized(draw(st.binary(max_size=60))))


def answered_to(frame: Frame, number: int) -> Call:
    asked = frame.data[:8] + number.to_bytes(4, "big") + frame.data[12:]
    has_none = frame.key == 0 and frame.facts().acks == 0  # type: ignore[union-attr]
    return Call(asked, b"" if has_none else response(number, bytes(12)))


# ---- requests that are right, and what has to be reported of them ---------------------------------------------------


def body_of(key: int, version: int, frame: bytes, *, is_response: bool) -> bytes:
    kind = "response" if is_response else "request"
    return frame[Frame(kind, key, version, frame).body() :]


def expected(call: Call, wanted: int | bytes, max_body: int) -> dict[str, Any] | None:
    """What is reported of an exchange, but for its times; None: nothing."""
    key, version = (int.from_bytes(call.asked[at : at + 2], "big", signed=True) for at in (4, 6))
    flags = wanted if isinstance(wanted, int) else WANT_EXCHANGE
    if isinstance(wanted, bytes) and 0 <= key < KEYS and 0 <= version < VERSIONS:
        flags = wanted[key * VERSIONS + version]
    if not flags & WANT_EXCHANGE:
        return None
    length = int.from_bytes(call.asked[12:14], "big", signed=True)
    client_id = None if length < 0 else call.asked[14 : 14 + length].decode()
    made = Exchange(CONNECTION, key, version, int.from_bytes(call.asked[8:12], "big"), client_id, 0.0, len(call.asked))
    made.response_bytes = len(call.answer)
    decode = "none" if apis.is_known(key, version) else "unsupported"
    for is_response, frame, want in ((False, call.asked, WANT_REQUEST_BODY), (True, call.answer, WANT_RESPONSE_BODY)):
        if not frame:
            continue
        body = body_of(key, version, frame, is_response=is_response)
        if is_response and flags & THROTTLE_FIRST and len(body) >= (6 if flags & ERROR_AFTER_THROTTLE else 4):
            made.throttle_ms = int.from_bytes(body[:4], "big", signed=True)
        at = 4 if flags & ERROR_AFTER_THROTTLE else 0
        if is_response and flags & (ERROR_FIRST | ERROR_AFTER_THROTTLE) and len(body) >= at + 2:
            made.error_code = int.from_bytes(body[at : at + 2], "big", signed=True)
        kind = kind_of(key, version, is_response) if flags & WANT_FACTS else Kind.NO_WALKER
        if kind != Kind.NO_WALKER:
            try:
                read_whole(made, kind, is_response, body, 0, len(body))
                if kind < Kind.RESPONSE_ERRORS and decode == "none":
                    decode = "full"
            except MalformedBody:
                decode = "malformed"
        if flags & want and key != SASL_AUTHENTICATE and len(body) <= max_body:
            setattr(made, "response_raw" if is_response else "request_raw", body)
    row = {name: getattr(made, name) for name in FIELDS if name not in ("connection", *TIMES)}
    return row | {"outcome": "answered" if call.answer else "no_response", "decode": decode}


@pytest.mark.promise(
    "README.md", "Every request becomes one exchange with its own response, however the bytes of both are cut."
)
@settings(max_examples=settings().max_examples * 5)
@given(
    made=st.integers(1, 6).flatmap(lambda count: st.tuples(*(calls(number % 3) for number in range(count)))),
    wanted=every_interest,
    max_body=st.sampled_from([0, 20, MAX_BODY]),
    seed=st.integers(0, 1 << 32),
)
def test_each_request_is_reported_once_with_its_response_as_soon_as_it_has_ended(
    made: tuple[Call, ...], wanted: int | bytes, max_body: int, seed: int
) -> None:
    rng, run = Random(seed), Run(wanted, max_body)
    asked, answers = b"".join(call.asked for call in made), b"".join(call.answer for call in made)
    asked_by, answered_by = (
        [*accumulate(map(len, frames))] for frames in zip(*((c.asked, c.answer) for c in made), strict=True)
    )
    rows = [expected(call, wanted, max_body) for call in made]
    sent = got = 0
    order: list[int] = []
    came, gone = dict[int, float](), dict[int, float]()
    while sent < len(asked) or got < len(answers):
        may = max((to for by, to in zip(asked_by, answered_by, strict=True) if by <= sent), default=0)
        side = rng.choice(["client"] * (sent < len(asked)) + ["broker"] * (got < may))
        size = rng.choice([1, 5, 40, 300, 1 << 17])
        if side == "client":
            chunk = asked[sent : sent + size]
            sent += len(chunk)
        else:
            chunk = answers[got : min(got + size, may)]
            got += len(chunk)
        assert run.step(side, chunk) is None
        ended = [
            at
            for at, call in enumerate(made)
            if (got >= answered_by[at] and sent >= asked_by[at] if call.answer else sent >= asked_by[at])
        ]
        order += [at for at in ended if at not in order]
        for at, (by, to) in enumerate(zip(asked_by, answered_by, strict=True)):
            if sent >= by:
                came.setdefault(at, run.now)
            if sent >= by and got >= to and made[at].answer:
                gone.setdefault(at, run.now)
        assert len(run.exchanges) == sum(rows[at] is not None for at in order)
        is_whole = sent in (0, *asked_by), got in (0, *answered_by)
        assert run.session.is_between_requests == is_whole[0]
        assert run.session.is_idle == (
            all(is_whole) and len(ended) == asked_by.index(sent) + 1 if sent in asked_by else False
        )
        if all(is_whole) and sent in asked_by:
            assert len(run.session.in_flight) == asked_by.index(sent) + 1 - len(ended)
    reported = run.end()
    assert [{name: row[name] for name in row.keys() - {"connection"}} for row in reported] == [
        row
        | dict(
            zip(TIMES, (came[at], came[at] + 0.5, *((gone[at], gone[at] + 0.5) if at in gone else (0, 0))), strict=True)
        )
        for at in order
        if (row := rows[at]) is not None
    ]
    assert run.session.requests == len(made)
    assert sum(run.counters.requests.values()) == len(made)
    assert sum(run.counters.responses.values()) == sum(bool(call.answer) for call in made)


# ---- any bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.promise(
    "architecture.md", "What a connection is charged with is given back when it ends, whatever its bytes were."
)
@given(
    made=st.integers(1, 6).flatmap(lambda count: st.tuples(*(calls(at, tokens=True) for at in range(count)))),
    wanted=st.sampled_from([None, *WANTED]),
    max_body=st.sampled_from([20, MAX_BODY]),
    limit=st.integers(0, 6000),
    data=st.data(),
)
def test_whatever_passes_nothing_stays_charged(
    made: tuple[Call, ...], wanted: int | None, max_body: int, limit: int, data: st.DataObject
) -> None:
    run, left = Run(wanted, max_body, limit), {}
    for side, stream in (("client", b"".join(c.asked for c in made)), ("broker", b"".join(c.answer for c in made))):
        came = data.draw(damaged(stream)) if data.draw(st.booleans()) else stream
        left[side] = [piece for piece in data.draw(cuts(came)) if piece]
    while any(left.values()):
        side = data.draw(st.sampled_from([side for side, pieces in left.items() if pieces]))
        if run.step(side, left[side].pop(0)) is not None:
            break
    run.end()
