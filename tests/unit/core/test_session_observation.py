"""What observers get of a session: what they want and nothing else, in order, with its times, in the budget."""

import pytest

from proxy.compiled.exchange import Exchange
from proxy.core import observation_interest as interest
from proxy.core.budget import MAX_CHARGED, Budget
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection, ConnectionTransition
from proxy.core.observation import MAX_LEARNED
from proxy.core.principal_tracker import SASL_AUTHENTICATE, PrincipalTracker
from proxy.core.session import Session
from tests.cases import each
from tests.frames import API_VERSIONS, METADATA, SASL_HANDSHAKE, batch, produce, produced, request, response
from tests.sasl import authenticate, authenticate_reply, handshake, handshake_reply, plain, software
from tests.tools.observation_sinks import watching

FACTS = interest.WANT_EXCHANGE | interest.WANT_FACTS
KEEP = interest.WANT_EXCHANGE | interest.WANT_REQUEST_BODY | interest.WANT_RESPONSE_BODY
MAX_BODY = 100_000


class Bench:
    """A session that is watched. Its clock moves one second with each chunk; half a second later that has gone on."""

    def __init__(self, wanted=FACTS, max_body=MAX_BODY, limit=MAX_CHARGED) -> None:
        self.counters = ListenerCounters()
        self.exchanges: list[Exchange] = []
        self.changes: list[ConnectionTransition] = []
        self.order: list[str] = []
        self.now = 0.0
        connection = Connection(
            "c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source="unauthenticated"
        )
        self.sink = watching(self._record, self._note, wanted=wanted, max_body=max_body)
        self.budget = Budget(limit)
        principal_tracker = PrincipalTracker(connection)
        self.session = Session(
            connection, self.counters, self.sink, principal_tracker=principal_tracker, budget=self.budget
        )

    def _record(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.order.append(f"{exchange.api_key}")

    def _note(self, change: ConnectionTransition) -> None:
        self.changes.append(change)
        self.order.append(change.change)

    def client(self, data: bytes, step: int = 1 << 30) -> None:
        for at in range(0, len(data), step):
            self.now += 1
            if self.session.read_client_data(data[at : at + step], self.now):
                self.session.observe(self.now + 0.5)

    def broker(self, data: bytes, step: int = 1 << 30) -> None:
        for at in range(0, len(data), step):
            self.now += 1
            if self.session.read_broker_data(data[at : at + step], self.now):
                self.session.observe(self.now + 0.5)

    def lost(self) -> None:
        self.session.close(self.now)

    def ended(self) -> list[tuple[int, str]]:
        return [(exchange.correlation_id, exchange.outcome) for exchange in self.exchanges]


@pytest.mark.promise("architecture.md", "An exchange is recorded after its last byte was handed on.")
def test_an_exchange_is_recorded_when_its_last_byte_was_handed_on() -> None:
    bench = Bench()
    bench.client(request(METADATA, 1, 1))
    answer = response(1, b"x" * 20)
    bench.broker(answer[:10])
    bench.now += 1
    assert bench.session.read_broker_data(answer[10:], bench.now)
    assert bench.exchanges == []
    bench.session.observe(9.0)
    (exchange,) = bench.exchanges
    times = (exchange.received_at, exchange.forwarded_at, exchange.responded_at, exchange.answered_at)
    assert times == (1.0, 1.5, 3.0, 9.0)


def test_what_was_answered_and_not_handed_on_is_lost() -> None:
    bench = Bench()
    bench.client(request(METADATA, 1, 1) + produce(2, 0, batch(1)))
    assert bench.session.read_broker_data(response(1), 5.0)
    bench.lost()
    outcomes = [(e.correlation_id, e.outcome, e.answered_at, e.response_bytes) for e in bench.exchanges]
    assert outcomes == [(2, "no_response", 0.0, 0), (1, "connection_lost", 0.0, 0)]
    assert bench.sink.observed[0] == 2


@pytest.mark.promise("observers.md", "A body of more than `observer.max.body.bytes` is not kept, and counted.")
def test_too_long_a_body_is_not_kept_and_counted() -> None:
    bench = Bench(KEEP, max_body=100)
    bench.client(request(METADATA, 1, 1, b"x" * 101) + request(METADATA, 1, 2, b"x" * 100))
    bench.broker(response(1, b"y" * 100) + response(2, b"y" * 101))
    kept = [(e.request_raw, e.response_raw) for e in bench.exchanges]
    assert kept == [(None, b"y" * 100), (b"x" * 100, None)]
    assert bench.counters.decoded["not_kept"] == 2


@pytest.mark.promise(
    "security.md", "Beyond the budget of memory bodies are left out of events, counted, and the bytes pass."
)
def test_without_memory_nothing_is_kept_until_there_is_some_again() -> None:
    bench = Bench(KEEP, limit=4000)
    whole = request(METADATA, 1, 1, b"x" * 2000)
    bench.client(whole[:50])
    assert bench.budget.charged < 500  # no declared length is charged, only what came
    bench.client(whole[50:])
    assert bench.budget.charged > 2000

    def other() -> Exchange:
        session = Session(bench.session.connection, ListenerCounters(), bench.sink, budget=bench.budget)
        session.read_client_data(request(METADATA, 1, 1, b"z" * 1000), 1.0)
        session.observe(1.5)
        session.close(2.0)
        bench.budget.clear_recorded()
        return bench.exchanges.pop()

    assert other().request_raw is None
    bench.lost()
    bench.budget.clear_recorded()
    assert bench.budget.charged == 0
    assert other().request_raw is not None


def test_facts_that_there_is_no_memory_for_are_left_out_and_counted() -> None:
    bench = Bench(limit=0)
    bench.client(produce(1, -1, batch(3)))
    bench.broker(produced(1))
    (exchange,) = bench.exchanges
    assert (exchange.decode, exchange.request, exchange.response) == ("not_kept", None, None)
    assert bench.counters.decoded["not_kept"] == 2


def test_tagged_fields_of_a_header_end_within_its_frame() -> None:
    bench = Bench(KEEP)
    bench.client(request(METADATA, 1, 1) + request(METADATA, 9, 2, b"\0"))
    bench.broker(response(1) + response(2))  # the second lacks them
    assert [e.response_raw for e in bench.exchanges] == [b"", b""]
    for step in (1, 1 << 20):
        with pytest.raises(Exception, match="Metadata v9"):
            Bench(KEEP).client(request(METADATA, 9, 1) + request(METADATA, 1, 2), step)
    bench = Bench(KEEP | interest.ERROR_FIRST)
    bench.client(request(METADATA, 9, 1, b"\0"))
    bench.broker(response(1, b"\xff\x00\x05\x00"))  # and cannot be read
    assert [e.error_code for e in bench.exchanges] == [0]


@each("step", [1, 1 << 20])
def test_a_login_is_reported_after_its_exchange_is_handed_on_and_belongs_to_what_follows(step: int) -> None:
    bench = Bench(KEEP)
    bench.client(request(API_VERSIONS, 3, 1, b"\0" + software("java", "4.3")), step)
    bench.broker(response(1, b"\0\0"), step)
    bench.client(request(SASL_HANDSHAKE, 1, 2, handshake("PLAIN")), step)
    bench.broker(response(2, handshake_reply()), step)
    bench.client(request(SASL_AUTHENTICATE, 2, 3, b"\0" + authenticate(plain("alice", "canary"))), step)
    bench.broker(response(3, b"\0" + authenticate_reply(lifetime_ms=5)), step)
    bench.client(request(METADATA, 1, 4), step)
    bench.broker(response(4), step)
    reported = [(e.connection.client_software_name, e.connection.principal) for e in bench.exchanges]
    assert reported == [("java", "User:ANONYMOUS")] * 3 + [("java", "User:alice")]
    assert bench.order == ["18", "17", "authenticated", "36", "3"]
    assert bench.changes[0].connection is bench.session.connection
    assert bench.changes[0].session_lifetime_ms == 5
    assert bench.sink.observed[0] == 5
    login = bench.exchanges[2]
    assert (login.request_raw, login.response_raw) == (None, None)
    assert bench.exchanges[1].request_raw == handshake("PLAIN")


def test_too_long_a_token_is_not_gathered_and_its_client_stays_unknown() -> None:
    bench = Bench()
    bench.client(request(SASL_HANDSHAKE, 1, 1, handshake("PLAIN")))
    bench.broker(response(1, handshake_reply()))
    token = plain("alice", "x" * MAX_LEARNED)
    bench.client(request(SASL_AUTHENTICATE, 1, 2, authenticate(token, 1)), 10_000)
    bench.broker(response(2, authenticate_reply(version=1)))
    assert [change.connection.principal for change in bench.changes] == ["User:<unknown:PLAIN>"]
