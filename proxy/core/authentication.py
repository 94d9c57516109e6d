"""Who wrote a record of one of the sidecar's own topics: an HMAC over its key and value, in a header of the record.

Whoever may write a topic may write anything into it, so a topic's ACLs say little where many may write. A key that the
sidecars share shows that one of them has written a record. Two keys make a rotation:
every reader accepts both, and writers change from one to the other in any order.

Header ``brokerside-hmac``: the key's id in UTF-8, a colon, and 32 bytes, HMAC-SHA-256 (RFC 2104) over the topic's
label, the key and the value, each after its length (uint32, big endian; a missing one has the length 2^32 - 1).
"""

from __future__ import annotations

import hmac
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Literal

HEADER = "brokerside-hmac"

MIN_KEY = 32
"""Bytes of the shortest key, as many as a digest has."""

MAX_KEYS = 8
"""Keys that are accepted at a time; a rotation needs two."""

DIGEST = 32

_LINE = re.compile(r"([A-Za-z0-9_.-]{1,64}):(\S+)")

Verdict = Literal["authentic", "unsigned", "unknown_key", "bad_signature"]

_length = struct.Struct(">I").pack
_MISSING = _length(0xFFFF_FFFF)


def read_keys(text: str) -> dict[str, bytes]:
    """Return keys by id: a line ``ID:KEY`` for each. Empty lines and lines with ``#`` are passed over.

    Raises ValueError naming the line, and nothing of a key.
    """
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise ValueError(f"line {number} is not ID:KEY (allowed: an id of A-Z a-z 0-9 _ . -, a key without spaces)")
        if len(found[2].encode()) < MIN_KEY:
            raise ValueError(f"line {number}: the key of {found[1]!r} is too short (allowed: {MIN_KEY} bytes or more)")
        if found[1] in keys:
            raise ValueError(f"line {number}: the id {found[1]!r} is given twice (allowed: once)")
        keys[found[1]] = found[2].encode()
    if not 1 <= len(keys) <= MAX_KEYS:
        raise ValueError(f"holds {len(keys)} keys (allowed: 1–{MAX_KEYS})")
    return keys


class Authenticator:
    """Signs and verifies the records of one topic. ``label``: what the topic holds, so that no record counts elsewhere.

    ``keys``: by id, each of at least ``MIN_KEY`` bytes; the first one signs, all are accepted.
    """

    def __init__(self, label: str, keys: Mapping[str, bytes]) -> None:
        self._label = label.encode()
        self._keys = {name.encode(): key for name, key in keys.items()}
        self._key_id = next(iter(self._keys))

    def header(self, key: bytes | None, value: bytes | None) -> tuple[str, bytes]:
        """Return the header that a record of this key and value needs."""
        return HEADER, self._key_id + b":" + self._digest(self._keys[self._key_id], key, value)

    def verify(
        self, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]] | None
    ) -> Verdict:
        """Return whether one of the keys has signed this record; the last header counts, as in Kafka."""
        signature = None
        for name, content in headers or ():
            if name == HEADER:
                signature = content
        if signature is None:
            return "unsigned"
        key_id, digest = signature[: -DIGEST - 1], signature[-DIGEST:]
        secret = self._keys.get(key_id)
        if secret is None:
            return "unknown_key"
        return "authentic" if hmac.compare_digest(digest, self._digest(secret, key, value)) else "bad_signature"

    def _digest(self, secret: bytes, key: bytes | None, value: bytes | None) -> bytes:
        parts = [self._label, key, value]
        message = b"".join(_MISSING if part is None else _length(len(part)) + part for part in parts)
        return hmac.digest(secret, message, "sha256")
