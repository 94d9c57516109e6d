"""What events of connections and of throttles contain, and which changes give none."""

from typing import Any, get_args

import msgspec
import pytest

from observers.audit_filter import AuditFilter
from observers.connection_writer import encode_connection_changes
from observers.event import ConnectionEvent, ThrottleEvent
from observers.event_blocks import Chunk
from observers.numbered_events import encode_throttle_reports
from observers.topic_names import TopicNames
from proxy.core.exchange import Change, ConnectionTransition, PrincipalSource
from proxy.core.names import clip
from tests.unit.observers.samples import connection, report

SCOPE = AuditFilter(TopicNames(dict), topics={"a"}, principals={"User:probe"})

THROTTLE = (
    b'{"kind":"throttle","seq":7,"listener":"CLIENT","client_ip":"10.0.0.7","scope":"ip",'
    b'"quota":"connection_creation_rate","action":"hold","count":3,"limit":20,"observed":21.5,'
    b'"ts_first":1700000100000000,"ts_last":1700000100250000,"delay_ms":750}'
)


def change(kind: Change, *, at: float = 4.5, of: Any = None, **values: Any) -> ConnectionTransition:
    return ConnectionTransition(connection() if of is None else of, kind, at, **values)


def events_of(*changes: ConnectionTransition) -> list[ConnectionEvent]:
    made = encode_connection_changes(changes, 7, 1_700_000_000.0, SCOPE)
    return [event for chunk in made.chunks for event in events_in(chunk)]


def events_in(chunk: Chunk) -> list[ConnectionEvent]:
    return msgspec.json.decode(b"[%b]" % chunk.json, type=list[ConnectionEvent])


@pytest.mark.promise("audit-event.md", "Fields of events that have their default value are left out.")
def test_the_bytes_of_an_event() -> None:
    tls = {"tls_version": "TLSv1.2", "tls_cipher": "TLS_RSA_WITH_AES_128_CBC_SHA", "tls_client_serial": "0AFE"}
    who = connection(
        principal="User:ann", principal_source="sasl", sasl_mechanism="PLAIN", client_software_name="kgo", **tls
    )
    made = encode_connection_changes(
        [change("authenticated", of=who, session_lifetime_ms=9000)], 7, 1_700_000_000.0, SCOPE
    )
    (chunk,) = made.chunks
    assert (chunk.first, chunk.count, made.last, made.hidden) == (7, 1, 7, 0)
    assert chunk.json == (
        b'{"kind":"connection","seq":7,"change":"authenticated","ts":1700000004500000,"listener":"CLIENT",'
        b'"connection_id":"c1","principal":"User:ann","client_ip":"10.0.0.7","client_port":40000,'
        b'"principal_source":"sasl","sasl_mechanism":"PLAIN","tls_version":"TLSv1.2",'
        b'"tls_cipher":"TLS_RSA_WITH_AES_128_CBC_SHA","tls_client_serial":"0AFE","client_software_name":"kgo",'
        b'"session_lifetime_ms":9000}'
    )
    end = change("closed", cause="idle_timeout", requests=3, received_bytes=500, sent_bytes=700, client_id="x" * 300)
    (event,) = events_of(end)
    assert (event.client_id, event.duration_ms) == (clip("x" * 300), 3500)
    assert (event.cause, event.requests, event.received_bytes, event.sent_bytes) == ("idle_timeout", 3, 500, 700)
    assert events_of(change("opened", at=9.0))[0].duration_ms == 0


def test_excluded_principals_are_hidden_once_they_are_known_to_be_who_they_say() -> None:
    for source in get_args(PrincipalSource):
        for kind in get_args(Change):
            one = change(kind, of=connection(principal="User:probe", principal_source=source))
            shown = kind == "authentication_failed" or source == "unauthenticated"
            assert bool(events_of(one)) == shown, (source, kind)
    probe = connection(principal="User:probe", principal_source="sasl")
    made = encode_connection_changes([change("opened"), change("closed", of=probe), change("closed")], 7, 0.0, SCOPE)
    (chunk,) = made.chunks
    assert ([one.seq for one in events_in(chunk)], made.last, made.hidden) == ([7, 8], 8, 1)


def test_numbers_are_those_of_the_changes_whatever_is_lost_among_many() -> None:
    lost = connection(principal="\ud800")
    changes = [change("opened", of=lost if n in (60, 61, 199) else None, at=n / 8) for n in range(200)]
    made = encode_connection_changes(changes, 1, 0.0, SCOPE)
    found = {}
    for chunk in made.chunks:
        events = events_in(chunk)
        assert (events[0].seq, len(events)) == (chunk.first, chunk.count)
        found |= {event.seq: event.ts for event in events}
    assert found == {n + 1: n * 125_000 for n in range(200) if n not in (60, 61, 199)}
    assert (made.last, made.not_encodable) == (200, 3)
    # A number that JSON cannot say loses that event alone with its number.
    for number in (float("nan"), float("inf")):
        made = encode_connection_changes([change("opened"), change("opened", at=number)], 1, 0.0, SCOPE)
        assert ([chunk.first for chunk in made.chunks], made.last, made.failed) == ([1], 2, 1)
        made = encode_throttle_reports([report(), report(observed=number), report()], 1, 0.0)
        got = ([(chunk.first, chunk.count) for chunk in made.chunks], made.last, made.failed)
        assert got == ([(1, 1), (3, 1)], 3, 1)


@pytest.mark.promise("audit-event.md", "A client's string of more than 256 bytes is cut, and ends with its hash.")
def test_texts_of_clients_are_cut_and_escaped() -> None:
    long = connection(
        principal="User:" + '"\n' * 500, sasl_mechanism="X" * 999, tls_client_serial="0" * 999,
        client_software_version="é" * 999,
    )  # fmt: skip
    (event,) = events_of(change("authentication_failed", of=long, error_code=58))
    assert (event.error_code, event.principal) == (58, clip(long.principal))
    assert (event.sasl_mechanism, event.client_software_version) == (clip("X" * 999), clip("é" * 999))
    assert event.tls_client_serial == clip("0" * 999)
    assert len(event.sasl_mechanism.encode()) <= 256 + len("…".encode()) + 16


def test_the_event_of_a_throttle_says_what_its_report_says() -> None:
    (chunk,) = encode_throttle_reports([report()], 7, 1_700_000_000.0).chunks
    assert (chunk.first, chunk.count, chunk.json) == (7, 1, THROTTLE)
    dropped = report(address="*", quota="connections", action="drop", limit=100, observed=101 / 3, delay_ms=0)
    of_principal = report(scope="principal", principal="User:alice")
    json = b",".join(chunk.json for chunk in encode_throttle_reports([dropped, of_principal], 1, 0.0).chunks)
    assert json.count(b"delay_ms") == 1, "what is nothing is left out"
    first, second = msgspec.json.decode(b"[%b]" % json, type=list[ThrottleEvent])
    assert first == ThrottleEvent(
        1, "CLIENT", "*", "ip", "connections", "drop", 3, 100, 33.667, 100_000_000, 100_250_000
    )
    assert (second.scope, second.principal, second.client_ip) == ("principal", "User:alice", "10.0.0.7")
