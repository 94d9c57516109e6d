"""Signatures of records, an HMAC-SHA256 over key and value, in a header: verifies those of sidecars, and signs a job's.

``proxy.core.authentication`` does it for sidecars.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping

SIGNATURE_HEADER = "brokerside-hmac"
SIGNATURE_LABEL = b"brokerside-audit/1"
REGISTRY_LABEL, FEATURES_LABEL = b"brokerside-registry/1", b"brokerside-features/1"
"""Contexts that are signed with each record, so that a signature made for another purpose is not valid. The last two
are for the same keys."""

SHA256_DIGEST_BYTES = 32

MISSING = b"\xff\xff\xff\xff"
"""The length of a key or value that is NULL."""


def refusal(
    keys: Mapping[str, bytes], key: bytes | None, value: bytes | None, headers: Iterable[Mapping[str, object]] | None
) -> str | None:
    """Return why an audit record is refused: ``unsigned``, ``unknown_key`` or ``bad_signature``; None if it is not.

    ``keys``: signing keys by id. ``headers``: of the record, each with ``key`` and ``value``; the last one of a name
    counts.
    """
    values = [header["value"] for header in headers or () if header["key"] == SIGNATURE_HEADER]
    signature = values[-1] if values else None
    if not isinstance(signature, bytes):
        return "unsigned"
    if _key_id(signature) not in keys:
        return "unknown_key"
    return None if is_authentic(keys, SIGNATURE_LABEL, key, value, signature) else "bad_signature"


def sign(keys: Mapping[str, bytes], label: bytes, key: bytes, value: bytes) -> bytes:
    """Return the signature of a record by the first of ``keys``, which are given by id."""
    return _signature(next(iter(keys)), keys, label, key, value)


def is_authentic(
    keys: Mapping[str, bytes], label: bytes, key: bytes | None, value: bytes | None, signature: bytes | None
) -> bool:
    """Return whether ``signature``, the content of the record's last header of that name, is by one of ``keys``."""
    if signature is None:
        return False
    key_id = _key_id(signature)
    return key_id in keys and hmac.compare_digest(signature, _signature(key_id, keys, label, key, value))


def _key_id(signature: bytes) -> str:
    return signature[: max(len(signature) - SHA256_DIGEST_BYTES - 1, 0)].decode("utf-8", "replace")


def _signature(key_id: str, keys: Mapping[str, bytes], label: bytes, key: bytes | None, value: bytes | None) -> bytes:
    message = b"".join(map(_with_length, (label, key, value)))
    return key_id.encode() + b":" + hmac.digest(keys[key_id], message, "sha256")


def _with_length(part: bytes | None) -> bytes:
    return MISSING if part is None else len(part).to_bytes(4) + part
