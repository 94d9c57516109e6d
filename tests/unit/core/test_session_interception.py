"""A session with rules: what is answered or changed here keeps its place, and all else passes as it came."""

import pytest

from proxy.compiled.exchange import Exchange
from proxy.core import interceptor
from proxy.core.apis import ALTER_CLIENT_QUOTAS
from proxy.core.budget import CLIENT_ID, EXCHANGE, OPEN, Budget
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection, ConnectionTransition
from proxy.core.interception import MAX_PENDING_RESPONSES
from proxy.core.last_rewritten import MAX_REUSE
from proxy.core.observation_interest import WANT_EXCHANGE, WANT_RESPONSE_BODY
from proxy.core.principal_tracker import SASL_AUTHENTICATE, PrincipalTracker
from proxy.core.session import ANSWER_COST, TURN, Session
from proxy.errors import PeerError
from proxy.features.catalog import QUOTA_IP, LevelRange
from proxy.features.view import FeaturesDirectory, FeaturesView
from proxy.interceptors.ip_quotas import IpQuotas
from proxy.interceptors.supported_versions import SupportedVersions
from proxy.interceptors.update_features import UPDATE_FEATURES, UpdateFeaturesInterceptor
from proxy.net.feature_update_calls import fail_update
from tests.cases import each
from tests.frames import METADATA, SASL_HANDSHAKE, batch, produce, request, response, sized
from tests.sasl import authenticate, authenticate_reply, handshake, handshake_reply, plain
from tests.tools.interceptors import (
    BROKEN_EDIT,
    BROKEN_STREAM,
    EAGER_STREAM,
    EDITING,
    HELD,
    LEADING,
    REPLIED,
    Chooser,
    replied,
    served,
)
from tests.tools.observation_sinks import watching


class Bench:
    """A session with rules as a relay handles it: ``to_broker`` and ``to_client`` are what was forwarded."""

    def __init__(self, interceptors=(), *, wanted=WANT_EXCHANGE, max_frame=1 << 21, source="anonymous") -> None:
        self.counters = ListenerCounters()
        self.exchanges: list[Exchange] = []
        self.chooser = Chooser()
        self.now = 0.0
        self.failures: list[Exception] = []
        self.to_broker = self.to_client = b""
        self.connection = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source=source)
        self.changes: list[ConnectionTransition] = []
        sink = None if wanted is None else watching(self.exchanges.append, self.changes.append, wanted=wanted)
        self.interceptors = interceptor.InterceptorChain(interceptors or [self.chooser])
        principal_tracker = PrincipalTracker(self.connection) if source == "unauthenticated" else None
        self.budget = Budget()
        self.session = Session(
            self.connection, self.counters, sink, max_frame, principal_tracker, self.interceptors, self.budget
        )

    def client(self, data: bytes, *, later: bool = False) -> None:
        """``later``: what was not looked at stays there."""
        self._take("client", data)
        while self.session.rest and not later:
            self._take("client", self.session.rest)

    def broker(self, data: bytes) -> None:
        self._take("broker", data)

    def _take(self, side: str, data: bytes) -> None:
        self.now += 1
        session = self.session
        try:
            (session.read_client_data if side == "client" else session.read_broker_data)(data, self.now)
        except PeerError:
            self._pass(side, data, data[: session.clean])
            raise
        self._pass(side, data, data)

    def _pass(self, side: str, data: bytes, usual: bytes) -> None:
        session, onward = self.session, usual
        if session.diverted:
            interception = session.interception
            onward = data if interception.replacement is None else interception.replacement
            self.to_client += interception.replies
            if interception.failure is not None:
                self.failures.append(interception.failure)
        if side == "client":
            self.to_broker += onward
        else:
            self.to_client += onward
        session.observe(self.now + 0.5)

    @property
    def ending(self) -> bool:
        return self.session.interception.ending

    def ended(self) -> list[tuple[int, str, bool]]:
        return [(each.correlation_id, each.outcome, each.synthesized) for each in self.exchanges]


@pytest.mark.promise(
    "unsupported-requests.md",
    "One turn reads a bounded number of a client's requests, and the rest waits for the other connections.",
)
@each("wanted", [None, WANT_EXCHANGE])
@each(
    ("one", "of_a_turn"),
    [
        (request(REPLIED, 5, 7), TURN // ANSWER_COST),
        (request(HELD, 0, 7, b"held"), TURN // ANSWER_COST),
        (request(METADATA, 1, 7), TURN),
        (produce(7, 0, batch(1)), TURN),
    ],
)
def test_a_turn_takes_so_many_requests_and_leaves_the_rest(one: bytes, of_a_turn: int, wanted: int | None) -> None:
    bench = Bench(wanted=wanted)
    count = 2 * of_a_turn + of_a_turn // 2
    bench.client(one * count + one[:9], later=True)
    for turn in (1, 2):
        assert bench.session.requests == turn * of_a_turn
        assert bench.session.rest == one * (count - turn * of_a_turn) + one[:9]
        assert not bench.session.is_between_requests
        bench.client(bench.session.rest, later=True)
    assert (bench.session.requests, bench.session.rest) == (count, b"")
    bench.client(one[9:])
    count += 1
    assert bench.session.requests == count
    assert bench.to_client == (response(7, replied(5)) if one[5] == REPLIED else response(7, b"held")) * count or (
        bench.to_broker == one * count
    )


def test_what_is_forwarded_behind_an_answer_and_raw_sasl_tokens_count_for_a_turn() -> None:
    """The chunk is put together anew from there on."""
    bench = Bench()
    some, passing = request(REPLIED, 5, 7), request(METADATA, 1, 7)
    bench.client(passing * 20 + some + passing * 50, later=True)
    assert bench.session.requests == 20 + (TURN - 20) // ANSWER_COST
    # A turn counts raw SASL tokens too.
    bench = Bench()
    bench.client(request(SASL_HANDSHAKE, 0, 1, handshake("PLAIN")))
    bench.client(sized(b"") * 1000, later=True)
    assert bench.session.rest == sized(b"") * (1000 - TURN)


def test_it_is_said_how_many_requests_in_a_row_their_headers_decided() -> None:
    bench = Bench()
    some, held, passing = request(REPLIED, 0, 1), request(HELD, 0, 1, b"held"), request(METADATA, 1, 1)
    bench.client(some * 3 + passing + some + held + some * 2 + produce(1, 0, batch(1)) + some)
    asked = [each.consecutive for each, _ in bench.chooser.asked if each.api_key == REPLIED]
    assert asked == [1, 2, 3, 1, 1, 2, 1]


def test_counts_of_what_is_answered_here_are_bounded() -> None:
    bench = Bench()
    for key in range(1_000, 2_000):
        bench.session.interception._count_intercepted(key, "replied")
    counts = bench.counters.intercepted
    assert (len(counts), counts[-1, "replied"], counts[1_000, "replied"]) == (257, 744, 1)


@pytest.mark.promise(
    "security.md",
    "A request that would be held back beyond its bound ends the connection, and is not forwarded unread.",
)
def test_a_request_too_long_to_be_held_is_refused() -> None:
    bench = Bench()
    first = request(METADATA, 1, 1)
    with pytest.raises(PeerError, match=f"{interceptor.MAX_HELD_REQUEST + 1} bytes") as raised:
        bench.client(first + request(HELD, 0, 2, b"x" * (interceptor.MAX_HELD_REQUEST + 1 - 11)))
    assert raised.value.reason == "invalid_size"
    assert bench.to_broker == first
    longest = request(HELD, 0, 2, b"f" * (interceptor.MAX_HELD_REQUEST - 11))
    bench = Bench()
    bench.client(longest)
    assert bench.to_broker == longest


@pytest.mark.promise(
    "limits.md", "An AlterClientQuotas longer than 64 KiB closes the connection (`client_invalid_size`)."
)
@pytest.mark.promise("architecture.md", "An UpdateFeatures above 64 KiB closes the connection (`client_invalid_size`).")
@each("more", [0, 1])
@each("api_key", [ALTER_CLIENT_QUOTAS, UPDATE_FEATURES])
def test_a_change_too_long_to_be_held_is_not_forwarded_unread(api_key: int, more: int) -> None:
    """It may be one that the sidecar refuses, as an update of features of brokers and of the fleet in one request."""
    features = FeaturesDirectory()
    features.view = FeaturesView({QUOTA_IP: LevelRange(1, 1)})
    bench = Bench([IpQuotas(in_file=True), UpdateFeaturesInterceptor(features, SupportedVersions({}), fail_update)])
    asked = request(api_key, 0, 1, bytes(interceptor.MAX_HELD_REQUEST - 11 + more))
    if not more:
        bench.client(asked)
        assert bench.to_broker == asked
        return
    with pytest.raises(PeerError, match=f"{interceptor.MAX_HELD_REQUEST + 1} bytes") as raised:
        bench.client(asked)
    assert (raised.value.reason, bench.to_broker) == ("invalid_size", b"")


def test_what_precedes_a_frame_that_cannot_be_read_goes_on() -> None:
    before = request(METADATA, 1, 1) + request(HELD, 0, 2, b"forward")
    bad = request(HELD, 0, 3, b"peer")
    for cut in range(len(before) + len(bad)):
        bench = Bench()
        bench.client((before + bad)[:cut])
        with pytest.raises(PeerError) as raised:
            bench.client((before + bad)[cut:])
        assert (raised.value.side, raised.value.reason) == ("client", "invalid_request")
        assert bench.to_broker == before
    # Answers that precede a bad frame go out.
    bench = Bench()
    with pytest.raises(PeerError):
        bench.client(request(REPLIED, 3, 1) + request(METADATA, 1, 2) + b"\xff" * 20)
    assert (bench.to_client, bench.to_broker) == (response(1, replied(3)), request(METADATA, 1, 2))


class Alike(interceptor.Interceptor):
    """Puts ``mark`` before bodies of Metadata, and keeps those that it was given."""

    rewrites_alike = True

    def __init__(self) -> None:
        self.mark = b"1"
        self.bodies: list[bytes] = []

    def flags(self, api_key: int, api_version: int) -> int:
        return interceptor.REWRITE if api_key == METADATA else 0

    def rewrite(self, api_key: int, api_version: int, body: bytes) -> bytes:
        self.bodies.append(body)
        return self.mark + body


def test_a_body_that_equals_the_last_one_is_replaced_as_that_was_for_a_while() -> None:
    alike = Alike()
    bench = Bench([alike])

    def answered(body: bytes, at: float, *, version: int = 1) -> bytes:
        bench.now, bench.to_client = at - 2, b""
        bench.client(request(METADATA, version, 7))
        bench.broker(response(7, body))
        return bench.to_client

    assert [answered(b"a", 10.0 + n / 4) for n in range(5)] == [response(7, b"1a")] * 5
    assert alike.bodies == [b"a"]
    assert answered(b"b", 11.0) == response(7, b"1b")
    assert answered(b"b", 11.0, version=2) == response(7, b"1b")
    assert alike.bodies == [b"a", b"b", b"b"], "each version has its own"

    assert answered(b"b", 12.0) == answered(b"b", 12.0 + MAX_REUSE) == response(7, b"1b")
    assert len(alike.bodies) == 3
    assert answered(b"b", 12.1 + MAX_REUSE) == response(7, b"1b")
    assert len(alike.bodies) == 4, "it is asked again after that"

    alike.mark = b"2"
    bench.interceptors.forget_rewritten()
    assert answered(b"b", 12.2 + MAX_REUSE) == response(7, b"2b")
    assert bench.counters.edited == {METADATA: 11}
    assert [one.response_bytes for one in bench.exchanges] == [len(response(7, b"1a"))] * 11


def test_a_request_that_is_held_back_is_charged_until_it_is_answered() -> None:
    bench = Bench(wanted=None)
    asked = request(HELD, 0, 1, b"answer" + bytes(900))
    bench.client(asked[:700])
    assert bench.budget.charged == EXCHANGE + CLIENT_ID + 700
    bench.client(asked[700:])
    assert bench.to_client == response(1, b"answer" + bytes(900))
    assert bench.budget.charged == 0
    for key, came in ((EDITING, 800), (LEADING, 12)):  # a response until it goes on
        bench, answer = Bench(wanted=None), response(1, b"\0" + bytes(900))
        bench.client(request(key, 0, 1, b"\0"))
        bench.broker(answer[:came])
        assert (bench.to_client, bench.budget.charged) == (b"", EXCHANGE + CLIENT_ID + came), key
        bench.broker(answer[came:])
        assert bench.budget.charged == 0, key


@pytest.mark.promise(
    "architecture.md", "A mistake of an interceptor is counted, and the broker's response passes as it came."
)
@each("key", [BROKEN_EDIT, BROKEN_STREAM, EAGER_STREAM])
def test_a_response_whose_interceptor_fails_passes_as_it_came_wherever_it_is_cut(key: int) -> None:
    answer = response(1, b"\0" + bytes(range(40))) + response(2, b"next")
    for cut in range(len(answer)):
        bench = Bench()
        bench.client(request(key, 0, 1, b"\0") + request(METADATA, 1, 2))
        bench.broker(answer[:cut])
        bench.broker(answer[cut:])
        assert bench.to_client == answer
        assert bench.counters.intercept_errors == len(bench.failures) == 1
        assert not bench.counters.edited
    bench, answer = Bench(), response(1, b"\xff\xff") + response(2)  # its header cannot be read
    bench.client(request(EDITING, 0, 1, b"\0") + request(METADATA, 1, 2))
    bench.broker(answer)
    assert (bench.to_client, bench.counters.intercept_errors) == (answer, 1)


@pytest.mark.promise(
    "addresses.md",
    "A response that would be held back beyond its bound ends the connection, and no byte of it reaches the client.",
)
@each("cut", [4, 8, 9, 500, 1000])
def test_a_response_too_long_to_be_held_ends_the_connection(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.core.interception.MAX_HELD_RESPONSE", 1000)
    bench = Bench()
    bench.client(request(METADATA, 1, 1) + request(EDITING, 0, 2, b"\0"))
    long = response(2, b"\0" + b"z" * 992)
    bench.broker(response(1) + long[:cut])
    if cut <= 8:
        bench.broker(long[cut:-1])  # its body begins with this piece
        cut = len(long) - 1
    with pytest.raises(PeerError, match="1001 bytes; allowed here: up to 1000") as raised:
        bench.broker(long[cut:])
    assert (raised.value.side, raised.value.reason) == ("broker", "invalid_size")
    assert bench.to_client == response(1), "not a byte of it"
    bench.session.close(9.0)
    assert bench.ended() == [(1, "answered", False), (2, "connection_lost", False)]
    monkeypatch.setattr("tests.tools.interceptors.LEAD", 2000)
    bench = Bench()
    bench.client(request(LEADING, 0, 1, b"\0"))
    with pytest.raises(PeerError, match="a beginning of more than 1000 bytes"):
        bench.broker(response(1, b"\0" + bytes(2500))[:1500])


@pytest.mark.promise("unsupported-requests.md", "At most 64 KiB of a client are answered in one turn.")
def test_many_long_answers_wait_in_the_requests_that_ask_for_them() -> None:
    bench = Bench()
    asked = b"".join(request(HELD, 0, n, b"a" * 1000) for n in range(200))
    bench.client(asked, later=True)
    assert len(bench.to_client) < MAX_PENDING_RESPONSES + 1020
    assert bench.session.rest
    assert not bench.session.is_between_requests
    assert not bench.session.is_idle
    while bench.session.rest:
        before = len(bench.to_client)
        bench.client(bench.session.rest, later=True)
        assert len(bench.to_client) - before < MAX_PENDING_RESPONSES + 1020
    assert bench.to_client == b"".join(response(n, b"a" * 1000) for n in range(200))
    assert bench.session.is_idle


def test_long_answers_that_wait_for_the_broker_hold_back_what_comes_after_them() -> None:
    bench = Bench()
    later = request(METADATA, 1, 1000)
    bench.client(
        request(METADATA, 1, 999) + b"".join(request(HELD, 0, n, b"a" * 4000) for n in range(20)) + later, later=True
    )
    assert bench.to_broker == request(METADATA, 1, 999)
    assert bench.session.interception.full
    rest = bench.session.rest
    bench.broker(response(999))
    assert not bench.session.interception.full
    assert bench.session.rest == rest
    bench.client(rest)
    assert bench.to_broker == request(METADATA, 1, 999) + later
    bench.broker(response(1000))
    assert bench.to_client == b"".join([response(999), *(response(n, b"a" * 4000) for n in range(20)), response(1000)])


def log_in(bench: Bench, mechanism: str, token: bytes) -> None:
    bench.client(request(SASL_HANDSHAKE, 1, 11, handshake(mechanism)))
    bench.broker(response(11, handshake_reply()))
    bench.client(request(SASL_AUTHENTICATE, 2, 12, b"\0" + authenticate(token)))
    bench.broker(response(12, b"\0" + authenticate_reply()))


@pytest.mark.promise(
    "broker-metadata.md",
    "After a login with GSSAPI a client counts as logged in once the broker itself has answered something else.",
)
def test_an_answer_of_ours_does_not_show_that_the_broker_let_a_client_in() -> None:
    bench = Bench(wanted=None, source="unauthenticated")
    log_in(bench, "GSSAPI", b"token")
    bench.client(request(REPLIED, 0, 3))
    assert bench.session.connection.principal_source == "unauthenticated"
    bench.client(request(METADATA, 1, 4))
    bench.broker(response(4))
    assert bench.session.connection.principal_source == "unknown"


class NoSuchHandshake(interceptor.Interceptor):
    def flags(self, api_key: int, api_version: int) -> int:
        return interceptor.ON_HEADER if (api_key, api_version) == (SASL_HANDSHAKE, 2) else 0

    def on_header(self, request: interceptor.Request) -> interceptor.Verdict:
        return b""


def test_a_login_request_that_the_broker_does_not_get_is_not_waited_for() -> None:
    bench = Bench([NoSuchHandshake()], source="unauthenticated")
    log_in(bench, "PLAIN", plain("alice"))
    bench.client(request(SASL_HANDSHAKE, 2, 20, handshake("PLAIN")))
    assert bench.to_client.endswith(response(20, b""))
    log_in(bench, "PLAIN", plain("alice"))
    assert bench.session.connection.principal == "User:alice"
    assert [each.change for each in bench.changes] == ["authenticated", "authenticated"]


def deferred(number: int, answer: bytes) -> bytes:
    return request(HELD, 0, number, b"d" + answer)


def answer(bench: Bench) -> None:
    """Serve the request that is due, and read what was kept behind it."""
    bench.now += 1
    bench.session.answer_deferred(served(bench.session.deferred))
    bench.to_client += bench.session.interception.replies
    bench.session.observe(bench.now + 0.5)
    while bench.session.rest:
        bench.client(bench.session.rest)


@pytest.mark.promise("architecture.md", "A deferred request is served once all responses before it were taken.")
def test_it_is_due_once_all_before_it_is_answered_and_nothing_passes_it() -> None:
    bench = Bench()
    behind = request(METADATA, 1, 4) + request(REPLIED, 2, 5)
    bench.client(request(METADATA, 1, 1) + request(REPLIED, 3, 2) + deferred(3, b"later") + behind, later=True)
    assert bench.to_broker == request(METADATA, 1, 1)
    assert (bench.to_client, bench.session.deferred, bench.session.rest) == (b"", None, behind)
    bench.broker(response(1))
    assert bench.to_client == response(1) + response(2, replied(3))
    assert not bench.session.is_idle
    assert bench.session.rest == behind
    answer(bench)
    assert bench.to_client == response(1) + response(2, replied(3)) + response(3, b"later")
    assert bench.to_broker == request(METADATA, 1, 1) + request(METADATA, 1, 4)
    assert bench.session.deferred is None
    bench.broker(response(4, b"x"))
    assert bench.to_client.endswith(response(4, b"x") + response(5, replied(2)))
    assert bench.session.is_idle
    ended = [(1, False), (2, True), (3, True), (4, False), (5, True)]
    assert bench.ended() == [(number, "answered", synthesized) for number, synthesized in ended]
    assert bench.counters.intercepted == {(REPLIED, "replied"): 2, (HELD, "replied"): 1}
    bench = Bench()
    bench.client(deferred(1, b"") + request(METADATA, 1, 2), later=True)
    bench.session.answer_deferred(RuntimeError("serve"))
    assert (bench.ending, bench.session.interception.cause, bench.session.rest) == (True, "session_failed", b"")
    assert bench.counters.intercept_errors == 1


@pytest.mark.promise(
    "architecture.md", "A connection that is given up leaves with what the client has sent behind its request."
)
@each("wanted", [None, WANT_EXCHANGE | WANT_RESPONSE_BODY])
def test_a_connection_that_is_given_up_leaves_with_what_came_behind(wanted: int | None) -> None:
    bench = Bench(wanted=wanted)
    behind = request(METADATA, 1, 4) + b"\0\0"
    bench.client(request(METADATA, 1, 1) + deferred(3, b"g") + behind, later=True)
    bench.broker(response(1))
    session = bench.session
    assert served(session.deferred) == interceptor.GivenUp(b"")
    assert session.rest == behind
    assert session.give_up(5.0) == 3
    assert (session.deferred, session.is_idle, bench.budget.counts[OPEN]) == (None, True, 0)
    assert (bench.to_broker, bench.to_client) == (request(METADATA, 1, 1), response(1))
    if wanted is not None:
        assert bench.ended() == [(1, "answered", False), (3, "no_response", True)]
    assert bench.counters.intercepted == {(HELD, "given_up"): 1}
    session.close(6.0)  # does nothing
