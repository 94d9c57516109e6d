"""Who a client is, from the bodies of its own requests and of the broker's responses."""

import pickle
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from proxy.core.exchange import Connection, ConnectionTransition
from proxy.core.principal_tracker import (
    API_VERSIONS,
    MAX_CLIENT_NAME,
    MAX_UNANSWERED,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    PrincipalTracker,
)
from tests.cases import each
from tests.sasl import (
    NONCE,
    authenticate,
    authenticate_reply,
    bearer,
    handshake,
    handshake_reply,
    jwt,
    plain,
    scram,
    software,
)

FRESH = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source="unauthenticated")
SERVER_FIRST = f"r={NONCE}3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096".encode()
SERVER_FINAL = b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="
CLIENT_FINAL = f"c=biws,r={NONCE}3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=".encode()
REJECTED = b'{"status":"invalid_token"}'

LONG = "x" * 300

Who = tuple[str, str, str | None]


def who(connection: Connection) -> Who:
    return connection.principal, connection.principal_source, connection.sasl_mechanism


def shake(tracker: PrincipalTracker, mechanism: str, error_code: int = 0) -> ConnectionTransition | None:
    tracker.request(1, SASL_HANDSHAKE, handshake(mechanism))
    return tracker.response(SASL_HANDSHAKE, handshake_reply(error_code), 1.0)


def step(tracker: PrincipalTracker, token: bytes, reply: bytes = b"", *, error_code=0, lifetime_ms=0):
    tracker.request(2, SASL_AUTHENTICATE, authenticate(token))
    answer = authenticate_reply(reply, error_code=error_code, lifetime_ms=lifetime_ms)
    return tracker.response(SASL_AUTHENTICATE, answer, 2.0)


def logged_in(mechanism: str, *steps: tuple[bytes, bytes], sub_claim: str = "sub") -> PrincipalTracker:
    """After a login with these tokens and answers; nothing is believed before the last one."""
    tracker = PrincipalTracker(FRESH, sub_claim)
    assert shake(tracker, mechanism) is None
    for token, reply in steps[:-1]:
        assert step(tracker, token, reply) is None
        assert tracker.connection == FRESH
    change = step(tracker, *steps[-1])
    assert change == ConnectionTransition(tracker.connection, "authenticated", 2.0)
    assert not tracker.undecided
    assert tracker.closed(3.0) is None
    return tracker


@pytest.mark.promise(
    "principals.md", "The user name of PLAIN is the principal once the broker has answered without an error."
)
@each(
    ("token", "principal"),
    [
        (plain("alice", "secret"), "User:alice"),
        (plain("alice", "secret", authzid="alice"), "User:alice"),
        (plain("ålice, CN=\N{SNOWMAN}", "secret"), "User:ålice, CN=\N{SNOWMAN}"),
        (plain("a\r\n\x1b[31m", "secret"), "User:a\r\n\x1b[31m"),
        (plain(LONG, "secret"), f"User:{LONG}"),
        (b"\0\xffalice\0secret", "User:\N{REPLACEMENT CHARACTER}alice"),
    ],
)
def test_plain(token: bytes, principal: str) -> None:
    assert who(logged_in("PLAIN", (token, b"")).connection) == (principal, "sasl", "PLAIN")


@pytest.mark.promise(
    "principals.md", "The name of SCRAM is the principal, decoded, once the server has proved its signature."
)
@each("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@each(
    ("first", "principal"),
    [
        (scram("alice"), "User:alice"),
        (scram("s=2Ci=3Dde=3D2Ccar"), "User:s,i=de=2Ccar"),
        (scram("alice", authzid="a=alice"), "User:alice"),
        (scram("alice", ",tokenauth=false"), "User:alice"),
        (scram("alice", ",other=tokenauth=true"), "User:alice"),
        (scram("alice", ",tokenauth=true,tokenauth=no"), "User:alice"),
        (b"n,,m=ext,n=alice,r=abc", "User:alice"),
        (scram(LONG), f"User:{LONG}"),
    ],
)
def test_scram(mechanism: str, first: bytes, principal: str) -> None:
    tracker = logged_in(mechanism, (first, SERVER_FIRST), (CLIENT_FINAL, SERVER_FINAL))
    assert who(tracker.connection) == (principal, "sasl", mechanism)
    for extensions in (",tokenauth=true", ",tokenauth=TRUE", ",a=b,tokenauth=True"):  # a delegation token's
        tracker = logged_in(mechanism, (scram("tokenId", extensions), SERVER_FIRST), (CLIENT_FINAL, SERVER_FINAL))
        assert who(tracker.connection) == (f"User:<unknown:{mechanism} token>", "unknown", mechanism)


@pytest.mark.promise(
    "principals.md", "The principal of OAUTHBEARER is the `a=` of the client, else the configured claim of its token."
)
@each(
    ("token", "principal"),
    [
        (bearer(jwt({"sub": "alice"})), "User:alice"),
        (bearer(jwt({"sub": "alice"}, signature="")), "User:alice"),
        (bearer(jwt({"sub": " ålice\t"})), "User:ålice"),
        (bearer(jwt({"sub": " alice "}, signature="")), "User: alice "),
        (bearer(jwt({"sub": "alice"}), authzid="a=alice"), "User:alice"),
        (bearer("opaque-token", authzid="a=alice"), "User:alice"),
        (b"n,,\x01auth=bEARER  " + jwt({"sub": "alice"}).encode() + b"\x01ext=v\x01\x01", "User:alice"),
        (b"n,,\x01auth=Bearer x\x01auth=Bearer " + jwt({"sub": "bob"}).encode() + b"\x01\x01", "User:bob"),
    ],
)
def test_oauthbearer(token: bytes, principal: str) -> None:
    assert who(logged_in("OAUTHBEARER", (token, b"")).connection) == (principal, "sasl", "OAUTHBEARER")
    claims = bearer(jwt({"sub": "1234", "preferred_username": "ann"}))
    tracker = logged_in("OAUTHBEARER", (claims, b""), sub_claim="preferred_username")
    assert tracker.connection.principal == "User:ann"


@each(
    ("mechanism", "token"),
    [
        ("PLAIN", b"\0alice"),
        ("PLAIN", b"\0alice\0secret\0more"),
        ("PLAIN", b"\0\0secret"),
        ("PLAIN", b""),
        ("OAUTHBEARER", bearer("opaque-token")),
        ("OAUTHBEARER", bearer("a.b.c.d.e")),
        ("OAUTHBEARER", bearer(jwt({"sub": 5}))),
        ("OAUTHBEARER", bearer(jwt({"sub": ""}))),
        ("OAUTHBEARER", bearer(jwt(["sub"]))),
        ("OAUTHBEARER", bearer("e30.bm8ganNvbg.x")),
        ("OAUTHBEARER", bearer("e30.A.x")),
        ("OAUTHBEARER", bearer(f"e30.{'W1tb' * 12_000}.x")),
        ("OAUTHBEARER", bearer(jwt({"sub": "\ud800"}))),
        ("OAUTHBEARER", b"n,,\x01auth=Basic abc\x01\x01"),
        ("OAUTHBEARER", b"\x01"),
    ],
)
def test_a_token_that_cannot_be_read_names_nobody(mechanism: str, token: bytes) -> None:
    tracker = logged_in(mechanism, (token, b""))
    assert who(tracker.connection) == (f"User:<unknown:{mechanism}>", "unknown", mechanism)


@pytest.mark.promise("limits.md", "No limit of principals applies where the name of a client cannot be read.")
@each(
    ("mechanism", "token", "counted"),
    [
        ("PLAIN", plain("alice"), ["User:alice"]),
        ("PLAIN", plain("x" * 1024), ["User:" + "x" * 1024]),
        ("PLAIN", plain("x" * 1025), []),
        ("OAUTHBEARER", bearer("opaque-token"), []),
        ("GSSAPI", b"wrapped", []),
    ],
)
def test_a_login_is_reported_to_the_limits_with_its_name_alone(
    mechanism: str, token: bytes, counted: list[str]
) -> None:
    named: list[str] = []
    tracker = PrincipalTracker(FRESH, on_named=named.append)
    for _ in range(2):  # a client that logs in again counts once
        shake(tracker, mechanism)
        step(tracker, token)
        tracker.passed(3.0)
        assert named == counted


@each("first", [b"", b"n,,r=abc,n=alice", b"y,,n=alice,r=abc", "n,,n=ålice,r=abc".encode(), b"n,,n=a=b,r=abc"])
def test_a_first_token_of_scram_that_cannot_be_read_names_nobody(first: bytes) -> None:
    second = scram("victim")  # not what the broker judges
    tracker = logged_in("SCRAM-SHA-256", (first, SERVER_FIRST), (second, SERVER_FINAL))
    assert tracker.connection.principal == "User:<unknown:SCRAM-SHA-256>"


@each("version", [0, 1, 2])
def test_an_accepted_login_is_believed_and_a_refused_one_reports_who_it_said_to_be(version: int) -> None:
    tracker = PrincipalTracker(FRESH)
    shake(tracker, "PLAIN")
    tracker.request(version, SASL_AUTHENTICATE, authenticate(plain("alice", "x" * 200), version))
    reply = authenticate_reply(version=version, lifetime_ms=5000)
    change = tracker.response(SASL_AUTHENTICATE, reply, 7.0)
    lifetime_ms = 5000 if version else 0
    assert change == ConnectionTransition(tracker.connection, "authenticated", 7.0, session_lifetime_ms=lifetime_ms)
    tracker = PrincipalTracker(FRESH)
    shake(tracker, "PLAIN")
    tracker.request(version, SASL_AUTHENTICATE, authenticate(plain("alice", "wrong"), version))
    refusal = authenticate_reply(version=version, error_code=58, message="Authentication failed: no")
    change = tracker.response(SASL_AUTHENTICATE, refusal, 7.0)
    assert (change.change, change.error_code, change.at) == ("authentication_failed", 58, 7.0)
    assert who(change.connection) == ("User:alice", "unauthenticated", "PLAIN")
    assert tracker.connection == FRESH
    assert tracker.closed(8.0) is None


@pytest.mark.promise(
    "principals.md", "A rejected bearer token makes nobody known, though its first answer has no error."
)
def test_a_rejected_bearer_token_is_not_believed_though_its_answer_has_no_error() -> None:
    tracker = PrincipalTracker(FRESH)
    shake(tracker, "OAUTHBEARER")
    assert step(tracker, bearer(jwt({"sub": "victim"})), REJECTED) is None
    change = step(tracker, b"\x01", error_code=58)
    assert change.change == "authentication_failed"
    assert who(change.connection) == ("User:victim", "unauthenticated", "OAUTHBEARER")
    assert tracker.connection == FRESH
    first, second = bearer(jwt({"sub": "victim"})), bearer(jwt({"sub": "mallory"}))
    tracker = logged_in("OAUTHBEARER", (first, REJECTED), (second, b""))
    assert tracker.connection.principal == "User:mallory"


def test_of_tokens_sent_at_once_each_answer_belongs_to_its_own() -> None:
    tracker = PrincipalTracker(FRESH)
    shake(tracker, "OAUTHBEARER")
    for name in ("mallory", "victim"):
        tracker.request(2, SASL_AUTHENTICATE, authenticate(bearer(jwt({"sub": name}))))
    assert tracker.response(SASL_AUTHENTICATE, authenticate_reply(), 2.0) is not None
    assert tracker.response(SASL_AUTHENTICATE, authenticate_reply(error_code=34), 2.0) is None
    assert tracker.connection.principal == "User:mallory"


@each(("mechanism", "error_code"), [("GSSAPI", 33), ("PLAIN", 34), ("plain", 33)])
def test_a_refused_handshake(mechanism: str, error_code: int) -> None:
    tracker = PrincipalTracker(FRESH)
    change = shake(tracker, mechanism, error_code)
    assert (change.change, change.error_code) == ("authentication_failed", error_code)
    assert who(change.connection) == (f"User:<unknown:{mechanism}>", "unauthenticated", mechanism)
    assert tracker.connection == FRESH
    assert tracker.closed(8.0) is None


@each(
    ("mechanism", "steps"),
    [
        ("PLAIN", [(plain("alice", "secret"), b"")]),
        ("SCRAM-SHA-256", [(scram("alice"), SERVER_FIRST), (CLIENT_FINAL, SERVER_FINAL)]),
        ("OAUTHBEARER", [(bearer(jwt({"sub": "alice"})), b"")]),
    ],
)
def test_bare_tokens(mechanism: str, steps: Sequence[tuple[bytes, bytes]]) -> None:
    tracker = PrincipalTracker(FRESH)
    tracker.request(0, SASL_HANDSHAKE, handshake(mechanism))
    tracker.response(SASL_HANDSHAKE, handshake_reply(), 1.0)
    changes = []
    for token, reply in steps:
        assert tracker.connection == FRESH
        tracker.token(token)
        changes.append(tracker.token_reply(reply, 2.0))
    assert changes[:-1] == [None] * (len(steps) - 1)
    assert changes[-1] == ConnectionTransition(tracker.connection, "authenticated", 2.0)
    assert who(tracker.connection) == ("User:alice", "sasl", mechanism)


def test_a_bare_token_that_is_answered_by_the_end_of_the_connection() -> None:
    tracker = PrincipalTracker(FRESH)
    tracker.request(0, SASL_HANDSHAKE, handshake("PLAIN"))
    tracker.response(SASL_HANDSHAKE, handshake_reply(), 1.0)
    tracker.token(plain("alice", "wrong"))
    change = tracker.closed(9.0)
    assert (change.change, change.error_code, change.at) == ("authentication_failed", 0, 9.0)
    assert who(change.connection) == ("User:alice", "unauthenticated", "PLAIN")
    assert tracker.closed(9.0) is None


@pytest.mark.promise(
    "principals.md",
    "A client of GSSAPI counts as logged in once the broker answers something that is neither SASL nor ApiVersions.",
)
def test_gssapi_is_through_once_something_else_is_answered() -> None:
    tracker = PrincipalTracker(FRESH)
    shake(tracker, "GSSAPI")
    assert not tracker.undecided
    assert step(tracker, b"\x60\x82AP-REQ", b"AP-REP") is None
    assert tracker.undecided
    assert tracker.closed(1.0) is None, "a login that may be complete has not failed"
    tracker.request(2, SASL_AUTHENTICATE, authenticate(b""))
    assert not tracker.undecided
    assert tracker.passed(2.0) is None
    assert tracker.response(SASL_AUTHENTICATE, authenticate_reply(b"wrapped"), 2.0) is None
    assert step(tracker, b"wrapped", lifetime_ms=60_000) is None
    assert tracker.connection == FRESH
    change = tracker.passed(4.0)
    assert change == ConnectionTransition(tracker.connection, "authenticated", 4.0, session_lifetime_ms=60_000)
    assert who(tracker.connection) == ("User:<unknown:GSSAPI>", "unknown", "GSSAPI")
    assert not tracker.undecided
    assert tracker.passed(5.0) is None


@each("reply", [None, b"", b"\0", b"\0\0\0\xff", authenticate_reply()[:-4]])
def test_an_answer_that_cannot_be_read_proves_no_name(reply: bytes | None) -> None:
    tracker = PrincipalTracker(FRESH)
    shake(tracker, "PLAIN")
    tracker.request(2, SASL_AUTHENTICATE, authenticate(plain("victim")))
    assert tracker.response(SASL_AUTHENTICATE, reply, 2.0) is None
    assert tracker.connection == FRESH
    assert tracker.passed(3.0) is not None
    assert who(tracker.connection) == ("User:<unknown:PLAIN>", "unknown", "PLAIN")
    for too_long in (None, b"", b"\x05abc", b"\x80\x80\x80\x80\x80\x80"):
        tracker = PrincipalTracker(FRESH)
        shake(tracker, "PLAIN")
        tracker.request(2, SASL_AUTHENTICATE, too_long)
        assert tracker.response(SASL_AUTHENTICATE, authenticate_reply(), 2.0) is not None
        assert who(tracker.connection) == ("User:<unknown:PLAIN>", "unknown", "PLAIN")


@each("body", [None, b"", b"\0\x09PLA", handshake("")])
def test_a_handshake_that_cannot_be_read(body: bytes | None) -> None:
    tracker = PrincipalTracker(FRESH)
    tracker.request(1, SASL_HANDSHAKE, body)
    assert tracker.response(SASL_HANDSHAKE, None, 1.0) is None
    assert step(tracker, plain("victim")) is None
    assert tracker.undecided
    assert tracker.passed(3.0) is not None
    assert who(tracker.connection) == ("User:<unknown:SASL>", "unknown", None)


def test_more_at_once_than_is_followed_makes_a_client_unknown_that_was_nobody() -> None:
    tracker = PrincipalTracker(FRESH)
    shake(tracker, "GSSAPI")
    for _ in range(MAX_UNANSWERED + 1):
        tracker.request(2, SASL_AUTHENTICATE, authenticate(b"token"))
    for _ in range(MAX_UNANSWERED + 1):
        assert tracker.response(SASL_AUTHENTICATE, authenticate_reply(b"token"), 2.0) is None
    assert tracker.connection == FRESH
    assert tracker.passed(3.0) is not None
    assert tracker.connection.principal == "User:<unknown:SASL>"
    shake(tracker, "PLAIN")
    assert step(tracker, plain("alice")) is not None
    assert tracker.connection.principal == "User:alice", "once all are answered logins are followed again"


@pytest.mark.promise(
    "principals.md", "A client with more than 16 unanswered tokens is unknown or whom it was, never somebody else."
)
@each("already", [False, True])
def test_nobody_loses_their_name_among_many_tokens(already: bool) -> None:
    tracker = logged_in("PLAIN", (plain("alice"), b"")) if already else PrincipalTracker(FRESH)
    tracker.request(1, SASL_HANDSHAKE, handshake("PLAIN"))
    tracker.request(2, SASL_AUTHENTICATE, authenticate(plain("alice")))
    for _ in range(2 * MAX_UNANSWERED):
        tracker.request(2, SASL_AUTHENTICATE, authenticate(plain("victim")))
    assert tracker.response(SASL_HANDSHAKE, handshake_reply(), 1.0) is None
    assert tracker.response(SASL_AUTHENTICATE, authenticate_reply(), 2.0) is not None
    for _ in range(2 * MAX_UNANSWERED):
        tracker.response(SASL_AUTHENTICATE, authenticate_reply(error_code=34), 2.0)
    assert tracker.passed(3.0) is None
    assert tracker.connection.principal == "User:alice"
    assert tracker.closed(4.0) is None


def test_many_tokens_make_nobody_unknown_where_nobody_logs_in() -> None:
    tracker = PrincipalTracker(replace(FRESH, principal_source="anonymous"))
    for _ in range(2 * MAX_UNANSWERED):
        tracker.request(2, SASL_AUTHENTICATE, authenticate(plain("victim")))
    for _ in range(2 * MAX_UNANSWERED):
        tracker.response(SASL_AUTHENTICATE, authenticate_reply(error_code=34), 2.0)
    assert tracker.passed(3.0) is None
    assert tracker.connection.principal == "User:ANONYMOUS"


def test_nobody_loses_their_name_to_a_later_login_that_cannot_be_read() -> None:
    tracker = logged_in("SCRAM-SHA-256", (scram("alice"), SERVER_FIRST), (CLIENT_FINAL, SERVER_FINAL))
    before = tracker.connection
    shake(tracker, "SCRAM-SHA-256")
    tracker.request(2, SASL_AUTHENTICATE, None)
    assert tracker.response(SASL_AUTHENTICATE, authenticate_reply(SERVER_FIRST), 2.0) is None
    assert step(tracker, CLIENT_FINAL, SERVER_FINAL, lifetime_ms=9) == ConnectionTransition(
        before, "authenticated", 2.0, session_lifetime_ms=9
    )


@pytest.mark.promise(
    "principals.md", "A second login that is refused gives `authentication_failed` and leaves the principal as it was."
)
def test_re_authentication_as_another_is_refused_and_changes_nothing() -> None:
    tracker = logged_in("PLAIN", (plain("alice"), b""))
    before = tracker.connection
    shake(tracker, "PLAIN")
    change = step(tracker, plain("bob"), error_code=58)
    assert who(change.connection) == ("User:bob", "unauthenticated", "PLAIN")
    assert tracker.connection is before
    assert tracker.closed(3.0) is None


@pytest.mark.promise("principals.md", "Names of client software that a broker refuses are left out.")
@each(
    ("version", "body", "reported"),
    [
        (3, software("apache-kafka-java", "4.3.1"), ("apache-kafka-java", "4.3.1")),
        (4, software("librdkafka", "2.16.1-rc.2"), ("librdkafka", "2.16.1-rc.2")),
        (9, software("of-the-future", "1") + b"more", ("of-the-future", "1")),
        (3, software("x" * MAX_CLIENT_NAME, "1"), ("x" * MAX_CLIENT_NAME, "1")),
        (3, software("x" * (MAX_CLIENT_NAME + 1), "1"), (None, None)),
        (3, software("x", "1" * (MAX_CLIENT_NAME + 1)), (None, None)),
        (2, software("not-there-yet", "1"), (None, None)),
        (0, b"", (None, None)),
        (3, None, (None, None)),
        (3, b"", (None, None)),
        (3, b"\x09abc", (None, None)),
        (3, b"\0\0\0", (None, None)),
        (3, software("", ""), (None, None)),
        (3, software("-refused", "1"), (None, None)),
        (3, software("line\nfeed", "1"), (None, None)),
        (3, software("name", "ålpha"), (None, None)),
    ],
)
def test_software(version: int, body: bytes | None, reported: tuple[str | None, str | None]) -> None:
    tracker = PrincipalTracker(FRESH)
    tracker.request(version, API_VERSIONS, body)
    connection = tracker.connection
    assert (connection.client_software_name, connection.client_software_version) == reported
    assert FRESH.client_software_name is None
    assert who(connection) == who(FRESH)
    assert tracker.closed(1.0) is None


CANARY = "canary-7f3a"


@pytest.mark.promise("principals.md", "Passwords, proofs and tokens are dropped with the frame that brings them.")
@each(
    ("mechanism", "tokens"),
    [
        ("PLAIN", [plain("alice", CANARY)]),
        ("PLAIN", [f"{CANARY}".encode()]),
        ("PLAIN", [f"\0alice\0{CANARY}\0".encode()]),
        ("SCRAM-SHA-256", [scram("alice", f",x={CANARY}"), CLIENT_FINAL.replace(b"v0X8v3Bz", CANARY.encode())]),
        ("SCRAM-SHA-256", [f"n=alice,p={CANARY}".encode()]),
        ("OAUTHBEARER", [bearer(jwt({"sub": "alice", "secret": CANARY}, signature=CANARY))]),
        ("OAUTHBEARER", [bearer(CANARY)]),
        ("GSSAPI", [CANARY.encode()]),
        ("CUSTOM", [CANARY.encode(), CANARY.encode()]),
    ],
)
@each("bare", [False, True])
def test_no_secret_outlives_the_call_that_brings_it(mechanism: str, tokens: list[bytes], bare: bool) -> None:
    tracker = PrincipalTracker(FRESH)
    shake(tracker, mechanism)
    for token in tokens:
        if bare:
            tracker.token(token)
        else:
            tracker.request(2, SASL_AUTHENTICATE, authenticate(token))
        held = pickle.dumps(tracker)
        assert b"canary" not in held
        assert token[:12] not in held or token == plain("alice", CANARY)
        reply = CANARY.encode()
        change = (
            tracker.token_reply(reply, 2.0)
            if bare
            else tracker.response(SASL_AUTHENTICATE, authenticate_reply(reply), 2.0)
        )
        assert b"canary" not in pickle.dumps((tracker, change))
    assert b"canary" not in pickle.dumps((tracker.closed(3.0), tracker))
