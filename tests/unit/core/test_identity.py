"""Who a client is, from the bodies of its own requests and of the broker's responses."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from proxy.compiled.exchange import Exchange
from proxy.core.exchange import Connection, ConnectionChange
from proxy.core.identity import API_VERSIONS, MAX_NAME, MAX_UNANSWERED, SASL_AUTHENTICATE, SASL_HANDSHAKE, Identity
from proxy.core.session import Session
from proxy.core.tally import Tally
from tests.frames import METADATA, request, response
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
from tests.tools.watching import watching

FRESH = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source="unauthenticated")
SERVER_FIRST = f"r={NONCE}3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096".encode()
SERVER_FINAL = b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="
CLIENT_FINAL = f"c=biws,r={NONCE}3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=".encode()
REJECTED = b'{"status":"invalid_token"}'

LONG = "x" * 300

Who = tuple[str, str, str | None]


def who(connection: Connection) -> Who:
    return connection.principal, connection.principal_source, connection.sasl_mechanism


def shake(identity: Identity, mechanism: str, error_code: int = 0) -> ConnectionChange | None:
    identity.request(1, SASL_HANDSHAKE, handshake(mechanism))
    return identity.response(SASL_HANDSHAKE, handshake_reply(error_code), 1.0)


def step(
    identity: Identity, token: bytes, reply: bytes = b"", *, error_code: int = 0, lifetime_ms: int = 0
) -> ConnectionChange | None:
    identity.request(2, SASL_AUTHENTICATE, authenticate(token))
    answer = authenticate_reply(reply, error_code=error_code, lifetime_ms=lifetime_ms)
    return identity.response(SASL_AUTHENTICATE, answer, 2.0)


def undecided(identity: Identity) -> bool:
    return identity.undecided


def logged_in(mechanism: str, *steps: tuple[bytes, bytes], sub_claim: str = "sub") -> Identity:
    """After a login with these tokens and answers; nothing is believed before the last one."""
    identity = Identity(FRESH, sub_claim)
    assert shake(identity, mechanism) is None
    for token, reply in steps[:-1]:
        assert step(identity, token, reply) is None
        assert identity.connection == FRESH
    change = step(identity, *steps[-1])
    assert change == ConnectionChange(identity.connection, "authenticated", 2.0)
    assert not undecided(identity)
    assert identity.closed(3.0) is None
    return identity


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
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
    identity = logged_in(mechanism, (first, SERVER_FIRST), (CLIENT_FINAL, SERVER_FINAL))
    assert who(identity.connection) == (principal, "sasl", mechanism)


@pytest.mark.parametrize("extensions", [",tokenauth=true", ",tokenauth=TRUE", ",a=b,tokenauth=True"])
def test_a_delegation_token_s_owner_is_unknown(extensions: str) -> None:
    identity = logged_in("SCRAM-SHA-256", (scram("tokenId", extensions), SERVER_FIRST), (CLIENT_FINAL, SERVER_FINAL))
    assert who(identity.connection) == ("User:<unknown:SCRAM-SHA-256 token>", "unknown", "SCRAM-SHA-256")


@pytest.mark.parametrize(
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


def test_the_claim_of_a_token_that_holds_the_name_can_be_another() -> None:
    token = bearer(jwt({"sub": "1234", "preferred_username": "alice"}))
    identity = logged_in("OAUTHBEARER", (token, b""), sub_claim="preferred_username")
    assert identity.connection.principal == "User:alice"


@pytest.mark.parametrize(
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
    identity = logged_in(mechanism, (token, b""))
    assert who(identity.connection) == (f"User:<unknown:{mechanism}>", "unknown", mechanism)


@pytest.mark.parametrize(
    "first", [b"", b"n,,r=abc,n=alice", b"y,,n=alice,r=abc", "n,,n=ålice,r=abc".encode(), b"n,,n=a=b,r=abc"]
)
def test_a_first_token_of_scram_that_cannot_be_read_names_nobody(first: bytes) -> None:
    second = scram("victim")  # not what the broker judges
    identity = logged_in("SCRAM-SHA-256", (first, SERVER_FIRST), (second, SERVER_FINAL))
    assert identity.connection.principal == "User:<unknown:SCRAM-SHA-256>"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_saslauthenticate(version: int) -> None:
    identity = Identity(FRESH)
    shake(identity, "PLAIN")
    identity.request(version, SASL_AUTHENTICATE, authenticate(plain("alice", "x" * 200), version))
    reply = authenticate_reply(version=version, lifetime_ms=5000)
    change = identity.response(SASL_AUTHENTICATE, reply, 7.0)
    lifetime_ms = 5000 if version else 0
    assert change == ConnectionChange(identity.connection, "authenticated", 7.0, session_lifetime_ms=lifetime_ms)
    assert identity.connection.principal == "User:alice"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_refused_login_tells_who_it_said_to_be(version: int) -> None:
    identity = Identity(FRESH)
    shake(identity, "PLAIN")
    identity.request(version, SASL_AUTHENTICATE, authenticate(plain("alice", "wrong"), version))
    refusal = authenticate_reply(version=version, error_code=58, message="Authentication failed: no")
    change = identity.response(SASL_AUTHENTICATE, refusal, 7.0)
    assert change is not None
    assert (change.change, change.error_code, change.at) == ("authentication_failed", 58, 7.0)
    assert who(change.connection) == ("User:alice", "unauthenticated", "PLAIN")
    assert identity.connection == FRESH
    assert identity.closed(8.0) is None


def test_scram_refused_at_its_second_token() -> None:
    identity = Identity(FRESH)
    shake(identity, "SCRAM-SHA-512")
    assert step(identity, scram("alice"), SERVER_FIRST) is None
    change = step(identity, CLIENT_FINAL, error_code=58)
    assert change is not None
    assert who(change.connection) == ("User:alice", "unauthenticated", "SCRAM-SHA-512")
    assert identity.connection == FRESH


def test_a_rejected_bearer_token_is_not_believed_though_its_answer_has_no_error() -> None:
    identity = Identity(FRESH)
    shake(identity, "OAUTHBEARER")
    assert step(identity, bearer(jwt({"sub": "victim"})), REJECTED) is None
    change = step(identity, b"\x01", error_code=58)
    assert change is not None
    assert change.change == "authentication_failed"
    assert who(change.connection) == ("User:victim", "unauthenticated", "OAUTHBEARER")
    assert identity.connection == FRESH


def test_a_bearer_token_after_a_rejected_one_is_who_the_client_is() -> None:
    first, second = bearer(jwt({"sub": "victim"})), bearer(jwt({"sub": "mallory"}))
    identity = logged_in("OAUTHBEARER", (first, REJECTED), (second, b""))
    assert identity.connection.principal == "User:mallory"


def test_of_tokens_sent_at_once_each_answer_belongs_to_its_own() -> None:
    identity = Identity(FRESH)
    shake(identity, "OAUTHBEARER")
    for name in ("mallory", "victim"):
        identity.request(2, SASL_AUTHENTICATE, authenticate(bearer(jwt({"sub": name}))))
    assert identity.response(SASL_AUTHENTICATE, authenticate_reply(), 2.0) is not None
    assert identity.response(SASL_AUTHENTICATE, authenticate_reply(error_code=34), 2.0) is None
    assert identity.connection.principal == "User:mallory"


def test_handshake_and_token_sent_at_once() -> None:
    identity = Identity(FRESH)
    identity.request(3, API_VERSIONS, software("apache-kafka-java", "4.3.1"))
    identity.request(1, SASL_HANDSHAKE, handshake("PLAIN"))
    identity.request(2, SASL_AUTHENTICATE, authenticate(plain("alice")))
    assert identity.response(API_VERSIONS, b"anything", 1.0) is None
    assert identity.response(SASL_HANDSHAKE, handshake_reply(), 1.0) is None
    assert identity.connection.principal == "User:ANONYMOUS"
    assert identity.response(SASL_AUTHENTICATE, authenticate_reply(), 1.0) is not None
    assert identity.connection.principal == "User:alice"


@pytest.mark.parametrize(("mechanism", "error_code"), [("GSSAPI", 33), ("PLAIN", 34), ("plain", 33)])
def test_a_refused_handshake(mechanism: str, error_code: int) -> None:
    identity = Identity(FRESH)
    change = shake(identity, mechanism, error_code)
    assert change is not None
    assert (change.change, change.error_code) == ("authentication_failed", error_code)
    assert who(change.connection) == (f"User:<unknown:{mechanism}>", "unauthenticated", mechanism)
    assert identity.connection == FRESH
    assert identity.closed(8.0) is None


# ---- bare tokens, after SaslHandshake v0 -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "steps"),
    [
        ("PLAIN", [(plain("alice", "secret"), b"")]),
        ("SCRAM-SHA-256", [(scram("alice"), SERVER_FIRST), (CLIENT_FINAL, SERVER_FINAL)]),
        ("OAUTHBEARER", [(bearer(jwt({"sub": "alice"})), b"")]),
    ],
)
def test_bare_tokens(mechanism: str, steps: Sequence[tuple[bytes, bytes]]) -> None:
    identity = Identity(FRESH)
    identity.request(0, SASL_HANDSHAKE, handshake(mechanism))
    identity.response(SASL_HANDSHAKE, handshake_reply(), 1.0)
    changes = []
    for token, reply in steps:
        assert identity.connection == FRESH
        identity.token(token)
        changes.append(identity.token_reply(reply, 2.0))
    assert changes[:-1] == [None] * (len(steps) - 1)
    assert changes[-1] == ConnectionChange(identity.connection, "authenticated", 2.0)
    assert who(identity.connection) == ("User:alice", "sasl", mechanism)


def test_a_bare_token_that_is_answered_by_the_end_of_the_connection() -> None:
    identity = Identity(FRESH)
    identity.request(0, SASL_HANDSHAKE, handshake("PLAIN"))
    identity.response(SASL_HANDSHAKE, handshake_reply(), 1.0)
    identity.token(plain("alice", "wrong"))
    change = identity.closed(9.0)
    assert change is not None
    assert (change.change, change.error_code, change.at) == ("authentication_failed", 0, 9.0)
    assert who(change.connection) == ("User:alice", "unauthenticated", "PLAIN")
    assert identity.closed(9.0) is None


# ---- what cannot be seen ---------------------------------------------------------------------------------------


def test_gssapi_is_through_once_something_else_is_answered() -> None:
    identity = Identity(FRESH)
    shake(identity, "GSSAPI")
    assert not undecided(identity)
    assert step(identity, b"\x60\x82AP-REQ", b"AP-REP") is None
    assert undecided(identity)
    identity.request(2, SASL_AUTHENTICATE, authenticate(b""))
    assert not undecided(identity)
    assert identity.passed(2.0) is None
    assert identity.response(SASL_AUTHENTICATE, authenticate_reply(b"wrapped"), 2.0) is None
    assert step(identity, b"wrapped", lifetime_ms=60_000) is None
    assert identity.connection == FRESH
    change = identity.passed(4.0)
    assert change == ConnectionChange(identity.connection, "authenticated", 4.0, session_lifetime_ms=60_000)
    assert who(identity.connection) == ("User:<unknown:GSSAPI>", "unknown", "GSSAPI")
    assert not undecided(identity)
    assert identity.passed(5.0) is None


def test_gssapi_refused() -> None:
    identity = Identity(FRESH)
    shake(identity, "GSSAPI")
    step(identity, b"\x60\x82AP-REQ", b"AP-REP")
    change = step(identity, b"", error_code=58)
    assert change is not None
    assert who(change.connection) == ("User:<unknown:GSSAPI>", "unauthenticated", "GSSAPI")
    assert not undecided(identity)


def test_a_login_that_may_be_complete_has_not_failed_when_the_connection_ends() -> None:
    identity = Identity(FRESH)
    shake(identity, "GSSAPI")
    step(identity, b"\x60\x82AP-REQ")
    assert identity.closed(3.0) is None


@pytest.mark.parametrize("reply", [None, b"", b"\0", b"\0\0\0\xff", authenticate_reply()[:-4]])
def test_an_answer_that_cannot_be_read_proves_no_name(reply: bytes | None) -> None:
    identity = Identity(FRESH)
    shake(identity, "PLAIN")
    identity.request(2, SASL_AUTHENTICATE, authenticate(plain("victim")))
    assert identity.response(SASL_AUTHENTICATE, reply, 2.0) is None
    assert identity.connection == FRESH
    assert identity.passed(3.0) is not None
    assert who(identity.connection) == ("User:<unknown:PLAIN>", "unknown", "PLAIN")


@pytest.mark.parametrize("body", [None, b"", b"\x05abc", b"\x80\x80\x80\x80\x80\x80"])
def test_a_token_too_long_to_be_kept(body: bytes | None) -> None:
    identity = Identity(FRESH)
    shake(identity, "PLAIN")
    identity.request(2, SASL_AUTHENTICATE, body)
    assert identity.response(SASL_AUTHENTICATE, authenticate_reply(), 2.0) is not None
    assert who(identity.connection) == ("User:<unknown:PLAIN>", "unknown", "PLAIN")


@pytest.mark.parametrize("body", [None, b"", b"\0\x09PLA", handshake("")])
def test_a_handshake_that_cannot_be_read(body: bytes | None) -> None:
    identity = Identity(FRESH)
    identity.request(1, SASL_HANDSHAKE, body)
    assert identity.response(SASL_HANDSHAKE, None, 1.0) is None
    assert step(identity, plain("victim")) is None
    assert undecided(identity)
    assert identity.passed(3.0) is not None
    assert who(identity.connection) == ("User:<unknown:SASL>", "unknown", None)


def test_more_at_once_than_is_followed_makes_a_client_unknown_that_was_nobody() -> None:
    identity = Identity(FRESH)
    shake(identity, "GSSAPI")
    for _ in range(MAX_UNANSWERED + 1):
        identity.request(2, SASL_AUTHENTICATE, authenticate(b"token"))
    for _ in range(MAX_UNANSWERED + 1):
        assert identity.response(SASL_AUTHENTICATE, authenticate_reply(b"token"), 2.0) is None
    assert identity.connection == FRESH
    assert identity.passed(3.0) is not None
    assert identity.connection.principal == "User:<unknown:SASL>"
    shake(identity, "PLAIN")
    assert step(identity, plain("alice")) is not None
    assert identity.connection.principal == "User:alice", "once all are answered logins are followed again"


@pytest.mark.parametrize("already", [False, True])
def test_nobody_loses_their_name_among_many_tokens(already: bool) -> None:
    identity = logged_in("PLAIN", (plain("alice"), b"")) if already else Identity(FRESH)
    identity.request(1, SASL_HANDSHAKE, handshake("PLAIN"))
    identity.request(2, SASL_AUTHENTICATE, authenticate(plain("alice")))
    for _ in range(2 * MAX_UNANSWERED):
        identity.request(2, SASL_AUTHENTICATE, authenticate(plain("victim")))
    assert identity.response(SASL_HANDSHAKE, handshake_reply(), 1.0) is None
    assert identity.response(SASL_AUTHENTICATE, authenticate_reply(), 2.0) is not None
    for _ in range(2 * MAX_UNANSWERED):
        identity.response(SASL_AUTHENTICATE, authenticate_reply(error_code=34), 2.0)
    assert identity.passed(3.0) is None
    assert identity.connection.principal == "User:alice"
    assert identity.closed(4.0) is None


def test_many_tokens_make_nobody_unknown_where_nobody_logs_in() -> None:
    identity = Identity(replace(FRESH, principal_source="anonymous"))
    for _ in range(2 * MAX_UNANSWERED):
        identity.request(2, SASL_AUTHENTICATE, authenticate(plain("victim")))
    for _ in range(2 * MAX_UNANSWERED):
        identity.response(SASL_AUTHENTICATE, authenticate_reply(error_code=34), 2.0)
    assert identity.passed(3.0) is None
    assert identity.connection.principal == "User:ANONYMOUS"


def test_nobody_loses_their_name_to_a_later_login_that_cannot_be_read() -> None:
    identity = logged_in("SCRAM-SHA-256", (scram("alice"), SERVER_FIRST), (CLIENT_FINAL, SERVER_FINAL))
    before = identity.connection
    shake(identity, "SCRAM-SHA-256")
    identity.request(2, SASL_AUTHENTICATE, None)
    assert identity.response(SASL_AUTHENTICATE, authenticate_reply(SERVER_FIRST), 2.0) is None
    assert step(identity, CLIENT_FINAL, SERVER_FINAL, lifetime_ms=9) == ConnectionChange(
        before, "authenticated", 2.0, session_lifetime_ms=9
    )


def test_a_stray_token_is_refused_once() -> None:
    identity = Identity(FRESH)
    change = step(identity, plain("victim"), error_code=34)
    assert change is not None
    assert who(change.connection) == ("User:<unknown:SASL>", "unauthenticated", None)
    assert identity.closed(3.0) is None


@pytest.mark.parametrize("begun", [False, True])
def test_a_login_that_was_cut(begun: bool) -> None:
    identity = Identity(FRESH)
    assert identity.closed(1.0) is None
    shake(identity, "SCRAM-SHA-256")
    if begun:
        step(identity, scram("alice"), SERVER_FIRST)
    change = identity.closed(3.0)
    assert change is not None
    assert (change.change, change.error_code) == ("authentication_failed", 0)
    assert change.connection.principal == ("User:alice" if begun else "User:<unknown:SCRAM-SHA-256>")


def test_a_session_tells_of_gssapi_with_the_first_answer_to_something_else() -> None:
    exchanges: list[Exchange] = []
    changes: list[ConnectionChange] = []
    watch = watching(exchanges.append, changes.append)
    session = Session(FRESH, Tally(), watch, identity=Identity(FRESH))
    asked = [(SASL_HANDSHAKE, handshake("GSSAPI")), (SASL_AUTHENTICATE, authenticate(b"token", 1)), (METADATA, b"")]
    answers = [handshake_reply(), authenticate_reply(b"", 1), b"\0\0"]
    for number, ((key, body), answer) in enumerate(zip(asked, answers, strict=True)):
        session.client_data(request(key, 1, number, body), 1.0)
        session.walk(1.0)
        session.broker_data(response(number, answer), 2.0)
        session.walk(2.0)
    through = ("User:<unknown:GSSAPI>", "unknown", "GSSAPI")
    assert [who(one.connection) for one in exchanges] == [who(FRESH), who(FRESH), through]
    assert [(one.change, who(one.connection)) for one in changes] == [("authenticated", through)]
    assert watch.observed[0] == len(exchanges) + len(changes)


# ---- later -----------------------------------------------------------------------------------------------------


def test_re_authentication() -> None:
    identity = logged_in("PLAIN", (plain("alice"), b""))
    before = identity.connection
    assert shake(identity, "PLAIN") is None
    assert identity.connection == before
    change = step(identity, plain("alice"), lifetime_ms=3000)
    assert change == ConnectionChange(before, "authenticated", 2.0, session_lifetime_ms=3000)


def test_re_authentication_as_another_is_refused_and_changes_nothing() -> None:
    identity = logged_in("PLAIN", (plain("alice"), b""))
    before = identity.connection
    shake(identity, "PLAIN")
    change = step(identity, plain("bob"), error_code=58)
    assert change is not None
    assert who(change.connection) == ("User:bob", "unauthenticated", "PLAIN")
    assert identity.connection is before
    assert identity.closed(3.0) is None


@pytest.mark.parametrize(
    ("version", "body", "told"),
    [
        (3, software("apache-kafka-java", "4.3.1"), ("apache-kafka-java", "4.3.1")),
        (4, software("librdkafka", "2.16.1-rc.2"), ("librdkafka", "2.16.1-rc.2")),
        (9, software("of-the-future", "1") + b"more", ("of-the-future", "1")),
        (3, software("x" * MAX_NAME, "1"), ("x" * MAX_NAME, "1")),
        (3, software("x" * (MAX_NAME + 1), "1"), (None, None)),
        (3, software("x", "1" * (MAX_NAME + 1)), (None, None)),
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
def test_software(version: int, body: bytes | None, told: tuple[str | None, str | None]) -> None:
    identity = Identity(FRESH)
    identity.request(version, API_VERSIONS, body)
    connection = identity.connection
    assert (connection.client_software_name, connection.client_software_version) == told
    assert FRESH.client_software_name is None
    assert who(connection) == who(FRESH)
    assert identity.closed(1.0) is None


def test_software_is_kept_by_a_login_and_a_login_by_software() -> None:
    identity = Identity(FRESH)
    identity.request(4, API_VERSIONS, software("a", "1"))  # too new for the broker, so asked again
    identity.request(0, API_VERSIONS, b"")
    shake(identity, "PLAIN")
    step(identity, plain("alice"))
    assert identity.connection.client_software_name == "a"
    identity.request(3, API_VERSIONS, software("b", "2"))
    assert identity.connection.client_software_name == "b"
    assert identity.connection.principal == "User:alice"


# ---- secrets ---------------------------------------------------------------------------------------------------

CANARY = "canary-7f3a"


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("bare", [False, True])
def test_no_secret_outlives_the_call_that_brings_it(mechanism: str, tokens: list[bytes], bare: bool) -> None:
    identity = Identity(FRESH)
    shake(identity, mechanism)
    for token in tokens:
        if bare:
            identity.token(token)
        else:
            identity.request(2, SASL_AUTHENTICATE, authenticate(token))
        held = pickle.dumps(identity)
        assert b"canary" not in held
        assert token[:12] not in held or token == plain("alice", CANARY)
        reply = CANARY.encode()
        change = (
            identity.token_reply(reply, 2.0)
            if bare
            else identity.response(SASL_AUTHENTICATE, authenticate_reply(reply), 2.0)
        )
        assert b"canary" not in pickle.dumps((identity, change))
    assert b"canary" not in pickle.dumps((identity.closed(3.0), identity))
