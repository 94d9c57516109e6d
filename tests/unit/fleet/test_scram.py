"""The examples of RFC 5802 (section 5) and RFC 7677 (section 3), and servers that lie."""

from __future__ import annotations

import pytest

from proxy.errors import PeerError
from proxy.fleet.scram import Scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_rfc_7677() -> None:
    scram = Scram("sha256", "user", "pencil", NONCE)
    assert scram.first_message() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.final_message(FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    scram.verify_server(LAST)


def test_rfc_5802() -> None:
    scram = Scram("sha1", "user", "pencil", "fyko+d2lbbFgONRv9qkxdawL")
    assert scram.final_message(b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096") == (
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    )
    scram.verify_server(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")


def test_a_name_may_hold_what_separates() -> None:
    assert Scram("sha256", "a=b,c", "x", "n").first_message() == b"n,,n=a=3Db=2Cc,r=n"


def test_a_challenge_no_server_may_send() -> None:
    for challenge, said in [
        (FIRST.replace(b"rOpr", b"xOpr"), "not an answer to ours"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=AA==,i=4096", "not an answer to ours"),
        (FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (FIRST.replace(b"i=4096", b"i=2147483647"), "2147483647 iterations"),
        (FIRST.replace(b"i=4096", b"i=x"), "cannot be read"),
        (FIRST.replace(b"s=W", b"s=*"), "cannot be read"),
        (b"e=unknown-user", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"", "cannot be read"),
    ]:
        with pytest.raises(PeerError, match=said):
            Scram("sha256", "user", "pencil", NONCE).final_message(challenge)


@pytest.mark.promise("security.md", "The sidecar refuses a broker that does not prove to know its SCRAM password.")
def test_a_server_that_does_not_know_the_password() -> None:
    for last in [LAST.replace(b"6rri", b"7rri"), b"e=invalid-proof", b"v=", b""]:
        scram = Scram("sha256", "user", "pencil", NONCE)
        scram.final_message(FIRST)
        with pytest.raises(PeerError, match="does not prove"):
            scram.verify_server(last)
