"""Events of connections, and how long a request waited because its connection was left unread."""

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest

from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.channel_muting import MAX_MUTED_CONNECTIONS, MAX_SPANS_PER_CONNECTION
from observers.connection_writer import encode_connection_changes
from observers.event import ConnectionEvent, RequestEvent
from observers.event_blocks import Chunk
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import Change, ConnectionTransition, PrincipalSource
from proxy.core.names import clip
from tests.unit.observers.samples import connection, exchange

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


API_NAMES = {0: "Produce", 1: "Fetch", 3: "Metadata"}
SCOPED = {"topics": {"hidden"}, "principals": {"User:probe"}}

Muted = Callable[..., list[int]]


@pytest.fixture
def audit_filter() -> AuditFilter:
    return AuditFilter(TopicNames(dict), **SCOPED)


@pytest.fixture
def muted(audit_filter: AuditFilter) -> Muted:
    """``muted_us`` of the events of exchanges."""
    translator = RequestEventEncoder(API_NAMES, TopicNames(dict), audit_filter)

    def call(*exchanges: Exchange) -> list[int]:
        made = translator.encode_exchanges(exchanges, 1, 0.0)
        events = [each for chunk in made.chunks for each in msgspec.json.decode(b"[%b]" % chunk.json)]
        return [msgspec.convert(each, RequestEvent).muted_us for each in events]

    return call


def one(came: float, went: float, throttle_ms: int = 0, **changes: Any) -> Exchange:
    """A request that came and was answered at these times."""
    times = {"received_at": came, "forwarded_at": came, "responded_at": went, "answered_at": went}
    return exchange(**{**times, "throttle_ms": throttle_ms, **changes})


@pytest.mark.promise("audit-event.md", "An event says how long its connection was left unread for a throttle.")
def test_a_request_waits_for_the_rest_of_the_throttle_time_of_those_before_it(muted: Muted) -> None:
    for exchanges, expected in (
        ([one(1.0, 2.0, 500)], [0]),  # itself was not muted
        ([one(2.25, 2.75)], [250_000]),
        ([one(2.75, 3.0)], [0]),  # it is over
        ([one(11.0, 12.0, 500), one(11.5, 12.75)], [0, 500_000]),  # what had come before waits from the answer on
        # several times
        ([one(21.0, 22.0, 500), one(21.0, 23.0, 1000), one(21.0, 24.5), one(23.5, 25.0)],
         [0, 500_000, 1_500_000, 500_000]),
        # no time is counted twice
        ([one(31.0, 32.0, 2000), one(31.0, 33.0, 2000), one(31.0, 33.5, 500), one(31.0, 39.0)],
         [0, 1_000_000, 1_500_000, 3_000_000]),
        ([one(41.0, 42.0, 60_000), one(42.5, 43.0)], [0, 500_000]),  # at most the latency
        ([one(111.0, 112.0, 500), one(112.0, 113.0, connection=connection(id="c2"))], [0, 0]),  # others are read
    ):  # fmt: skip
        assert muted(*exchanges) == expected, exchanges


def test_what_is_kept_is_bounded_and_nothing_of_a_connection_that_is_read_again_or_has_ended(
    muted: Muted, audit_filter: AuditFilter
) -> None:
    muted(one(1.0, 2.0, 500))
    assert set(audit_filter.muting.spans) == {"c1"}
    muted(one(2.5, 2.75))
    assert not audit_filter.muting.spans
    muted(one(3.0, 4.0, 500))
    encode_connection_changes([change("closed")], 1, 0.0, audit_filter)
    assert not audit_filter.muting.spans
    muted(*[one(0.0, n, 500) for n in range(1, MAX_SPANS_PER_CONNECTION + 2)])
    assert [begin for begin, _ in audit_filter.muting.spans["c1"]] == list(range(2, MAX_SPANS_PER_CONNECTION + 2))
    muted(*[one(1.0, 2.0, 500, connection=connection(id=str(n))) for n in range(MAX_MUTED_CONNECTIONS)])
    assert len(audit_filter.muting.spans) == MAX_MUTED_CONNECTIONS
    assert "c1" not in audit_filter.muting.spans
