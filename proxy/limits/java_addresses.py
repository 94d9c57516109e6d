"""Names of clients as a broker (Java) reads them: which text is an address, and which address of a host counts."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence

from proxy.limits.model import canonical

LONGEST_IPV4 = 15
"""Characters that Java reads as numbers; what is longer is a host name."""


def parse_java_address(name: str) -> str | None:
    """Return the address that ``name`` is, as Java parses it, in its canonical form; None if it is a host name.

    To Java ``[::1]`` is an address, and so are ``010.0.0.7`` and ``10.7``: numbers are decimal, and the last one fills
    the remaining bytes. Measured with Java 17 and 25.
    """
    bracketed = name.startswith("[") and name.endswith("]") and ":" in name
    with contextlib.suppress(ValueError):
        return canonical(name[1:-1] if bracketed else name)
    parts = name.split(".")
    if len(name) > LONGEST_IPV4 or len(parts) > 4 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    *first, last = map(int, parts)
    with contextlib.suppress(ValueError, OverflowError):
        return str(ipaddress.IPv4Address(bytes(first) + last.to_bytes(4 - len(first), "big")))
    return None


def choose_address(addresses: Sequence[str]) -> str:
    """Return the address of a host that Java takes: the first IPv4 address, else the first IPv6 address."""
    return min(addresses, key=lambda address: ":" in address)
