"""Which records the sidecars have signed: what is signed as a sidecar signs is accepted, and nothing else."""

from __future__ import annotations

import pytest

from proxy.config.hmac_keys import AUDIT
from proxy.core.authentication import HEADER, Authenticator
from spark_jobs.authentication import SIGNATURE_LABEL, refusal

OLD, NEW = {"old": b"o" * 32}, {"new": b"n" * 100}
"""The second is longer than a block of SHA-256."""

RECORD = (None, b'{"schema_level":1}')
SIGNED = Authenticator(AUDIT, OLD).header(*RECORD)[1]

CASES = [
    (RECORD, [Authenticator(AUDIT, OLD).header(*RECORD)], None),
    (RECORD, [Authenticator(AUDIT, NEW).header(*RECORD)], None),
    (RECORD, [("trace", b"x"), (HEADER, b"forged"), (HEADER, SIGNED), ("span", None)], None),
    ((b"key", b"\0\xff"), [Authenticator(AUDIT, OLD).header(b"key", b"\0\xff")], None),
    ((None, None), [Authenticator(AUDIT, OLD).header(None, None)], None),
    ((b"", b""), [Authenticator(AUDIT, OLD).header(b"", b"")], None), (RECORD, None, "unsigned"),
    (RECORD, [], "unsigned"), (RECORD, [("trace", SIGNED)], "unsigned"), (RECORD, [(HEADER, None)], "unsigned"),
    (RECORD, [(HEADER, SIGNED), (HEADER, None)], "unsigned"), (RECORD, [(HEADER, b"")], "unknown_key"),
    (RECORD, [(HEADER, b"old")], "unknown_key"), (RECORD, [(HEADER, b"old" + bytes(32))], "unknown_key"),
    (RECORD, [Authenticator(AUDIT, {"other": OLD["old"]}).header(*RECORD)], "unknown_key"),
    (RECORD, [(HEADER, b"old:" + bytes(32))], "bad_signature"),
    (RECORD, [(HEADER, b"new:" + SIGNED[-32:])], "bad_signature"),
    (RECORD, [Authenticator("brokerside-registry/1", OLD).header(*RECORD)], "bad_signature"),
    (RECORD, [Authenticator(AUDIT, OLD).header(b"", RECORD[1])], "bad_signature"),
    ((b"key", RECORD[1]), [(HEADER, SIGNED)], "bad_signature"),
    ((None, RECORD[1] + b" "), [(HEADER, SIGNED)], "bad_signature"),
]  # fmt: skip
"""Key and value of a record, its headers, and why it is refused."""


@pytest.mark.promise(
    "audit-delivery.md", "With keys a job accepts exactly the records that a sidecar with these keys has signed."
)
def test_what_the_sidecar_would_accept_is_accepted() -> None:
    assert SIGNATURE_LABEL.decode() == AUDIT
    for record, headers, refused in CASES:
        of_kafka = None if headers is None else [{"key": name, "value": content} for name, content in headers]
        assert refusal(OLD | NEW, *record, of_kafka) == refused, (record, headers)
        verdict = Authenticator(AUDIT, OLD | NEW).verify(*record, headers)
        assert verdict == (refused or "authentic"), (record, headers)
