"""Types of values of a configuration: addresses, secrets, and texts of files."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from proxy.limits.model import canonical

INT32_MAX = 2_147_483_647

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_PORT = re.compile(r"[0-9]{1,5}")
_NUMERIC = re.compile(r"[0-9.]+")

MAX_PORT = 65_535
MAX_LABEL = 63
"""Longest part between two dots of a host name (RFC 1035)."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A TCP address: a host name, IPv4 or IPv6 address (here without brackets), and a port from 1 to 65535."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: object) -> Endpoint:
        """Read ``host:port`` or ``[ipv6]:port``. Raises ValueError."""
        if isinstance(text, str):
            host, colon, port = text.rpartition(":")
            if host.startswith("[") and host.endswith("]"):
                host = host[1:-1]
                known = _is_ipv6(host)
            elif _NUMERIC.fullmatch(host):
                known = _is_ipv4(host)
            else:
                known = _HOST.fullmatch(host) is not None and all(
                    1 <= len(label) <= MAX_LABEL for label in host.removesuffix(".").split(".")
                )
            if colon and known and _PORT.fullmatch(port) and 1 <= int(port) <= MAX_PORT:
                return cls(host, int(port))
        raise ValueError("is not host:port")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Secret:
    """A text that shows itself as ``***`` wherever it is printed, logged or serialised."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


FileState = tuple[int, int, int] | None
"""What changes when a file is written or replaced: time of its change in ns, size, inode. None: there is none."""


class FileText(Secret):
    """The text of a file that the configuration names. It shows itself as that name.

    ``path``: where it was read; ``state``: of the file then.
    """

    __slots__ = ("name", "path", "state")

    def __init__(self, text: str, name: str, path: str = "", state: FileState = None) -> None:
        super().__init__(text)
        self.name = name
        self.path = path
        self.state = state

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, FileText) and self.name == other.name

    def __hash__(self) -> int:
        return super().__hash__()


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def address(value: object) -> str:
    """Return an IP address in its canonical form. Raises ValueError for a host name."""
    if not isinstance(value, str):
        raise ValueError("is not text")
    try:
        return canonical(value)
    except ValueError:
        raise ValueError("is not an IP address") from None


def network(value: object) -> str:
    """Return an IP network as ``address/prefix``; an address alone is a network of one. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("is not text")
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as error:
        raise ValueError("has bits set behind its prefix" if "host bits" in str(error) else "is no network") from None
