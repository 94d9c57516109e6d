"""Who a client is, learnt from what passes: SASL, as the client said it and the broker agreed to it; ApiVersions.

The client says a name in its first token; it is believed once the broker's answer is the one that ends that mechanism
with success. Tokens are read as Kafka 4.3's servers read them (``PlainSaslServer``, ``ScramMessages``,
``OAuthBearerClientInitialResponse``): a token that means one name here and another there would be a disguise. What
cannot be read here is reported as unknown, never guessed.

Of a token nothing but the name outlives the call that brings it: no password, no proof, no credential.
"""

from __future__ import annotations

import binascii
import re
import struct
from base64 import urlsafe_b64decode
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from proxy.core.exchange import Connection, ConnectionTransition, PrincipalSource
from proxy.core.wire import TRUNCATED, DecodeError, compact_length, compact_string, int32_length, string

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36

MAX_UNANSWERED = 16
"""Handshakes and tokens that are kept until they are answered; clients send one or two at a time. Those beyond are only
counted, and what they bring about is unknown."""

MAX_CLIENT_NAME = 255
"""Longest name in bytes of a mechanism or of a client's software; longer ones are none that anybody has, and count as
not reported."""

MAX_KEPT_BODIES, MAX_KEPT_BODY = 256, 128
"""How many ApiVersions requests are kept with what they say, and of at most how many bytes: most clients send the
same."""

MAX_PRINCIPAL = 1024
"""Longest name in characters of a client that logs in; a longer name is reported as unknown. What a client says
before its login is kept until the broker answers it."""

_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_GIVEN_UP = b"\x01"  # what a client says to a rejected OAUTHBEARER token
_BARE = -1  # in place of an api key: a token without a request around it
_UNREADABLE = (*TRUNCATED, DecodeError)

_SASL_NAME = rb"(?:[\x01-+\--<>-\x7f]++|=2C|=3D)+"
_SCRAM_FIRST = re.compile(
    rb"n,(?:a=%(name)s)?,(?:m=%(value)s,)?n=(?P<name>%(name)s),r=[!-+\--~]+(?P<extensions>(?:,[A-Za-z]+=%(value)s)*)"
    % {b"name": _SASL_NAME, b"value": rb"[\x01-+\--\x7f]+"}
)
_OAUTH_FIRST = re.compile(rb"n,(?:a=(?P<name>%s))?,\x01(?P<pairs>(?:[A-Za-z]+=[!-~ \t\r\n]+\x01)*)\x01" % _SASL_NAME)
_BEARER = re.compile(rb"bearer +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)
_SOFTWARE = re.compile(rb"[a-zA-Z0-9](?:[-.a-zA-Z0-9]*[a-zA-Z0-9])?")  # others the broker refuses, with error 42
_JAVA_BLANKS = "".join(map(chr, range(33)))

_int16 = struct.Struct(">h").unpack_from
_int64 = struct.Struct(">q").unpack_from


class _Claim(NamedTuple):
    """Who a client says it is."""

    principal: str
    source: PrincipalSource = "sasl"


class _Attempt(Struct, gc=False):
    """One login, from its handshake on. ``mechanism`` is None where no handshake was read."""

    mechanism: str | None = None
    claim: _Claim | None = None
    lifetime_ms: int = 0
    ended: bool = False


class _Step(NamedTuple):
    """Something that the broker is to answer; ``claim`` is what its success would prove."""

    api_key: int
    version: int
    attempt: _Attempt
    claim: _Claim | None = None


class _Reply(NamedTuple):
    error_code: int = 0
    token: bytes | None = None
    """None where it could not be read."""
    lifetime_ms: int = 0


class PrincipalTracker:
    """Of one connection; ``sub_claim``: the claim of an OAUTHBEARER token that holds the name.

    ``on_named(principal)`` is called once, when the broker has accepted a login with a name that could be read. It must
    not raise, nor use the session.

    Gets the bodies (after the header) of the requests and responses of SaslHandshake and SaslAuthenticate and of the
    requests of ApiVersions, each in the order of its direction; None for one that is too long to be kept. No bytes
    make it raise. Source: KIP-43, KIP-152, KIP-368, KIP-511.

    Nobody becomes someone else by logging in again: Kafka refuses that (KIP-368). So a name that was believed stays
    where a later login cannot be read, or is lost among too many.

    ``connection``: the client as it is known now. ``undecided``: whether only the broker's answer to something else
    can show that the client is through: call ``passed`` then. ``login``: when the client has logged in last, in seconds
    of the loop's monotonic clock, and for how many seconds the broker lets that last (KIP-368); 0: for ever.
    """

    __slots__ = ("_attempt", "_on_named", "_steps", "_sub_claim", "_unread", "connection", "login", "undecided")

    def __init__(
        self,
        connection: Connection,
        sub_claim: str = "sub",
        on_named: Callable[[str], None] | None = None,
    ) -> None:
        self.connection = connection
        self.undecided = False
        self.login = (0.0, 0.0)
        self._sub_claim = sub_claim
        self._on_named = on_named
        self._attempt: _Attempt | None = None  # what tokens belong to
        self._steps: list[_Step] = []  # that the broker is still to answer, the oldest first
        self._unread = 0  # steps after those, of which nothing else is known

    # ---- from the client ----------------------------------------------------------------------------------------

    def request(self, api_version: int, api_key: int, body: bytes | None) -> None:
        """Take a request's body."""
        if api_key == API_VERSIONS:
            self._software(api_version, body)
        elif api_key == SASL_HANDSHAKE:
            self._attempt = _Attempt(_mechanism(body))
            self._expect(_Step(api_key, api_version, self._attempt))
        elif api_key == SASL_AUTHENTICATE:
            self._say(api_key, api_version, _sent_token(api_version, body))

    def token(self, body: bytes | None) -> None:
        """Take a token that came as a bare frame, after SaslHandshake v0."""
        self._say(_BARE, 0, body)

    def _say(self, api_key: int, version: int, token: bytes | None) -> None:
        attempt = self._attempt
        if attempt is None:
            attempt = self._attempt = _Attempt()
        # Of OAUTHBEARER the broker takes another first token after a rejected one.
        if attempt.claim is None or not (attempt.mechanism in _SCRAM or token == _GIVEN_UP):
            attempt.claim = _claim(attempt.mechanism, token, self._sub_claim)
        self._expect(_Step(api_key, version, attempt, attempt.claim))

    def _expect(self, step: _Step) -> None:
        if self._unread or len(self._steps) >= MAX_UNANSWERED:
            self._unread += 1
            self._attempt = None
            self.undecided = self.connection.principal_source == "unauthenticated"
        else:
            self._steps.append(step)
            self.undecided = False

    def _software(self, api_version: int, body: bytes | None) -> None:
        if api_version < 3 or body is None:
            return
        named = _kept_software(body) if len(body) <= MAX_KEPT_BODY else _software(body)
        if named is not None:
            name, version = named
            self.connection = replace(self.connection, client_software_name=name, client_software_version=version)

    # ---- from the broker ----------------------------------------------------------------------------------------

    def response(self, api_key: int, body: bytes | None, at: float) -> ConnectionTransition | None:
        """Take a response's body; ``at``: seconds, the loop's monotonic clock."""
        step = self._answers(api_key)
        if step is None:
            return None
        if api_key == SASL_HANDSHAKE:
            error_code = _error_code(body)
            return self._failed(step.attempt, error_code, at) if error_code else None
        return self._judged(step, _reply(step.version, body), at)

    def token_reply(self, body: bytes | None, at: float) -> ConnectionTransition | None:
        """Take what answers a bare token: the server's token alone, for a broker that refuses one just closes."""
        step = self._answers(_BARE)
        return None if step is None else self._judged(step, _Reply(token=body), at)

    def passed(self, at: float) -> ConnectionTransition | None:
        """While ``undecided``: the broker answered a request that is neither SASL's nor ApiVersions."""
        if not self.undecided:
            return None
        attempt = self._attempt or _Attempt()
        return self._believed(attempt, _unknown(attempt.mechanism), at)

    def closed(self, at: float) -> ConnectionTransition | None:
        """The connection ended; a login that was under way has failed."""
        attempt = self._steps[0].attempt if self._steps else self._attempt
        return None if attempt is None or self.undecided else self._failed(attempt, 0, at)

    def _answers(self, api_key: int) -> _Step | None:
        if self._steps:
            return self._steps.pop(0) if self._steps[0].api_key == api_key else None
        self._unread = max(self._unread - 1, 0)
        return None

    def _judged(self, step: _Step, reply: _Reply, at: float) -> ConnectionTransition | None:
        attempt, token = step.attempt, reply.token
        if reply.error_code:
            return self._failed(attempt, reply.error_code, at)
        attempt.lifetime_ms = reply.lifetime_ms
        if attempt.mechanism in _SCRAM and token is not None:
            success = token.startswith(b"v=")
        elif attempt.mechanism in ("PLAIN", "OAUTHBEARER") and token is not None:
            success = not token  # a rejected OAUTHBEARER token is announced in a token first
        else:
            success = False
            self.undecided = not self._steps
        return self._believed(attempt, step.claim, at) if success else None

    def _believed(self, attempt: _Attempt, claim: _Claim | None, at: float) -> ConnectionTransition | None:
        if attempt.ended:
            return None
        self._end(attempt)
        self.login = at, attempt.lifetime_ms / 1000
        principal, source = claim or _unknown(attempt.mechanism)
        named_before = self.connection.principal_source == "sasl"
        if source != "unknown" or not named_before:
            self.connection = replace(
                self.connection, principal=principal, principal_source=source, sasl_mechanism=attempt.mechanism
            )
        if self._on_named is not None and source == "sasl" and not named_before:
            self._on_named(principal)
        return ConnectionTransition(self.connection, "authenticated", at, session_lifetime_ms=attempt.lifetime_ms)

    def _failed(self, attempt: _Attempt, error_code: int, at: float) -> ConnectionTransition | None:
        """The change names who the client said to be; ``connection`` stays what it was."""
        if attempt.ended:
            return None
        self._end(attempt)
        who = replace(
            self.connection,
            principal=(attempt.claim or _unknown(attempt.mechanism)).principal,
            principal_source="unauthenticated",
            sasl_mechanism=attempt.mechanism,
        )
        return ConnectionTransition(who, "authentication_failed", at, error_code=error_code)

    def _end(self, attempt: _Attempt) -> None:
        attempt.ended = True
        self.undecided = False
        if attempt is self._attempt:
            self._attempt = None


# ---- messages ---------------------------------------------------------------------------------------------------


def _software(body: bytes) -> tuple[str, str] | None:
    """Name and version in an ApiVersionsRequest, v3 and later; None where it has none."""
    try:
        name, pos = compact_string(body, 0)
        version, _ = compact_string(body, pos)
    except _UNREADABLE:
        return None
    if not name or not version or max(len(name), len(version)) > MAX_CLIENT_NAME:
        return None
    if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
        return None
    return name.decode(), version.decode()


_kept_software = lru_cache(MAX_KEPT_BODIES)(_software)


def _mechanism(body: bytes | None) -> str | None:
    """Of a SaslHandshakeRequest, v0 or v1."""
    try:
        name, _ = string(body or b"", 0)
    except _UNREADABLE:
        return None
    return name.decode("utf-8", "replace") if name and len(name) <= MAX_CLIENT_NAME else None


def _error_code(body: bytes | None) -> int:
    """Of a SaslHandshakeResponse, v0 or v1; 0 where it cannot be read: what follows will show."""
    try:
        return int(_int16(body or b"", 0)[0])
    except struct.error:
        return 0


def _sent_token(version: int, body: bytes | None) -> bytes | None:
    """Of a SaslAuthenticateRequest, v0 to v2."""
    try:
        return _bytes(version, body or b"", 0)[0]
    except _UNREADABLE:
        return None


def _reply(version: int, body: bytes | None) -> _Reply:
    """A SaslAuthenticateResponse, v0 to v2."""
    buf = body or b""
    try:
        error_code: int = _int16(buf, 0)[0]
        if error_code:
            return _Reply(error_code)
        _, pos = compact_string(buf, 2) if version >= 2 else string(buf, 2)
        token, pos = _bytes(version, buf, pos)
        return _Reply(0, token, max(_int64(buf, pos)[0], 0) if version >= 1 else 0)
    except _UNREADABLE:
        return _Reply()


def _bytes(version: int, buf: bytes, pos: int) -> tuple[bytes | None, int]:
    if not 0 <= version <= 2:
        raise DecodeError(f"version {version}")
    length, pos = compact_length(buf, pos) if version >= 2 else int32_length(buf, pos)
    end = pos + length
    if length < 0 or end > len(buf):
        raise IndexError
    return buf[pos:end], end


# ---- tokens -----------------------------------------------------------------------------------------------------


def _unknown(mechanism: str | None) -> _Claim:
    return _Claim(f"User:<unknown:{mechanism or 'SASL'}>", "unknown")


def _claim(mechanism: str | None, token: bytes | None, sub_claim: str) -> _Claim:
    """Who a client's first token says it is."""
    name = None
    if token is None:
        pass
    elif mechanism == "PLAIN":
        name = _plain(token)
    elif mechanism in _SCRAM:
        return _scram(mechanism, token)
    elif mechanism == "OAUTHBEARER":
        name = _oauth(token, sub_claim)
    return _named(name, mechanism) if name else _unknown(mechanism)


def _named(name: str, mechanism: str | None) -> _Claim:
    return _Claim(f"User:{name}") if len(name) <= MAX_PRINCIPAL else _unknown(mechanism)


def _plain(token: bytes) -> str | None:
    """``authzid NUL authcid NUL password``: the broker lets nobody in whose authzid is another than the authcid."""
    parts = token.split(b"\0", 3)
    return parts[1].decode("utf-8", "replace") if len(parts) == 3 else None


def _scram(mechanism: str, token: bytes) -> _Claim:
    """``n,authzid,n=name,r=nonce,extensions``; with ``tokenauth`` the name is that of a delegation token (KIP-48),
    whose owner only the broker knows."""
    first = _SCRAM_FIRST.fullmatch(token)
    if first is None:
        return _unknown(mechanism)
    extensions = dict(pair.split(b"=", 1) for pair in first["extensions"].split(b",") if pair)
    if extensions.get(b"tokenauth", b"").lower() == b"true":
        return _unknown(f"{mechanism} token")
    return _named(first["name"].decode().replace("=2C", ",").replace("=3D", "="), mechanism)


def _oauth(token: bytes, sub_claim: str) -> str | None:
    """``n,authzid,\\x01auth=Bearer token\\x01\\x01``: the broker compares an authzid, as it is, with the token's name.

    Without one the name is in the token, where that is a signed or an unsecured JWT.
    """
    first = _OAUTH_FIRST.fullmatch(token)
    if first is None:
        return None
    if first["name"]:
        return str(first["name"].decode())
    pairs = dict(pair.split(b"=", 1) for pair in first["pairs"].split(b"\x01") if pair)
    bearer = _BEARER.fullmatch(pairs.get(b"auth", b""))
    parts = bearer["token"].split(b".") if bearer else []
    if len(parts) != 3:  # opaque, or encrypted
        return None
    try:
        claims: Any = msgspec.json.decode(urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    name = claims.get(sub_claim) if isinstance(claims, dict) else None
    if not isinstance(name, str):
        return None
    return name.strip(_JAVA_BLANKS) if parts[2] else name  # signed: as BrokerJwtValidator trims it
