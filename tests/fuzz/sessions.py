"""Targets that need a whole session: frames, headers, and conversations with every body kept."""

from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from proxy.compiled.exchange import FIELDS, Exchange
from proxy.core import apis
from proxy.core.budget import OPEN, Budget
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
    ObservationInterest,
    ObservationSink,
)
from proxy.core.principal_tracker import PrincipalTracker
from proxy.core.schema import response_prefix
from proxy.core.session import Session
from proxy.errors import PeerError
from tests.frames import METADATA, request, sized
from tests.fuzz import seeds
from tests.fuzz.mutate import cuts, single
from tests.fuzz.targets import BYTE_BY_BYTE, Target

FRESH = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source="unauthenticated")
MAX_FRAME = 200_000
MAX_BODY = 500
"""Bytes of a body that is kept: small, so that inputs have longer ones."""

Steps = list[tuple[str, bytes]]


def interest() -> ObservationInterest:
    """Everything of every api and version."""
    wanted = WANT_EXCHANGE | WANT_FACTS | WANT_REQUEST_BODY | WANT_RESPONSE_BODY
    table = bytes(wanted | response_prefix(key, version) for key in range(KEYS) for version in range(VERSIONS))
    return ObservationInterest(table, wanted)


INTEREST = interest()


class Conversation(NamedTuple):
    """All that a session lets the outside see."""

    exchanges: list[dict[str, Any]]
    changes: list[ConnectionTransition]
    refused: tuple[str, str] | None
    requests: int
    responses: int
    decoded: dict[str, int]
    refused_in: int = 0
    """Where in the bytes of the refused side the piece began in which it was refused."""
    clean: int = 0
    """Up to where in these bytes what precedes that is handed on."""


def converse(steps: Steps, exchanges: list[Exchange] | None = None) -> Conversation:
    """Run a session to its end, or to the first PeerError. Its exchanges are added to ``exchanges`` as they are."""
    exchanges = [] if exchanges is None else exchanges
    changes: list[ConnectionTransition] = []
    observed = memoryview(bytearray(8)).cast("q")
    budget = Budget()
    counters = ListenerCounters()
    sink = ObservationSink(exchanges.append, changes.append, INTEREST, observed, MAX_BODY)
    session = Session(FRESH, counters, sink, MAX_FRAME, PrincipalTracker(FRESH), budget=budget)
    refused, passed, clean = None, {"client": 0, "broker": 0}, 0
    for side, data in steps:
        try:
            (session.read_client_data if side == "client" else session.read_broker_data)(data, 1.0)
        except PeerError as error:
            refused = error.side, error.reason
            assert 0 <= session.clean <= len(data)
            clean = passed[side] + session.clean
        session.observe(1.0)
        if refused is not None:
            break
        passed[side] += len(data)
    session.close(1.0)
    assert not session.in_flight
    assert budget.counts[OPEN] == 0, f"{budget.counts[OPEN]} bytes stay charged"
    assert observed[0] == len(exchanges) + len(changes)
    conversation = [{name: getattr(exchange, name) for name in FIELDS} for exchange in exchanges]
    for one in conversation:
        # Requests that come in one chunk with the ApiVersions that names the software do not know it yet.
        one["connection"] = replace(one["connection"], client_software_name=None, client_software_version=None)
    return Conversation(
        conversation,
        changes,
        refused,
        sum(counters.requests.values()),
        sum(counters.responses.values()),
        dict(counters.decoded),
        passed[side] if refused else 0,
        clean,
    )


def split(steps: Steps, rng: Random, every_byte: bool) -> Steps:
    """The same bytes in the same order, in smaller pieces."""
    return [
        (side, piece) for side, data in steps for piece in (single(data) if every_byte else cuts(rng, data)) if piece
    ]


def check_steps(steps: Steps, rng: Random) -> Conversation:
    """Whole = cut anywhere = byte by byte."""
    expected = converse(steps)
    pieces = split(steps, rng, rng.random() < BYTE_BY_BYTE)
    found = converse(pieces)
    assert found.clean == max(expected.clean, found.refused_in), "what precedes what is refused is handed on"
    same = {"refused_in": expected.refused_in, "clean": expected.clean}
    assert found._replace(**same) == expected, "pieces give something else"
    check_kept(steps, expected)
    return expected


def check_kept(steps: Steps, conversation: Conversation) -> None:
    """What was kept of bodies is what passed, and what stands at their start is reported."""
    passed = {who: b"".join(data for side, data in steps if side == who) for who in ("client", "broker")}
    for one in conversation.exchanges:
        for raw, who, size in (
            (one["request_raw"], "client", one["request_bytes"]),
            (one["response_raw"], "broker", one["response_bytes"]),
        ):
            assert raw is None or (len(raw) <= min(MAX_BODY, size - 8) and raw in passed[who])
        raw, flags = one["response_raw"], INTEREST.flags(one["api_key"], one["api_version"])
        head = 9 if apis.response_header_is_flexible(one["api_key"], one["api_version"]) else 8
        if raw is not None and 6 <= len(raw) <= one["response_bytes"] - head:  # else its header cannot be read
            throttle_ms = int.from_bytes(raw[:4], "big", signed=True) if flags & THROTTLE_FIRST else 0
            at = 4 if flags & ERROR_AFTER_THROTTLE else 0
            has_code = flags & (ERROR_FIRST | ERROR_AFTER_THROTTLE)
            error_code = int.from_bytes(raw[at : at + 2], "big", signed=True) if has_code else 0
            assert (one["throttle_ms"], one["error_code"]) == (throttle_ms, error_code)


# ---- session --------------------------------------------------------------------------------------------------------


def steps_of(data: bytes) -> Steps:
    """The script that ``seeds.step`` wrote."""
    found, pos = [], 0
    while pos + 2 <= len(data):
        head = int.from_bytes(data[pos : pos + 2], "big")
        size = head & ~seeds.BROKER
        found.append(("broker" if head & seeds.BROKER else "client", data[pos + 2 : pos + 2 + size]))
        pos += 2 + size
    return found


def check_session(data: bytes, rng: Random) -> None:
    check_steps(steps_of(data), rng)


def session_once(data: bytes) -> object:
    return converse(steps_of(data))


# ---- frame ----------------------------------------------------------------------------------------------------------

ON_BODY = b"".join(request(METADATA, 9, number, b"\0") for number in range(1, 11))
"""What the broker's frames answer."""


def stream_of(data: bytes) -> Steps:
    """All at once from one side."""
    if data[:1] and data[0] & 1:
        return [("client", ON_BODY), ("broker", data[1:])]
    return [("client", data[1:])]


def check_frame(data: bytes, rng: Random) -> None:
    check_steps(stream_of(data), rng)


def frame_once(data: bytes) -> object:
    return converse(stream_of(data))


# ---- header ---------------------------------------------------------------------------------------------------------

NEXT = request(METADATA, 9, 77, b"\0")


def check_header(data: bytes, rng: Random) -> None:
    """Whatever the header of a frame of the right size says, the next frame is found, or the peer is refused."""
    conversation = check_steps(framed(data), rng)
    assert conversation.refused is not None or conversation.requests == 2
    assert conversation.refused in (None, ("client", "invalid_header"), ("client", "invalid_size"))


def framed(data: bytes) -> Steps:
    return [("client", sized(data) + NEXT)]


def header_once(data: bytes) -> object:
    return converse(framed(data))


TARGETS = [
    Target("frame", seeds.streams, check_frame, frame_once),
    Target("header", seeds.requests, check_header, header_once),
    Target("session", seeds.scripts, check_session, session_once),
]
