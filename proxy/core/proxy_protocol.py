"""PROXY headers, with which a load balancer names the client of a connection. Versions 1 (text) and 2 (binary).

Source: haproxy.org, doc/proxy-protocol.txt. Of version 2, what follows the addresses (TLVs) is skipped, its checksum
(PP2_TYPE_CRC32C) too: TCP has its own, and who sends headers is trusted.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address

from msgspec import Struct

from proxy.errors import PeerError
from proxy.limits.model import canonical

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
"""Begins a header of version 2; no request of Kafka's can begin like it (it would be one of 218 MB)."""

LEADING = b"PROXY "
"""Begins a header of version 1."""

MAX_V1 = 107
"""Bytes of the longest line of version 1, its end included, as specified."""

MAX_SIZE = 4096
"""Bytes of a header of version 2. Specified are 64 KiB, but addresses are 36 bytes and what load balancers add (a name,
a virtual network, parts of a certificate) a few hundred; a longer one is refused."""

_FIXED = 16  # bytes of version 2 before the addresses
_PROTOCOLS: dict[bytes, type[IPv4Address | IPv6Address]] = {b"TCP4": IPv4Address, b"TCP6": IPv6Address}
_TEXT_PROTOCOLS = [*_PROTOCOLS, b"UNKNOWN"]
_TEXT_BEGINNINGS = [*_PROTOCOLS, b"UNKNOWN\r"]  # the last one may end there
_PORT = re.compile(rb"0|[1-9][0-9]{0,4}")
_LOCAL, _PROXY = 0x20, 0x21  # version and command
_TCP4, _TCP6 = 0x11, 0x21  # family and transport
_FAMILIES, _TRANSPORTS = 4, 3  # how many are assigned: unspecified, INET, INET6, UNIX; unspecified, stream, datagram


class Header(Struct, frozen=True):
    """A complete header of ``size`` bytes. ``address``: the client's host (canonical) and port.

    None where there is none: the load balancer's own connections (health checks), or other kinds of sockets.
    """

    size: int
    address: tuple[str, int] | None


def parse(data: bytes) -> Header | None:
    """Return the header that ``data`` begins with; None while it may still become one.

    Raises PeerError of the client, ``invalid_proxy_header``, as soon as it cannot.
    """
    if data.startswith(LEADING):
        return _text(data)
    if data.startswith(SIGNATURE):
        return _binary(data)
    if LEADING.startswith(data) or SIGNATURE.startswith(data):
        return None
    raise _invalid(f"it begins with {data[: len(SIGNATURE)]!r}")


def _text(data: bytes) -> Header | None:
    line, end, _ = data[:MAX_V1].partition(b"\r\n")
    protocol, space, rest = line[len(LEADING) :].partition(b" ")
    if not end:
        known = protocol in _TEXT_PROTOCOLS if space else any(name.startswith(protocol) for name in _TEXT_BEGINNINGS)
        if not known:
            raise _invalid(f"protocol {protocol!r}; allowed: TCP4, TCP6, UNKNOWN")
        if len(line) >= MAX_V1:
            raise _invalid(f"no end of line in {MAX_V1} bytes")
        return None
    size = len(line) + len(end)
    if protocol == b"UNKNOWN":
        return Header(size, None)
    kind = _PROTOCOLS.get(protocol)
    match rest.split(b" "):
        case [source, target, source_port, target_port] if kind is not None:
            _host(kind, target)
            _port(target_port)
            return Header(size, (_host(kind, source), _port(source_port)))
    raise _invalid(f"{line!r} is not PROXY TCP4 or TCP6 with two addresses and two ports")


def _host(kind: type[IPv4Address | IPv6Address], text: bytes) -> str:
    try:
        if b"%" in text:  # a zone means nothing on another host
            raise ValueError
        return canonical(str(kind(text.decode("ascii"))))
    except ValueError:  # UnicodeDecodeError is one
        raise _invalid(f"{text!r} is no address of the protocol") from None


def _port(text: bytes) -> int:
    if not _PORT.fullmatch(text) or int(text) > 65_535:
        raise _invalid(f"port {text!r}; allowed: 0–65535")
    return int(text)


def _binary(data: bytes) -> Header | None:
    at = len(SIGNATURE)
    if len(data) > at and data[at] not in (_LOCAL, _PROXY):
        raise _invalid(f"version and command {data[at]:#04x}; allowed: 0x20, 0x21")
    proxied = len(data) > at + 1 and data[at] == _PROXY
    if proxied and (data[at + 1] >> 4 >= _FAMILIES or data[at + 1] & 0xF >= _TRANSPORTS):
        raise _invalid(f"family and transport {data[at + 1]:#04x}")
    if len(data) < _FIXED:
        return None
    size = _FIXED + int.from_bytes(data[at + 2 : _FIXED], "big")
    host = {_TCP4: 4, _TCP6: 16}.get(data[at + 1], 0) if proxied else 0  # bytes of one address
    if size > MAX_SIZE:
        raise _invalid(f"{size} bytes; allowed: up to {MAX_SIZE}")
    if host and size < _FIXED + 2 * (host + 2):
        raise _invalid(f"{size} bytes are too few for its addresses")
    if len(data) < size:
        return None
    if not host:
        return Header(size, None)
    address = data[_FIXED : _FIXED + host]
    port = int.from_bytes(data[_FIXED + 2 * host :][:2], "big")
    return Header(size, (canonical(str(IPv4Address(address) if host == 4 else IPv6Address(address))), port))


def _invalid(detail: str) -> PeerError:
    return PeerError("client", "invalid_proxy_header", detail)
