"""Whatever bytes come in whatever order: no error, nothing beyond a bound, nobody believed without the broker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.exchange import Connection, ConnectionTransition
from proxy.core.principal_tracker import (
    API_VERSIONS,
    MAX_UNANSWERED,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    PrincipalTracker,
)
from tests.property.strategies import INT16, damaged
from tests.sasl import authenticate, authenticate_reply, bearer, handshake, handshake_reply, jwt, plain, scram, software

FRESH = Connection("c-1", "CLIENT", "127.0.0.1", 5, 0.0, "User:ANONYMOUS", principal_source="unauthenticated")
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"]
KEYS = [SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE]

names = st.text(max_size=20)
tokens = st.one_of(
    st.builds(plain, names, names),
    st.builds(scram, names, st.sampled_from(["", ",tokenauth=true"])),
    st.builds(lambda name: bearer(jwt({"sub": name})), names),
    st.sampled_from([b"", b"\x01", b"v=x", b"r=x"]),
    st.binary(max_size=80),
)
versions = st.one_of(st.integers(0, 3), INT16)


@st.composite
def bodies(draw: st.DrawFn) -> bytes | None:
    """A body of any of the messages, as it should be or damaged, anything else, or none."""
    version = draw(st.integers(0, 2))
    right = st.one_of(
        st.sampled_from(MECHANISMS).map(handshake),
        st.sampled_from([0, 33, 34]).map(handshake_reply),
        tokens.map(lambda token: authenticate(token, version)),
        st.builds(authenticate_reply, tokens, st.just(version), error_code=st.sampled_from([0, 58])),
        st.builds(software, names, names),
    )
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return draw(st.one_of(st.none(), st.binary(max_size=100)))
    body = draw(right)
    return draw(damaged(body)) if kind == 1 and body else body


calls = st.one_of(
    st.tuples(st.just("request"), versions, st.sampled_from(KEYS), bodies()),
    st.tuples(st.just("response"), st.sampled_from(KEYS), bodies()),
    st.tuples(st.just("token"), st.one_of(st.none(), tokens)),
    st.tuples(st.just("token_reply"), st.one_of(st.none(), tokens)),
    st.tuples(st.just("passed")),
    st.tuples(st.just("closed")),
)

FROM_CLIENT = {"request", "token"}


@pytest.mark.promise(
    "principals.md", "Whatever a client sends, nobody is believed to be somebody before the broker has agreed."
)
@given(st.lists(calls, max_size=3 * MAX_UNANSWERED))
def test_any_bytes_in_any_order(reported: list[tuple[Any, ...]]) -> None:
    identity = PrincipalTracker(FRESH)
    for name, *arguments in reported:
        before = identity.connection
        if name in FROM_CLIENT:
            assert getattr(identity, name)(*arguments) is None
            assert _login(identity.connection) == _login(before)
            continue
        undecided = identity.undecided
        change = getattr(identity, name)(*arguments, 1.0)
        if change is None:
            assert identity.connection is before
            continue
        assert isinstance(change, ConnectionTransition)
        if change.change == "authenticated":
            assert undecided if name == "passed" else arguments[-1] is not None
            assert change.connection is identity.connection
            assert identity.connection.principal_source in {"sasl", "unknown"}
        else:
            assert change.change == "authentication_failed"
            assert change.connection.principal_source == "unauthenticated"
            assert identity.connection is before
        change.connection.principal.encode()
        assert not identity.undecided
        assert len(identity._steps) <= MAX_UNANSWERED


def _login(connection: Connection) -> tuple[str, str, str | None]:
    return connection.principal, connection.principal_source, connection.sasl_mechanism
