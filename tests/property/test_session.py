"""Both implementations of the session agree on everything, whatever bytes come in whatever pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.exchange import Connection, Exchange
from proxy.core.session import Session
from proxy.core.tally import Tally
from proxy.errors import PeerError
from proxy.net.datapath import PYTHON, choose
from tests.frames import METADATA, SASL_HANDSHAKE, batch, produce, produced, request, response, sized
from tests.golden.frames import recordings
from tests.property.strategies import cuts, damaged
from tests.tools.implementations import needs_compiled
from tests.tools.watching import watching

CONNECTION = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS")
MAX_FRAME = 200_000

FIELDS = Exchange.__struct_fields__


@dataclass
class Run:
    """One implementation at work: everything it lets the outside see."""

    session: Session
    tally: Tally
    exchanges: list[Exchange] = field(default_factory=list)
    now: float = 0.0

    def step(self, side: str, data: bytes) -> tuple[Any, ...]:
        self.now += 1
        session = self.session
        try:
            bodies = session.client_data(data, self.now) if side == "client" else session.broker_data(data, self.now)
            error = None
        except PeerError as refused:
            bodies = session.clean > 0
            error = (refused.side, refused.reason, refused.detail, session.clean)
        session.walk()
        state = (session.saturated, session.between_requests, session.quiet, len(session.in_flight))
        return bodies, error, state, len(self.exchanges)

    def told(self) -> list[dict[str, Any]]:
        return [{name: getattr(exchange, name) for name in FIELDS} for exchange in self.exchanges]


def start(implementation: type[Session], observed: bool) -> Run:
    tally = Tally()
    exchanges: list[Exchange] = []
    session = implementation(CONNECTION, tally, watching(exchanges.append) if observed else None, MAX_FRAME)
    return Run(session, tally, exchanges)


GOLDEN = [frame for recording in recordings() for frame in recording.frames if len(frame.data) < MAX_FRAME]


@st.composite
def asked(draw: st.DrawFn, number: int) -> tuple[bytes, bytes]:
    """A request with the correlation id ``number``, and its response (empty where there is none)."""
    kind = draw(st.sampled_from(["golden", "produce", "metadata", "future", "unknown", "sasl", "token"]))
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
    if kind == "sasl":
        return request(SASL_HANDSHAKE, 0, number, b"\0\5PLAIN"), response(number, b"\0\0\0\0\0\0")
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


@needs_compiled
@given(steps=traffic(), observed=st.booleans())
def test_both_sessions_agree(steps: list[tuple[str, bytes]], observed: bool) -> None:
    pure, compiled = start(PYTHON.session, observed), start(choose("compiled").session, observed)
    for side, data in steps:
        outcome = pure.step(side, data)
        assert compiled.step(side, data) == outcome
        if outcome[1] is not None:
            break
    pure.session.lost()
    compiled.session.lost()
    assert compiled.told() == pure.told()
    assert compiled.tally == pure.tally


@needs_compiled
def test_both_sessions_agree_on_every_recording_in_pieces_of_every_size() -> None:
    answered = 0
    for recording in recordings():
        for size in (1, 7, 61, 1000, 1 << 20):
            pure, compiled = start(PYTHON.session, True), start(choose("compiled").session, True)
            for frame in recording.frames:
                for at in range(0, len(frame.data), size):
                    piece = frame.data[at : at + size]
                    outcome = pure.step(frame.side, piece)
                    assert compiled.step(frame.side, piece) == outcome, recording
                    if outcome[1] is not None:
                        break
            assert compiled.told() == pure.told()
            answered += pure.tally.decoded["full"]
    assert answered > 300
