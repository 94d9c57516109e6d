"""What events of connections and of throttles contain, and which changes give none."""

from typing import Any, get_args

import msgspec
import pytest

from observers.audit_filter import AuditFilter
from observers.connection_writer import encode_connection_changes
from observers.event import ConnectionEvent
from observers.event_blocks import Chunk
from observers.topic_names import TopicNames
from proxy.core.exchange import Change, ConnectionTransition, PrincipalSource
from proxy.core.names import clip
from tests.unit.observers.samples import connection

SCOPE = AuditFilter(TopicNames(dict), topics={"a"}, principals={"User:probe"})


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
