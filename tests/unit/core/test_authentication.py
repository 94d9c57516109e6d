"""Who has signed a record: golden bytes, rotation, and everything that is not signed."""

import hashlib
import hmac

import pytest

from proxy.core.authentication import HEADER, Authenticator, read_keys
from tests.cases import each

OLD, NEW = b"o" * 32, b"n" * 32
LABEL = "brokerside-registry/1"


def test_golden_bytes() -> None:
    """By RFC 2104, over each part after its length."""
    message = b"\0\0\0\x15brokerside-registry/1" + b"\0\0\0\x09sidecar/1" + b"\0\0\0\2{}"
    name, signature = Authenticator(LABEL, {"k1": OLD}).header(b"sidecar/1", b"{}")
    assert name == "brokerside-hmac"
    assert signature == b"k1:" + hmac.new(OLD, message, hashlib.sha256).digest()
    assert signature[3:].hex() == "0a1f85fbe85ba8d99fa33c23bc59bbe99d2dfece06c7dece8878bfd9448d08dc"
    of_another_topic = Authenticator("brokerside-audit/1", {"k1": OLD})
    assert of_another_topic.verify(b"sidecar/1", b"{}", [(name, signature)]) == "bad_signature"


@pytest.mark.promise("security.md", "Keys that sign records are rotated without a record that cannot be verified.")
def test_keys_are_rotated_without_a_gap() -> None:
    old = Authenticator(LABEL, read_keys("old:" + OLD.decode()))
    both = Authenticator(LABEL, read_keys(f"# the first one signs\nnew:{NEW.decode()}\n\nold:{OLD.decode()}\n"))
    new = Authenticator(LABEL, read_keys("new:" + NEW.decode()))
    for writer, reader in ((old, both), (both, both), (both, new)):
        assert reader.verify(b"k", b"v", [writer.header(b"k", b"v")]) == "authentic"
    assert new.verify(b"k", b"v", [old.header(b"k", b"v")]) == "unknown_key"
    assert old.verify(b"k", b"v", [both.header(b"k", b"v")]) == "unknown_key"


@pytest.mark.promise("security.md", "A record whose key or value differs from what was signed is not believed.")
@each(
    ("signed", "read", "verdict"),
    [
        ((b"k", b"v"), (b"k", b"v"), "authentic"),
        ((b"k", b"v"), (b"k", b"w"), "bad_signature"),
        ((b"k", b"v"), (b"l", b"v"), "bad_signature"),
        ((b"k", b"v"), (b"kv", b""), "bad_signature"),
        ((b"k", None), (b"k", None), "authentic"),
        ((b"k", None), (b"k", b""), "bad_signature"),
        ((b"", b"v"), (None, b"v"), "bad_signature"),
    ],
)
def test_a_signature_is_of_one_record(signed, read, verdict: str) -> None:
    one = Authenticator(LABEL, {"k1": OLD})
    assert one.verify(*read, [one.header(*signed)]) == verdict


@each(
    ("headers", "verdict"),
    [
        (None, "unsigned"),
        ([], "unsigned"),
        ([("other", b"x")], "unsigned"),
        ([(HEADER, None)], "unsigned"),
        ([(HEADER, b"")], "unknown_key"),
        ([(HEADER, b"k1:")], "unknown_key"),
        ([(HEADER, b"k1:" + bytes(32))], "bad_signature"),
        ([(HEADER, b"k1" + bytes(32))], "unknown_key"),
        ([(HEADER, b"k2:" + bytes(32))], "unknown_key"),
    ],
)
def test_what_is_not_signed(headers: list[tuple[str, bytes | None]] | None, verdict: str) -> None:
    assert Authenticator(LABEL, {"k1": OLD}).verify(b"k", b"v", headers) == verdict
