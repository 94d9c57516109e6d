"""Targets behind the sessions: what observers make of exchanges that hostile bytes gave, and of connections, whatever
their clients call themselves."""

from collections.abc import Callable
from io import BytesIO
from random import Random
from struct import Struct
from typing import get_args

import msgspec

from observers.audit_writer import RequestEventEncoder
from observers.connection_writer import encode_connection_changes
from observers.event import ConnectionEvent, RequestEvent, encoder
from observers.event_blocks import EncodedEvents, split_events
from observers.record_counter import count_compressed_records
from observers.rollup_writer import RollupAggregator
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import Change, Connection, ConnectionTransition, PrincipalSource
from tests.fuzz import consumers, responses, seeds, sessions, targets
from tests.fuzz.sessions import converse, steps_of
from tests.fuzz.targets import Target
from tests.property.audited import API_NAMES, WALL, surroundings

ROWS = 1 << 19
"""Bytes: the translator writes into blocks of half as many."""


def exchanges_of(data: bytes) -> list[Exchange]:
    exchanges: list[Exchange] = []
    converse(steps_of(data), exchanges)
    return exchanges


# ---- audit ----------------------------------------------------------------------------------------------------------


def translated(exchanges: list[Exchange]) -> EncodedEvents:
    made = RequestEventEncoder(API_NAMES, *surroundings()).encode_exchanges(exchanges, 1, WALL)
    assert (made.failed, made.not_encodable, made.too_large) == (0, 0, 0)
    assert made.last + made.hidden == len(exchanges)
    return made


def rolled(exchanges: list[Exchange]) -> None:
    rollup = RollupAggregator(API_NAMES, *surroundings())
    added = rollup.add_exchanges(exchanges, 0, WALL)
    assert (added.failed, added.not_encodable, added.until) == (0, 0, len(exchanges))
    assert sum(one.requests for one in rollup.drain()) == len(exchanges) - added.hidden


def check_audit(data: bytes, rng: Random) -> None:
    """Every exchange has its event, as msgspec would encode it."""
    found = exchanges_of(data)
    made = translated(found)
    written = [one for chunk in made.chunks for one in split_events(chunk.json)]
    assert len(written) == made.last
    assert [encoder.encode(msgspec.json.decode(one, type=RequestEvent)) for one in written] == written
    for exchange in found:
        count_compressed_records(exchange)
    rolled(found)


def audit_once(data: bytes) -> object:
    return translated(exchanges_of(data))


# ---- connections ----------------------------------------------------------------------------------------------------

HEAD = Struct(">BBBHIIhIIII")
"""Kind, source, repetitions, port, times in ms, error code, lifetime, requests, bytes; then come the texts."""

KINDS, SOURCES = get_args(Change), get_args(PrincipalSource)
TEXTS = 9
NULL = b"\xff\xff"
MAX_CHANGES = 120
"""Of one input: more than two chunks."""

PROBE = "User:probe"


def changes_of(data: bytes) -> list[ConnectionTransition]:
    """Numbers are those a session may have, and a cause is never empty. Texts are any: what is no UTF-8 becomes lone
    surrogates."""
    read = BytesIO(data).read
    changes: list[ConnectionTransition] = []
    while len(head := read(HEAD.size)) == HEAD.size and len(changes) < MAX_CHANGES:
        kind, source, more, port, opened, at, error, lifetime, requests, received, sent = HEAD.unpack(head)
        texts = [_text(read) for _ in range(TEXTS)]
        principal, name, version, mechanism, tls, cipher, serial, client_id, cause = texts
        connection = Connection(
            "c-1", "CLIENT", "::1", port, opened / 1000, principal or "", name, version, SOURCES[source % len(SOURCES)],
            mechanism, tls, cipher, serial,
        )  # fmt: skip
        change = ConnectionTransition(
            connection, KINDS[kind % len(KINDS)], at / 1000, cause or "idle_timeout", error, lifetime, requests,
            received, sent, client_id,
        )  # fmt: skip
        changes += [change] * min(1 + more % 64, MAX_CHANGES - len(changes))
    return changes


def _text(read: Callable[[int], bytes]) -> str | None:
    length = read(2)
    return None if length == NULL else read(int.from_bytes(length, "big")).decode("utf-8", "surrogateescape")


def connections_once(data: bytes) -> EncodedEvents:
    return encode_connection_changes(changes_of(data), 1, WALL, surroundings()[1])


def check_connections(data: bytes, rng: Random) -> None:
    """Every change has its event, as msgspec would encode it, or is hidden or lost alone."""
    made = connections_once(data)
    written = [split_events(chunk.json) for chunk in made.chunks]
    assert [chunk.count for chunk in made.chunks] == list(map(len, written))
    events = [msgspec.json.decode(one, type=ConnectionEvent) for some in written for one in some]
    assert [encoder.encode(event) for event in events] == [one for some in written for one in some]
    numbers = [chunk.first + at for chunk in made.chunks for at in range(chunk.count)]
    assert [event.seq for event in events] == numbers
    assert len(events) + made.not_encodable == made.last == len(changes_of(data)) - made.hidden
    assert not made.failed


def connection_seeds() -> list[bytes]:
    """One change of each kind and source, and one input of many; texts as clients have them, and as they should not."""
    names = ["User:ann", PROBE, "User:" + '"\\\n' * 90, "é" * 200, "😀" * 90, "a" * 64, "a" * 65, "", "\x7f\x1f", None]
    rng = Random("connections")
    single = [
        _change(kind, source, 0, [rng.choice(names) for _ in range(TEXTS)])
        for kind in range(len(KINDS))
        for source in range(len(SOURCES))
    ]
    return [*single, b"".join(single[:6]), _change(3, 1, 63, names[:TEXTS]) + _change(0, 0, 60, names[1:]), b""]


def _change(kind: int, source: int, more: int, texts: list[str | None]) -> bytes:
    head = HEAD.pack(kind, source, more, 40_000, 4_000, 9_500, 58, 9_000, 3, 500, 0)
    written = [NULL if text is None else len(text.encode()).to_bytes(2, "big") + text.encode() for text in texts]
    return head + b"".join(written)


ALL = {
    target.name: target
    for target in (
        *sessions.TARGETS,
        *targets.TARGETS,
        *responses.TARGETS,
        *consumers.TARGETS,
        Target("connections", connection_seeds, check_connections, connections_once, share=60, besides=1 << 21),
        Target("audit", seeds.scripts, check_audit, audit_once, share=60, besides=ROWS),
    )
}
"""Every target by its name."""
