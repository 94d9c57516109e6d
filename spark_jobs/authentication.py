"""Who wrote an audit record: an HMAC over its key and value, in a header. ``proxy.core.authentication`` signs so.

Spark's own functions compute it (RFC 2104, by ``sha2``), since a Python function would take every record through
another process. The keys come by a join with a small table: as literals they would be in plans, and plans are in the
event log and the UI of Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SIGNATURE_HEADER = "brokerside-hmac"
SIGNATURE_LABEL = b"brokerside-audit/1"
"""What the records are of: it is signed with each, so that one of another topic does not count here."""

SHA256_BLOCK_BYTES = 64
"""Bytes of a block of SHA-256, to which a key is filled up."""

SHA256_DIGEST_BYTES = 32

REFUSED_COLUMN = "refused"
"""Column: why a record does not count, ``unsigned``, ``unknown_key`` or ``bad_signature``; NULL where one of the keys
has signed it."""

KEY_TABLE_SCHEMA = "key_id binary, inner binary, outer binary"


def authenticate(records: DataFrame, keys: Mapping[str, bytes]) -> DataFrame:
    """Return ``records`` with the column ``REFUSED_COLUMN`` in place of ``key`` and ``headers``.

    ``records``: ``key``, ``value`` and ``headers`` (array of struct<key, value>), as Kafka's source gives them, and
    others. ``keys``: by id; any of them may have signed.
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


def _key_row(key_id: str, key: bytes) -> tuple[bytearray, bytearray, bytearray]:
    """Return a row of ``KEY_TABLE_SCHEMA``: what RFC 2104 puts before the message, and before the inner digest."""
    block = (hashlib.sha256(key).digest() if len(key) > SHA256_BLOCK_BYTES else key).ljust(SHA256_BLOCK_BYTES, b"\0")
    inner, outer = (bytearray(byte ^ pad for byte in block) for pad in (0x36, 0x5C))
    return bytearray(key_id.encode()), inner, outer


def _length_prefixed(column: str) -> str:
    """Return SQL of ``column`` after its length in four bytes; a missing one has the length 2^32 - 1."""
    sized = f"concat(unhex(lpad(hex(octet_length({column})), 8, '0')), {column})"
    return f"CASE WHEN {column} IS NULL THEN X'ffffffff' ELSE {sized} END"


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(4) + part


def _sha256(of: str) -> str:
    return f"unhex(sha2({of}, 256))"
