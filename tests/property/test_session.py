"""The session and the oracle agree on everything, whatever bytes come in whatever pieces for whoever observes; and both
report the same for the same bytes however those are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.compiled.exchange import FIELDS, Exchange
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
    ObservationSink,
)
from proxy.core.principal_tracker import SASL_AUTHENTICATE, PrincipalTracker
from proxy.core.session import Session
from proxy.errors import PeerError
from tests.frames import API_VERSIONS, METADATA, SASL_HANDSHAKE, batch, produce, produced, request, response, sized
from tests.golden.frames import recordings
from tests.oracle import session as oracle
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
    """A session at work: everything it lets the outside see."""

    session: Session | oracle.Session
    counters: ListenerCounters
    sink: ObservationSink | None
    exchanges: list[Exchange]
    changes: list[ConnectionTransition]
    now: float = 0.0

    def step(self, side: str, data: bytes) -> tuple[Any, ...]:
        self.now += 1
        session = self.session
        try:
            bodies = (
                session.read_client_data(data, self.now)
                if side == "client"
                else session.read_broker_data(data, self.now)
            )
            error = None
        except PeerError as refused:
            bodies = session.clean > 0
            error = (refused.side, refused.reason, refused.detail, session.clean)
        session.observe(self.now + 0.5)
        state = (
            session.saturated,
            session.is_between_requests,
            session.is_idle,
            len(session.in_flight),
            session.requests,
        )
        reported = len(self.exchanges), len(self.changes)
        return bodies, error, state, reported, session.connection, session.client_id, self.charged

    @property
    def charged(self) -> list[int] | None:
        """Where nothing is under way: in the middle of a body one of both may be a partition ahead."""
        if not self.session.is_idle:
            return None
        counts = list(self.budget.counts)
        assert counts[OPEN] == 0, "charged with nothing open"
        return counts

    @property
    def budget(self) -> Budget:
        return self.session.account.budget

    def reported(self) -> list[dict[str, Any]]:
        return [{name: getattr(exchange, name) for name in FIELDS} for exchange in self.exchanges]

    def end(self) -> None:
        """The connection ends; what always holds then is asserted."""
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


def start(
    implementation: type[Session | oracle.Session],
    wanted: int | bytes | None,
    max_body: int = MAX_BODY,
    limit: int = MAX_CHARGED,
) -> Run:
    """``wanted``: None where nobody observes."""
    counters = ListenerCounters()
    exchanges: list[Exchange] = []
    changes: list[ConnectionTransition] = []
    sink = None
    if wanted is not None:
        sink = watching(exchanges.append, changes.append, wanted=wanted, max_body=max_body)
    principal_tracker = PrincipalTracker(CONNECTION) if sink else None
    session = implementation(CONNECTION, counters, sink, MAX_FRAME, principal_tracker, budget=Budget(limit))
    return Run(session, counters, sink, exchanges, changes)


def tables(seed: int) -> bytes:
    """For each api key and version something of ``WANTED``."""
    return bytes(Random(seed).choices(WANTED, k=KEYS * VERSIONS))


GOLDEN = [frame for recording in recordings() for frame in recording.frames if len(frame.data) < MAX_FRAME]


@st.composite
def asked(draw: st.DrawFn, number: int) -> tuple[bytes, bytes]:
    """A request with the correlation id ``number``, and its response (empty where there is none)."""
    kinds = ["golden", "produce", "metadata", "future", "unknown", "software", "sasl", "login", "token"]
    kind = draw(st.sampled_from(kinds))
    if kind == "golden":
        return _asked_by_a_client(draw(st.sampled_from(GOLDEN)).data, number)
    if kind == "produce":
        acks = draw(st.sampled_from([0, 1, -1]))
        records = batch(draw(st.integers(0, 9)), draw(st.binary(max_size=300)))
        return produce(number, acks, records, draw(st.sampled_from([3, 7, 8]))), produced(number) if acks else b""
    if kind == "metadata":
        client_id = draw(st.sampled_from(["c", "", None, "\N{SNOWMAN}", "x" * 3000]))
        return request(METADATA, 9, number, draw(st.binary(max_size=40)), client_id), response(number, b"abc")
    if kind == "future":
        return request(draw(st.sampled_from([0, 1])), 99, number, draw(st.binary(max_size=40))), response(number)
    if kind == "unknown":
        return request(draw(st.integers(-5, 32767)), draw(st.integers(-2, 20)), number, b"body"), response(number)
    if kind == "software":
        return request(API_VERSIONS, 3, number, b"\0" + software("java", "4.3.1")), response(number, b"\0\0\1\0")
    if kind == "sasl":
        mechanism = draw(st.sampled_from(["PLAIN", "GSSAPI"]))
        return request(SASL_HANDSHAKE, draw(st.integers(0, 1)), number, handshake(mechanism)), response(
            number, handshake_reply()
        )
    if kind == "login":
        code, version = draw(st.sampled_from([0, 58])), draw(st.sampled_from([1, 2]))
        tags = b"\0" if version == 2 else b""
        token = plain(draw(st.sampled_from(["alice", "bob", "x" * 70_000])), "secret")
        asked = request(SASL_AUTHENTICATE, version, number, tags + authenticate(token, version))
        return asked, response(number, tags + authenticate_reply(version=version, error_code=code))
    return sized(draw(st.binary(max_size=60))), sized(draw(st.binary(max_size=60)))


def _asked_by_a_client(frame: bytes, number: int) -> tuple[bytes, bytes]:
    return frame[:8] + number.to_bytes(4, "big") + frame[12:], response(number, b"\0" * 12)


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """What comes in from which side: requests and responses in any pieces, now and then damaged or too early."""
    pairs = [draw(asked(number)) for number in range(draw(st.integers(1, 6)))]
    streams = {"client": b"".join(one for one, _ in pairs), "broker": b"".join(other for _, other in pairs)}
    for side in ("client", "broker"):
        if draw(st.integers(0, 3)) == 0:
            streams[side] = draw(damaged(streams[side]))
    pieces = {side: [piece for piece in draw(cuts(stream)) if piece] for side, stream in streams.items()}
    if draw(st.booleans()):
        return [("client", piece) for piece in pieces["client"]] + [("broker", piece) for piece in pieces["broker"]]
    steps = []
    while pieces["client"] or pieces["broker"]:
        side = draw(st.sampled_from([side for side in ("client", "broker") if pieces[side]]))
        steps.append((side, pieces[side].pop(0)))
    return steps


@given(
    steps=traffic(),
    wanted=st.one_of(st.none(), st.sampled_from(WANTED), st.integers(0, 1 << 32).map(tables)),
    max_body=st.sampled_from([0, 20, MAX_BODY]),
    limit=st.sampled_from([0, MAX_CHARGED]),
)
def test_the_session_and_the_oracle_agree(
    steps: list[tuple[str, bytes]], wanted: int | bytes | None, max_body: int, limit: int
) -> None:
    expected = start(oracle.Session, wanted, max_body, limit)
    found = start(Session, wanted, max_body, limit)
    for side, data in steps:
        outcome = expected.step(side, data)
        assert found.step(side, data) == outcome
        if outcome[1] is not None:
            break
    expected.end()
    found.end()
    assert found.reported() == expected.reported()
    assert found.changes == expected.changes
    assert found.counters == expected.counters


@given(
    steps=traffic(),
    wanted=st.sampled_from([None, *WANTED]),
    max_body=st.sampled_from([20, MAX_BODY]),
    limit=st.integers(0, 6000),
)
def test_whatever_passes_nothing_stays_charged(
    steps: list[tuple[str, bytes]], wanted: int | None, max_body: int, limit: int
) -> None:
    run = start(Session, wanted, max_body, limit)
    for side, data in steps:
        outcome = run.step(side, data)
        assert run.budget.charged >= 0
        if outcome[1] is not None:
            break
    run.end()


@given(
    pairs=st.lists(st.integers(0, 1 << 16), min_size=1, max_size=5).flatmap(
        lambda numbers: st.tuples(*(asked(number) for number in numbers))
    ),
    wanted=st.one_of(st.sampled_from(WANTED), st.integers(0, 1 << 32).map(tables)),
    seed=st.integers(0, 1 << 32),
)
def test_however_bytes_are_cut_the_same_is_reported(
    pairs: tuple[tuple[bytes, bytes], ...], wanted: int | bytes, seed: int
) -> None:
    runs = [start(Session, wanted), start(Session, wanted), start(oracle.Session, wanted)]
    rng = Random(seed)
    for side, stream in (
        ("client", b"".join(one for one, _ in pairs)),
        ("broker", b"".join(other for _, other in pairs)),
    ):
        step = max(1, len(stream) // 2000)
        some = sorted(rng.sample(range(len(stream) + 1), min(len(stream), 7)))
        refused = {
            _refused(run, side, stream, cuts)
            for run, cuts in zip(runs, ([], range(0, len(stream), step), some), strict=True)
        }
        assert len(refused) == 1
        if refused != {None}:
            break
    reported = []
    for run in runs:
        run.end()
        reported.append([{**row, **dict.fromkeys(TIMES)} for row in run.reported()])
    assert reported[1] == reported[0]
    assert reported[2] == reported[0]
    assert [run.counters for run in runs[1:]] == [runs[0].counters] * 2
    assert [_timeless(run.changes) for run in runs[1:]] == [_timeless(runs[0].changes)] * 2


def _refused(run: Run, side: str, stream: bytes, cuts: Sequence[int]) -> tuple[str, str] | None:
    """Run ``stream``, cut at ``cuts``; return who is to blame for what, if it is refused."""
    for at, to in pairwise([0, *cuts, len(stream)]):
        error = run.step(side, stream[at:to])[1]
        if error is not None:
            return error[0], error[1]
    return None


def _timeless(changes: list[ConnectionTransition]) -> list[ConnectionTransition]:
    return [replace(change, at=0.0) for change in changes]


def test_both_agree_on_every_recording_in_pieces_of_every_size() -> None:
    answered = 0
    for recording in recordings():
        for size in (1, 7, 61, 1000, 1 << 20):
            expected, found = start(oracle.Session, EVERYTHING), start(Session, EVERYTHING)
            for frame in recording.frames:
                for at in range(0, len(frame.data), size):
                    piece = frame.data[at : at + size]
                    outcome = expected.step(frame.side, piece)
                    assert found.step(frame.side, piece) == outcome, recording
                    if outcome[1] is not None:
                        break
            assert found.reported() == expected.reported()
            answered += expected.counters.decoded["full"]
    assert answered > 300
