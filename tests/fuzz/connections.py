"""What the audit writes of connections, whatever their clients call themselves."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from random import Random
from struct import Struct
from typing import get_args

import msgspec

from observers.audit_filter import AuditFilter
from observers.connection_writer import encode_connection_changes
from observers.event import ConnectionEvent, encoder
from observers.event_blocks import EncodedEvents, split_events
from observers.numbered_events import epoch_us
from observers.topic_names import TopicNames
from proxy.core.exchange import Change, Connection, ConnectionTransition, PrincipalSource
from proxy.core.names import clip_optional
from tests.fuzz.targets import Target

HEAD = Struct(">BBBHIIhIIII")
"""Kind, source, repetitions, port, times in ms, error code, lifetime, requests, bytes; then come the texts."""

KINDS, SOURCES = get_args(Change), get_args(PrincipalSource)
TEXTS = 9
NULL = b"\xff\xff"
MAX_CHANGES = 120
"""Of one input: more than two chunks."""

WALL = 1_795_260_000.25
CLIPPED = (
    "principal", "sasl_mechanism", "tls_client_serial", "client_software_name", "client_software_version",
)  # fmt: skip
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


def audit_filter() -> AuditFilter:
    return AuditFilter(TopicNames(dict), topics={"audit"}, principals={PROBE})


def connections_once(data: bytes) -> EncodedEvents:
    return encode_connection_changes(changes_of(data), 1, WALL, audit_filter())


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
    for change in changes_of(data):
        for chunk in encode_connection_changes([change], 1, WALL, audit_filter()).chunks:
            check_event(msgspec.json.decode(chunk.json, type=ConnectionEvent), change)


def check_event(event: ConnectionEvent, change: ConnectionTransition) -> None:
    """The event says what the change says."""
    client = change.connection
    for name in ("listener", "client_ip", "client_port", "principal_source", "tls_version", "tls_cipher"):
        assert getattr(event, name) == getattr(client, name)
    for name in CLIPPED:
        assert getattr(event, name) == clip_optional(getattr(client, name))
    assert (event.connection_id, event.change) == (client.id, change.change)
    assert event.ts == epoch_us(change.at, WALL)
    closed, failed = change.change == "closed", change.change not in ("opened", "closed")
    expected = (change.error_code, change.session_lifetime_ms) if failed else (0, 0)
    assert (event.error_code, event.session_lifetime_ms) == expected
    sums = (change.requests, change.received_bytes, change.sent_bytes) if closed else (0, 0, 0)
    assert (event.requests, event.received_bytes, event.sent_bytes) == sums
    assert event.duration_ms == (max(0, round((change.at - client.opened_at) * 1000)) if closed else 0)
    said = (change.cause, clip_optional(change.client_id)) if closed else ("", None)
    assert (event.cause, event.client_id) == said


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


TARGETS = [Target("connections", connection_seeds, check_connections, connections_once, share=60, besides=1 << 21)]
