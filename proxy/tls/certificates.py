"""Reads what the sidecar needs of X.509 certificates: serial number, the subject as Java writes it, and the validity.

Source: RFC 5280, section 4.1; X.690 (DER). OpenSSL has checked a client's certificate before it is read here. The
text of a name is that of ``X500Principal.getName()``: RFC 2253 as in ``sun.security.x509.AVA.toRFC2253String``, which
Kafka's ``ssl.principal.mapping.rules`` are applied to.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

SEQUENCE, SET, OID, UTC_TIME, GENERALIZED_TIME, VERSION_TAG = 0x30, 0x31, 0x06, 0x17, 0x18, 0xA0

KEYWORDS = {
    b"\x55\x04\x03": "CN",
    b"\x55\x04\x06": "C",
    b"\x55\x04\x07": "L",
    b"\x55\x04\x08": "ST",
    b"\x55\x04\x09": "STREET",
    b"\x55\x04\x0a": "O",
    b"\x55\x04\x0b": "OU",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x19": "DC",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x01": "UID",
}
"""The types of attributes that RFC 2253 gives a keyword, by the content of their OID."""

CHARSETS = {0x0C: "utf-8", 0x13: "latin-1", 0x14: "latin-1", 0x16: "latin-1", 0x1B: "latin-1", 0x1E: "utf-16-be"}
"""Types of strings whose text is shown, by tag; values of other types are shown as hexadecimal digits."""

ESCAPED = re.compile(r'[,=+<>#;"\\]')
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)


class Certificate(NamedTuple):
    """``serial``: hexadecimal digits, as ``openssl x509 -serial`` prints them. ``subject``: in the format of RFC 2253.
    ``not_before``, ``not_after``: seconds since 1970."""

    serial: str
    subject: str
    not_before: float
    not_after: float


class _Element(NamedTuple):
    """One value of DER. ``content``: its bytes; ``encoded``: these with tag and length."""

    tag: int
    content: bytes
    encoded: bytes


def first_of(pem: str) -> Certificate:
    """Return the first certificate in a PEM text. Raises ValueError."""
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("holds no certificate")
    return decode(b64decode(found[1]))


def decode(der: bytes) -> Certificate:
    """Return what is read of a certificate. Raises ValueError where it is none."""
    try:
        (certificate,) = _elements(der)
        signed, _, _ = _elements(certificate.content)
        fields = [one for one in _elements(signed.content) if one.tag != VERSION_TAG]
        serial, _, _, validity, subject, *_ = fields
        begin, end = (_time(one) for one in _elements(validity.content))
        return Certificate(serial_of(serial.content), name_of(subject.encoded), begin, end)
    except (ValueError, IndexError):
        raise ValueError("is no certificate") from None


def serial_of(content: bytes) -> str:
    """Return the content of a DER integer as pairs of hexadecimal digits, with a sign where it is negative."""
    number = int.from_bytes(content, "big", signed=True)
    digits = f"{abs(number):X}"
    return "-" * (number < 0) + "0" * (len(digits) % 2) + digits


def name_of(der: bytes) -> str:
    """Return a name as text, in the format of RFC 2253. Raises ValueError where it is not DER."""
    (name,) = _elements(der)
    parts = ["+".join(_attribute(one) for one in _elements(part.content)) for part in _elements(name.content)]
    return ",".join(reversed(parts))


def _attribute(encoded: _Element) -> str:
    kind, value = _elements(encoded.content)
    keyword = KEYWORDS.get(kind.content)
    charset = CHARSETS.get(value.tag)
    if keyword is None or charset is None:
        return f"{keyword or _dotted(kind.content)}=#{value.encoded.hex()}"
    text = value.content.decode(charset, "replace")
    text = ESCAPED.sub(r"\\\g<0>", text).replace("\0", r"\00")
    inner = text.strip(" \r")
    begin = text.find(inner)
    end = begin + len(inner)
    return f"{keyword}={_escaped(text[:begin])}{inner}{_escaped(text[end:])}"


def _escaped(blanks: str) -> str:
    return "".join(f"\\{blank}" for blank in blanks)


def _dotted(content: bytes) -> str:
    """Return an object identifier as numbers with dots."""
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _time(element: _Element) -> float:
    text = element.content.decode("ascii")
    if element.tag == UTC_TIME:
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif element.tag != GENERALIZED_TIME:
        raise ValueError("is no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(data: bytes) -> Iterator[_Element]:
    """Give the elements that stand in ``data`` one after the other. Raises ValueError."""
    at = 0
    while at < len(data):
        start, tag = at, data[at]
        length = data[at + 1] if at + 1 < len(data) else 0x80
        at += 2
        if length >= 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("is not DER")
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + length > len(data):
            raise ValueError("is not DER")
        yield _Element(tag, data[at : at + length], data[start : at + length])
        at += length
