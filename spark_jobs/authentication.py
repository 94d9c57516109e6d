"""Signatures of records, an HMAC-SHA256 over key and value, in a header: verifies those of sidecars, and signs a job's.

``proxy.core.authentication`` does it for sidecars. Those of the audit are verified by Spark's own functions (RFC 2104,
with ``sha2``), because a Python function would send every record through another process. The keys are joined from a
small table: as literals they would be in query plans, which Spark shows in its event log and its UI.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SIGNATURE_HEADER = "brokerside-hmac"
SIGNATURE_LABEL = b"brokerside-audit/1"
REGISTRY_LABEL, FEATURES_LABEL = b"brokerside-registry/1", b"brokerside-features/1"
"""Contexts that are signed with each record, so that a signature made for another purpose is not valid. The last two
are for the same keys."""

SHA256_BLOCK_BYTES = 64
"""Block size of SHA-256 in bytes; a key is padded to it."""

SHA256_DIGEST_BYTES = 32

REFUSED_COLUMN = "refused"
"""Column with the reason why a record is refused: ``unsigned``, ``unknown_key`` or ``bad_signature``; NULL if one of
the keys has signed the record."""

MISSING = b"\xff\xff\xff\xff"
"""The length of a key or value that is NULL."""

KEY_TABLE_SCHEMA = "key_id binary, inner binary, outer binary"


def authenticate(records: DataFrame, keys: Mapping[str, bytes]) -> DataFrame:
    """Return ``records`` with the column ``REFUSED_COLUMN`` instead of ``key`` and ``headers``.

    ``records``: ``key``, ``value`` and ``headers`` (array of struct<key, value>), as Spark's Kafka source gives them,
    and other columns. ``keys``: signing keys by id.
    """
    others = [name for name in records.columns if name not in ("key", "headers")]
    last = f"try_element_at(filter(headers, header -> header.key = '{SIGNATURE_HEADER}'), -1).value"
    signed = records.withColumn("signature", F.expr(last)).withColumn(
        "signed_by",
        F.expr(f"substring(signature, 1, greatest(octet_length(signature) - {SHA256_DIGEST_BYTES + 1}, 0))"),
    )
    pads = [_key_row(key_id, key) for key_id, key in keys.items()]
    known = F.broadcast(records.sparkSession.createDataFrame(pads, KEY_TABLE_SCHEMA))
    message = (
        f"concat(X'{_with_length(SIGNATURE_LABEL).hex()}', {_length_prefixed('key')}, {_length_prefixed('value')})"
    )
    digest = _sha256(f"concat(outer, {_sha256(f'concat(inner, {message})')})")
    verdict = (
        "CASE WHEN signature IS NULL THEN 'unsigned' WHEN key_id IS NULL THEN 'unknown_key'"
        f" WHEN signature <> concat(key_id, X'{b':'.hex()}', {digest}) THEN 'bad_signature' END"
    )
    checked = signed.join(known, F.expr("key_id = signed_by"), "left")
    return checked.select(*others, F.expr(verdict).alias(REFUSED_COLUMN))


def sign(keys: Mapping[str, bytes], label: bytes, key: bytes, value: bytes) -> bytes:
    """Return the signature of a record by the first of ``keys``, which are given by id."""
    return _signature(next(iter(keys)), keys, label, key, value)


def is_authentic(
    keys: Mapping[str, bytes], label: bytes, key: bytes, value: bytes | None, signature: bytes | None
) -> bool:
    """Return whether ``signature``, the content of the record's last header of that name, is by one of ``keys``."""
    if signature is None:
        return False
    key_id = signature[: -SHA256_DIGEST_BYTES - 1].decode("utf-8", "replace")
    return key_id in keys and hmac.compare_digest(signature, _signature(key_id, keys, label, key, value))


def _signature(key_id: str, keys: Mapping[str, bytes], label: bytes, key: bytes, value: bytes | None) -> bytes:
    parts = (_with_length(label), _with_length(key), MISSING if value is None else _with_length(value))
    return key_id.encode() + b":" + hmac.digest(keys[key_id], b"".join(parts), "sha256")


def _key_row(key_id: str, key: bytes) -> tuple[bytearray, bytearray, bytearray]:
    """Return a row of ``KEY_TABLE_SCHEMA``: the key id, and the padded keys of the inner and outer hash (RFC 2104)."""
    block = (hashlib.sha256(key).digest() if len(key) > SHA256_BLOCK_BYTES else key).ljust(SHA256_BLOCK_BYTES, b"\0")
    inner, outer = (bytearray(byte ^ pad for byte in block) for pad in (0x36, 0x5C))
    return bytearray(key_id.encode()), inner, outer


def _length_prefixed(column: str) -> str:
    """Return SQL of ``column`` with its length in four bytes before it; NULL has the length 2^32 - 1."""
    sized = f"concat(unhex(lpad(hex(octet_length({column})), 8, '0')), {column})"
    return f"CASE WHEN {column} IS NULL THEN X'{MISSING.hex()}' ELSE {sized} END"


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(4) + part


def _sha256(message: str) -> str:
    return f"unhex(sha2({message}, 256))"
