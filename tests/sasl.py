"""Bodies of the messages by which a broker learns who a client is, and tokens inside them, made by hand."""

import hashlib
import hmac
import json
import struct
from base64 import b64decode, b64encode, urlsafe_b64encode
from typing import Any

from tests.tools.messages import uvarint

NONCE = "fyko+d2lbbFgONRv9qkxdawL"


def handshake(mechanism: str) -> bytes:
    """SaslHandshakeRequest, v0 and v1."""
    return _string(mechanism)


def handshake_reply(error_code: int = 0) -> bytes:
    """SaslHandshakeResponse, v0 and v1."""
    return struct.pack(">hi", error_code, 1) + _string("PLAIN")


def authenticate(token: bytes, version: int = 2) -> bytes:
    """SaslAuthenticateRequest, v0 to v2."""
    return _compact(token) + b"\0" if version >= 2 else struct.pack(">i", len(token)) + token


def authenticate_reply(
    token: bytes = b"", version: int = 2, *, error_code: int = 0, message: str | None = None, lifetime_ms: int = 0
) -> bytes:
    """SaslAuthenticateResponse, v0 to v2."""
    body = struct.pack(">h", error_code)
    if version >= 2:
        return body + _compact_string(message) + _compact(token) + struct.pack(">q", lifetime_ms) + b"\0"
    body += _string(message) + struct.pack(">i", len(token)) + token
    return body + struct.pack(">q", lifetime_ms) if version == 1 else body


def software(name: str, version: str) -> bytes:
    """ApiVersionsRequest, v3 and later."""
    return _compact_string(name) + _compact_string(version) + b"\0"


def plain(name: str, password: str = "", authzid: str = "") -> bytes:
    return f"{authzid}\0{name}\0{password}".encode()


def scram(name: str, extensions: str = "", authzid: str = "") -> bytes:
    return f"n,{authzid},n={name},r={NONCE}{extensions}".encode()


def bearer(token: str, authzid: str = "") -> bytes:
    return f"n,{authzid},\x01auth=Bearer {token}\x01\x01".encode()


def jwt(claims: Any, signature: str = "c2lnbmF0dXJl") -> str:
    header = b'{"alg":"none"}' if not signature else b'{"alg":"RS256"}'
    return f"{_segment(header)}.{_segment(json.dumps(claims).encode())}.{signature}"


def _segment(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else struct.pack(">h", len(text.encode())) + text.encode()


def _compact_string(text: str | None) -> bytes:
    return b"\0" if text is None else _compact(text.encode())


def _compact(data: bytes) -> bytes:
    return uvarint(len(data) + 1) + data


class Scram:
    """A client's side of one SCRAM login (RFC 5802)."""

    def __init__(self, mechanism: str, name: str, password: str, extensions: str = "") -> None:
        self._digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self._password = password.encode()
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={NONCE}{extensions}".encode()
        self.first = b"n,," + self._bare

    def final(self, answer: bytes) -> bytes:
        """The second token, from the broker's answer to the first."""
        fields = dict(field.split(b"=", 1) for field in answer.split(b","))
        unsigned = b"c=biws,r=" + fields[b"r"]
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, b64decode(fields[b"s"]), int(fields[b"i"]))
        key = hmac.digest(salted, b"Client Key", self._digest)
        signed = self._bare + b"," + answer + b"," + unsigned
        signature = hmac.digest(hashlib.new(self._digest, key).digest(), signed, self._digest)
        return unsigned + b",p=" + b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
