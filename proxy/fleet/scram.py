"""The client's side of SCRAM (RFC 5802, 7677) as Kafka speaks it: no channel binding, names and passwords as UTF-8."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from proxy.errors import PeerError

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""hashlib's names, by SASL mechanism."""

LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 1_000_000
"""Kafka refuses fewer as too weak; more would be a broker that keeps a core of ours busy."""

NO_BINDING = "n,,"


class Scram:
    """One exchange: ``first``, ``final`` and ``check`` in this order. Raises PeerError for what no server may say."""

    def __init__(self, hash_name: str, user: str, password: str, nonce: str | None = None) -> None:
        """``hash_name``: hashlib's name. ``nonce``: only for tests."""
        self._hash = hash_name
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._expected = b""

    def first_message(self) -> bytes:
        """The client's first message."""
        return (NO_BINDING + self._first).encode()

    def final_message(self, server_first: bytes) -> bytes:
        """The client's proof. Slow, so that passwords are hard to guess: call it in a thread."""
        nonce, salt, iterations = self._challenge(server_first)
        without_proof = f"c={base64.b64encode(NO_BINDING.encode()).decode()},r={nonce}"
        said = b",".join((self._first.encode(), server_first, without_proof.encode()))
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._mac(salted, b"Client Key")
        signature = self._mac(hashlib.new(self._hash, client_key).digest(), said)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._expected = base64.b64encode(self._mac(self._mac(salted, b"Server Key"), said))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify_server(self, server_final: bytes) -> None:
        """Return if the server knows the password too."""
        if not self._expected or not hmac.compare_digest(server_final.split(b",")[0], b"v=" + self._expected):
            raise PeerError("broker", "malformed", "SCRAM: the server does not prove that it knows the password")

    def _challenge(self, server_first: bytes) -> tuple[str, bytes, int]:
        try:
            parts = dict(part.split("=", 1) for part in server_first.decode().split(","))
            nonce, salt, iterations = parts["r"], base64.b64decode(parts["s"], validate=True), int(parts["i"])
        except (ValueError, KeyError, binascii.Error):
            raise PeerError("broker", "malformed", "SCRAM: the server's challenge cannot be read") from None
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise PeerError("broker", "malformed", "SCRAM: the server's challenge is not an answer to ours")
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            allowed = f"{LEAST_ITERATIONS} to {MOST_ITERATIONS}"
            raise PeerError("broker", "malformed", f"SCRAM: {iterations} iterations asked for, allowed are {allowed}")
        return nonce, salt, iterations

    def _mac(self, key: bytes, said: bytes) -> bytes:
        return hmac.digest(key, said, self._hash)
