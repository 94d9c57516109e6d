"""Names and mapped principals of certificates are those of Java and of Kafka's own class."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from proxy.local.broker import broker_jars
from proxy.local.jars import java
from proxy.tls.certificates import name_of
from proxy.tls.principal_mapping import NoMatchingRule, PrincipalMapper

KAFKA = "4.3.1"
SOURCE = Path(__file__).parents[1] / "tools" / "TlsOracle.java"

UTF8, PRINTABLE, IA5, T61, UNIVERSAL, NUMERIC, OCTETS = 0x0C, 0x13, 0x16, 0x14, 0x1C, 0x12, 0x04
TYPES = {
    "CN": "550403", "C": "550406", "L": "550407", "ST": "550408", "STREET": "550409", "O": "55040a", "OU": "55040b",
    "DC": "0992268993f22c640119", "UID": "0992268993f22c640101", "SN": "550404", "serialNumber": "550405",
    "title": "55040c", "emailAddress": "2a864886f70d010901", "dnQualifier": "55042e", "two numbers": "8837",
}  # fmt: skip
TEXTS = [
    "", " ", "  a  ", "\ra\r", "a,b", 'q"q', "a+b=c<d>e;f", "#hash", "a#b", "back\\slash", "nul\0x", "üñí", "日本",
    "😀", "tab\tx", "\nx\n", " lead", "trail ", " \\ ", "=", ",", "a\u00a0", "x" * 300,
]  # fmt: skip

RULES = [
    "DEFAULT", "", "  DEFAULT  ,  RULE:a/b/  ", "DEFAULT,RULE:a/b/", "RULE:a/b/LDEFAULT", "RULE:a/b/X,DEFAULT", "foo",
    "foo,DEFAULT", "DEFAULTx", "RULE:CN=(.*)/$1", "RULE:CN=(.*)/$1/L extra", "RULE:.*/x/", "RULE:^CN=([^,]+).*/$1/U",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,DEFAULT",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT",
    "RULE:CN=(.*),O=(.*)/$2-$1/", "RULE:CN=(.*)/$1@$4/", "RULE:CN=(.*)/$12/", "RULE:CN=(.*)/$0/", "RULE:CN=(.*)/a\\/",
    "RULE:CN=(?<n>.*)/${n}!/", "RULE:CN=(\\w+).*/\\$1\\/x/", "RULE:CN=a,O=b/c/", "RULE:CN\\=(\\Qa.b\\E)/$1/",
    "RULE:CN=(a),O=(b)|CN=(d)/$1$2$3/", "RULE:CN=(.*+)/$1/", "RULE:CN=(\\d+)/$1/", "RULE:(?i)cn=(.*)/$1/L",
    "RULE:CN=(.*)$/$1/", "RULE:^CN=([^,]*)(,.*)?$/$1/, DEFAULT", "RULE:.*CN=([a-z.]*).*/$1/L , RULE:x/y/U",
    "RULE:(CN)=(a)(b)?.*/$3$2$1/", "RULE:(?s)CN=(.*)/$1/", "RULE:CN=(\\x61|\\u0062).*/<$1>/",
    "RULE:CN=([\\w&&a].*)/$1/",
]  # fmt: skip
SUBJECTS = [
    "CN=a", "CN=Duke,OU=ServiceUsers,O=Org,C=DE", "CN=Duke,OU=x,O=Org,L=l,ST=s,C=DE", "", "CN=a,O=b", "CN=42", "CN=a.b",
    "cn=X", "CN=x\n", "CN=a\\,b,O=q", "CN=Üñí", "CN=d", "OU=u,CN=kafka.svc,O=o", "CN=a\r", "CN=ab\u2028",
]  # fmt: skip


def element(tag: int, content: bytes) -> bytes:
    size = len(content)
    return bytes([tag]) + (bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")) + content


def attribute(kind: str, value: bytes, tag: int = UTF8) -> bytes:
    return element(0x30, element(0x06, bytes.fromhex(TYPES[kind])) + element(tag, value))


def name(*parts: list[bytes]) -> bytes:
    return element(0x30, b"".join(element(0x31, b"".join(part)) for part in parts))


def names() -> list[bytes]:
    country = [attribute("C", b"DE", PRINTABLE)]
    return [
        name(),
        *(name(country, [attribute(kind, b"x y")]) for kind in TYPES),
        *(name([attribute("CN", text.encode())]) for text in TEXTS),
        # Of other strings Java 17 reads what is not ASCII as UTF-8; later versions do not.
        *(name([attribute("CN", b"abc", tag)]) for tag in (PRINTABLE, IA5, T61, UNIVERSAL, NUMERIC, OCTETS)),
        name([attribute("CN", b"a"), attribute("OU", b"b")], [attribute("O", b"c", PRINTABLE)]),
    ]


def asked(lines: list[str]) -> list[str]:
    class_path = ":".join(map(str, broker_jars(KAFKA, progress=False)))
    done = subprocess.run(
        [str(java()), "-cp", class_path, str(SOURCE)],
        input="\n".join(lines), capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    return [bytes.fromhex(line).decode() for line in done.stdout.splitlines()]


def mapped(rules: str, subject: str) -> str:
    try:
        return f"={PrincipalMapper(rules).map_name(subject)}"
    except NoMatchingRule:
        return "no rule"
    except ValueError:
        return "refused"


@pytest.mark.promise("tls.md", "Names of certificates, and the principals that rules make of them, are those of Kafka.")
def test_names_and_principals_are_those_of_java_and_kafka() -> None:
    """But for rules that a broker takes and that fail for its clients, or that Python reads otherwise."""
    encoded, cases = names(), [(rules, subject) for rules in RULES for subject in SUBJECTS]
    asking = [f"name {one.hex()}" for one in encoded]
    asking += [f"map {rules.encode().hex()} {subject.encode().hex()}" for rules, subject in cases]
    answers = asked(asking)
    assert [f"={name_of(one)}" for one in encoded] == answers[: len(encoded)]
    compared = 0
    for (rules, subject), answer in zip(cases, answers[len(encoded) :], strict=True):
        ours = mapped(rules, subject)
        if ours != "refused" or answer == "refused":
            assert ours == answer, (rules, subject)
            compared += 1
    assert compared > 0.9 * len(cases)
